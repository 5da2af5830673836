//! Tenants whose limits a change of the policies eased. Their waiting jobs may start earlier than
//! promised.

use std::collections::BTreeSet;

use super::EnforcedPolicies;
use super::superseded::Classes;
use rules::limit::Limit;
use rules::policy::{EntryLimits, Pattern, Policy};
use rules::tenant::Tenant;

/// Maximum number of pairs of tenant and plan that are compared. With more, all tenants count as
/// eased.
const MAX_CLASSES: usize = 8_192;
/// Maximum number of tenants that are listed. With more, all tenants count as eased.
const MAX_TENANTS: usize = 10;

/// The tenants whose limits were eased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EasedTenants {
    /// The tenants in this set.
    Tenants(BTreeSet<Tenant>),
    /// All tenants.
    All,
}

impl Default for EasedTenants {
    fn default() -> Self {
        Self::Tenants(BTreeSet::new())
    }
}

impl EasedTenants {
    /// Returns true if no tenant's limits were eased.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Tenants(tenants) if tenants.is_empty())
    }

    /// Returns the tenants of `self` and `more`.
    pub fn and(self, more: Self) -> Self {
        match (self, more) {
            (Self::Tenants(mut one), Self::Tenants(two)) => {
                one.extend(two);
                match one.len() > MAX_TENANTS {
                    true => Self::All,
                    false => Self::Tenants(one),
                }
            }
            _ => Self::All,
        }
    }
}

/// Returns the tenant that an entry of `rate-limiter.tenants` names exactly.
fn exact((pattern, _): &(Pattern, EntryLimits)) -> Option<&str> {
    match pattern {
        Pattern::Exactly(id) => Some(id),
        Pattern::Prefix(_) => None,
    }
}

