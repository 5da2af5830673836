//! What goes into the scripts and comes out, as the headers of `lua/acquire.lua` and `lua/inspect.lua` say.

use ::redis::Value;

use crate::gate::{Answer, GateError, Inspection, TenantAsk, TenantReply, Ticket};

/// The arguments before those of [`acquire_arguments`]: clock, max, window, guard, index.
pub const FIXED_ARGUMENTS: usize = 5;

/// The budget, then generation, place and cost of each job.
pub fn acquire_arguments(ask: &TenantAsk) -> Vec<String> {
    let mut arguments = Vec::with_capacity(1 + 3 * ask.asks.len());
    arguments.push(ask.budget.to_string());
    for ask in &ask.asks {
        let (generation, place) = ask.ticket.map_or((0, 0), |t| (t.generation, t.place));
        arguments.push(generation.to_string());
        arguments.push(place.to_string());
        arguments.push(ask.cost.to_string());
    }
    arguments
}

/// The store's clock, which stands second in the replies of `acquire` and `inspect`.
pub fn clock(reply: &Value) -> Option<u64> {
    match reply {
        Value::Array(values) => values.get(1).and_then(number),
        _ => None,
    }
}

/// The script's window is not among the keys it got; it changed nothing.
pub fn outside(reply: &Value) -> bool {
    matches!(reply, Value::Array(values) if values.first() == Some(&Value::Int(0)))
}

/// The reply of `acquire` for `jobs` jobs.
pub fn acquired(reply: &Value, jobs: usize) -> Result<TenantReply, GateError> {
    let decode = || {
        let Value::Array(values) = reply else {
            return None;
        };
        let numbers: Vec<u64> = values.iter().map(number).collect::<Option<_>>()?;
        let [1, now_ms, blocked_until_ms, rest @ ..] = numbers.as_slice() else {
            return None;
        };
        let (chunks, []) = rest.as_chunks::<5>() else {
            return None;
        };
        let answers: Vec<Answer> = chunks.iter().map(answer).collect::<Option<_>>()?;
        (answers.len() == jobs).then_some(TenantReply {
            now_ms: *now_ms,
            blocked_until_ms: *blocked_until_ms,
            answers,
        })
    };
    decode().ok_or_else(|| unreadable("acquire"))
}

fn answer(&[decision, count, ttl_ms, generation, place]: &[u64; 5]) -> Option<Answer> {
    match decision {
        0 => Some(Answer::Wait {
            count,
            ttl_ms,
            ticket: Ticket { generation, place },
        }),
        1 => Some(Answer::Start { count }),
        2 => Some(Answer::Capacity { count }),
        _ => None,
    }
}

/// The reply of `inspect`, the only one of `replies`.
pub fn inspected(replies: &[Value]) -> Result<Inspection, GateError> {
    let decode = || {
        let [Value::Array(values)] = replies else {
            return None;
        };
        let (by, numbers) = values.split_last()?;
        let numbers: Vec<u64> = numbers.iter().map(number).collect::<Option<_>>()?;
        let [
            1,
            now_ms,
            count,
            free,
            next_ms,
            waiting,
            line_end_ms,
            blocked_until_ms,
        ] = numbers[..]
        else {
            return None;
        };
        Some(Inspection {
            now_ms,
            count,
            free,
            next_ms,
            waiting,
            line_end_ms,
            blocked_until_ms,
            blocked_by: ::redis::from_redis_value_ref(by).ok()?,
        })
    };
    decode().ok_or_else(|| unreadable("inspect"))
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

fn unreadable(script: &str) -> GateError {
    GateError::Refused(format!(
        "the reply of {script} is not what its header says; is a proxy between this worker and Redis?"
    ))
}
