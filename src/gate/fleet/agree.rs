//! Decides which limits a worker enforces while the workers of one Redis have different
//! configurations.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::superseded;
use rules::limit::{Limits, ceil_ms};
use rules::policy::Policy;
use rules::tenant::Tenant;

/// How long after its last exchange was sent a worker may ask the gate, in milliseconds.
pub const AGREED_FOR_MS: u64 = 5_000;
/// How long a policy is enforced beyond the look-back, in milliseconds: twice the maximum age of an
/// exchange.
pub const MARGIN_MS: u64 = 2 * AGREED_FOR_MS;
/// A policy that no worker has used for this long, in milliseconds, is not in force anywhere.
pub const IDLE_MS: u64 = 2 * AGREED_FOR_MS;
/// Maximum number of policies at once. Each adds its limits to every decision, so a worker refuses
/// to bring in one more.
pub const MAX_POLICIES: usize = 32;
/// Maximum number of tenants whose combined limits are cached. Beyond it they are combined again.
const REMEMBERED: usize = 10_000;

/// A policy in the registry.
#[derive(Debug, Clone, PartialEq)]
pub struct RegisteredPolicy {
    /// Its name in the registry.
    pub id: String,
    /// The policy itself.
    pub policy: Arc<Policy>,
    /// When it was first registered, in milliseconds of Redis's clock.
    pub since_ms: u64,
    /// When a worker last had it in force, in milliseconds of Redis's clock.
    pub used_ms: u64,
}

/// A worker's knowledge of the registry.
#[derive(Debug, Clone, Default)]
pub struct RegistryKnowledge {
    policies: Vec<RegisteredPolicy>,
    superseded: Vec<(String, u64)>,
}

impl RegistryKnowledge {
    /// Takes the policies `registered` of an exchange at `now_ms` by Redis's clock. Policies that
    /// are missing there are kept for as long as they must be enforced, since Redis may have lost
    /// them.
    pub fn learn(&mut self, registered: Vec<RegisteredPolicy>, now_ms: u64) {
        for new in registered {
            match self.policies.iter_mut().find(|old| old.id == new.id) {
                Some(old) => *old = new,
                None => self.policies.push(new),
            }
        }
        let longest = self.policies.iter().map(|known| memory_ms(&known.policy));
        let kept_ms = longest.max().unwrap_or(0) + MARGIN_MS;
        for known in &mut self.policies {
            // A time later than now means that the clock was stepped back.
            known.used_ms = known.used_ms.min(now_ms);
        }
        (self.policies).retain(|known| known.used_ms + kept_ms >= now_ms);
        let gone = superseded::superseded(&self.policies, now_ms);
        self.superseded = (gone.into_iter())
            .map(|known| (known.id.clone(), known.used_ms))
            .collect();
        let gone = |known: &RegisteredPolicy| self.superseded.iter().any(|(id, _)| *id == known.id);
        self.policies.retain(|known| !gone(known));
    }

    /// Returns the policies of the last exchange that need not be enforced any more, and when they
    /// were last in force. The registry may drop them unless a worker puts them in force again.
    pub fn superseded(&self) -> &[(String, u64)] {
        &self.superseded
    }

    /// Returns all policies to enforce.
    pub fn policies(&self) -> &[RegisteredPolicy] {
        &self.policies
    }

    /// Returns the policy named `id`.
    pub fn find(&self, id: &str) -> Option<&Arc<Policy>> {
        let known = self.policies.iter().find(|known| known.id == id)?;
        Some(&known.policy)
    }

    /// Returns the policies other than `id` that a worker may have in force at `now_ms`, as far as
    /// the registry shows.
    pub fn others_in_use(&self, id: &str, now_ms: u64) -> impl Iterator<Item = &RegisteredPolicy> {
        let in_use =
            move |known: &&RegisteredPolicy| known.id != id && known.used_ms + IDLE_MS >= now_ms;
        self.policies.iter().filter(in_use)
    }

    /// Returns what a worker with the policy `own`, called `id`, enforces after an exchange at
    /// `now_ms`.
    pub fn fleet(&self, own: Arc<Policy>, id: &str, now_ms: u64) -> EnforcedPolicies {
        self.fleet_of(own, id, now_ms, None)
    }