impl EnforcedPolicies {
    /// Returns the tenants whose jobs may start earlier than under `before`.
    pub fn eases(&self, before: &Self) -> EasedTenants {
        if before.policies() == 1 && before.own() == self.own() {
            return EasedTenants::default();
        }
        let all = self.each().chain(before.each());
        let classes = Classes::of(all.clone());
        if classes.of.len() > MAX_CLASSES {
            return EasedTenants::All;
        }
        let exact: BTreeSet<&str> = all.flat_map(Policy::tenants).filter_map(exact).collect();
        let mut tenants = BTreeSet::new();
        for (tenant, plan) in &classes.of {
            let [now, then] = [self, before].map(|fleet| fleet.join(tenant, plan.as_deref()));
            let implied = |old: &Limit| now.iter().any(|new| new.implies(old));
            if then.iter().all(implied) {
                continue;
            }
            if !exact.contains(tenant.as_str()) || tenants.len() == MAX_TENANTS {
                return EasedTenants::All;
            }
            tenants.insert(tenant.clone());
        }
        EasedTenants::Tenants(tenants)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fleet::{RegisteredPolicy, RegistryKnowledge};
    use kit::SECOND;
    use kit::gate::{named_limit, tenant};
    use rules::limit::Algorithm;

    fn limit(algorithm: Algorithm, max: u64) -> Limit {
        named_limit("default", algorithm, max, 2 * SECOND)
    }

    /// Returns the fleet of a worker with `own` when `old` is registered. Another worker has `old`
    /// in force only if `in_use`.
    fn beside(own: &Policy, old: &Policy, in_use: bool) -> EnforcedPolicies {
        let mut known = RegistryKnowledge::default();
        let registered = RegisteredPolicy {
            id: "old".to_owned(),
            policy: Arc::new(old.clone()),
            since_ms: 0,
            used_ms: 1_000,
        };
        known.learn(vec![registered], 1_000);
        let ids = in_use.then(|| "old".to_owned()).into_iter().collect();
        known.fleet_of(Arc::new(own.clone()), "own", 1_000, Some(&ids))
    }

    #[test]
    fn an_old_policy_that_no_worker_has_in_force_is_idle_at_once() {
        let sliding = |max| Policy::from(limit(Algorithm::SlidingWindow, max));
        let tenant = tenant("acme");
        for (in_use, max) in [(true, 10), (false, 40)] {
            let mut fleet = beside(&sliding(40), &sliding(10), in_use);
            assert_eq!(fleet.limits(&tenant, None)[0].max(), max);
            assert_eq!(fleet.is_settled(), !in_use);
        }
    }

    #[test]
    fn tenants_whose_limits_are_eased_are_named_or_are_all() {
        let sliding = |max| limit(Algorithm::SlidingWindow, max);
        let with = |max, tenants: &[(&str, u64)]| {
            let own = |(name, max): &(&str, u64)| {
                (
                    Pattern::parse(name),
                    EntryLimits::Limits(sliding(*max).into()),
                )
            };
            Policy::from(sliding(max)).with_tenants(tenants.iter().map(own).collect())
        };
        let named = |names: &[&str]| {
            let tenants = names.iter().map(tenant);
            EasedTenants::Tenants(tenants.collect())
        };
        let many: Vec<String> = (0..=MAX_TENANTS).map(|n| format!("t{n}")).collect();
        let many = |max| {
            many.iter()
                .map(|name| (name.as_str(), max))
                .collect::<Vec<_>>()
        };
        for (what, old, new, eased) in [
            ("raised", with(10, &[]), with(40, &[]), EasedTenants::All),
            ("lowered", with(40, &[]), with(10, &[]), named(&[])),
            (
                "one tenant",
                with(10, &[("a", 3), ("b", 9)]),
                with(10, &[("a", 4), ("b", 8)]),
                named(&["a"]),
            ),
            (
                "a prefix",
                with(10, &[("a*", 3)]),
                with(10, &[("a*", 4)]),
                EasedTenants::All,
            ),
            (
                "a new exception",
                with(10, &[]),
                with(10, &[("a", 11)]),
                named(&["a"]),
            ),
            (
                "many",
                with(10, &many(3)),
                with(10, &many(4)),
                EasedTenants::All,
            ),
        ] {
            let (before, after) = (beside(&new, &old, true), beside(&new, &old, false));
            assert_eq!(after.eases(&before), eased, "{what}");
            assert_eq!(
                EnforcedPolicies::alone(Arc::new(new.clone())).eases(&before),
                eased,
                "{what}: gone"
            );
            // Nothing is eased while both are enforced. Afterwards it is eased only once.
            let alone = EnforcedPolicies::alone(Arc::new(old.clone()));
            assert!(before.eases(&alone).is_empty(), "{what}");
            assert!(after.eases(&after).is_empty(), "{what}");
            assert!(
                EnforcedPolicies::alone(Arc::new(new.clone()))
                    .eases(&after)
                    .is_empty(),
                "{what}"
            );
        }
        let bucket = |max| Policy::from(limit(Algorithm::TokenBucket, max));
        let (old, new) = (bucket(10), bucket(40));
        let (before, after) = (beside(&new, &old, true), beside(&new, &old, false));
        assert!(
            after.eases(&before).is_empty(),
            "a bucket's is enforced until it is dropped"
        );
        assert_eq!(
            EnforcedPolicies::alone(Arc::new(new)).eases(&after),
            EasedTenants::All
        );
    }

    #[test]
    fn eased_tenants_add_up() {
        let of = |number: usize| {
            let tenant = tenant(format!("t{number}"));
            EasedTenants::Tenants([tenant].into())
        };
        let both = of(1).and(of(2)).and(EasedTenants::default());
        assert!(matches!(&both, EasedTenants::Tenants(two) if two.len() == 2));
        assert_eq!(both.and(EasedTenants::All), EasedTenants::All);
        let all = (0..=MAX_TENANTS).fold(EasedTenants::default(), |all, it| all.and(of(it)));
        assert_eq!(all, EasedTenants::All);
        assert!(EasedTenants::default().is_empty() && !EasedTenants::All.is_empty());
    }
}
