//! Describes the limits of a tenant and its waitlist, in words and as JSON.

use gate::Inspection;
use rules::limit::{Limit, Unit};
use rules::tenant::{MAX_TENANT_BYTES, Tenant};
use serde_json::{Map, Value};

use super::LimitUsage;
use super::learned;
use super::levels::{self, Levels};
use super::waits::WaitReason;
use crate::answer::answers;
use crate::labels::GivenLabels;
use crate::limits::{self, LimitAnswer};
use crate::recovery::Recovery;
use crate::text::{count, plain};
use crate::times::{at, when};

/// Returns true if the waitlist should be shown in units of cost. It counts a job's cost if a limit
/// does, and 1 otherwise. The two are the same unless a waiting job costs more than 1.
pub(crate) fn counts_cost(rows: &[LimitUsage<'_>], found: &Inspection) -> bool {
    found.widest > 1 && rows.iter().any(|(limit, _)| limit.unit() == Unit::Cost)
}

/// Describes the limit as it is set. Counts "calls" if every counted call had one unit, and "units
/// of cost" if not, or if that is unknown.
pub(super) fn describe_limit((limit, usage): &LimitUsage<'_>) -> String {
    let limit = (*limit).clone().with_max(usage.set);
    match usage.widest <= 1 && usage.calls == Some(usage.count) {
        true => limits::describe(&limit.with_unit(Unit::Calls)),
        false => limits::describe(&limit),
    }
}

/// Returns a note if a waiting job costs more than a limit in force admits. Such a limit comes from
/// an operator or from another worker's configuration.
pub(super) fn starts_alone(limit: &Limit, widest: u64) -> Option<String> {
    let capacity = limit.capacity();
    (limit.unit() == Unit::Cost && widest > capacity).then(|| {
        format!(
            "a job of this backlog costs {widest}, but {} lets only {capacity} start at once: \
            such a job starts alone, when the whole limit is free",
            limit.name()
        )
    })
}

/// Formats an amount that waits: `2 jobs`, or `2 units of cost` if jobs may cost more than 1.
pub(super) fn amount(number: u64, of_cost: bool) -> String {
    match of_cost {
        true => format!("{} of cost", count(number, "unit")),
        false => count(number, "job"),
    }
}

answers! {
    /// A limit and its usage.
    pub struct UsedLimit: LimitAnswer {
        pub configured_max_requests: u64,
        pub operator_max_requests: Option<u64>,
        pub override_until_ms: u64,
        pub used: Option<u64>,
        pub used_by_calls: Option<u64>,
        pub free: Option<u64>,
        pub next_in_ms: Option<u64>,
        pub waiting: Option<u64>,
        pub learned: Option<Map<String, Value>>,
    }
}

/// Returns a limit and its usage as it is answered.
pub(super) fn used((limit, usage): &LimitUsage<'_>, given: &GivenLabels) -> UsedLimit {
    let known = !given.lacks(limit);
    UsedLimit {
        base: LimitAnswer {
            max_requests: usage.max,
            ..LimitAnswer::from(*limit)
        },
        configured_max_requests: limit.max(),
        operator_max_requests: (usage.override_until_ms > 0).then_some(usage.set),
        override_until_ms: usage.override_until_ms,
        used: known.then_some(usage.count),
        used_by_calls: usage.calls.filter(|_| known),
        free: known.then_some(usage.free),
        next_in_ms: known.then_some(usage.next_ms),
        waiting: known.then_some(usage.waiting),
        learned: learned::as_json(usage).as_object().cloned(),
    }
}

/// Describes all limits, the waitlist, and the reason why a job waits.
pub(super) fn describe(
    tenant: &Tenant,
    source: &str,
    rows: &[LimitUsage<'_>],
    given: &GivenLabels,
    (found, levels): (&Inspection, &Levels),
    (recovery, waits): (&Recovery, &WaitReason<'_>),
) -> String {
    let name = plain(tenant.as_str(), MAX_TENANT_BYTES);
    let mut text = format!("tenant    {name}\nsource    {source}\n");
    if !given.given.is_empty() {
        text += &format!("jobs      {}\n", given.given);
    }
    for row in rows {
        text += &describe_usage(row, given, found);
    }
    text += &describe_waitlist(rows, given, (found, levels));
    let suspended = match found.blocked_until_ms.checked_sub(found.now_ms) {
        None | Some(0) => "no".to_owned(),
        Some(ms) => format!(
            "ends {}: {}",
            when(found.now_ms, ms),
            plain(&found.blocked_by, 200)
        ),
    };
    let recovers = (recovery.describe()).map_or_else(String::new, |it| format!("recovery  {it}\n"));
    let why = waits.describe(given, found, counts_cost(rows, found));
    text + &format!("suspended {suspended}\n{recovers}why       {why}\n")
}

/// Describes a limit and its usage.
fn describe_usage(row: &LimitUsage<'_>, given: &GivenLabels, found: &Inspection) -> String {
    let (limit, usage) = row;
    let (name, words) = (limit.name(), describe_limit(row));
    let changed = describe_changes(row, found.now_ms);
    if given.lacks(limit) {
        let hint = given.hint().unwrap_or_default();
        return format!("limit     {name}: {words}{changed}\n  used    see {hint}\n");
    }
    let next = match usage.next_ms {
        0 => "now".to_owned(),
        ms => when(found.now_ms, ms),
    };
    let meanwhile = match usage.free == 0 && usage.count < usage.max {
        true if found.blocked_until_ms > found.now_ms => " while it is suspended",
        _ => "",
    };
    // The waitlist's own amount is in its own line.
    let waiting = match usage.waiting {
        all if all > found.waiting => {
            let all = amount(all, limit.unit() == Unit::Cost && usage.widest > 1);
            format!(", {all} waiting in all waitlists that share the limit")
        }
        _ => String::new(),
    };
    format!(
        "limit     {name}: {words}{changed}
  used    {} of {}, {} free{meanwhile}{waiting}
  next    {next}\n",
        usage.count, usage.max, usage.free,
    )
}

/// Describes how the limit in force differs from the configured one, and how a large job starts.
fn describe_changes((limit, usage): &LimitUsage<'_>, now_ms: u64) -> String {
    let changed = match usage.override_until_ms {
        0 => String::new(),
        until => format!(
            "\n          an operator set {} instead of {}, until {}",
            usage.set,
            limit.max(),
            at(until)
        ),
    };
    let changed = changed + &learned::describe(limit, usage, now_ms);
    let in_force = (*limit).clone().with_max(usage.max);
    let alone = starts_alone(&in_force, usage.widest);
    changed + &alone.map_or_else(String::new, |it| format!("\n          {it}"))
}

fn describe_waitlist(
    rows: &[LimitUsage<'_>],
    given: &GivenLabels,
    (found, levels): (&Inspection, &Levels),
) -> String {
    let waitlist = match found.waiting {
        _ if !given.missing.is_empty() => {
            let hint = given.hint().unwrap_or_default();
            format!("one per {}: see {hint}", given.lacking())
        }
        0 => "no job waits".to_owned(),
        waiting => format!(
            "{} waiting{}, the last is admitted {}",
            amount(waiting, counts_cost(rows, found)),
            levels::describe(levels),
            when(found.now_ms, found.waitlist_end_ms)
        ),
    };
    format!("waitlist  {waitlist}\n")
}

#[cfg(test)]
mod tests;
