//! Arguments and replies of the scripts, as documented in the headers of `lua/acquire.lua`,
//! `lua/inspect.lua` and `lua/forecast.lua`.

mod forecast;
mod inspection;
mod learned;

use ::redis::Value;

pub use self::forecast::{forecast_arguments, forecasted};
pub use self::inspection::inspected;
pub use self::learned::{learn_arguments, learned};
use crate::keys::CallKeys;
use crate::{
    Answer, BreakerEvent, Candidate, Change, DedupeAnswer, End, GateError, LEASE_MS, Note, Rule,
    Sequences, Standing, StartSettlement, SuspectDecision, SuspectNote, TenantAsk, TenantReply,
    Ticket,
};
use rules::calendar::Boundaries;
use rules::decision::{Question, Tally};
use rules::failures::crash;
use rules::gate::shadow::REPEATED_FLAG;
use rules::layout::{Layout, Partition};
use rules::learned::NEVER;
use rules::limit::{Limit, Unit};

/// Approximate size of a limit in a command, in bytes.
pub const LIMIT_BYTES: usize = 104;

/// Packs the limits for `lua/limits.lua`: big-endian numbers and zero-terminated texts.
pub fn limits_argument(limits: &[Limit], layout: &Layout, keys: &CallKeys) -> Vec<u8> {
    let mut packed = Vec::with_capacity(LIMIT_BYTES * limits.len());
    for ((limit, keys), partition) in limits.iter().zip(&keys.limits).zip(&layout.partitions) {
        let begin = packed.len();
        packed.extend([0; 2]);
        packed.push(u8::from(limit.unit() == Unit::Calls) + 2 * u8::from(limit.is_shadow()));
        packed.extend(limit.max().to_be_bytes());
        packed.extend(limit.span().to_be_bytes());
        packed.extend(limit.margin().to_be_bytes());
        packed.extend((keys.first as u64).to_be_bytes());
        packed.extend(keys.index.to_be_bytes());
        packed.extend(limit.window_ms().to_be_bytes());
        packed.extend(limit.spacing_us().to_be_bytes());
        packed.extend(limit.burst().to_be_bytes());
        packed.extend(limit.floor().unwrap_or(NEVER).to_be_bytes());
        packed.push(match partition.checked_sub(1 + layout.shared.len()) {
            Some(beside) => BESIDE + byte(beside),
            None => byte(*partition),
        });
        let windows = keys.boundaries.map(boundaries_text).unwrap_or_default();
        for text in [limit.name(), limit.algorithm().name(), &windows] {
            packed.extend(text.as_bytes());
            packed.push(0);
        }
        let size = u16::try_from(packed.len() - begin).expect("names and calendars are short");
        packed[begin..begin + 2].copy_from_slice(&size.to_be_bytes());
    }
    packed
}

/// Returns the boundaries of a calendar's windows for `lua/calendar_window.lua`.
fn boundaries_text(boundaries: Boundaries) -> String {
    let Boundaries {
        starts,
        mean_ms,
        slack_ms,
    } = boundaries;
    let lengths = starts.windows(2).map(|pair| pair[1] - pair[0]);
    let numbers = [mean_ms, slack_ms, starts[0]].into_iter().chain(lengths);
    let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
    numbers.join(",")
}

/// Packs the shared partitions for `lua/shared_partitions.lua`, or returns `None` if there are
/// none.
pub fn shared_argument(layout: &Layout, keys: &CallKeys) -> Option<Vec<u8>> {
    if layout.shared.is_empty() {
        return None;
    }
    let mut packed = vec![byte(layout.control)];
    for (shared, first) in layout.shared.iter().zip(&keys.shared) {
        packed.push(byte(shared.below));
        packed.push(u8::from(shared.partition == Partition::Global));
        packed.extend((*first as u64).to_be_bytes());
        packed.extend(shared.flow.as_bytes());
        packed.push(0);
    }
    Some(packed)
}

