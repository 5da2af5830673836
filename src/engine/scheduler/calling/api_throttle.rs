//! This worker's view of whether the API throttles all tenants. The gate's scripts do not check
//! that, because it is not in the hash slot of a tenant's keys, so each worker has to observe it.

use std::time::Duration;

/// Interval at which the store is asked whether another worker was throttled, or an operator ended
/// the throttle.
pub const QUERY_INTERVAL: Duration = Duration::from_secs(1);
/// Age at which the state is too old to start jobs. Otherwise an idle worker's next job would be
/// called while all tenants are throttled.
const STALE_AFTER: Duration = Duration::from_secs(2);

/// The known throttle.
#[derive(Debug, Default)]
pub struct ApiThrottle {
    /// End of the throttle in an answer to this worker. The store may not know it yet.
    own_until: Duration,
    /// End of the throttle in the store.
    known_until: Duration,
    /// Whether this worker's own answer changed the throttle after the store was asked, so that the
    /// store's reply may be older.
    is_newer: bool,
    /// Whether the limits in force let another worker's answer throttle all tenants.
    watches: bool,
    /// When to ask the store again.
    next_check: Duration,
    /// When the state becomes too old.
    stale_at: Duration,
}

impl ApiThrottle {
    /// Returns until when nothing starts.
    pub fn until(&self) -> Duration {
        self.own_until.max(self.known_until)
    }

    /// Returns true if the state is too old to start jobs.
    pub fn is_stale(&self, now: Duration) -> bool {
        self.watches && self.stale_at <= now
    }

    /// Returns true if it is time to ask the store. `watches` returns whether another worker may
    /// learn of a throttle.
    pub fn should_ask(&mut self, now: Duration, watches: impl Fn() -> bool) -> bool {
        if now < self.next_check {
            return false;
        }
        self.next_check = now + QUERY_INTERVAL;
        self.watches = watches();
        self.watches || now < self.until()
    }

    /// Returns when to ask the store again.
    pub fn ask_at(&self) -> Duration {
        self.next_check
    }

    /// Records that an answer to this worker throttles all tenants.
    pub fn throttled(&mut self, until: Duration) {
        self.own_until = self.own_until.max(until);
        self.is_newer = true;
    }

    /// Records that the store knows the throttle of an answer to this worker.
    pub fn stored(&mut self, until: Duration) {
        if self.own_until <= until {
            self.own_until = Duration::ZERO;
        }
        self.known_until = self.known_until.max(until);
        self.is_newer = true;
    }

    /// Records that the store is being asked.
    pub fn asked(&mut self) {
        self.is_newer = false;
    }

    /// Records that the store did not reply. The state counts as fresh, because a lost primary must
    /// stop only its own tenants: in a cluster, the others' primaries still decide on their jobs.
    pub fn store_failed(&mut self, now: Duration) {
        self.stale_at = now + STALE_AFTER;
    }

    /// Records the store's reply: all tenants are throttled for `left`. Returns true if this worker
    /// did not know the throttle.
    pub fn store_replied(&mut self, now: Duration, left: Duration) -> bool {
        self.stale_at = now + STALE_AFTER;
        let is_news = self.until() <= now && !left.is_zero();
        let until = if left.is_zero() { left } else { now + left };
        self.known_until = match self.is_newer {
            true => self.known_until.max(until),
            false => until,
        };
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::SECOND;

    #[test]
    fn an_operators_resume_counts_unless_a_newer_throttle_arrived() {
        let mut throttle = ApiThrottle::default();
        throttle.throttled(20 * SECOND);
        throttle.asked();
        // Asked before the store knew the throttle.
        assert!(!throttle.store_replied(SECOND, Duration::ZERO));
        assert_eq!(throttle.until(), 20 * SECOND);
        throttle.asked();
        throttle.stored(20 * SECOND);
        throttle.store_replied(2 * SECOND, Duration::ZERO);
        assert_eq!(
            throttle.until(),
            20 * SECOND,
            "it may have been asked before"
        );
        throttle.asked();
        throttle.store_replied(3 * SECOND, Duration::ZERO);
        assert_eq!(throttle.until(), Duration::ZERO);
        throttle.asked();
        assert!(throttle.store_replied(4 * SECOND, SECOND), "that is news");
        assert!(!throttle.store_replied(4 * SECOND, SECOND));
        assert_eq!(throttle.until(), 5 * SECOND);
    }

    #[test]
    fn a_watching_worker_asks_each_second_and_ignores_stale_answers() {
        let mut throttle = ApiThrottle::default();
        assert!(!throttle.is_stale(SECOND));
        assert!(!throttle.should_ask(SECOND, || false) && !throttle.is_stale(SECOND));
        assert!(!throttle.should_ask(SECOND + SECOND / 2, || true));
        assert!(throttle.should_ask(2 * SECOND, || true) && throttle.is_stale(2 * SECOND));
        throttle.store_failed(2 * SECOND);
        assert!(!throttle.is_stale(3 * SECOND) && throttle.is_stale(4 * SECOND));
        // A throttled worker keeps asking, regardless of the limits in force.
        throttle.throttled(60 * SECOND);
        assert!(throttle.should_ask(4 * SECOND, || false));
    }
}
