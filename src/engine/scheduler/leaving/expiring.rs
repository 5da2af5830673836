//! Expiration of jobs: a job that has expired becomes a dead letter when it is looked at next, and
//! is never called.

use std::time::Duration;

use crate::action::JobKey;
use crate::facts::Death;
use crate::scheduler::Scheduler;
use rules::limit::floor_ms;

/// Time after a job's expiry at which all clocks agree that it has expired.
const EXPIRY_MARGIN: Duration = Duration::from_millis(100);

impl Scheduler {
    /// Starts the job's expiration at the time when it arrived.
    pub(in crate::scheduler) fn count_expiration(&mut self, now: Duration, key: JobKey) {
        let store_now = self.clock.at_least(now);
        if let (Some(job), Some(store_now)) = (self.jobs.get_mut(&key), store_now) {
            let ago = floor_ms(now.saturating_sub(job.since));
            let arrived = store_now.saturating_sub(ago);
            job.claims.expiry.count_from(arrived);
        }
    }

    /// Turns a job that has expired into a dead letter. Returns true if it has.
    pub(in crate::scheduler) fn expire(&mut self, now: Duration, key: JobKey) -> bool {
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

    /// Returns the time after which the job has expired whatever the clocks' errors are, or `None`
    /// if it never does.
    pub(in crate::scheduler) fn left(&self, now: Duration, key: JobKey) -> Option<Duration> {
        let at = self.jobs.get(&key)?.claims.expiry.at_ms()?;
        let left = Duration::from_millis(at.saturating_sub(self.clock.at_least(now)?));
        Some(left + EXPIRY_MARGIN)
    }
}
