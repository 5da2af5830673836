//! Whether the API closed itself to all tenants, as far as this worker knows. The gate's scripts do not look at that: it is not in the
//! slot of a tenant's keys, so each worker keeps to it.

use std::time::Duration;

/// So often it is looked whether another worker was told so, or an operator ended it.
pub const LOOK: Duration = Duration::from_secs(1);
/// Who has not looked for so long looks first: an idle worker's next job would be called while all are closed.
const STALE: Duration = Duration::from_secs(2);

/// What is known of it.
#[derive(Debug, Default)]
pub struct Closing {
    /// An answer to this worker said so, and the store may not know it yet.
    own_until: Duration,
    /// The store said so.
    known_until: Duration,
    /// This worker's own part of it has changed since the store was asked: what it says may be older.
    is_newer: bool,
    /// By the limits in force another worker may be told so.
    watches: bool,
    /// To be looked at again then.
    look_at: Duration,
    /// From then on what is known is too old.
    stale_at: Duration,
}

impl Closing {
    /// Until when nobody starts.
    pub fn until(&self) -> Duration {
        self.own_until.max(self.known_until)
    }

    /// What is known is too old to start by.
    pub fn is_stale(&self, now: Duration) -> bool {
        self.watches && self.stale_at <= now
    }

    /// Is it time to look? `watches` says whether another worker may be told.
    pub fn look(&mut self, now: Duration, watches: impl Fn() -> bool) -> bool {
        if now < self.look_at {
            return false;
        }
        self.look_at = now + LOOK;
        self.watches = watches();
        self.watches || now < self.until()
    }

    /// When it is to be looked at again.
    pub fn look_at(&self) -> Duration {
        self.look_at
    }

    /// An answer to this worker closed all tenants.
    pub fn closed(&mut self, until: Duration) {
        self.own_until = self.own_until.max(until);
        self.is_newer = true;
    }

    /// The store knows what an answer to this worker said.
    pub fn is_known(&mut self, until: Duration) {
        if self.own_until <= until {
            self.own_until = Duration::ZERO;
        }
        self.known_until = self.known_until.max(until);
        self.is_newer = true;
    }

    /// The store is asked.
    pub fn asked(&mut self) {
        self.is_newer = false;
    }

    /// It says that all are closed for as long as `left` from now, or by `None` nothing. True: this worker did not know.
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
        // Asked before the store knew.
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
        // What can't be heard now is no reason to wait for: the gate is asked anyway.
        closing.heard(2 * SECOND, None);
        assert!(!closing.is_stale(3 * SECOND) && closing.is_stale(4 * SECOND));
        // Who is closed looks on, whatever the limits say by now.
        closing.closed(60 * SECOND);
        assert!(closing.look(4 * SECOND, || false));
    }
}
