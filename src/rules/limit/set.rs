//! Sets of limits that are enforced together.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::{Limit, LimitError, MAX_REQUESTS, Unit};
use crate::scope::{MAX_PARTS, Scope};

/// Lifetime of a permit without a guard. Nothing is assumed about the latency to the API then, but
/// a permit must still expire.
const UNGUARDED: Duration = Duration::from_secs(1);

/// Maximum number of limits that are enforced at once.
pub const MAX_LIMITS: usize = 16;

/// Limits that are enforced together: a job starts only if all of them allow it, and is charged to
/// all of them or none. Dereferences to the enforced limits. [`Limits::shadows`] are separate, so
/// code that does not ask for them decides as if there were none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The enforced limits, then the shadows.
    all: Arc<[Limit]>,
    enforced: usize,
}

impl Limits {
    /// Returns a set of `limits`.
    ///
    /// # Errors
    /// Returns a [`LimitError`] if there are none or too many, if two have the same name, if they
    /// distinguish jobs by too many headers, or if all are shadows.
    pub fn new(limits: Vec<Limit>) -> Result<Self, LimitError> {
        if limits.is_empty() || limits.len() > MAX_LIMITS {
            return Err(LimitError::Number(limits.len()));
        }
        for (at, limit) in limits.iter().enumerate() {
            if limits[..at].iter().any(|other| other.name == limit.name) {
                return Err(LimitError::SameName(limit.name().to_owned()));
            }
        }
        let mut parts: Vec<&Scope> = limits.iter().map(Limit::scope).collect();
        parts.retain(|scope| scope.is_part());
        parts.sort_unstable();
        parts.dedup();
        if parts.len() > MAX_PARTS {
            return Err(LimitError::Parts(parts.len()));
        }
        let limits = Self::of(limits);
        match limits.enforced {
            0 => Err(LimitError::NothingEnforced),
            _ => Ok(limits),
        }
    }

    fn of(mut all: Vec<Limit>) -> Self {
        all.sort_by_key(Limit::is_shadow);
        Self {
            enforced: all.iter().filter(|limit| !limit.is_shadow()).count(),
            all: all.into(),
        }
    }

    /// Returns the enforced limits, in order, and then the shadows: all limits that a start is
    /// charged to.
    pub fn all(&self) -> &[Limit] {
        &self.all
    }

    /// Returns the limits that only count and deny nothing.
    pub fn shadows(&self) -> &[Limit] {
        &self.all[self.enforced..]
    }