    /// Returns the same as [`Self::fleet`], given the policies that workers report as in force, or
    /// `None` if the reports were not read.
    pub fn fleet_of(
        &self,
        own: Arc<Policy>,
        id: &str,
        now_ms: u64,
        in_use: Option<&BTreeSet<String>>,
    ) -> EnforcedPolicies {
        let others = self.policies.iter().filter(|known| known.id != id);
        let other = |known: &RegisteredPolicy| ForeignPolicy {
            policy: Arc::clone(&known.policy),
            idle: known.used_ms + IDLE_MS < now_ms
                || in_use.is_some_and(|ids| !ids.contains(&known.id)),
        };
        EnforcedPolicies {
            own,
            others: others.map(other).collect(),
            joined: HashMap::new(),
        }
    }

    /// Returns when the policy `id` is dropped at the latest, by Redis's clock, if no worker uses
    /// it from now on.
    pub fn dropped_at(&self, id: &str) -> Option<u64> {
        let longest = self.policies.iter().map(|known| memory_ms(&known.policy));
        let known = self.policies.iter().find(|known| known.id == id)?;
        Some(known.used_ms + longest.max()? + MARGIN_MS)
    }
}

/// Returns the look-back of `policy` in milliseconds: after it, no start counts for any of its
/// limits.
pub fn memory_ms(policy: &Policy) -> u64 {
    ceil_ms(policy.memory())
}

/// A policy of other workers, or a former policy of this one.
#[derive(Debug, Clone)]
struct ForeignPolicy {
    policy: Arc<Policy>,
    /// Whether no worker has it in force.
    idle: bool,
}

/// The policies that a worker enforces: its own and others.
#[derive(Debug, Clone)]
pub struct EnforcedPolicies {
    pub(super) own: Arc<Policy>,
    others: Vec<ForeignPolicy>,
    /// The combined limits by tenant and plan.
    joined: HashMap<Tenant, Vec<(Option<String>, Limits)>>,
}

impl EnforcedPolicies {
    /// Returns the fleet of a worker that knows no other policy.
    pub fn alone(own: Arc<Policy>) -> Self {
        Self {
            own,
            others: Vec::new(),
            joined: HashMap::new(),
        }
    }

    /// Returns the worker's own policy.
    pub fn own(&self) -> &Arc<Policy> {
        &self.own
    }

    /// Returns the number of enforced policies.
    pub fn policies(&self) -> usize {
        1 + self.others.len()
    }

    /// Combines two fleets that one worker learned of from two sources.
    pub fn joined_with(mut self, more: Self) -> Self {
        for other in more.others {
            match (self.others.iter_mut()).find(|known| known.policy == other.policy) {
                Some(known) => known.idle &= other.idle,
                None => self.others.push(other),
            }
        }
        self.joined.clear();
        self
    }

    /// Returns true if both enforce the same policies.
    pub fn is_like(&self, other: &Self) -> bool {
        let same = |one: &ForeignPolicy, two: &ForeignPolicy| {
            one.idle == two.idle && one.policy == two.policy
        };
        self.own == other.own
            && self.others.len() == other.others.len()
            && (self.others.iter().zip(&other.others)).all(|(one, two)| same(one, two))
    }

    /// Returns all policies, the worker's own first.
    pub(super) fn each(&self) -> impl Iterator<Item = &Policy> + Clone {
        let others = self.others.iter().map(|other| &*other.policy);
        std::iter::once(&*self.own).chain(others)
    }

    /// Returns true if no worker has any of the other enforced policies in force.
    pub fn is_settled(&self) -> bool {
        self.others.iter().all(|other| other.idle)
    }

    /// Returns the effective limits of `tenant` for a job that names `plan`.
    pub fn limits(&mut self, tenant: &Tenant, plan: Option<&str>) -> Limits {
        if self.others.is_empty() {
            return self.own.limits(tenant, plan).clone();
        }
        let known = self.joined.get(tenant).and_then(|plans| {
            let found = plans.iter().find(|(name, _)| name.as_deref() == plan)?;
            Some(&found.1)
        });
        if let Some(limits) = known {
            return limits.clone();
        }
        let limits = self.join(tenant, plan);
        if self.joined.len() >= REMEMBERED {
            self.joined.clear();
        }
        let plans = self.joined.entry(tenant.clone()).or_default();
        plans.push((plan.map(str::to_owned), limits.clone()));
        limits
    }

