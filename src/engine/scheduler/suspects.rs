//! Jobs that were delivered again: each asks for its permit only when its call is noted, so that what ends its worker is counted
//! (`rules::crash`). A note is kept while its job has a slot of the concurrency: it asks, or runs.

use std::time::Duration;

use rand::Rng;
use tracing::{debug, info};

use super::preparing::Hand;
use super::{Entry, Phase, Scheduler};
use crate::engine::action::{Action, Key};
use crate::gate::{GateError, Partition, Suspected, Verdict, Verdicts};

/// Whose turn to be called alone has not come looks again after this, where there is room in memory,
const SOON: Duration = Duration::from_secs(1);
/// and else after this.
const LATER: Duration = Duration::from_secs(10);

/// Whether a job may ask for its permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum May {
    Ask,
    /// Not before it has a slot.
    WithSlot,
    /// It went elsewhere.
    Not,
}

impl Scheduler {
    /// Whether a job whose turn it is may ask. A suspect's call is noted first; without a slot it could not start.
    pub(super) fn may_ask(&mut self, now: Duration, key: Key) -> May {
        let most = self.settings.retry.max_crashes;
        let Some(entry) = self.entries.get_mut(&key) else {
            return May::Ask;
        };
        let suspect = entry.claims.suspect.filter(|_| most > 0);
        let Some(crashes) = suspect.filter(|_| !self.notes.has(key)) else {
            return May::Ask;
        };
        if entry.hand == Hand::Empty {
            return May::WithSlot;
        }
        if !entry.has_own_id {
            // The next delivery would have another one: it gets one on its way.
            self.let_go(key);
            self.postpone(now, key, Duration::ZERO);
        } else if crashes > 0 && self.notes.is_alone() {
            self.let_go(key);
            let wait = SOON.mul_f64(self.random.random_range(0.5..=1.0));
            if !self.hold(now, key, wait) {
                self.look_later(now, key, LATER);
            }
        } else {
            entry.phase = Phase::Noting;
            let job = entry.message.id().unwrap_or_default();
            let tenant = &entry.claims.tenant;
            self.notes.begin(now, key, tenant, job, most, crashes > 0);
        }
        May::Not
    }

    /// What [`Action::Suspect`] came to.
    pub fn suspected(
        &mut self,
        now: Duration,
        partition: Partition,
        result: Result<Verdicts, GateError>,
    ) {
        let why_all = result.as_ref().err().cloned();
        let (mut back, mut unheard) = (Vec::new(), false);
        for (key, verdict) in self.notes.told(now, partition, result) {
            let noting = |entry: &&mut Entry| entry.phase == Phase::Noting;
            let Some(entry) = self.entries.get_mut(&key).filter(noting) else {
                continue;
            };
            let (id, tenant) = (entry.message.id(), &entry.claims.tenant);
            match verdict {
                Ok(Verdict::Go) => back.push(key),
                Ok(Verdict::Alone { crashes }) => {
                    info!(job.id = id, %tenant, crashes, "calls of this job ended their workers: it is called beside no other such job");
                    entry.claims.suspect = Some(crashes);
                    back.push(key);
                }
                Ok(Verdict::Wait { ms }) => {
                    debug!(job.id = id, %tenant, ms, "another call of this job may be under way: it waits");
                    let wait = Duration::from_millis(ms);
                    self.let_go(key);
                    if !self.hold(now, key, wait) {
                        self.postpone(now, key, wait);
                    }
                }
                Ok(Verdict::Dead { crashes }) => {
                    let reason =
                        format!("{crashes} of its calls ended their workers (retry.max-crashes)");
                    self.bury(key, "crashed", &reason);
                }
                Err(_) if why_all.is_some() => {
                    self.let_go(key);
                    back.push(key);
                    unheard = true;
                }
                Err(why) => {
                    let (tenant, labels) = (tenant.clone(), Default::default());
                    self.let_go(key);
                    self.set_aside(now, (&tenant, &labels), &[key], &why);
                }
            }
        }
        self.put_back(&back);
        // As where no permit could be asked for: nobody knows when it may be.
        if let Some(why) = why_all.filter(|_| unheard) {
            self.pause(now, &why);
        }
    }

    /// The job was called, and its worker lives: it is no suspect any more.
    pub(super) fn survived(&mut self, key: Key) {
        self.notes.answered(key);
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.claims.suspect = None;
        }
    }

    /// Ends the notes of jobs that are gone, or wait, whatever the way; and tells what is to be told.
    pub(super) fn tell_notes(&mut self, now: Duration) {
        let (entries, draining) = (&self.entries, self.draining);
        let is_called = |key| {
            let entry: Option<&Entry> = entries.get(&key);
            entry.is_some_and(|entry| match entry.phase {
                Phase::Noting | Phase::Asking | Phase::Running => true,
                Phase::Ready | Phase::Preparing => entry.hand != Hand::Empty && !draining,
                _ => false,
            })
        };
        self.notes.end(is_called);
        for (partition, batch) in self.notes.send(now) {
            self.actions.push(Action::Suspect(partition, batch));
        }
    }

    /// The worker ends in order: what the gate is to be told of calls that it gives up.
    pub fn last_words(&mut self) -> Vec<Suspected> {
        self.notes.last_words()
    }
}
