//! What goes into the scripts and comes out, as the headers of `lua/acquire.lua` and `lua/inspect.lua` say.

use ::redis::Value;

use crate::gate::keys::Place;
use crate::gate::{
    Answer, Change, End, GateError, Inspection, Settled, TenantAsk, TenantReply, Ticket, Usage,
};
use crate::rules::limit::Limit;
use crate::rules::quota::Quotas;

/// The limits as `lua/limits.lua` reads them.
pub fn limit_arguments(limits: &[Limit], places: &[Place]) -> Vec<String> {
    let mut arguments = vec![limits.len().to_string()];
    for (limit, place) in limits.iter().zip(places) {
        arguments.extend([
            limit.name().to_owned(),
            limit.algorithm().name().to_owned(),
            limit.max().to_string(),
            limit.span().to_string(),
            limit.margin().to_string(),
            limit.burst().to_string(),
            limit.unit().name().to_owned(),
            place.first.to_string(),
            place.index.to_string(),
        ]);
    }
    arguments
}

/// The budget, the permits' name, then generation, place and cost of each job.
pub fn acquire_arguments(ask: &TenantAsk) -> Vec<String> {
    let mut arguments = Vec::with_capacity(2 + 3 * ask.asks.len());
    arguments.push(ask.budget.to_string());
    arguments.push(ask.permits.clone());
    for ask in &ask.asks {
        let (generation, place) = ask.ticket.map_or((0, 0), |t| (t.generation, t.place));
        arguments.push(generation.to_string());
        arguments.push(place.to_string());
        arguments.push(ask.cost.to_string());
    }
    arguments
}

/// Five for each of `settled`.
pub fn settle_arguments(settled: &[Settled]) -> Vec<String> {
    let mut arguments = Vec::with_capacity(5 * settled.len());
    for Settled { receipt, end } in settled {
        arguments.extend([
            receipt.permit.clone(),
            receipt.started_ms.to_string(),
            receipt.sequence.to_string(),
            receipt.cost.to_string(),
            match end {
                End::Cost(used) => used.to_string(),
                End::Unused => "none".to_owned(),
                End::Running => "renew".to_owned(),
            },
        ]);
    }
    arguments
}

/// What `change` is told.
pub fn change_arguments(change: &Change) -> [String; 4] {
    let (what, duration, name, max) = match change {
        Change::Pause { duration_ms } => ("pause", *duration_ms, "", 0),
        Change::Resume => ("resume", 0, "", 0),
        Change::Limit {
            name,
            max,
            duration_ms,
        } => ("limit", *duration_ms, name.as_str(), *max),
        Change::Unlimit { name } => ("unlimit", 0, name.as_str(), 0),
        Change::Reset => ("reset", 0, "", 0),
    };
    [
        what.to_owned(),
        duration.to_string(),
        name.to_owned(),
        max.to_string(),
    ]
}

/// What the replies of `acquire` and `inspect` begin with: whether it was decided, and the store's clock.
pub fn head(reply: &Value) -> Option<(bool, u64)> {
    let Value::Array(values) = reply else {
        return None;
    };
    // `inspect` begins with a text.
    let mut numbers = values.iter().skip_while(|v| !matches!(v, Value::Int(_)));
    let decided = number(numbers.next()?)?;
    Some((decided == 1, number(numbers.next()?)?))
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
        let (chunks, []) = rest.as_chunks::<6>() else {
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

fn answer(&[decision, limit, count, ttl_ms, generation, place]: &[u64; 6]) -> Option<Answer> {
    match decision {
        0 => Some(Answer::Wait {
            limit: usize::try_from(limit).ok()?,
            count,
            ttl_ms,
            ticket: Ticket { generation, place },
        }),
        1 => Some(Answer::Start {
            count,
            sequence: place,
        }),
        2 => Some(Answer::Capacity { count }),
        _ => None,
    }
}

/// The reply of `inspect` for so many limits.
pub fn inspected(reply: &Value, limits: usize) -> Result<Inspection, GateError> {
    let decode = || {
        let Value::Array(values) = reply else {
            return None;
        };
        let (by, numbers) = values.split_first()?;
        let (quotas, numbers) = numbers.split_last()?;
        let (quotas, quotas_at_ms) =
            quotas_at(&::redis::from_redis_value_ref::<String>(quotas).ok()?)?;
        let numbers: Vec<u64> = numbers.iter().map(number).collect::<Option<_>>()?;
        let [1, now_ms, waiting, line_end_ms, blocked_until_ms, rest @ ..] = numbers.as_slice()
        else {
            return None;
        };
        let (chunks, []) = rest.as_chunks::<5>() else {
            return None;
        };
        let usage: Vec<Usage> = chunks.iter().map(usage).collect::<Option<_>>()?;
        (usage.len() == limits).then_some(Inspection {
            now_ms: *now_ms,
            limits: usage,
            waiting: *waiting,
            line_end_ms: *line_end_ms,
            blocked_until_ms: *blocked_until_ms,
            blocked_by: ::redis::from_redis_value_ref(by).ok()?,
            quotas,
            quotas_at_ms,
        })
    };
    decode().ok_or_else(|| unreadable("inspect"))
}

fn usage(&[max, override_until_ms, count, free, next_ms]: &[u64; 5]) -> Option<Usage> {
    Some(Usage {
        max: u32::try_from(max).ok()?,
        override_until_ms,
        count,
        free,
        next_ms,
    })
}

/// `LIMIT/WINDOW_S,…@AT`, as `lua/line.lua` has it; empty: nothing was said.
fn quotas_at(text: &str) -> Option<(Quotas, u64)> {
    if text.is_empty() {
        return Some((Quotas::default(), 0));
    }
    let (quotas, at) = text.split_once('@')?;
    Some((Quotas::read(quotas), at.parse().ok()?))
}

/// The reply of `change`.
pub fn changed(reply: &Value) -> Result<u64, GateError> {
    number(reply).ok_or_else(|| unreadable("change"))
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
