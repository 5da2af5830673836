//! A suspect is a job that was delivered again. It requests its permit only after the worker has
//! noted its call in Redis, so that calls that crash workers are counted
//! (`rules::failures::crash`). A note is kept while its job has a worker slot, to ask or to run.

use std::time::Duration;

use rand::Rng;

use super::notes::SuspectTerms;
use crate::action::{Action, JobKey};
use crate::facts::{Death, JobFact};
use crate::scheduler::Scheduler;
use crate::scheduler::entry::{JobEntry, Phase, SlotState};
use gate::{GateError, ShardId, SuspectDecision, SuspectNote, SuspectReplies};

/// Delay before a job that can't run alone yet tries again, if it can wait in memory.
const ALONE_RETRY_DELAY: Duration = Duration::from_secs(1);
/// The same delay if it can't wait in memory.
const ALONE_RETRY_DELAY_IN_QUEUE: Duration = Duration::from_secs(10);

/// Whether a job may request its permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskPermission {
    Ask,
    /// Yes, once it has a slot.
    WithSlot,
    /// No: it waits for its note, or is delayed.
    Not,
}

impl Scheduler {
    /// Returns whether a job whose turn it is may ask. A suspect's call is noted first, and only if
    /// the job has a slot, because without one it could not start.
    pub(in crate::scheduler) fn may_ask(&mut self, now: Duration, key: JobKey) -> AskPermission {
        let max = self.settings.live.retry.max_crashes;
        let Some(job) = self.jobs.get_mut(&key) else {
            return AskPermission::Ask;
        };
        let suspect = job.claims.suspect.filter(|_| max > 0);
        let Some(crashes) = suspect.filter(|_| !self.notes.has(key)) else {
            return AskPermission::Ask;
        };
        if job.slot == SlotState::Empty {
            return AskPermission::WithSlot;
        }
        if !job.has_own_id {
            // Each delivery of this job gets another ID. A trip through a delay queue gives it one
            // that lasts.
            self.release_slot(key);
            self.delay_in_queue(now, key, Duration::ZERO);
        } else if crashes > 0 && self.notes.is_alone() {
            self.release_slot(key);
            let wait = ALONE_RETRY_DELAY.mul_f64(self.random.random_range(0.5..=1.0));
            if !self.delay_in_memory(now, key, wait) {
                self.recheck(now, key, ALONE_RETRY_DELAY_IN_QUEUE);
            }
        } else {
            job.phase = Phase::Noting;
            let id = job.message.id().unwrap_or_default();
            let tenant = &job.claims.tenant;
            let alone = crashes > 0;
            self.notes
                .begin(now, key, tenant, id, SuspectTerms { max, alone });
        }
        AskPermission::Not
    }

    /// Handles the result of [`Action::Suspect`].
    pub fn suspected(
        &mut self,
        now: Duration,
        shard: ShardId,
        result: Result<SuspectReplies, GateError>,
    ) {
        let why_all = result.as_ref().err().cloned();
        let (mut back, mut unheard) = (Vec::new(), false);
        for (key, verdict) in self.notes.notes_result(now, shard, result) {
            let noting = |job: &&mut JobEntry| job.phase == Phase::Noting;
            let Some(job) = self.jobs.get_mut(&key).filter(noting) else {
                continue;
            };
            match verdict {
                Ok(SuspectDecision::Proceed) => back.push(key),
                Ok(SuspectDecision::RunAlone { crashes }) => {
                    self.facts
                        .push(JobFact::SuspectRunsAlone(job.log_fields(), crashes));
                    job.claims.suspect = Some(crashes);
                    back.push(key);
                }
                Ok(SuspectDecision::Wait { ms }) => {
                    self.facts.push(JobFact::SuspectWaits(job.log_fields(), ms));
                    let wait = Duration::from_millis(ms);
                    self.release_slot(key);
                    self.delay(now, key, wait);
                }
                Ok(SuspectDecision::Dead { crashes }) => {
                    let reason =
                        format!("{crashes} of its calls ended their workers (retry.max-crashes)");
                    self.bury(now, key, Death::Crashed, &reason);
                }
                Err(_) if why_all.is_some() => {
                    self.release_slot(key);
                    back.push(key);
                    unheard = true;
                }
                Err(why) => {
                    let (tenant, labels) = (job.claims.tenant.clone(), Default::default());
                    self.release_slot(key);
                    self.set_aside(now, (&tenant, &labels), &[key], &why);
                }
            }
        }
        self.put_back(&back);
        // Pauses as if no permit could be requested: it is not known when the gate answers again.
        if let Some(why) = why_all.filter(|_| unheard) {
            self.back_off(now, &why);
        }
    }

    /// Clears the suspicion of a job whose call ended without a crash.
    pub(in crate::scheduler) fn survived(&mut self, key: JobKey) {
        self.notes.answered(key);
        if let Some(job) = self.jobs.get_mut(&key) {
            job.claims.suspect = None;
        }
    }

    /// Ends the notes of jobs that are finished or delayed, and sends the notes that are due.
    pub(in crate::scheduler) fn send_notes(&mut self, now: Duration) {
        let (jobs, stopping) = (&self.jobs, self.intake.is_stopping());
        let is_called = |key| {
            let job: Option<&JobEntry> = jobs.get(&key);
            job.is_some_and(|job| match job.phase {
                Phase::Noting | Phase::Asking | Phase::Running => true,
                Phase::Ready | Phase::Preparing => job.slot != SlotState::Empty && !stopping,
                _ => false,
            })
        };
        self.notes.end(is_called);
        for (shard, batch) in self.notes.send(now) {
            self.agenda.push(Action::Suspect(shard, batch));
        }
    }

    /// Returns true if notes are being sent.
    pub fn is_noting(&self) -> bool {
        self.notes.is_sending()
    }

    /// Forgets the request in flight to `shard`, whose outcome no longer matters because the worker
    /// stops.
    pub fn give_up_notes(&mut self, shard: ShardId) {
        self.notes.give_up_batch(shard);
    }

    /// Returns the final notes of a worker that stops in order, for the calls that it gives up.
    pub fn final_notes(&mut self) -> Vec<SuspectNote> {
        self.notes.final_notes()
    }
}
