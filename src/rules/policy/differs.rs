//! The differences between two policies, as keys of `rate-limiter` for people.

use std::collections::{BTreeSet, HashMap};

use super::{EntryLimits, Policy};
use crate::calendar::Calendar;
use crate::limit::{Algorithm, Limit};

/// The name of a limit without a name in the configuration: its keys are in `rate-limiter` itself,
/// or in the tenant or plan.
const UNNAMED: &str = "default";

/// Returns the keys below `rate-limiter` in which `one` and `other` differ, as in a configuration,
/// with the limit's name if there may be several: `max-requests`, `minute.max-requests`,
/// `plans.pro`, `tenants.acme.max-requests`. Keys for all tenants come first. A plan, tenant or
/// limit that only one policy has is named as a whole.
pub fn differing(one: &Policy, other: &Policy) -> Vec<String> {
    let mut keys = Vec::new();
    compare_sets(
        &mut keys,
        "",
        (one.common.all().iter(), other.common.all().iter()),
    );
    if one.plan_header != other.plan_header {
        keys.push("plan-header".to_owned());
    }
    let plans: BTreeSet<&String> = one.plans.keys().chain(other.plans.keys()).collect();
    for name in plans {
        let key = format!("plans.{name}");
        match (one.plan(name), other.plan(name)) {
            // The limits that all tenants share were compared above.
            (Some(one), Some(other)) => compare_sets(&mut keys, &key, (one.own(), other.own())),
            _ => keys.push(key),
        }
    }
    let [ours, theirs] = [one, other].map(|policy| {
        let all = policy.tenants.iter().rev();
        // The first match counts.
        let all = all.map(|(pattern, own)| (pattern.to_string(), own));
        all.collect::<HashMap<String, &EntryLimits>>()
    });
    let tenants: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    for name in tenants {
        let key = format!("tenants.{name}");
        match (ours.get(name), theirs.get(name)) {
            (Some(EntryLimits::Limits(one)), Some(EntryLimits::Limits(other))) => {
                compare_sets(&mut keys, &key, (one.own(), other.own()));
            }
            (one, other) if one == other => {}
            _ => keys.push(key),
        }
    }
    // The entries are the same, but their order differs.
    if keys.is_empty() && one != other {
        keys.push("tenants".to_owned());
    }
    keys
}

/// Compares two sets of limits below the key `at`.
fn compare_sets<'a>(
    keys: &mut Vec<String>,
    at: &str,
    (one, other): (
        impl Iterator<Item = &'a Limit>,
        impl Iterator<Item = &'a Limit>,
    ),
) {
    let (one, other): (Vec<&Limit>, Vec<&Limit>) = (one.collect(), other.collect());
    let find = |set: &[&'a Limit], name: &str| set.iter().copied().find(|it| it.name() == name);
    let whole = |name: &str| match (at, name) {
        ("", name) => name.to_owned(),
        (at, UNNAMED) => at.to_owned(),
        (at, name) => format!("{at}.{name}"),
    };
    for limit in &one {
        let Some(its) = find(&other, limit.name()) else {
            keys.push(whole(limit.name()));
            continue;
        };
        let place = match (at, limit.name()) {
            ("", UNNAMED) => String::new(),
            (at, UNNAMED) => format!("{at}."),
            ("", name) => format!("{name}."),
            (at, name) => format!("{at}.{name}."),
        };
        keys.extend(differing_keys(limit, its).map(|key| format!("{place}{key}")));
    }
    let new = other.iter().filter(|it| find(&one, it.name()).is_none());
    keys.extend(new.map(|it| whole(it.name())));
}

/// Returns the keys in which two limits differ. Leaves out keys that follow from another key.
fn differing_keys(one: &Limit, other: &Limit) -> impl Iterator<Item = &'static str> {
    let both = [one, other];
    let [is_at_once, is_strict] = [Algorithm::Concurrency, Algorithm::Strict]
        .map(|algorithm| both.map(|it| it.algorithm() == algorithm));
    let same_algorithm = one.algorithm() == other.algorithm();
    let calendars = both.map(|it| {
        let calendar = it.calendar();
        let period = calendar.map(|calendar| calendar.period.name());
        (
            period,
            calendar.map(|calendar| calendar.zone),
            calendar.map(Calendar::starts),
        )
    });
    let same_window = one.window_ms() == other.window_ms() && calendars[0].0 == calendars[1].0;
    let same_max = one.max() == other.max();
    let kind = match (same_algorithm, is_at_once) {
        (true, _) => None,
        (false, [false, false]) if is_strict.contains(&true) => Some("guard"),
        (false, [false, false]) if one.algorithm().use_algo() == other.algorithm().use_algo() => {
            None
        }
        (false, [false, false]) => Some("use-algo"),
        (false, _) => Some("max-concurrent"),
    };
    let at_once = is_at_once.contains(&true);
    let max = match at_once {
        true => "max-concurrent",
        false => "max-requests",
    };
    let differ = [
        (max, !same_max && kind != Some(max)),
        ("window-size", !same_window && !at_once),
        ("time-zone", calendars[0].1 != calendars[1].1 && same_window),
        ("starts", calendars[0].2 != calendars[1].2 && same_window),
        (
            "burst",
            same_algorithm && same_max && one.burst() != other.burst(),
        ),
        (
            "guard",
            same_algorithm && same_window && one.guard_ms() != other.guard_ms(),
        ),
        ("unit", one.unit() != other.unit()),
        ("scope", one.scope() != other.scope()),
        ("shadow", one.is_shadow() != other.is_shadow()),
        ("adaptive", one.band() != other.band()),
    ];
    let differ = differ.into_iter().filter(|(_, differs)| *differs);
    kind.into_iter().chain(differ.map(|(key, _)| key))
}
