//! Jobs with dedupe keys: each first asks whether it is the first with its key, and is dropped if
//! it is not.

use std::time::Duration;

use crate::action::{Action, JobKey};
use crate::facts::JobFact;
use crate::scheduler::Scheduler;
use crate::scheduler::entry::{JobEntry, Phase};
use crate::scheduler::queues::QueuePosition;
use gate::{Candidate, DedupeAnswer, DedupeReplies, GateError, ShardId};
use rules::scope::Labels;

impl Scheduler {
    /// Lets a job ask whether it is the first with its key, unless that is known. Returns true if
    /// it asks.
    pub(in crate::scheduler) fn asks_whether_first(&mut self, now: Duration, key: JobKey) -> bool {
        let Some(job) = self.jobs.get_mut(&key) else {
            return false;
        };
        let Some(dedupe) = &job.claims.dedupe else {
            return false;
        };
        if !job.has_own_id {
            // Each delivery of this job gets another ID, so the job could not be recognized. A trip
            // through a delay queue gives it one that lasts.
            self.recheck(now, key, Duration::ZERO);
            return true;
        }
        job.phase = Phase::Candidate;
        let candidate = Candidate {
            tenant: job.claims.tenant.clone(),
            key: dedupe.key.clone(),
            job: job.message.id().unwrap_or_default().to_owned(),
            owner: self.candidates.name(key),
            seen_before: dedupe.seen_before,
            lasts_ms: dedupe.lasts_ms,
        };
        self.candidates.add(key, candidate);
        true
    }

    /// Sends the questions of jobs that have to ask.
    pub(in crate::scheduler) fn send_dedupe_questions(&mut self, now: Duration) {
        if self.intake.is_stopping() {
            return;
        }
        for (shard, batch) in self.candidates.send(now) {
            self.agenda.push(Action::Dedupe(shard, batch));
        }
    }

    /// Handles the result of [`Action::Dedupe`].
    pub fn deduped(
        &mut self,
        now: Duration,
        shard: ShardId,
        result: Result<DedupeReplies, GateError>,
    ) {
        for (key, deduped) in self.candidates.dedupe_result(now, shard, result) {
            let asks = |job: &&mut JobEntry| job.phase == Phase::Candidate;
            let Some(job) = self.jobs.get_mut(&key).filter(asks) else {
                continue;
            };
            match deduped {
                Ok(DedupeAnswer::First) => {
                    job.claims.dedupe = None;
                    job.claims.is_first = true;
                    let end = match job.is_fresh() {
                        true => QueuePosition::Fresh,
                        false => QueuePosition::Due,
                    };
                    self.arrange(now, key, end);
                }
                Ok(DedupeAnswer::Duplicate { left_ms }) => self.drop_duplicate(now, key, left_ms),
                Err(why) => {
                    let tenant = job.claims.tenant.clone();
                    self.set_aside(now, (&tenant, &Labels::default()), &[key], &why);
                }
            }
        }
        self.send_dedupe_questions(now);
    }

    /// Drops a job because another job with its key goes on.
    fn drop_duplicate(&mut self, now: Duration, key: JobKey, left_ms: u64) {
        let Some(job) = self.jobs.get(&key) else {
            return;
        };
        self.facts
            .push(JobFact::Duplicate(job.log_fields(), left_ms));
        let result = self.result_of_duplicate(key);
        self.ack_after(now, key, result);
        self.forget(key);
    }
}
