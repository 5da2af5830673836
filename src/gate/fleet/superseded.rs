//! Finds policies that need not be enforced any more, though starts under them still count in some
//! limit.
//!
//! Every policy is enforced for the longest look-back of all limits, for example a tenant's window
//! of a day. A policy is *superseded* by another one that was in force at least as recently, if
//! both have the same limits for every tenant, apart from limits whose look-back does not reach the
//! older policy. Then no window of a limit that differs began under the older policy, and the equal
//! limits are enforced through the later policy. So after an edit of limits with windows of
//! seconds, the old policy is dropped after seconds, however long other windows are.
//!
//! If two policies were last used at the same time, the larger name counts as the later policy, so
//! they don't supersede each other. The relation is transitive: if A supersedes B and B supersedes
//! C, A has C's limits as well, since the limits that reach back to C are the same in all three.

use std::collections::BTreeSet;

use super::{IDLE_MS, MARGIN_MS, RegisteredPolicy};
use rules::limit::{Limit, Limits};
use rules::policy::{Pattern, Policy};
use rules::tenant::Tenant;

/// Up to this number of policies, all are enforced, since comparing them costs more.
const CROWDED: usize = 4;
/// Maximum number of pairs of tenant and plan that are compared. With more, all policies are
/// enforced.
const MAX_COMPARED: usize = 8_192;

/// Returns the policies among `policies` that others supersede at `now_ms`. The remaining policies
/// allow no more than all of them together.
pub fn superseded(policies: &[RegisteredPolicy], now_ms: u64) -> Vec<&RegisteredPolicy> {
    if policies.len() <= CROWDED {
        return Vec::new();
    }
    let classes = Classes::of(policies.iter().map(|known| &*known.policy));
    if classes.of.len() > MAX_COMPARED {
        return Vec::new();
    }
    let rows: Vec<Option<Vec<&Limits>>> = policies
        .iter()
        .map(|known| classes.row(&known.policy))
        .collect();
    let alike = |one: &Limits, two: &Limits, used_ms: u64| {
        let reaches =
            |limit: &&Limit| used_ms.saturating_add(limit.memory_ms() + MARGIN_MS) >= now_ms;
        let all_in = |one: &Limits, two: &Limits| {
            one.iter().filter(reaches).all(|limit| two.contains(limit))
        };
        one == two || all_in(one, two) && all_in(two, one)
    };
    let later = |known: &RegisteredPolicy| (known.used_ms, known.id.clone());
    let is_superseded = |(known, row): &(&RegisteredPolicy, &Option<Vec<&Limits>>)| {
        let Some(row) = row.as_ref().filter(|_| known.used_ms + IDLE_MS < now_ms) else {
            return false;
        };
        let by = |(other, limits): (&RegisteredPolicy, &Option<Vec<&Limits>>)| {
            let Some(limits) = limits else { return false };
            later(other) > later(known)
                && (row.iter().zip(limits)).all(|(one, two)| alike(one, two, known.used_ms))
        };
        policies.iter().zip(&rows).any(by)
    };
    let all = policies.iter().zip(&rows);
    all.filter(is_superseded).map(|(known, _)| known).collect()
}

/// Groups of jobs with the same limits in each of some policies.
pub(super) struct Classes {
    /// One tenant per group, and the plan that its job names.
    pub(super) of: Vec<(Tenant, Option<String>)>,
    plan_header: Option<String>,
}

