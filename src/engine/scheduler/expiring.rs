//! Until when a job may be called: a job whose time is over is a dead letter when it is looked at next, and never called.

use std::time::Duration;

use super::{Scheduler, millis};
use crate::engine::action::Key;

/// Beyond a job's time nobody doubts that it has expired.
const SURE: Duration = Duration::from_millis(100);

/// A reading of the store's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoreClock {
    /// What it said, in milliseconds since the epoch.
    pub(super) ms: u64,
    /// It was read between these two.
    pub(super) asked_at: Duration,
    pub(super) read_at: Duration,
}

impl Scheduler {
    /// The store's clock, never ahead of the truth; `None` until the gate has answered once.
    pub(super) fn store_now(&self, now: Duration) -> Option<u64> {
        let clock = self.clock?;
        let since = now.saturating_sub(clock.read_at);
        Some(clock.ms.saturating_add(millis(since)))
    }

    /// The store's clock, never behind the truth.
    fn store_now_at_most(&self, now: Duration) -> Option<u64> {
        let clock = self.clock?;
        let since = now.saturating_sub(clock.asked_at);
        Some(clock.ms.saturating_add(millis(since)).saturating_add(1))
    }

    /// From when it arrived its expiration counts.
    pub(super) fn count_expiration(&mut self, now: Duration, key: Key) {
        let store_now = self.store_now(now);
        if let (Some(entry), Some(store_now)) = (self.entries.get_mut(&key), store_now) {
            let ago = millis(now.saturating_sub(entry.since));
            entry
                .claims
                .expiry
                .count_from(store_now.saturating_sub(ago));
        }
    }

    /// A job whose time is over becomes a dead letter: `true`.
    pub(super) fn expire(&mut self, now: Duration, key: Key) -> bool {
        let Some(entry) = self.entries.get(&key) else {
            return false;
        };
        let expiry = entry.claims.expiry;
        let Some(store_now) = self.store_now_at_most(now) else {
            return false;
        };
        if !expiry.is_over(store_now) {
            return false;
        }
        self.bury(key, "expired", &expiry.reason(store_now));
        true
    }

    /// After so long the job has expired, whatever the clocks are off by; `None`: it never does.
    pub(super) fn left(&self, now: Duration, key: Key) -> Option<Duration> {
        let at = self.entries.get(&key)?.claims.expiry.at_ms()?;
        let left = Duration::from_millis(at.saturating_sub(self.store_now(now)?));
        Some(left + SURE)
    }
}
