//! Which limits a worker enforces while the workers of one Redis do not all have the same configuration.
//!
//! # The rule
//! Every worker enforces its own policy and every other policy that any worker had in force within the last
//! *memory* and [`MARGIN_MS`], all at once. The memory is the longest time that any limit of these policies looks back.
//!
//! The workers learn of each other by a registry in Redis. In one atomic *exchange* a worker writes down its own policy
//! with Redis's time, and reads all others. It makes an exchange before it first asks the gate, before it puts a changed
//! policy in force (with the old and the new one), and every second. A worker whose last exchange was *sent* more than
//! [`AGREED_FOR_MS`] ago does not ask.
//!
//! # Why no more passes than the larger of two policies
//! Take any window of the memory's length that begins at t0, and the first exchange of any worker after t0 - A, where A
//! is the age that an exchange may have when a start that it allows reaches the downstream: [`AGREED_FOR_MS`] and half a
//! guard, which a permit lasts (the memory has the guard in it). Call what it registered P. Every start in the window
//! follows an exchange of its own worker after t0 - A, so at or behind that first one, and sees P; none of them finds P
//! too old, since P was registered after t0 - A and all these exchanges come before the window's end. So *all* starts in
//! the window were charged to P's limits and allowed by them: the window holds at most what P lets pass, and P is one of
//! the policies that were in force. This needs no agreement on who switches when, and holds for any number of policies, for
//! workers that never switch, and for rolling restarts.
//!
//! - In a Redis Cluster each primary has a registry, and all of this holds for the starts at each by itself: a worker asks there
//!   only while its exchange with that one is not too old, and enforces what any of them holds. Out of account is a slot
//!   that moves from one primary to another while one worker is cut off from the latter, and a second one with another policy
//!   from the former.
//! - Times of the registry and of starts are Redis's. A worker measures an exchange's age by its own monotonic clock, from
//!   before it was sent. A clock of Redis that is stepped back keeps policies for longer; stepped forward, it breaks the
//!   windows themselves.
//! - A process that is stopped (or swapped out) after it looked at the age of its exchange gets the gate's answer too late:
//!   its permit, counted from the same look, is over, and nothing is sent.
//! - A Redis that lost the registry does not make a worker forget: it keeps what it saw for as long as it would have.
//! - A policy that a worker can't read (of a newer version, or damaged) stops it: it does not ask.
//! - A job's cost is judged by its worker's own policy. One above another policy's whole limit starts when all of that is
//!   free, and is charged in full.
//! - So are the values that tell its jobs apart: what another policy's scopes can't use counts there as no value.
//! - What holds for a tenant's limits holds for those that all tenants share, since each start of each tenant is charged to
//!   them.
//! - Calls that run for longer than the memory, a lease for `max-concurrent` and `guard: strict`, are out of account when
//!   such a limit has changed its name or window; one that kept them has its places in common.
//!
//! # Dropped sooner
//! A raised sliding limit need not wait for a whole window: what the new one counts was charged to the log all along
//! ([`Limit::continues`](crate::rules::limit::Limit::continues)). Where that is so for all own limits of a tenant, and in every
//! other policy of the registry, a policy that nobody uses any more ([`IDLE_MS`]) is left out for this tenant. Then a window
//! whose last start was allowed by the old policy holds at most what that allows, and any other what the new one allows.
//! And what later policies say, too, for all whose memory is long, is enforced with the later ones (`superseded.rs`).
//! It may be left out for some tenants and not for others: a limit that all tenants share is then continued for all of them,
//! so that both count in one state.

pub mod shelf;
mod superseded;
pub mod text;

use std::collections::HashMap;
use std::sync::Arc;

use crate::rules::limit::{Limits, ceil_ms};
use crate::rules::policy::Policy;
use crate::rules::tenant::Tenant;

