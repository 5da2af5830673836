//! Makes invalid messages dead letters, and sets the store's clock, which gives dead letters their
//! times.

use std::sync::Arc;
use std::time::Duration;

use super::deliveries::InvalidDelivery;
use crate::action::JobKey;
use crate::facts::JobFact;
use crate::scheduler::Scheduler;
use crate::scheduler::leaving::moves::{Destination, Move};
use rules::headers;

impl Scheduler {
    /// Makes an invalid message a dead letter.
    pub(in crate::scheduler) fn bury_invalid(
        &mut self,
        now: Duration,
        key: JobKey,
        invalid: InvalidDelivery,
    ) {
        let InvalidDelivery { tag, message, why } = invalid;
        let id = message.id().unwrap_or_default().to_owned();
        let reason = why.to_string();
        let headers = headers::dead(1, &reason, self.clock.at_least(now));
        let result = self.result_of_invalid(&message, &reason);
        self.facts.push(JobFact::InvalidMessage { id, reason });
        let queue = Arc::clone(&self.settings.names.dead);
        let of = Move::new(now, (tag, now), None, result);
        self.publish(now, key, of, message, Destination { queue, headers });
    }

    /// Makes dead letters of the invalid messages that arrived before the first agreement.
    pub(in crate::scheduler) fn bury_undated(&mut self, now: Duration) {
        if self.agreement.is_awaited() || self.intake.is_stopping() {
            return;
        }
        for (key, invalid) in self.intake.take_undated() {
            self.bury_invalid(now, key, invalid);
        }
    }

    /// Records a reading `ms` of the store's clock, and how long ago the store was asked and had
    /// answered.
    pub fn clock_is(
        &mut self,
        now: Duration,
        ms: u64,
        (asked_ago, read_ago): (Duration, Duration),
    ) {
        self.clock.read(now, ms, asked_ago, read_ago);
        self.arrange_waiting(now);
    }

    /// Arranges jobs that waited for the store's clock.
    pub(in crate::scheduler) fn arrange_waiting(&mut self, now: Duration) {
        for (key, end) in self.clock.take_waiting() {
            self.arrange(now, key, end);
        }
    }
}
