//! Which policies need not be enforced any more, though something that was started under them still counts somewhere.
//!
//! A policy is enforced for the longest memory of all, for its sake who has that: a tenant with a day's window. Where a later one
//! gives this tenant the same limits, enforcing the later one is enforcing both. So a policy is *superseded* by another one that was
//! in force at least as lately, when those whose limits differ in the two have no memory that reaches back to it. Of two that were
//! last used together the one with the larger name is the later one, so that they do not supersede each other.
//!
//! Then edits of one tenant's limits of seconds are over after seconds, however long others' windows are.

use std::collections::BTreeSet;

use super::{MARGIN_MS, Registered};
use crate::rules::limit::Limits;
use crate::rules::policy::{Pattern, Policy};
use crate::rules::tenant::Tenant;

/// Fewer policies are all enforced: to compare them takes longer.
const CROWDED: usize = 4;

/// Those of `policies` that others supersede at `now_ms`: which are left lets pass no more than all of them.
pub fn superseded(policies: &[Registered], now_ms: u64) -> Vec<&Registered> {
    if policies.len() <= CROWDED {
        return Vec::new();
    }
    let classes = Classes::of(policies.iter().map(|known| &*known.policy));
    let rows: Vec<Option<Vec<&Limits>>> = policies
        .iter()
        .map(|known| classes.row(&known.policy))
        .collect();
    let mut reach = vec![0; classes.len()];
    for row in rows.iter().flatten() {
        for (reach, limits) in reach.iter_mut().zip(row) {
            *reach = limits.memory_ms().max(*reach);
        }
    }
    let later = |known: &Registered| (known.used_ms, known.id.clone());
    let is_superseded = |(known, row): &(&Registered, &Option<Vec<&Limits>>)| {
        let Some(row) = row else { return false };
        let by = |(other, limits): (&Registered, &Option<Vec<&Limits>>)| {
            let Some(limits) = limits else { return false };
            let differ = (row.iter().zip(limits).zip(&reach)).filter(|((one, two), _)| one != two);
            let counts_ms = differ.map(|(_, reach)| *reach).max();
            let over = |ms: u64| known.used_ms.saturating_add(ms + MARGIN_MS) < now_ms;
            later(other) > later(known) && counts_ms.is_none_or(over)
        };
        policies.iter().zip(&rows).any(by)
    };
    let all = policies.iter().zip(&rows);
    all.filter(is_superseded).map(|(known, _)| known).collect()
}

/// Those whose jobs have the same limits in each of some policies.
struct Classes {
    /// One of each, and what its job names.
    of: Vec<(Tenant, Option<String>)>,
    plan_header: Option<String>,
}

impl Classes {
    fn of<'a>(policies: impl Iterator<Item = &'a Policy> + Clone) -> Self {
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
        // Nobody's name: it begins as the pattern does, and no longer pattern fits it. A name has no room for more after the longest.
        let other = |start: &str| {
            Tenant::parse(&format!("{start}\u{10ffff}")).or_else(|_| Tenant::parse(start))
        };
        let named = |pattern: &String| match Pattern::parse(pattern) {
            Pattern::Exactly(id) => Tenant::parse(&id),
            Pattern::Prefix(start) => other(&start),
        };
        let named = tenants.iter().map(named);
        // What is no tenant's name is nobody's entry.
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

    fn len(&self) -> usize {
        self.of.len()
    }

    /// What each class has in `policy`. `None`: it takes plans from another header, so a job may be of two classes.
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
    use crate::rules::limit::{Algorithm, Limit};
    use crate::rules::policy::Own;

    const NOW: u64 = 1_000_000_000;
    const DAY: u64 = 86_400_000;

    fn limits(max: u64, ms: u64) -> Limits {
        let window = Duration::from_millis(ms);
        let limit = Limit::new(
            "default",
            Algorithm::SlidingWindow,
            max,
            window,
            Duration::ZERO,
        );
        limit.expect("in range").into()
    }

    /// A tenant with a day's window beside others.
    fn edit(number: u64, day: u64, ago: u64) -> Registered {
        let tenants = vec![
            (Pattern::parse("slow"), Own::Limits(limits(day, DAY))),
            (Pattern::parse("acme-*"), Own::Limits(limits(7, 2_000))),
        ];
        Registered {
            id: format!("{number:03}"),
            policy: Arc::new(Policy::common(limits(number, 1_000)).with_tenants(tenants)),
            since_ms: 0,
            used_ms: NOW - ago,
        }
    }

    fn left(policies: &[Registered]) -> Vec<String> {
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
        // Those of the day's are not.
        let edits: Vec<_> = (1..=9)
            .map(|number| edit(1, number, (10 - number) * 60_000))
            .collect();
        assert_eq!(left(&edits).len(), 9);
        let together: Vec<_> = (1..=9)
            .map(|number| edit(1, 9, 60_000 + number / 9))
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

    /// What is enforced for a tenant by those that were in force lately enough for it.
    fn enforced<'a>(
        policies: impl Iterator<Item = &'a Registered>,
        memory: &[Registered],
        tenant: &Tenant,
        plan: Option<&str>,
    ) -> Vec<Limits> {
        let reach = memory
            .iter()
            .map(|known| known.policy.limits(tenant, plan).memory_ms())
            .max();
        let counts = |known: &&Registered| known.used_ms + reach.unwrap_or(0) + MARGIN_MS >= NOW;
        let found = policies
            .filter(counts)
            .map(|known| known.policy.limits(tenant, plan).clone());
        found.collect()
    }

    proptest! {
        #[test]
        fn nothing_that_counts_is_left_out(
            all in prop::collection::vec(
                (0_u64..3, 0_u64..3, prop::option::of(0_u64..3), prop::option::of(0_u64..2), 0..9_u32), 1..14
            )
        ) {
            let spans = [1_000, 30_000, 300_000];
            let policy = |(common, plan, own, prefix): (u64, u64, Option<u64>, Option<u64>)| {
                let of = |kind: u64| limits(5, spans[usize::try_from(kind).expect("small")]);
                let plans = [("free".to_owned(), of(plan))].into();
                let mut tenants = Vec::new();
                tenants.extend(own.map(|kind| (Pattern::parse("ab"), Own::Limits(of(kind)))));
                tenants.extend(prefix.map(|kind| (Pattern::parse("a*"), Own::Limits(of(kind)))));
                Policy::common(of(common)).with_plan_header("plan".to_owned()).with_plans(plans).with_tenants(tenants)
            };
            let all: Vec<Registered> = (all.into_iter().enumerate())
                .map(|(number, (common, plan, own, prefix, ago))| Registered {
                    id: format!("{number:02}"),
                    policy: Arc::new(policy((common, plan, own, prefix))),
                    since_ms: 0,
                    used_ms: NOW - u64::from(ago) * 7_000,
                })
                .collect();
            let left = left(&all);
            let left: Vec<_> = all.iter().filter(|known| left.contains(&known.id)).collect();
            for tenant in ["ab", "abc", "a", "b"] {
                for plan in [None, Some("free"), Some("unknown")] {
                    let tenant = Tenant::parse(tenant).expect("a tenant");
                    let needed = enforced(all.iter(), &all, &tenant, plan);
                    let kept: Vec<_> = left.iter().map(|known| known.policy.limits(&tenant, plan)).collect();
                    for limits in needed {
                        prop_assert!(kept.contains(&&limits), "{tenant} lacks {limits:?}");
                    }
                }
            }
        }
    }
}
