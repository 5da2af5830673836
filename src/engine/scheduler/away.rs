//! The tenants for which nothing can be decided, since their primary is cold or away, and how long their jobs wait before
//! they look again.

use std::collections::HashMap;
use std::time::Duration;

use crate::rules::tenant::Tenant;

/// The first look is after this at most: a replica takes over, and workers vouch, in some seconds.
pub const SOON: Duration = Duration::from_secs(5);
/// The next looks are this many times as far away as the outage was long. It bounds what an early end costs, and needs two looks to
/// get from [`SOON`] to the longest delay queue of some minutes, as promised for an outage.
const PATIENCE: u32 = 8;
/// So many tenants are remembered; the others' jobs look each [`SOON`].
const MAX_TENANTS: usize = 10_000;

/// Since when tenants are without decisions, and when that was last seen.
#[derive(Debug, Default)]
pub struct Away {
    tenants: HashMap<Tenant, (Duration, Duration)>,
}

impl Away {
    /// Nothing could be decided for `tenant`: for how long already. Jobs look at least each `farthest`: whoever was not heard of for
    /// twice that begins anew.
    pub fn lasts(&mut self, now: Duration, tenant: &Tenant, farthest: Duration) -> Duration {
        let current = |last: Duration| now.saturating_sub(last) <= 2 * farthest.max(SOON);
        if let Some((since, last)) = self.tenants.get_mut(tenant) {
            if !current(*last) {
                *since = now;
            }
            *last = now;
            return now.saturating_sub(*since);
        }
        if self.tenants.len() >= MAX_TENANTS {
            self.tenants.retain(|_, (_, last)| current(*last));
        }
        if self.tenants.len() < MAX_TENANTS {
            self.tenants.insert(tenant.clone(), (now, now));
        }
        Duration::ZERO
    }

    /// Something was decided for `tenant`.
    pub fn over(&mut self, tenant: &Tenant) {
        self.tenants.remove(tenant);
    }
}

/// When to look again after an outage that has lasted for so long.
pub fn next_look(lasts: Duration, farthest: Duration) -> Duration {
    (lasts.saturating_mul(PATIENCE)).max(SOON).min(farthest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn tenant(name: &str) -> Tenant {
        Tenant::parse(name).expect("a tenant")
    }

    #[test]
    fn an_outage_lasts_until_something_is_decided_or_nobody_asks_any_more() {
        let (mut away, a) = (Away::default(), tenant("a"));
        let lasts: Vec<_> = [1, 6, 46, 246]
            .map(|at| away.lasts(at * SECOND, &a, 100 * SECOND).as_secs())
            .into();
        assert_eq!(lasts, [0, 5, 45, 245]);
        assert_eq!(
            away.lasts(447 * SECOND, &a, 100 * SECOND),
            Duration::ZERO,
            "another one"
        );
        away.over(&a);
        assert!(away.tenants.is_empty());
    }

    #[test]
    fn two_looks_reach_the_longest_delay_queue() {
        let farthest = 300 * SECOND;
        let looks = [0, 5, 45, 99_999].map(|s| next_look(s * SECOND, farthest).as_secs());
        assert_eq!(looks, [5, 40, 300, 300]);
        assert_eq!(next_look(Duration::ZERO, SECOND), SECOND);
        assert_eq!(next_look(Duration::MAX, farthest), farthest);
    }

    #[test]
    fn it_remembers_a_bounded_number() {
        let mut away = Away::default();
        for number in 0..=MAX_TENANTS {
            away.lasts(SECOND, &tenant(&number.to_string()), SECOND);
        }
        assert_eq!(away.tenants.len(), MAX_TENANTS);
        away.lasts(99 * SECOND, &tenant("late"), SECOND);
        assert_eq!(away.tenants.len(), 1);
    }
}