/// Packs the last argument, which `lua/shadows.lua` reads, or returns `None` if there are no
/// shadows.
pub fn shadows_argument(layout: &Layout, keys: &CallKeys) -> Option<Vec<u8>> {
    let first = keys.shadows.first()?;
    let mut packed = (*first as u64).to_be_bytes().to_vec();
    packed.push(byte(layout.shadow_partitions.len()));
    Some(packed)
}

/// The number of the first partition beside the tenant's own in the scripts. The shared partitions
/// have lower numbers.
const BESIDE: u8 = 128;

/// Encodes a partition's number; there are only a few.
fn byte(partition: usize) -> u8 {
    u8::try_from(partition).unwrap_or(u8::MAX)
}

/// Packs the budget, the permits' name, and each job's ticket (generation and number) and cost, or
/// the number of jobs if all are new and cost 1. If there are shadows, [`REPEATED_FLAG`] is set in
/// the cost of a job that starts again.
pub fn acquire_arguments(ask: &TenantAsk) -> Vec<Vec<u8>> {
    let has_shadows = !ask.limits.shadows().is_empty();
    let packed = |one: &Question| {
        let (generation, number) = one.ticket.map_or((0, 0), |t| (t.generation, t.number));
        let cost = match (has_shadows, one.readmitted) {
            (false, _) => one.cost,
            (true, false) => one.cost.min(REPEATED_FLAG - 1),
            (true, true) => one.cost.min(REPEATED_FLAG - 1) | REPEATED_FLAG,
        };
        [generation, number, cost]
    };
    let jobs = match ask.asks.iter().all(|one| packed(one) == [0, 0, 1]) {
        true => ask.asks.len().to_string().into_bytes(),
        false => {
            let numbers = ask.asks.iter().flat_map(packed);
            numbers.flat_map(u64::to_be_bytes).collect()
        }
    };
    let budget = ask.budget.to_string().into_bytes();
    vec![budget, ask.permits.clone().into_bytes(), jobs]
}

/// Returns five arguments for each of `settled`.
pub fn settle_arguments(settled: &[StartSettlement]) -> Vec<Vec<u8>> {
    let mut arguments = Vec::with_capacity(5 * settled.len());
    for StartSettlement { receipt, end } in settled {
        let fields = [
            receipt.permit.clone(),
            receipt.started_ms.to_string(),
            receipt.sequences.to_string(),
            receipt.cost.to_string(),
            match end {
                End::Cost(used) => used.to_string(),
                End::Unused => "none".to_owned(),
                End::Running => format!("held:{LEASE_MS}"),
                End::Abandoned { for_ms } => format!("held:{for_ms}"),
                End::Late => "late".to_owned(),
            },
        ];
        arguments.extend(fields.map(String::into_bytes));
    }
    arguments
}

/// Returns the arguments of `change`.
pub fn change_arguments(change: &Change) -> Vec<Vec<u8>> {
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
    let arguments = [
        what.to_owned(),
        duration.to_string(),
        name.to_owned(),
        max.to_string(),
    ];
    arguments.map(String::into_bytes).to_vec()
}

/// Returns the arguments of `report`.
pub fn report_arguments(rule: &Rule, event: &BreakerEvent) -> Vec<Vec<u8>> {
    let (what, started_ms, of, reason, jitter) = match event {
        BreakerEvent::Failed {
            started_ms,
            of,
            reason,
            jitter,
        } => ("failed", *started_ms, of.as_str(), reason.as_str(), *jitter),
        BreakerEvent::Succeeded => ("sound", 0, "", "", 0),
        BreakerEvent::Probe => ("probe", 0, "", "", 0),
        BreakerEvent::Release { started_ms } => ("release", *started_ms, "", "", 0),
        BreakerEvent::Read => ("look", 0, "", "", 0),
    };
    let arguments = [
        what.to_owned(),
        rule.failures.to_string(),
        rule.first_wait_ms.to_string(),
        rule.longest_wait_ms.to_string(),
        rule.lease_ms.to_string(),
        started_ms.to_string(),
        of.to_owned(),
        reason.to_owned(),
        jitter.to_string(),
    ];
    arguments.map(String::into_bytes).to_vec()
}

