//! Tenants for which nothing can be decided, because their primary is in a recovery wait or
//! unavailable. Determines when their jobs ask again.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;
use rules::tenant::Tenant;

/// The longest wait before jobs ask again for the first time. Within seconds, a replica takes over,
/// or workers vouch.
pub const FIRST_WAIT: Duration = Duration::from_secs(5);
/// Later waits are this many times as long as the outage has lasted. This bounds the cost of an
/// early end, and it takes two waits to get from [`FIRST_WAIT`] to the longest delay queue of some
/// minutes, as promised for an outage.
const WAIT_FACTOR: u32 = 8;
/// Maximum number of remembered tenants. Jobs of further tenants ask again after [`FIRST_WAIT`].
const MAX_TENANTS: usize = 10_000;

/// Tenants without decisions: since when, and when that was last seen.
#[derive(Debug, Default)]
pub struct TenantOutages {
    tenants: HashMap<Tenant, (Duration, Duration), RandomState>,
}

impl TenantOutages {
    /// Records that nothing could be decided for `tenant`. Returns for how long already. Jobs ask
    /// at least once per `farthest`, so a tenant that was not seen for twice that time begins a new
    /// outage.
    pub fn record(&mut self, now: Duration, tenant: &Tenant, farthest: Duration) -> Duration {
        let current = |last: Duration| now.saturating_sub(last) <= 2 * farthest.max(FIRST_WAIT);
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

    /// Records that something was decided for `tenant`.
    pub fn over(&mut self, tenant: &Tenant) {
        self.tenants.remove(tenant);
    }
}

/// Returns when to ask again after an outage that has lasted for `lasts`.
pub fn next_wait(lasts: Duration, farthest: Duration) -> Duration {
    (lasts.saturating_mul(WAIT_FACTOR))
        .max(FIRST_WAIT)
        .min(farthest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::SECOND;
    use kit::gate::tenant;

    #[test]
    fn an_outage_ends_with_a_decision_or_when_no_job_asks() {
        let (mut outages, a) = (TenantOutages::default(), tenant("a"));
        let lasts: Vec<_> = [1, 6, 46, 246]
            .map(|at| outages.record(at * SECOND, &a, 100 * SECOND).as_secs())
            .into();
        assert_eq!(lasts, [0, 5, 45, 245]);
        assert_eq!(
            outages.record(447 * SECOND, &a, 100 * SECOND),
            Duration::ZERO,
            "another one"
        );
        outages.over(&a);
        assert!(outages.tenants.is_empty());
    }

    #[test]
    fn two_waits_reach_the_longest_delay_queue() {
        let farthest = 300 * SECOND;
        let waits = [0, 5, 45, 99_999].map(|s| next_wait(s * SECOND, farthest).as_secs());
        assert_eq!(waits, [5, 40, 300, 300]);
        assert_eq!(next_wait(Duration::ZERO, SECOND), SECOND);
        assert_eq!(next_wait(Duration::MAX, farthest), farthest);
    }

    #[test]
    fn the_number_of_outages_is_bounded() {
        let mut outages = TenantOutages::default();
        for number in 0..=MAX_TENANTS {
            outages.record(SECOND, &tenant(number), SECOND);
        }
        assert_eq!(outages.tenants.len(), MAX_TENANTS);
        outages.record(99 * SECOND, &tenant("late"), SECOND);
        assert_eq!(outages.tenants.len(), 1);
    }
}
