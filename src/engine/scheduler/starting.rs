//! From when on a job may be called: what its publisher says is counted once, when it arrives, and is its time from then on.

use std::time::Duration;

use super::{Scheduler, millis};
use crate::engine::action::Key;
use crate::engine::facts::{Death, Fact};
use crate::rules::job::NotBefore;

impl Scheduler {
    /// From when it arrived its delay counts. It becomes a dead letter where its time is too far away: `true`.
    pub(super) fn count_start(&mut self, now: Duration, key: Key) -> bool {
        let Some(job) = self.jobs.get_mut(&key) else {
            return false;
        };
        let Some(start) = job.claims.start.take() else {
            return false;
        };
        // So that nobody is called early it arrived as late, and it is as early now, as can be.
        let clocks = (self.clock.at_least(now), self.clock.at_most(now));
        let (Some(store_now), Some(at_most)) = clocks else {
            job.claims.start = Some(start);
            return false;
        };
        let ago = millis(now.saturating_sub(job.since));
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
        self.facts.push(Fact::DelayedStart(job.named(), within_ms));
        false
    }
}
