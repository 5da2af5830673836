//! Prepares calls before their permits are requested, because preparing can take longer than a
//! permit is good. A job has a worker slot while its call is being prepared or is prepared, and
//! while it asks with a call that is available at once.

use std::time::Duration;

use crate::action::{Action, JobKey};
use crate::facts::JobFact;
use crate::scheduler::Scheduler;
use crate::scheduler::entry::{CallEnd, JobEntry, Phase, SlotState};
use crate::scheduler::queues::QueuePosition;
use handler::Attempt;

impl Scheduler {
    /// Gives the job a slot for its next question, unless it has one.
    pub(in crate::scheduler) fn give_slot(&mut self, key: JobKey) {
        if let Some(job) = self.jobs.get_mut(&key)
            && job.slot == SlotState::Empty
        {
            job.slot = SlotState::Slot;
            self.queues.take_slot(&job.claims.tenant);
        }
    }

    /// Prepares the call of a job that has a slot.
    pub(super) fn prepare(&mut self, key: JobKey) {
        if let Some(job) = self.jobs.get_mut(&key) {
            job.slot = SlotState::Preparing;
            self.breakers.started(key);
            let job = Box::new(job.job());
            self.agenda.push(Action::Prepare { key, job });
        }
    }

    /// Prepares the call of a job for which quota is available. Returns false if it has no slot.
    pub(in crate::scheduler) fn prepare_with_slot(&mut self, key: JobKey) -> bool {
        let job = self
            .jobs
            .get_mut(&key)
            .filter(|job| job.slot == SlotState::Slot);
        let has_slot = job.is_some();
        if let Some(job) = job {
            job.phase = Phase::Preparing;
            self.prepare(key);
        }
        has_slot
    }

    /// Prepares the call of a job that is delayed until `until`, if its turn is near and a slot is
    /// free.
    pub(in crate::scheduler) fn prepare_early(
        &mut self,
        now: Duration,
        until: Duration,
        key: JobKey,
    ) {
        // While jobs may not call the API, they don't connect to it either.
        if self.intake.is_stopping() || !self.breakers.may_ask(now) || !self.may_call() {
            return;
        }
        // The timer may belong to an earlier wait of the job, and this wait may end long before its
        // delayed start. A call that is prepared now would hold a slot in vain, or its failure
        // would use an attempt.
        let rest_ms = self.rest(now, key).map_or(0, |rest| rest.within_ms);
        let wait = until
            .saturating_sub(now)
            .max(Duration::from_millis(rest_ms));
        if wait > 2 * self.waiting.lead.get() {
            return;
        }
        // A suspect's call is noted first.
        if let Some(job) = self.jobs.get_mut(&key)
            && job.slot == SlotState::Empty
            && job.claims.suspect.is_none()
            && self.queues.try_slot(&job.claims.tenant)
        {
            self.prepare(key);
        }
    }

    /// Takes the slot of a job that does not start now. Its prepared call may serve another job.
    pub(in crate::scheduler) fn release_slot(&mut self, key: JobKey) {
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        let hand = std::mem::replace(&mut job.slot, SlotState::Empty);
        if hand != SlotState::Empty {
            self.queues.free_slot(&job.claims.tenant);
            self.agenda.release(key);
        }
    }

    /// Handles the result of an [`Action::Prepare`]. `took` is its duration, or `None` if the call
    /// was available at once.
    pub fn prepared(
        &mut self,
        now: Duration,
        key: JobKey,
        took: Option<Duration>,
        result: Result<(), Attempt>,
    ) {
        if self.fitness.ends_test(key) {
            return self.tested(now, key, result);
        }
        if result.is_ok() {
            // An idle connection does not show that the API can be reached now.
            if took.is_some() {
                self.could_call();
            }
            took.into_iter()
                .for_each(|took| self.waiting.lead.learn(took));
        }
        let preparing = |job: &&mut JobEntry| job.slot == SlotState::Preparing;
        let Some(job) = self.jobs.get_mut(&key).filter(preparing) else {
            // Its session is gone, or the job has left.
            self.breakers.record_departure(key);
            return self.agenda.release(key);
        };
        match result {
            Ok(()) => {
                job.slot = SlotState::Ready;
                self.breakers.prepared(key);
                if job.phase == Phase::Preparing {
                    // Its trip may have ended before its delayed start, or it has expired.
                    self.arrange(now, key, QueuePosition::Due);
                }
            }
            Err(_) if self.intake.is_stopping() => {
                self.breakers.record_departure(key);
                self.release_slot(key);
            }
            Err(Attempt {
                outcome, trouble, ..
            }) => {
                if matches!(job.phase, Phase::Delayed { .. }) {
                    self.queues.release(&job.claims.tenant);
                }
                job.phase = Phase::Preparing;
                // It waits for its retry from now on, and no longer for its turn.
                job.claims.promise = None;
                self.waiting.end(key);
                let outcome = self.spare(now, key, outcome, trouble);
                self.facts.push(JobFact::Called(outcome.clone(), None));
                self.release_slot(key);
                let took = (took.unwrap_or_default(), false);
                let waits_for_report = self.report_health(now, key, took, &outcome, trouble);
                let end = CallEnd {
                    outcome,
                    waits_for_report,
                    stops_all: None,
                };
                self.conclude(now, key, end);
            }
        }
    }
}