    /// Returns the union of this set and all `others`: a job starts if every set allows it. Limits
    /// that count with the same state become one, the stricter of both. Other limits may have the
    /// same name. A shadow of an enforced limit is dropped.
    pub fn with_all<'a>(&self, others: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut all = self.all.to_vec();
        let before = all.clone();
        for limit in others.into_iter().flat_map(|other| other.all.iter()) {
            match all.iter_mut().find(|known| known.shares_state(limit)) {
                Some(known) => *known = known.stricter(limit),
                None => all.push(limit.clone()),
            }
        }
        if all == before {
            return self.clone();
        }
        Self::of(all)
    }

    /// Returns this set with the shadows that an operator tries: for the limit of each name another
    /// `max`. Skips a name if the tenant has no enforced limit of its own with this name, or if the
    /// limit can't be a shadow.
    pub fn trying<'a>(&self, tried: impl IntoIterator<Item = (&'a str, u64)>) -> Self {
        let shadow = |(name, max): (&str, u64)| {
            let mut named = self.iter().filter(|limit| limit.name() == name);
            let limit = named.find(|limit| !limit.is_global())?;
            limit.tried(max).ok()
        };
        let shadows: Vec<Limit> = tried.into_iter().filter_map(shadow).collect();
        match shadows.is_empty() {
            true => self.clone(),
            false => Self::of([&*self.all, &shadows].concat()),
        }
    }

    /// Returns this set and the limits of `common` that all tenants share.
    pub fn with_global_of(&self, common: &Self) -> Self {
        let global = common.global().cloned().collect();
        self.with_all([&Self::of(global)])
    }

    /// Returns the limits that all tenants share, shadows included.
    pub fn global(&self) -> impl Iterator<Item = &Limit> {
        self.all.iter().filter(|limit| limit.is_global())
    }

    /// Returns the limits that are not shared by all tenants, shadows included.
    pub fn own(&self) -> impl Iterator<Item = &Limit> {
        self.all.iter().filter(|limit| !limit.is_global())
    }

    /// Returns true if each of these limits continues a limit of `before`, or a shadow, to which
    /// every start was charged as well. See [`Limit::continues`].
    pub fn continue_from(&self, before: &Self) -> bool {
        self.iter()
            .all(|limit| before.all.iter().any(|old| limit.continues(old)))
    }

    /// Returns these limits with starts of buckets `spacing_us` further apart. Shadows do not
    /// change, because no job waits for them.
    pub fn with_spacing(&self, spacing_us: impl Fn(&Limit) -> u32) -> Self {
        let apart = |limit: &Limit| match limit.is_shadow() {
            true => limit.clone(),
            false => limit.clone().with_spacing(spacing_us(limit)),
        };
        Self {
            all: self.all.iter().map(apart).collect(),
            enforced: self.enforced,
        }
    }

    /// Returns the highest cost with which a job can start at all. If no limit counts cost, jobs of
    /// any cost can.
    pub fn max_cost(&self) -> u64 {
        let costs = self.iter().filter(|limit| limit.unit() == Unit::Cost);
        costs
            .map(|limit| limit.capacity())
            .min()
            .unwrap_or(MAX_REQUESTS)
    }

    /// Returns the maximum number of a tenant's jobs that start at once, `usize::MAX` if that is
    /// unknown: limits per value of a label bound the jobs of one value alone, and leases may
    /// become free at any time.
    pub fn max_starts(&self) -> usize {
        if self.hold_leases() {
            return usize::MAX;
        }
        let bounds = self.iter().filter(|limit| !limit.scope().is_part());
        let starts = bounds.map(|limit| limit.burst()).min().unwrap_or(u64::MAX);
        usize::try_from(starts).unwrap_or(usize::MAX)
    }

    /// Returns the shortest guard in milliseconds, or 0 if no limit has one. A permit lasts half of
    /// it.
    pub fn guard_ms(&self) -> u64 {
        let guards = self.iter().map(|limit| limit.guard_ms());
        guards.filter(|guard| *guard > 0).min().unwrap_or(0)
    }

    /// Returns how long a permit lasts from the moment when it was requested, not counting the
    /// minimum latency to the store: half of the guard, because the other half is for the latency
    /// to the API.
    pub fn permit_lasts(&self) -> Duration {
        match self.guard_ms() {
            0 => UNGUARDED,
            guard => Duration::from_millis(guard) / 2,
        }
    }

    /// Returns true if the gate must learn when a call has ended.
    pub fn hold_leases(&self) -> bool {
        self.iter().any(|limit| limit.algorithm().holds_leases())
    }

    /// Returns true if only the tenant's starts decide when the first job of its waitlist may
    /// start: no job of another tenant or label, no end of a call, and no learned limit.
    pub fn depend_on_starts(&self) -> bool {
        self.iter().all(|limit| {
            *limit.scope() == Scope::Tenant
                && limit.band().is_none()
                && !limit.algorithm().holds_leases()
        })
    }

    /// Returns the limits that hold leases, or `None` if none does.
    pub fn held(&self) -> Option<Self> {
        let held = self.iter().filter(|limit| limit.algorithm().holds_leases());
        let held: Vec<Limit> = held.cloned().collect();
        (!held.is_empty()).then(|| Self::of(held))
    }

    /// Returns the longest [`Limit::memory_ms`].
    pub fn memory_ms(&self) -> u64 {
        self.iter().map(Limit::memory_ms).max().unwrap_or(0)
    }
}

impl Deref for Limits {
    type Target = [Limit];

    fn deref(&self) -> &[Limit] {
        &self.all[..self.enforced]
    }
}

