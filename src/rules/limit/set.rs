//! Several limits that are enforced together.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::{Limit, LimitError, Unit};
use crate::rules::scope::{MAX_PARTS, Scope};

/// Without a guard nothing is promised of the way to the downstream; a permit is still not good for ever.
const UNGUARDED: Duration = Duration::from_secs(1);

/// The most limits that are enforced at once.
pub const MAX_LIMITS: usize = 16;

/// Limits that are enforced together: a job starts only when all of them allow it, and costs each of them or none. It is a slice of
/// these; [`Limits::shadows`] are beside them, so whoever does not ask for shadows decides as if there were none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Those that are enforced, then the shadows.
    all: Arc<[Limit]>,
    enforced: usize,
}

impl Limits {
    /// `limits` together.
    ///
    /// # Errors
    /// [`LimitError`] when there are none or too many, two have one name, or they tell jobs apart by too many headers.
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

    /// Those that are enforced, in their order, and then the shadows: all that a start is charged to.
    pub fn all(&self) -> &[Limit] {
        &self.all
    }

    /// Those that count and deny nothing.
    pub fn shadows(&self) -> &[Limit] {
        &self.all[self.enforced..]
    }

    /// These and all of `others` at once: what each set lets start alone, less what the others deny. Limits that count
    /// with the same state become one, the stricter of both; names may repeat among the rest. A shadow of what is enforced is none.
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

    /// These, and beside them what an operator tries: for the limit of each name another `max`, as a shadow. Nothing where no limit of a
    /// tenant's own that is enforced has the name, or where it can't be a shadow.
    pub fn trying<'a>(&self, tried: impl IntoIterator<Item = (&'a str, u32)>) -> Self {
        let shadow = |(name, max): (&str, u32)| {
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

    /// These, and those of `common` that all tenants share.
    pub fn with_global_of(&self, common: &Self) -> Self {
        let global = common.global().cloned().collect();
        self.with_all([&Self::of(global)])
    }

    /// Those that all tenants share, shadows included.
    pub fn global(&self) -> impl Iterator<Item = &Limit> {
        self.all.iter().filter(|limit| limit.is_global())
    }

    /// Those that are a tenant's alone, shadows included.
    pub fn own(&self) -> impl Iterator<Item = &Limit> {
        self.all.iter().filter(|limit| !limit.is_global())
    }

    /// Each of these continues one of `before`, or a shadow of it, to which every start was charged as well: see
    /// [`Limit::continues`].
    pub fn continue_from(&self, before: &Self) -> bool {
        self.iter()
            .all(|limit| before.all.iter().any(|old| limit.continues(old)))
    }

    /// Returns these limits with starts of buckets `apart_us` further apart. Shadows stay the same, since nothing waits for them.
    pub fn kept_apart(&self, apart_us: impl Fn(&Limit) -> u32) -> Self {
        let apart = |limit: &Limit| match limit.is_shadow() {
            true => limit.clone(),
            false => limit.clone().kept_apart(apart_us(limit)),
        };
        Self {
            all: self.all.iter().map(apart).collect(),
            enforced: self.enforced,
        }
    }

    /// The highest cost of a job that can start: above it, it never could. Jobs of any cost can where no limit
    /// counts cost.
    pub fn max_cost(&self) -> u32 {
        let costs = self.iter().filter(|limit| limit.unit() == Unit::Cost);
        costs.map(Limit::capacity).min().unwrap_or(u32::MAX)
    }

    /// The shortest guard, in milliseconds: a permit is good for half of it. 0: no limit has one.
    pub fn guard_ms(&self) -> u64 {
        let guards = self.iter().map(Limit::guard_ms);
        guards.filter(|guard| *guard > 0).min().unwrap_or(0)
    }

    /// So long a permit is good from the moment that it was asked for, beyond what the way to the store takes in any case: half of
    /// the guard, since the other half is for the way to the downstream.
    pub fn permit_lasts(&self) -> Duration {
        match self.guard_ms() {
            0 => UNGUARDED,
            guard => Duration::from_millis(guard) / 2,
        }
    }

    /// Whether the gate must be told when a call has ended.
    pub fn hold_leases(&self) -> bool {
        self.iter().any(|limit| limit.algorithm().holds_leases())
    }

    /// Those that hold leases, if any.
    pub fn held(&self) -> Option<Self> {
        let held = self.iter().filter(|limit| limit.algorithm().holds_leases());
        let held: Vec<Limit> = held.cloned().collect();
        (!held.is_empty()).then(|| Self::of(held))
    }

    /// The longest [`Limit::memory_ms`] of them.
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
    use crate::rules::limit::Algorithm;

    #[test]
    fn shadows_stand_beside_what_is_enforced() {
        let second = Duration::from_secs(1);
        let limit = |name: &str, max| {
            let limit = Limit::new(name, Algorithm::FixedWindow, max, second, Duration::ZERO);
            limit.expect("in range")
        };
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

        // While workers differ, what any of them enforces is enforced, and a shadow of that is none.
        let new = set(vec![limit("a", 5), limit("b", 2)]);
        assert_eq!(old.with_all([&new])[..], [limit("a", 5), limit("b", 2)]);
        assert_eq!(new.with_all([&old]), new);
        // Every start was charged to it.
        assert!(new.continue_from(&old));
        assert!(!new.continue_from(&set(vec![limit("a", 5)])));
    }

    #[test]
    fn what_an_operator_tries_stands_beside_what_is_enforced_with_a_state_of_its_own() {
        use Algorithm::{FixedWindow, TokenBucket};
        let (second, guard) = (Duration::from_secs(1), Duration::ZERO);
        let limit = |name: &str, algorithm, max| {
            Limit::new(name, algorithm, max, second, guard).expect("in range")
        };
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
    fn a_permit_lasts_half_of_the_shortest_guard_or_a_second_where_there_is_none() {
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