impl Classes {
    pub(super) fn of<'a>(policies: impl Iterator<Item = &'a Policy> + Clone) -> Self {
        let mut tenants = BTreeSet::new();
        let mut plans = BTreeSet::from([None]);
        for policy in policies.clone() {
            plans.extend(policy.plans().keys().cloned().map(Some));
            tenants.extend(
                policy
                    .tenants()
                    .iter()
                    .map(|(pattern, _)| pattern.to_string()),
            );
        }
        // A tenant that no policy names: it begins as the pattern does, and matches no longer
        // pattern. If the pattern has the maximum length, no name is longer.
        let other = |start: &str| {
            Tenant::parse(&format!("{start}\u{10ffff}")).or_else(|_| Tenant::parse(start))
        };
        let named = |pattern: &String| match Pattern::parse(pattern) {
            Pattern::Exactly(id) => Tenant::parse(&id),
            Pattern::Prefix(start) => other(&start),
        };
        let named = tenants.iter().map(named);
        // An entry that is not a valid tenant name applies to no tenant.
        let tenants = std::iter::once(other(""))
            .chain(named)
            .filter_map(Result::ok);
        let of =
            tenants.flat_map(|tenant| plans.iter().map(move |plan| (tenant.clone(), plan.clone())));
        Self {
            of: of.collect(),
            plan_header: policies
                .last()
                .and_then(|policy| policy.plan_header().map(str::to_owned)),
        }
    }

    /// Returns the limits of each group in `policy`, or `None` if it takes plans from another
    /// header, so that a job may be in two groups.
    fn row<'a>(&self, policy: &'a Policy) -> Option<Vec<&'a Limits>> {
        let same = policy.plan_header() == self.plan_header.as_deref();
        let row = self.of.iter();
        same.then(|| {
            row.map(|(tenant, plan)| policy.limits(tenant, plan.as_deref()))
                .collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use kit::gate::{named_limit, tenant};
    use rules::limit::Algorithm;
    use rules::policy::EntryLimits;

    const NOW: u64 = 1_000_000_000;
    const DAY: u64 = 86_400_000;

    fn limit(name: &str, max: u64, ms: u64) -> Limit {
        let window = Duration::from_millis(ms);
        named_limit(name, Algorithm::SlidingWindow, max, window)
    }

    fn limits(max: u64, ms: u64) -> Limits {
        limit("default", max, ms).into()
    }

    /// An edit of one tenant with a window of a day beside others.
    fn edit(number: u64, day: u64, ago: u64) -> RegisteredPolicy {
        let tenants = vec![
            (
                Pattern::parse("slow"),
                EntryLimits::Limits(limits(day, DAY)),
            ),
            (
                Pattern::parse("acme-*"),
                EntryLimits::Limits(limits(7, 2_000)),
            ),
        ];
        RegisteredPolicy {
            id: format!("{number:03}"),
            policy: Arc::new(Policy::common(limits(number, 1_000)).with_tenants(tenants)),
            since_ms: 0,
            used_ms: NOW - ago,
        }
    }

    fn left(policies: &[RegisteredPolicy]) -> Vec<String> {
        let gone = superseded(policies, NOW);
        let left = policies.iter().filter(|known| !gone.contains(known));
        left.map(|known| known.id.clone()).collect()
    }

    #[test]
    fn edits_of_short_windows_are_over_soon_beside_a_long_one() {
        let edits: Vec<_> = (1..=40)
            .map(|number| edit(number, 9, (40 - number) * 4_000))
            .collect();
        // 11 s are one window and the margin.
        assert_eq!(left(&edits), ["038", "039", "040"]);
        // Edits of the limit with a window of a day stay.
        let edits: Vec<_> = (1..=9)
            .map(|number| edit(1, number, (10 - number) * 60_000))
            .collect();
        assert_eq!(left(&edits).len(), 9);
        let together: Vec<_> = (1..=9)
            .map(|number| RegisteredPolicy {
                id: number.to_string(),
                ..edit(1, 9, 60_000 + number / 9)
            })
            .collect();
        assert_eq!(left(&together).len(), 1);
    }

    #[test]
    fn a_renamed_header_of_plans_keeps_all() {
        let mut edits: Vec<_> = (1..=9)
            .map(|number| edit(number, 9, (10 - number) * 60_000))
            .collect();
        let last = edits.last_mut().expect("there are nine");
        last.policy = Arc::new(Policy::clone(&last.policy).with_plan_header("x-plan".to_owned()));
        assert_eq!(left(&edits).len(), 9);
    }

    #[test]
    fn a_long_limit_in_all_policies_keeps_none_of_them() {
        let with_day = |known: &RegisteredPolicy, day: u64| {
            let common = [("default", known.since_ms + 1, 1_000), ("day", day, DAY)];
            let common = common.map(|(name, max, ms)| limit(name, max, ms));
            let policy = Policy::common(Limits::new(common.to_vec()).expect("two names"));
            RegisteredPolicy {
                policy: Arc::new(policy),
                ..known.clone()
            }
        };
        let edits = |day: fn(u64) -> u64| {
            let edit = |number| {
                let mut known = edit(number, 9, (10 - number) * 60_000);
                known.since_ms = number;
                with_day(&known, day(number))
            };
            (1..=9).map(edit).collect::<Vec<_>>()
        };
        assert_eq!(left(&edits(|_| 9)), ["009"]);
        assert_eq!(left(&edits(|number| 1 + number / 9)), ["008", "009"]);
    }

    proptest! {
        #[test]
        fn the_remaining_policies_decide_the_same_as_all_that_may_count(
            all in prop::collection::vec(
                (0..6_usize, 0..6_usize, prop::option::of(0..6_usize), prop::option::of(0..6_usize), 0..9_u32), 1..14
            )
        ) {
            let kinds: [&[u64]; 6] = [&[1_000], &[30_000], &[300_000], &[1_000, 300_000], &[30_000, 300_000], &[1_000, 30_000]];
            let policy = |(common, plan, own, prefix): (usize, usize, Option<usize>, Option<usize>)| {
                let of = |kind: usize| {
                    let named = kinds[kind].iter().map(|ms| limit(&format!("of-{ms}"), 5, *ms));
                    Limits::new(named.collect()).expect("different names")
                };
                let plans = [("free".to_owned(), of(plan))].into();
                let mut tenants = Vec::new();
                tenants.extend(own.map(|kind| (Pattern::parse("ab"), EntryLimits::Limits(of(kind)))));
                tenants.extend(prefix.map(|kind| (Pattern::parse("a*"), EntryLimits::Limits(of(kind)))));
                Policy::common(of(common)).with_plan_header("plan".to_owned()).with_plans(plans).with_tenants(tenants)
            };
            let all: Vec<RegisteredPolicy> = (all.into_iter().enumerate())
                .map(|(number, (common, plan, own, prefix, ago))| RegisteredPolicy {
                    id: format!("{number:02}"),
                    policy: Arc::new(policy((common, plan, own, prefix))),
                    since_ms: 0,
                    used_ms: NOW - u64::from(ago) * 7_000,
                })
                .collect();
            let left = left(&all);
            let reaches = |known: &RegisteredPolicy, limit: &Limit| known.used_ms + limit.memory_ms() + MARGIN_MS >= NOW;
            for known in &all {
                let agree = |other: &&RegisteredPolicy| {
                    let tenants = ["ab", "abc", "a", "b"].map(tenant);
                    let classes = tenants.iter().flat_map(|tenant| [None, Some("free"), Some("unknown")].map(|plan| (tenant, plan)));
                    let mut each = classes.map(|(tenant, plan)| [known, other].map(|it| {
                        let mut limits = it.policy.limits(tenant, plan).to_vec();
                        limits.retain(|limit| reaches(known, limit));
                        limits
                    }));
                    other.used_ms >= known.used_ms && each.all(|[one, two]| one == two)
                };
                let stands_for_it = all.iter().filter(|other| left.contains(&other.id)).any(|other| agree(&other));
                prop_assert!(stands_for_it, "nothing is left of {}", known.id);
            }
        }
    }
}