/// So long after its last exchange was sent, a worker asks the gate no more.
pub const AGREED_FOR_MS: u64 = 5_000;
/// A policy is enforced for so long beyond the memory: twice what an exchange may be old.
pub const MARGIN_MS: u64 = 2 * AGREED_FOR_MS;
/// A policy that no worker had in force for so long is in no worker's mind.
pub const IDLE_MS: u64 = 2 * AGREED_FOR_MS;
/// The most policies at once. Each costs every decision its limits, so a worker refuses to bring in one more.
pub const MAX_POLICIES: usize = 32;
/// Joined limits of so many tenants are remembered; then they are joined anew.
const REMEMBERED: usize = 10_000;

/// A policy as the registry has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Registered {
    /// Its name in the registry.
    pub id: String,
    /// What it says.
    pub policy: Arc<Policy>,
    /// When it was first registered, in milliseconds of Redis's clock.
    pub since_ms: u64,
    /// When a worker last had it in force, in milliseconds of Redis's clock.
    pub used_ms: u64,
}

/// What a worker knows of the registry.
#[derive(Debug, Clone, Default)]
pub struct Known {
    policies: Vec<Registered>,
    superseded: Vec<(String, u64)>,
}

impl Known {
    /// An exchange at `now_ms` (Redis's clock) gave `registered`. What it does not hold any more is kept for as long as
    /// it is to be enforced: Redis may have lost it.
    pub fn learn(&mut self, registered: Vec<Registered>, now_ms: u64) {
        for new in registered {
            match self.policies.iter_mut().find(|old| old.id == new.id) {
                Some(old) => *old = new,
                None => self.policies.push(new),
            }
        }
        let longest = self.policies.iter().map(|known| memory_ms(&known.policy));
        let kept_ms = longest.max().unwrap_or(0) + MARGIN_MS;
        for known in &mut self.policies {
            // Of later than now: the clock was stepped back.
            known.used_ms = known.used_ms.min(now_ms);
        }
        (self.policies).retain(|known| known.used_ms + kept_ms >= now_ms);
        let gone = superseded::superseded(&self.policies, now_ms);
        self.superseded = (gone.into_iter())
            .map(|known| (known.id.clone(), known.used_ms))
            .collect();
        let gone = |known: &Registered| self.superseded.iter().any(|(id, _)| *id == known.id);
        self.policies.retain(|known| !gone(known));
    }

    /// Those of the last exchange that need not be enforced any more, and when they were last in force: the registry need not
    /// keep them, unless a worker has them in force again.
    pub fn superseded(&self) -> &[(String, u64)] {
        &self.superseded
    }

    /// All that are to be enforced.
    pub fn policies(&self) -> &[Registered] {
        &self.policies
    }

    /// The policy called `id`.
    pub fn find(&self, id: &str) -> Option<&Arc<Policy>> {
        let known = self.policies.iter().find(|known| known.id == id)?;
        Some(&known.policy)
    }

    /// What a worker with the policy `own`, called `id`, enforces after an exchange at `now_ms`.
    pub fn fleet(&self, own: Arc<Policy>, id: &str, now_ms: u64) -> Fleet {
        let others = self.policies.iter().filter(|known| known.id != id);
        let other = |known: &Registered| Other {
            policy: Arc::clone(&known.policy),
            idle: known.used_ms + IDLE_MS < now_ms,
        };
        Fleet {
            own,
            others: others.map(other).collect(),
            joined: HashMap::new(),
        }
    }

    /// When the policy called `id` is dropped at the latest, if nobody uses it from now on (Redis's clock).
    pub fn dropped_at(&self, id: &str) -> Option<u64> {
        let longest = self.policies.iter().map(|known| memory_ms(&known.policy));
        let known = self.policies.iter().find(|known| known.id == id)?;
        Some(known.used_ms + longest.max()? + MARGIN_MS)
    }
}

/// After so long, in milliseconds, no start counts any more for any limit of `policy`.
pub fn memory_ms(policy: &Policy) -> u64 {
    ceil_ms(policy.memory())
}

/// A policy of other workers, or one that was in force here before.
#[derive(Debug, Clone)]
struct Other {
    policy: Arc<Policy>,
    /// Nobody has it in force.
    idle: bool,
}

/// What a worker enforces: its own policy and others.
#[derive(Debug, Clone)]
pub struct Fleet {
    own: Arc<Policy>,
    others: Vec<Other>,
    /// The limits that were joined, by tenant and plan.
    joined: HashMap<Tenant, Vec<(Option<String>, Limits)>>,
}

