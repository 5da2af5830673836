//! A worker that may start nothing keeps no jobs from those that may.

use std::time::Duration;

use super::Scheduler;
use crate::engine::action::Action;
use crate::rules::fleet::AGREED_FOR_MS;

/// A worker that has just started has so long to agree with the others.
const FIRST: Duration = Duration::from_millis(AGREED_FOR_MS);

impl Scheduler {
    /// Until when jobs may start, by what the workers agreed on; `None`: for ever.
    fn agreement_ends(&self) -> Option<Duration> {
        self.agreed_until.map(|until| until.max(FIRST))
    }

    /// Jobs may start, as far as the other workers are concerned.
    pub fn is_agreed(&self, now: Duration) -> bool {
        self.agreement_ends().is_none_or(|ends| now < ends)
    }

    /// When nothing may start any more, if there is no other agreement.
    pub(super) fn stands_still_at(&self, now: Duration) -> Option<Duration> {
        self.agreement_ends().filter(|ends| now < *ends)
    }

    /// Without an agreement the jobs go back to their queues, for workers that have one, once nothing runs here that would
    /// run there again, and nothing moves.
    pub(super) fn rest_or_take(&mut self, now: Duration) {
        if self.draining {
            return;
        }
        let agreed = self.is_agreed(now);
        let busy = self.queues.running() + self.blocking + self.moves.len() > 0
            || !self.breakers.is_empty();
        if !agreed && self.taking && !busy {
            self.taking = false;
            self.metrics.rest();
            self.actions.push(Action::Rest);
        } else if agreed && !self.taking {
            self.taking = true;
            self.actions.push(Action::Take);
        }
    }
}
