//! This worker's view of whether the API throttles all tenants. The gate's scripts do not check
//! that, because it is not in the hash slot of a tenant's keys, so each worker has to observe it.

use std::time::Duration;

/// Interval at which the store is asked whether another worker was throttled, or an operator ended
/// the throttle.
pub const LOOK: Duration = Duration::from_secs(1);
/// Age at which the state is too old to start jobs. Otherwise an idle worker's next job would be
/// called while all tenants are throttled.
const STALE: Duration = Duration::from_secs(2);

/// The known throttle.
#[derive(Debug, Default)]
pub struct Closing {
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
    look_at: Duration,
    /// When the state becomes too old.
    stale_at: Duration,
}

impl Closing {
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
    pub fn look(&mut self, now: Duration, watches: impl Fn() -> bool) -> bool {
        if now < self.look_at {
            return false;
        }
        self.look_at = now + LOOK;
        self.watches = watches();
        self.watches || now < self.until()
    }

    /// Returns when to ask the store again.
    pub fn look_at(&self) -> Duration {
        self.look_at
    }

    /// Records that an answer to this worker throttles all tenants.
    pub fn closed(&mut self, until: Duration) {
        self.own_until = self.own_until.max(until);
        self.is_newer = true;
    }

    /// Records that the store knows the throttle of an answer to this worker.
    pub fn is_known(&mut self, until: Duration) {
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

    /// Records the store's reply: all tenants are throttled for `left`, or `None` if there was no
    /// reply. Returns true if this worker did not know the throttle.
    pub fn heard(&mut self, now: Duration, left: Option<Duration>) -> bool {
        self.stale_at = now + STALE;
        let Some(left) = left else {
            return false;
        };
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

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_operator_s_resume_is_heard_but_not_by_who_was_told_meanwhile() {
        let mut closing = Closing::default();
        closing.closed(20 * SECOND);
        closing.asked();
        // Asked before the store knew the throttle.
        assert!(!closing.heard(SECOND, Some(Duration::ZERO)));
        assert_eq!(closing.until(), 20 * SECOND);
        closing.asked();
        closing.is_known(20 * SECOND);
        closing.heard(2 * SECOND, Some(Duration::ZERO));
        assert_eq!(
            closing.until(),
            20 * SECOND,
            "it may have been asked before"
        );
        closing.asked();
        closing.heard(3 * SECOND, Some(Duration::ZERO));
        assert_eq!(closing.until(), Duration::ZERO);
        closing.asked();
        assert!(closing.heard(4 * SECOND, Some(SECOND)), "that is news");
        assert!(!closing.heard(4 * SECOND, Some(SECOND)));
        assert_eq!(closing.until(), 5 * SECOND);
    }

    #[test]
    fn who_watches_looks_each_second_and_never_starts_by_what_is_old() {
        let mut closing = Closing::default();
        assert!(!closing.is_stale(SECOND));
        assert!(!closing.look(SECOND, || false) && !closing.is_stale(SECOND));
        assert!(!closing.look(SECOND + SECOND / 2, || true));
        assert!(closing.look(2 * SECOND, || true) && closing.is_stale(2 * SECOND));
        // A failed request must not hold up jobs: the gate is asked anyway.
        closing.heard(2 * SECOND, None);
        assert!(!closing.is_stale(3 * SECOND) && closing.is_stale(4 * SECOND));
        // A throttled worker keeps asking, whatever the limits say by now.
        closing.closed(60 * SECOND);
        assert!(closing.look(4 * SECOND, || false));
    }
}
