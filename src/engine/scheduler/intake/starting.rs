//! Delayed starts: the publisher's delay is converted once, when the job arrives, to the earliest
//! time of its call.

use std::time::Duration;

use crate::action::JobKey;
use crate::facts::{Death, JobFact};
use crate::scheduler::Scheduler;
use rules::job::NotBefore;
use rules::limit::floor_ms;

impl Scheduler {
    /// Starts the job's delay at the time when it arrived. Makes the job a dead letter, and returns
    /// true, if its start is too far away.
    pub(in crate::scheduler) fn count_start(&mut self, now: Duration, key: JobKey) -> bool {
        let Some(job) = self.jobs.get_mut(&key) else {
            return false;
        };
        let Some(start) = job.claims.start.take() else {
            return false;
        };
        // So that no job is called early, this assumes the latest possible arrival and the earliest
        // possible current time.
        let clocks = (self.clock.at_least(now), self.clock.at_most(now));
        let (Some(store_now), Some(at_most)) = clocks else {
            job.claims.start = Some(start);
            return false;
        };
        let ago = floor_ms(now.saturating_sub(job.since));
        let at_ms = start.at_ms(at_most.saturating_sub(ago));
        let within_ms = at_ms.saturating_sub(store_now);
        if within_ms == 0 {
            return false;
        }
        if let Some(why) = start.too_far(store_now, self.settings.fields.max_delayed_start_ms) {
            self.bury(now, key, Death::Invalid, &why);
            return true;
        }
        job.claims.not_before = Some(NotBefore { at_ms, within_ms });
        self.facts
            .push(JobFact::DelayedStart(job.log_fields(), within_ms));
        false
    }
}