impl Fleet {
    /// Nobody else is there.
    pub fn alone(own: Arc<Policy>) -> Self {
        Self {
            own,
            others: Vec::new(),
            joined: HashMap::new(),
        }
    }

    /// The worker's own policy.
    pub fn own(&self) -> &Arc<Policy> {
        &self.own
    }

    /// How many policies are enforced.
    pub fn policies(&self) -> usize {
        1 + self.others.len()
    }

    /// What two fleets enforce of one worker, which learned of others in two ways.
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

    /// Both enforce the same.
    pub fn is_like(&self, other: &Self) -> bool {
        let same = |one: &Other, two: &Other| one.idle == two.idle && one.policy == two.policy;
        self.own == other.own
            && self.others.len() == other.others.len()
            && (self.others.iter().zip(&other.others)).all(|(one, two)| same(one, two))
    }

    /// What is in force for `tenant`, whose job names `plan`.
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

    fn join(&self, tenant: &Tenant, plan: Option<&str>) -> Limits {
        let own = self.own.limits(tenant, plan);
        let of = |other: &Other| -> Limits {
            // Under another header the job may have another plan, or none.
            let same_header = other.policy.plan_header() == self.own.plan_header();
            let plan = plan.filter(|_| same_header);
            other.policy.limits(tenant, plan).clone()
        };
        let others: Vec<(Limits, bool)> = self.others.iter().map(|o| (of(o), o.idle)).collect();
        let continues = others.iter().all(|(limits, _)| own.continue_from(limits));
        let in_force = others.iter().filter(|(_, idle)| !(continues && *idle));
        own.with_all(in_force.map(|(limits, _)| limits))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::rules::limit::{Algorithm, Limit, Unit};
    use crate::rules::policy::{Own, Pattern};

    fn limit(name: &str, algorithm: Algorithm, max: u64, ms: u64) -> Limit {
        let window = Duration::from_millis(ms);
        Limit::new(name, algorithm, max, window, Duration::ZERO).expect("in range")
    }

    fn registered(id: &str, policy: Policy, used_ms: u64) -> Registered {
        Registered {
            id: id.to_owned(),
            policy: Arc::new(policy),
            since_ms: 0,
            used_ms,
        }
    }

    fn joined(own: &Policy, others: Vec<Registered>, now_ms: u64, tenant: &str) -> Limits {
        let mut known = Known::default();
        known.learn(others, now_ms);
        let tenant = Tenant::parse(tenant).expect("a tenant");
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
    fn a_clock_that_was_stepped_back_keeps_nothing_for_ever() {
        let own = Policy::from(limit("default", Algorithm::FixedWindow, 5, 1_000));
        let mut known = Known::default();
        known.learn(vec![registered("a", own, 9_000_000)], 9_000_000);
        known.learn(Vec::new(), 5_000);
        assert_eq!(known.dropped_at("a"), Some(5_000 + 1_000 + MARGIN_MS));
        known.learn(Vec::new(), 5_000 + 1_001 + MARGIN_MS);
        assert_eq!(known.policies().len(), 0);
    }

    #[test]
    fn only_what_continues_an_idle_policy_replaces_it_at_once() {
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
            // The old one is forgotten later where its memory is long.
            assert_eq!(with(now_ms - IDLE_MS - 1), at_once, "{what}");
        }
    }

    #[test]
    fn a_tenant_whose_limits_did_not_change_feels_nothing() {
        let common = || Limits::from(limit("default", Algorithm::SlidingWindow, 5, 1_000));
        let own = Policy::common(common());
        let acme = limit("default", Algorithm::LeakyBucket, 9, 1_000);
        let acme = (Pattern::parse("acme"), Own::Limits(acme.into()));
        let other = Policy::common(common()).with_tenants(vec![acme]);
        let others = || vec![registered("other", other.clone(), 1_000)];
        assert_eq!(joined(&own, others(), 1_000, "globex"), common());
        assert_eq!(joined(&own, others(), 1_000, "acme").len(), 2);
    }
}
