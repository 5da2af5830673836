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

/// Limits that are enforced together: a job starts only when all of them allow it, and costs each of them or none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Limits(Arc<[Limit]>);

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
                return Err(LimitError::SameName(limit.name.clone()));
            }
        }
        let mut parts: Vec<&Scope> = limits.iter().map(Limit::scope).collect();
        parts.retain(|scope| scope.is_part());
        parts.sort_unstable();
        parts.dedup();
        if parts.len() > MAX_PARTS {
            return Err(LimitError::Parts(parts.len()));
        }
        Ok(Self(limits.into()))
    }

    /// These and all of `others` at once: what each set lets start alone, less what the others deny. Limits that count
    /// with the same state become one, the stricter of both; names may repeat among the rest.
    pub fn with_all<'a>(&self, others: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut all = self.0.to_vec();
        let before = all.clone();
        for limit in others.into_iter().flat_map(|other| other.iter()) {
            match all.iter_mut().find(|known| known.shares_state(limit)) {
                Some(known) => *known = known.stricter(limit),
                None => all.push(limit.clone()),
            }
        }
        if all == before {
            return self.clone();
        }
        Self(all.into())
    }

    /// Those that all tenants share.
    pub fn global(&self) -> impl Iterator<Item = &Limit> {
        self.0.iter().filter(|limit| limit.is_global())
    }

    /// Those that are a tenant's alone.
    pub fn own(&self) -> impl Iterator<Item = &Limit> {
        self.0.iter().filter(|limit| !limit.is_global())
    }

    /// Each of these continues one of `before`: see [`Limit::continues`].
    pub fn continue_from(&self, before: &Self) -> bool {
        self.iter()
            .all(|limit| before.iter().any(|old| limit.continues(old)))
    }

    /// The highest cost of a job that can start: above it, it never could. Jobs of any cost can where no limit
    /// counts cost.
    pub fn max_cost(&self) -> u32 {
        let costs = self.0.iter().filter(|limit| limit.unit() == Unit::Cost);
        costs.map(Limit::capacity).min().unwrap_or(u32::MAX)
    }

    /// The shortest guard, in milliseconds: a permit is good for half of it. 0: no limit has one.
    pub fn guard_ms(&self) -> u64 {
        let guards = self.0.iter().map(Limit::guard_ms);
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
        self.0.iter().any(|limit| limit.algorithm().holds_leases())
    }

    /// Those that hold leases, if any.
    pub fn held(&self) -> Option<Self> {
        let held = self
            .0
            .iter()
            .filter(|limit| limit.algorithm().holds_leases());
        let held: Arc<[Limit]> = held.cloned().collect();
        (!held.is_empty()).then_some(Self(held))
    }

    /// The longest [`Limit::memory_ms`] of them.
    pub fn memory_ms(&self) -> u64 {
        self.0.iter().map(Limit::memory_ms).max().unwrap_or(0)
    }
}

impl Deref for Limits {
    type Target = [Limit];

    fn deref(&self) -> &[Limit] {
        &self.0
    }
}

impl From<Limit> for Limits {
    fn from(limit: Limit) -> Self {
        Self(Arc::new([limit]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::limit::Algorithm;

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
