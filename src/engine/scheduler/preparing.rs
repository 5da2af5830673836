//! Calls are prepared before their permits are asked for, since what takes longer than a permit is good for would use
//! permits up. A job whose call is prepared, or that is to ask for one with what is there at once, has a slot of the concurrency.

use std::time::Duration;

use super::Scheduler;
use super::entry::{Hand, JobEntry, Phase};
use super::queues::End;
use crate::engine::action::{Action, Key};
use crate::engine::facts::Fact;
use crate::handler::Attempt;

impl Scheduler {
    /// The job gets a slot for its next question, where it has none.
    pub(super) fn give_slot(&mut self, key: Key) {
        if let Some(job) = self.jobs.get_mut(&key)
            && job.hand == Hand::Empty
        {
            job.hand = Hand::Slot;
            self.queues.take_slot(&job.claims.tenant);
        }
    }

    /// The call of a job that has a slot is to be prepared.
    pub(super) fn prepare(&mut self, key: Key) {
        if let Some(job) = self.jobs.get_mut(&key) {
            job.hand = Hand::Preparing;
            self.breakers.started(key);
            let job = job.job();
            self.agenda.push(Action::Prepare { key, job });
        }
    }

    /// There is room for the job. If it has a slot, its call is prepared: `true`.
    pub(super) fn prepare_with_slot(&mut self, key: Key) -> bool {
        let job = self.jobs.get_mut(&key).filter(|job| job.hand == Hand::Slot);
        let has_slot = job.is_some();
        if let Some(job) = job {
            job.phase = Phase::Preparing;
            self.prepare(key);
        }
        has_slot
    }

    /// A delayed job's turn is near: its call is prepared, if a slot is free.
    pub(super) fn prepare_early(&mut self, now: Duration, key: Key) {
        // While nobody may call the API, nobody tries its door either.
        if self.intake.is_draining() || !self.breakers.may_ask(now) || !self.may_call() {
            return;
        }
        // A suspect's call is noted before.
        if let Some(job) = self.jobs.get_mut(&key)
            && job.hand == Hand::Empty
            && job.claims.suspect.is_none()
            && self.queues.try_slot(&job.claims.tenant)
        {
            self.prepare(key);
        }
    }

    /// The job does not start now: its slot is free, and what was prepared may serve another.
    pub(super) fn let_go(&mut self, key: Key) {
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        let hand = std::mem::replace(&mut job.hand, Hand::Empty);
        if hand != Hand::Empty {
            self.queues.free_slot(&job.claims.tenant);
            self.agenda.release(key);
        }
    }

    /// What became of an [`Action::Prepare`]. It took so long; `None`: what was needed was there at once.
    pub fn prepared(
        &mut self,
        now: Duration,
        key: Key,
        took: Option<Duration>,
        result: Result<(), Attempt>,
    ) {
        if result.is_ok() {
            // An idle connection does not show that the API can be reached now.
            if took.is_some() {
                self.could_call();
            }
            took.into_iter()
                .for_each(|took| self.waiting.preparing_took(took));
        }
        let preparing = |job: &&mut JobEntry| job.hand == Hand::Preparing;
        let Some(job) = self.jobs.get_mut(&key).filter(preparing) else {
            // Its session is gone, or it left.
            self.breakers.gone(key);
            return self.agenda.release(key);
        };
        match result {
            Ok(()) => {
                job.hand = Hand::Ready;
                self.breakers.prepared(key);
                if job.phase == Phase::Preparing {
                    self.join(key, End::Due);
                }
            }
            Err(_) if self.intake.is_draining() => {
                self.breakers.gone(key);
                self.let_go(key);
            }
            Err(Attempt {
                outcome, trouble, ..
            }) => {
                if matches!(job.phase, Phase::Delayed { .. }) {
                    self.queues.release(&job.claims.tenant);
                }
                job.phase = Phase::Preparing;
                self.waiting.end(key);
                let outcome = self.spare(now, outcome, trouble);
                self.facts.push(Fact::Called(outcome.clone(), None));
                self.let_go(key);
                let took = (took.unwrap_or_default(), false);
                let waits = self.report_health(now, key, took, &outcome, trouble);
                self.conclude(now, key, outcome, waits);
            }
        }
    }
}
