//! Calls are prepared before their permits are asked for, since what takes longer than a permit is good for would use
//! permits up. A job whose call is prepared, or that is to ask for one with what is there at once, has a slot of the concurrency.

use std::time::Duration;

use super::{Entry, Phase, Scheduler};
use crate::engine::action::{Action, Key};
use crate::engine::queues::End;
use crate::handler::{Outcome, Trouble};

/// What a job has beside its place: how far its call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hand {
    /// Nothing, not even a slot.
    Empty,
    /// A slot.
    Slot,
    /// A slot, and its call is being prepared.
    Preparing,
    /// A slot, and a call that was good when it was last looked at.
    Ready,
}

impl Scheduler {
    /// The job gets a slot for its next question, where it has none.
    pub(super) fn give_slot(&mut self, key: Key) {
        if let Some(entry) = self.entries.get_mut(&key)
            && entry.hand == Hand::Empty
        {
            entry.hand = Hand::Slot;
            self.queues.take_slot(&entry.claims.tenant);
        }
    }

    /// The call of a job that has a slot is to be prepared.
    pub(super) fn prepare(&mut self, key: Key) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.hand = Hand::Preparing;
            self.breakers.started(key);
            let job = entry.job();
            self.actions.push(Action::Prepare { key, job });
        }
    }

    /// A held job's turn is near: its call is prepared, if a slot is free.
    pub(super) fn prepare_early(&mut self, now: Duration, key: Key) {
        // While nobody may call the API, nobody tries its door either.
        if self.draining || !self.breakers.may_ask(now) {
            return;
        }
        // A suspect's call is noted before.
        if let Some(entry) = self.entries.get_mut(&key)
            && entry.hand == Hand::Empty
            && entry.claims.suspect.is_none()
            && self.queues.try_slot(&entry.claims.tenant)
        {
            self.prepare(key);
        }
    }

    /// The job does not start now: its slot is free, and what was prepared may serve another.
    pub(super) fn let_go(&mut self, key: Key) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let hand = std::mem::replace(&mut entry.hand, Hand::Empty);
        if hand != Hand::Empty {
            self.queues.free_slot(&entry.claims.tenant);
            self.released.push(key);
        }
    }

    /// What became of an [`Action::Prepare`]. It took so long; `None`: what was needed was there at once.
    pub fn prepared(
        &mut self,
        now: Duration,
        key: Key,
        took: Option<Duration>,
        result: Result<(), Outcome>,
    ) {
        if result.is_ok() {
            took.into_iter().for_each(|took| self.lead.learn(took));
        }
        let preparing = |entry: &&mut Entry| entry.hand == Hand::Preparing;
        let Some(entry) = self.entries.get_mut(&key).filter(preparing) else {
            // Its session is gone, or it left.
            self.breakers.gone(key);
            return self.released.push(key);
        };
        match result {
            Ok(()) => {
                entry.hand = Hand::Ready;
                self.breakers.prepared(key);
                if entry.phase == Phase::Preparing {
                    self.join(key, End::Due);
                }
            }
            Err(_) if self.draining => {
                self.breakers.gone(key);
                self.let_go(key);
            }
            Err(outcome) => {
                self.places.forget(key);
                if matches!(entry.phase, Phase::Held { .. }) {
                    self.queues.release(&entry.claims.tenant);
                }
                entry.phase = Phase::Preparing;
                self.windows.unpark(key);
                self.metrics.dispatched(&outcome);
                self.let_go(key);
                let failed = matches!(outcome, Outcome::Retry { .. });
                let trouble = failed.then_some(Trouble::Unreachable);
                let waits = self.report_health(now, key, &outcome, trouble);
                self.conclude(now, key, outcome, waits);
            }
        }
    }
}