    pub(super) fn join(&self, tenant: &Tenant, plan: Option<&str>) -> Limits {
        let in_force = self.others_in_force(tenant, plan);
        let limits = in_force.iter().map(|(_, limits)| limits);
        self.own.limits(tenant, plan).with_all(limits)
    }

    /// Returns true if another worker's `policy` is in force for `tenant`.
    pub fn enforces(&self, policy: &Policy, tenant: &Tenant, plan: Option<&str>) -> bool {
        let in_force = self.others_in_force(tenant, plan);
        in_force.iter().any(|(other, _)| other.as_ref() == policy)
    }

    /// Returns the other policies that are in force for `tenant`, with its limits.
    fn others_in_force(&self, tenant: &Tenant, plan: Option<&str>) -> Vec<(&Arc<Policy>, Limits)> {
        let own = self.own.limits(tenant, plan);
        let of = |other: &ForeignPolicy| -> Limits {
            // If the header differs, the job may have another plan, or none.
            let same_header = other.policy.plan_header() == self.own.plan_header();
            let plan = plan.filter(|_| same_header);
            other.policy.limits(tenant, plan).clone()
        };
        let others: Vec<(&ForeignPolicy, Limits)> =
            self.others.iter().map(|other| (other, of(other))).collect();
        let continues = others.iter().all(|(_, limits)| own.continue_from(limits));
        let others = others.into_iter();
        let in_force = others.filter(|(other, _)| !(continues && other.idle));
        in_force
            .map(|(other, limits)| (&other.policy, limits))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use kit::gate::named_limit;
    use rules::limit::{Algorithm, Limit, Unit};
    use rules::policy::{EntryLimits, Pattern};

    fn limit(name: &str, algorithm: Algorithm, max: u64, ms: u64) -> Limit {
        named_limit(name, algorithm, max, Duration::from_millis(ms))
    }

    fn registered(id: &str, policy: Policy, used_ms: u64) -> RegisteredPolicy {
        RegisteredPolicy {
            id: id.to_owned(),
            policy: Arc::new(policy),
            since_ms: 0,
            used_ms,
        }
    }

    fn joined(own: &Policy, others: Vec<RegisteredPolicy>, now_ms: u64, tenant: &str) -> Limits {
        let mut known = RegistryKnowledge::default();
        known.learn(others, now_ms);
        let tenant = kit::gate::tenant(tenant);
        let mut fleet = known.fleet(Arc::new(own.clone()), "own", now_ms);
        let limits = fleet.limits(&tenant, None);
        assert_eq!(fleet.limits(&tenant, None), limits, "remembered");
        limits
    }

    #[test]
    fn limits_with_one_state_become_the_stricter_and_the_others_stay() {
        use Algorithm::{FixedWindow, SlidingWindow, Strict, TokenBucket};
        let bucket = |max, burst| {
            let limit = limit("default", TokenBucket, max, 1_000);
            limit.with_burst(burst).expect("in range")
        };
        let running = |max| Limit::concurrent("running", max).expect("in range");
        for (one, two, both) in [
            (
                bucket(10, 50),
                bucket(20, 5),
                vec![bucket(10, 50), bucket(20, 5)],
            ),
            (running(4), running(9), vec![running(4)]),
            (
                limit("a", Strict, 4, 1_000),
                limit("a", Strict, 2, 1_000),
                vec![limit("a", Strict, 2, 1_000)],
            ),
            (
                limit("a", FixedWindow, 4, 1_000),
                limit("a", FixedWindow, 2, 2_000),
                vec![
                    limit("a", FixedWindow, 4, 1_000),
                    limit("a", FixedWindow, 2, 2_000),
                ],
            ),
            (
                limit("a", SlidingWindow, 4, 1_000),
                limit("a", SlidingWindow, 4, 1_000).with_unit(Unit::Calls),
                vec![
                    limit("a", SlidingWindow, 4, 1_000),
                    limit("a", SlidingWindow, 4, 1_000).with_unit(Unit::Calls),
                ],
            ),
        ] {
            let [one, two] = [one, two].map(Limits::from);
            assert_eq!(one.with_all([&two])[..], both[..]);
            assert_eq!(one.with_all([&one]), one);
        }
    }

    #[test]
    fn a_policy_is_enforced_for_the_longest_memory_and_the_margin() {
        let own = Policy::from(limit("default", Algorithm::FixedWindow, 5, 1_000));
        let long = Policy::from(limit("default", Algorithm::TokenBucket, 5, 60_000));
        let now_ms = 1_000_000;
        let kept_ms = memory_ms(&long) + MARGIN_MS;
        let with = |used_ms| {
            let others = vec![
                registered("own", own.clone(), now_ms),
                registered("long", long.clone(), used_ms),
            ];
            joined(&own, others, now_ms, "acme").len()
        };
        assert_eq!(with(now_ms), 2);
        assert_eq!(with(now_ms - kept_ms), 2);
        assert_eq!(with(now_ms - kept_ms - 1), 1);
        assert_eq!(with(now_ms + kept_ms), 2, "the clock was stepped back");
    }

    #[test]
    fn a_clock_step_back_keeps_no_policy_forever() {
        let own = Policy::from(limit("default", Algorithm::FixedWindow, 5, 1_000));
        let mut known = RegistryKnowledge::default();
        known.learn(vec![registered("a", own, 9_000_000)], 9_000_000);
        known.learn(Vec::new(), 5_000);
        assert_eq!(known.dropped_at("a"), Some(5_000 + 1_000 + MARGIN_MS));
        known.learn(Vec::new(), 5_000 + 1_001 + MARGIN_MS);
        assert_eq!(known.policies().len(), 0);
    }

    #[test]
    fn only_a_continuation_replaces_an_idle_policy_at_once() {
        let sliding = |max, ms| limit("default", Algorithm::SlidingWindow, max, ms);
        let fixed = |name, max| limit(name, Algorithm::FixedWindow, max, 60_000);
        let bucket = |max| limit("default", Algorithm::TokenBucket, max, 60_000);
        for (old, new, at_once) in [
            (sliding(5, 60_000), sliding(9, 60_000), true),
            (sliding(5, 60_000), sliding(9, 1_000), true),
            (sliding(5, 1_000), sliding(9, 60_000), false),
            (fixed("a", 5), fixed("a", 9), true),
            (fixed("a", 5), fixed("b", 9), false),
            (fixed("a", 5), sliding(9, 60_000), false),
            (bucket(5), bucket(9), false),
        ] {
            let own = Policy::from(new.clone());
            let now_ms = 1_000_000;
            let with = |used_ms| {
                let others = vec![registered("old", Policy::from(old.clone()), used_ms)];
                joined(&own, others, now_ms, "acme") == Limits::from(new.clone())
            };
            let what = format!("{old:?} {new:?}");
            assert!(!with(now_ms - IDLE_MS), "in use: {what}");
            // The old policy is forgotten later if its look-back is long.
            assert_eq!(with(now_ms - IDLE_MS - 1), at_once, "{what}");
            let old = Policy::from(old.clone());
            let others = vec![registered("old", old.clone(), now_ms - IDLE_MS - 1)];
            let mut known = RegistryKnowledge::default();
            known.learn(others, now_ms);
            let fleet = known.fleet(Arc::new(own.clone()), "own", now_ms);
            let acme = kit::gate::tenant("acme");
            assert_eq!(fleet.enforces(&old, &acme, None), !at_once, "{what}");
        }
    }

    #[test]
    fn unchanged_limits_of_a_tenant_are_unaffected() {
        let common = || Limits::from(limit("default", Algorithm::SlidingWindow, 5, 1_000));
        let own = Policy::common(common());
        let acme = limit("default", Algorithm::LeakyBucket, 9, 1_000);
        let acme = (Pattern::parse("acme"), EntryLimits::Limits(acme.into()));
        let other = Policy::common(common()).with_tenants(vec![acme]);
        let others = || vec![registered("other", other.clone(), 1_000)];
        assert_eq!(joined(&own, others(), 1_000, "globex"), common());
        assert_eq!(joined(&own, others(), 1_000, "acme").len(), 2);
    }
}