/// Parses the reply of `report`.
pub fn reported(reply: &Value) -> Result<Standing, GateError> {
    let decode = || {
        let Value::Array(values) = reply else {
            return None;
        };
        let (reason, numbers) = values.split_last()?;
        let numbers: Vec<u64> = numbers.iter().map(number).collect::<Option<_>>()?;
        let &[
            1,
            now_ms,
            failures,
            is_open,
            has_changed,
            is_granted,
            closed_until_ms,
            named_until_ms,
        ] = numbers.as_slice()
        else {
            return None;
        };
        Some(Standing {
            now_ms,
            failures,
            is_open: is_open == 1,
            has_changed: has_changed == 1,
            is_granted: is_granted == 1,
            closed_until_ms,
            named_until_ms,
            reason: ::redis::from_redis_value_ref(reason).ok()?,
        })
    };
    decode().ok_or_else(|| unreadable("report"))
}

/// Returns the arguments of `crash`.
pub fn crash_arguments(suspected: &SuspectNote) -> Vec<Vec<u8>> {
    let (what, max) = match suspected.note {
        Note::Begin { max, alone: false } => ("begin", max),
        Note::Begin { max, alone: true } => ("alone", max),
        Note::Renew => ("renew", 0),
        Note::End { answered: false } => ("end", 0),
        Note::End { answered: true } => ("answered", 0),
    };
    let arguments = [
        what.to_owned(),
        suspected.owner.clone(),
        max.to_string(),
        crash::NOTE_LEASE_MS.to_string(),
        crash::KEEP_MS.to_string(),
    ];
    arguments.map(String::into_bytes).to_vec()
}

/// Parses the reply of `crash`.
pub fn suspected(reply: &Value) -> Result<SuspectDecision, GateError> {
    let decode = || {
        let numbers = numbers(reply)?;
        let &[1, _, verdict, more] = numbers.as_slice() else {
            return None;
        };
        let crashes = u32::try_from(more);
        match verdict {
            0 => Some(SuspectDecision::Wait { ms: more }),
            1 => Some(SuspectDecision::Proceed),
            2 => crashes
                .ok()
                .map(|crashes| SuspectDecision::Dead { crashes }),
            3 => crashes
                .ok()
                .map(|crashes| SuspectDecision::RunAlone { crashes }),
            _ => None,
        }
    };
    decode().ok_or_else(|| unreadable("crash"))
}

/// Returns the arguments of `dedupe`.
pub fn dedupe_arguments(candidate: &Candidate) -> Vec<Vec<u8>> {
    let arguments = [
        candidate.owner.clone(),
        candidate.job.clone(),
        u8::from(candidate.seen_before).to_string(),
        candidate.lasts_ms.to_string(),
    ];
    arguments.map(String::into_bytes).to_vec()
}

/// Parses the reply of `dedupe`.
pub fn deduped(reply: &Value) -> Result<DedupeAnswer, GateError> {
    let decode = || {
        let numbers = numbers(reply)?;
        match *numbers.as_slice() {
            [1, _, 1, _] => Some(DedupeAnswer::First),
            [1, _, 0, left_ms] => Some(DedupeAnswer::Duplicate { left_ms }),
            _ => None,
        }
    };
    decode().ok_or_else(|| unreadable("dedupe"))
}

/// Parses the head of a reply of `acquire` or `inspect`: whether jobs were decided, and the store's
/// clock in milliseconds.
pub fn head(reply: &Value) -> Option<(bool, u64)> {
    if let Some((now_ms, _)) = started(reply) {
        return Some((true, now_ms));
    }
    let Value::Array(values) = reply else {
        return None;
    };
    // The reply of `inspect` begins with a text.
    let mut numbers = values.iter().skip_while(|v| !matches!(v, Value::Int(_)));
    let decided = number(numbers.next()?)?;
    Some((decided > 0, number(numbers.next()?)?))
}