impl From<Limit> for Limits {
    fn from(limit: Limit) -> Self {
        Self::of(vec![limit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit;
    use crate::limit::Algorithm;

    #[test]
    fn starts_are_bounded_by_what_a_burst_admits_unless_that_is_unknown() {
        let limit = |name: &str, algorithm, max| kit::limit(name, algorithm, max, kit::SECOND);
        let window = limit("window", Algorithm::SlidingWindow, 9);
        let leaky = limit("leaky", Algorithm::LeakyBucket, 9);
        let part = limit("part", Algorithm::FixedWindow, 2);
        let part = part.with_scope(Scope::Header("x-path".into()));
        let leases = Limit::concurrent("leases", 5).expect("in range");
        let global = window.clone().with_scope(Scope::Global);
        for (limits, max, depend_on_starts) in [
            (vec![window.clone()], 9, true),
            (vec![window.clone(), leaky], 1, true),
            (vec![window.clone(), part], 9, false),
            (vec![window.clone().with_band(50)], 9, false),
            (vec![global], 9, false),
            (vec![window, leases], usize::MAX, false),
        ] {
            let limits = Limits::new(limits).expect("names of their own");
            let found = (limits.max_starts(), limits.depend_on_starts());
            assert_eq!(found, (max, depend_on_starts), "{limits:?}");
        }
    }

    #[test]
    fn shadow_limits_accompany_enforced_ones() {
        let limit = |name: &str, max| kit::limit(name, Algorithm::FixedWindow, max, kit::SECOND);
        let shadow = |name: &str, max| limit(name, max).in_shadow().expect("it holds no leases");
        let set = |limits: Vec<Limit>| Limits::new(limits).expect("names of their own");
        let old = set(vec![shadow("b", 2), limit("a", 5)]);
        assert_eq!(old[..], [limit("a", 5)]);
        assert_eq!(old.shadows(), [shadow("b", 2)]);
        assert_eq!((old.max_cost(), old.guard_ms()), (5, 0));
        let alone = Limits::new(vec![shadow("b", 2)]);
        assert_eq!(alone, Err(LimitError::NothingEnforced));
        assert!(matches!(
            Limit::concurrent("c", 5).map(Limit::in_shadow),
            Ok(Err(LimitError::Shadow(Algorithm::Concurrency)))
        ));

        // While workers have different policies, each enforced limit stays enforced, and a shadow
        // of it is dropped.
        let new = set(vec![limit("a", 5), limit("b", 2)]);
        assert_eq!(old.with_all([&new])[..], [limit("a", 5), limit("b", 2)]);
        assert_eq!(new.with_all([&old]), new);
        // Every start was charged to the shadow.
        assert!(new.continue_from(&old));
        assert!(!new.continue_from(&set(vec![limit("a", 5)])));
    }

    #[test]
    fn a_tried_limit_has_its_own_state_beside_enforced_ones() {
        use Algorithm::{FixedWindow, TokenBucket};
        let limit = |name: &str, algorithm, max| kit::limit(name, algorithm, max, kit::SECOND);
        let shadow = limit("s", FixedWindow, 2).in_shadow();
        let all = vec![
            limit("all", FixedWindow, 9).with_scope(Scope::Global),
            limit("b", TokenBucket, 5),
            Limit::concurrent("c", 5).expect("in range"),
            shadow.expect("it holds no leases"),
        ];
        let set = Limits::new(all).expect("names of their own");
        for none in ["all", "c", "s", "d", "b.tried"] {
            assert_eq!(set.trying([(none, 3)]), set, "{none}");
        }
        let trying = set.trying([("b", 3), ("c", 1)]);
        assert_eq!(trying[..], set[..], "the same is enforced");
        let [_, tried] = trying.shadows() else {
            panic!("{:?}", trying.shadows());
        };
        assert_eq!((tried.tried_for(), tried.max()), (Some("b"), 3));
        assert_eq!(tried.burst(), 3, "the default of the other max");
        assert!(
            trying
                .all()
                .iter()
                .all(|it| it == tried || !it.shares_state(tried))
        );
        assert!(set.all().iter().all(|limit| limit.tried_for().is_none()));
    }

    #[test]
    fn of_limits_with_one_state_the_lower_max_and_the_longer_guard_count() {
        let limit = |max, guard_ms| {
            let guard = Duration::from_millis(guard_ms);
            let limit = Limit::new("a", Algorithm::FixedWindow, max, kit::SECOND, guard);
            Limits::from(limit.expect("in range"))
        };
        for (one, other) in [((5, 50), (9, 100)), ((9, 100), (5, 50))] {
            let [one, other] = [one, other].map(|(max, guard_ms)| limit(max, guard_ms));
            let both = one.with_all([&other]);
            assert_eq!(both, limit(5, 100), "{one:?} {other:?}");
            assert_eq!(both.memory_ms(), 1_100);
        }
    }

    #[test]
    fn a_permit_lasts_half_of_the_shortest_guard_or_one_second() {
        let ms = Duration::from_millis;
        let window = |name: &str, algorithm, guard_ms| {
            let limit = Limit::new(name, algorithm, 5, ms(60_000), ms(guard_ms));
            limit.expect("in range")
        };
        let strict = window("strict", Algorithm::Strict, 0);
        let running = Limit::concurrent("running", 5).expect("in range");
        let long = window("long", Algorithm::SlidingWindow, 400);
        let short = window("short", Algorithm::FixedWindow, 50);
        for (limits, lasts) in [
            (vec![strict.clone(), running.clone()], 1_000),
            (vec![strict, long.clone()], 200),
            (vec![long, short, running], 25),
        ] {
            let limits = Limits::new(limits).expect("limits");
            assert_eq!(limits.permit_lasts(), ms(lasts));
        }
    }
}
