//! The reply of `lua/inspect.lua`.

use ::redis::Value;

use super::learned::learned_each;
use super::{number, unreadable};
use crate::{GateError, Inspection, UsageOfLimit};
use rules::answers::Quotas;
use rules::decision::{Tally, TrialStatus};

/// Parses the reply of `inspect` for `limits` enforced limits and `shadows` shadow limits.
pub fn inspected(reply: &Value, limits: usize, shadows: usize) -> Result<Inspection, GateError> {
    let decode = || {
        let Value::Array(values) = reply else {
            return None;
        };
        let (by, numbers) = values.split_first()?;
        let (quotas, numbers) = numbers.split_last()?;
        let (learned, numbers) = numbers.split_last()?;
        let learned = learned_each(&::redis::from_redis_value_ref::<String>(learned).ok()?)?;
        let (quotas, quotas_at_ms) =
            quotas_at(&::redis::from_redis_value_ref::<String>(quotas).ok()?)?;
        let numbers: Vec<u64> = numbers.iter().map(number).collect::<Option<_>>()?;
        let [
            1,
            now_ms,
            waiting,
            waitlist_end_ms,
            blocked_until_ms,
            turn_ms,
            widest,
            rest @ ..,
        ] = numbers.as_slice()
        else {
            return None;
        };
        let (rest, tried) = rest.split_at_checked(8 * (limits + shadows))?;
        let (tried, set) = tried.split_at_checked(tried.len().checked_sub(limits)?)?;
        let (tried, []) = tried.as_chunks::<6>() else {
            return None;
        };
        let mut usage: Vec<UsageOfLimit> = (rest.as_chunks::<8>().0.iter())
            .map(usage)
            .collect::<Option<_>>()?;
        let of_shadows = usage.split_off(limits);
        let is_whole = of_shadows.len() == tried.len() && tried.len() == shadows;
        for ((usage, learned), set) in usage.iter_mut().zip(&learned).zip(set) {
            usage.learned = *learned;
            usage.set = *set;
        }
        (is_whole && learned.len() == limits).then_some(Inspection {
            now_ms: *now_ms,
            limits: usage,
            shadows: of_shadows
                .into_iter()
                .zip(tried.iter().map(tried_of))
                .collect(),
            waiting: *waiting,
            widest: *widest,
            waitlist_end_ms: *waitlist_end_ms,
            turn_ms: *turn_ms,
            blocked_until_ms: *blocked_until_ms,
            blocked_by: ::redis::from_redis_value_ref(by).ok()?,
            quotas,
            quotas_at_ms,
        })
    };
    decode().ok_or_else(|| unreadable("inspect"))
}

fn tried_of(numbers: &[u64; 6]) -> TrialStatus {
    let &[since_ms, starts, waited, never, worst_ms, behind_ms] = numbers;
    let tally = Tally {
        starts,
        waited,
        never,
        worst_ms,
    };
    TrialStatus {
        tally,
        since_ms,
        behind_ms,
    }
}

fn usage(numbers: &[u64; 8]) -> Option<UsageOfLimit> {
    let &[
        max,
        override_until_ms,
        count,
        free,
        next_ms,
        waiting,
        widest,
        calls,
    ] = numbers;
    Some(UsageOfLimit {
        max,
        set: max,
        override_until_ms,
        count,
        free,
        next_ms,
        waiting,
        widest,
        calls: calls.checked_sub(1),
        learned: None,
    })
}

/// Parses `LIMIT/WINDOW_S,…@AT`, the format of `lua/waitlist.lua`. An empty text means that the API
/// advertised nothing.
fn quotas_at(text: &str) -> Option<(Quotas, u64)> {
    if text.is_empty() {
        return Some((Quotas::default(), 0));
    }
    let (quotas, at) = text.split_once('@')?;
    Some((Quotas::read(quotas), at.parse().ok()?))
}
