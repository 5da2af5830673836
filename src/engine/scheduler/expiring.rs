//! Until when a job may be called: a job whose time is over is a dead letter when it is looked at next, and never called.

use std::time::Duration;

use super::{Scheduler, millis};
use crate::engine::action::Key;
use crate::engine::facts::Death;

/// Beyond a job's time nobody doubts that it has expired.
const SURE: Duration = Duration::from_millis(100);

impl Scheduler {
    /// From when it arrived its expiration counts.
    pub(super) fn count_expiration(&mut self, now: Duration, key: Key) {
        let store_now = self.clock.at_least(now);
        if let (Some(job), Some(store_now)) = (self.jobs.get_mut(&key), store_now) {
            let ago = millis(now.saturating_sub(job.since));
            let arrived = store_now.saturating_sub(ago);
            job.claims.expiry.count_from(arrived);
        }
    }

    /// A job whose time is over becomes a dead letter: `true`.
    pub(super) fn expire(&mut self, now: Duration, key: Key) -> bool {
        let Some(job) = self.jobs.get(&key) else {
            return false;
        };
        let expiry = job.claims.expiry;
        let Some(store_now) = self.clock.at_most(now) else {
            return false;
        };
        if !expiry.is_over(store_now) {
            return false;
        }
        self.bury(now, key, Death::Expired, &expiry.reason(store_now));
        true
    }

    /// After so long the job has expired, whatever the clocks are off by; `None`: it never does.
    pub(super) fn left(&self, now: Duration, key: Key) -> Option<Duration> {
        let at = self.jobs.get(&key)?.claims.expiry.at_ms()?;
        let left = Duration::from_millis(at.saturating_sub(self.clock.at_least(now)?));
        Some(left + SURE)
    }
}