/// Parses the reply of `acquire` for `jobs` jobs and `shadows` shadow limits.
pub fn acquired(reply: &Value, jobs: usize, shadows: usize) -> Result<TenantReply, GateError> {
    let decode = || {
        if let Some((now_ms, first)) = started(reply) {
            return all_start(now_ms, first, jobs);
        }
        let Value::Array(values) = reply else {
            return None;
        };
        let [decided, now, blocked_until, rest @ ..] = values.as_slice() else {
            return None;
        };
        let (rest, tallies) = rest.split_at_checked(rest.len().checked_sub(4 * shadows)?)?;
        let (decided @ 1..=2, chunks, []) = (
            number(decided)?,
            rest.as_chunks::<6>().0,
            rest.as_chunks::<6>().1,
        ) else {
            return None;
        };
        let answers: Vec<Answer> = chunks.iter().map(answer).collect::<Option<_>>()?;
        let tallies = tallies.as_chunks::<4>().0.iter();
        (answers.len() == jobs).then_some(TenantReply {
            now_ms: number(now)?,
            blocked_until_ms: number(blocked_until)?,
            has_failures: decided == 2,
            answers,
            shadows: tallies.map(tally_of).collect::<Option<_>>()?,
        })
    };
    decode().ok_or_else(|| unreadable("acquire"))
}

/// Parses the reply of `shortcut`: the store's clock and the first job's number.
fn started(reply: &Value) -> Option<(u64, u64)> {
    let Value::BulkString(packed) = reply else {
        return None;
    };
    let (numbers @ [_, _], []) = packed.as_chunks::<6>() else {
        return None;
    };
    let number = |bytes: &[u8; 6]| {
        bytes
            .iter()
            .fold(0, |all, byte| all << 8 | u64::from(*byte))
    };
    Some((number(&numbers[0]), number(&numbers[1])))
}

/// Admits all `jobs` with numbers from `first` on, or without numbers if `first` is 0.
fn all_start(now_ms: u64, first: u64, jobs: usize) -> Option<TenantReply> {
    let count = u64::try_from(jobs).ok()?;
    let answers = (0..count).map(|job| {
        let number = if first > 0 {
            first.checked_add(job)?
        } else {
            0
        };
        let sequences = Sequences::with_waitlist_sequence(number);
        Some(Answer::Start { sequences })
    });
    Some(TenantReply {
        now_ms,
        blocked_until_ms: 0,
        has_failures: false,
        answers: answers.collect::<Option<_>>()?,
        shadows: Vec::new(),
    })
}

fn tally_of([starts, waited, never, worst_ms]: &[Value; 4]) -> Option<Tally> {
    Some(Tally {
        starts: number(starts)?,
        waited: number(waited)?,
        never: number(never)?,
        worst_ms: number(worst_ms)?,
    })
}

fn answer([decision, limit, count, ttl_ms, generation, ticket]: &[Value; 6]) -> Option<Answer> {
    let count = number(count)?;
    match number(decision)? {
        0 => Some(Answer::Wait {
            limit: usize::try_from(number(limit)?).ok()?,
            count,
            ttl_ms: number(ttl_ms)?,
            ticket: Ticket {
                generation: number(generation)?,
                number: number(ticket)?,
            },
        }),
        1 => Some(Answer::Start {
            sequences: sequences(ticket)?,
        }),
        2 => Some(Answer::Capacity),
        _ => None,
    }
}

/// Parses a reply that has only numbers.
fn numbers(reply: &Value) -> Option<Vec<u64>> {
    let Value::Array(values) = reply else {
        return None;
    };
    values.iter().map(number).collect()
}

/// Parses one number, or a text if several partitions have a number.
fn sequences(value: &Value) -> Option<Sequences> {
    match value {
        Value::BulkString(text) => Sequences::parse(std::str::from_utf8(text).ok()?),
        one => Some(Sequences::with_waitlist_sequence(number(one)?)),
    }
}

/// Parses the reply of `change`.
pub fn changed(reply: &Value) -> Result<u64, GateError> {
    number(reply).ok_or_else(|| unreadable("change"))
}

/// Parses a number that is not negative.
pub fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// Parses a text.
pub fn text(value: &Value) -> Option<String> {
    ::redis::from_redis_value_ref(value).ok()
}

fn unreadable(script: &str) -> GateError {
    GateError::Refused(format!(
        "the reply of {script} has an unexpected form; is a proxy between this worker and Redis?"
    ))
}
