//! Jobs with dedupe keys that have to ask whether they are the first (`rules::dedupe`). At most one
//! batch per shard is in flight.

use std::time::Duration;

use crate::action::JobKey;
use crate::scheduler::outbox::ShardOutboxes;
use crate::shards::Shards;
use gate::{Candidate, DedupeAnswer, DedupeReplies, GateError, ShardId};

/// Delay before a failed question is asked again.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of jobs per question.
const MAX_JOBS_PER_REQUEST: usize = 256;

/// The jobs that have to ask, by shard. The prefetch bounds their number.
#[derive(Debug)]
pub struct Candidates {
    /// A number that no other worker has.
    worker: u64,
    outboxes: ShardOutboxes<(JobKey, Candidate)>,
}

impl Candidates {
    /// Creates an empty set. `worker` is a number that no other worker has.
    pub fn new(worker: u64) -> Self {
        Self {
            worker,
            outboxes: ShardOutboxes::default(),
        }
    }

    /// Sets the mapping of tenants to shards.
    pub fn shard_by(&mut self, shards: Shards) {
        self.outboxes.shard_by(shards);
    }

    /// Returns a name for a delivery that no other delivery of any worker has.
    pub fn name(&self, key: JobKey) -> String {
        format!("{:x}-{}", self.worker, key.0)
    }

    /// Adds a job that has to ask.
    pub fn add(&mut self, key: JobKey, candidate: Candidate) {
        let shard = self.outboxes.shard_of(&candidate.tenant);
        self.outboxes.push(shard, (key, candidate));
    }

    /// Takes the questions to ask now.
    pub fn send(&mut self, now: Duration) -> Vec<(ShardId, Vec<Candidate>)> {
        let question = |(_, candidate): &(JobKey, Candidate)| candidate.clone();
        self.outboxes.send(now, MAX_JOBS_PER_REQUEST, question)
    }

    /// Returns when [`Candidates::send`] may have something to send.
    pub fn send_at(&self) -> Option<Duration> {
        self.outboxes.send_at()
    }

    /// Handles the result of the last question of `shard`. Questions that Redis did not answer are
    /// asked again later. A question that it refused is not, because it would be refused again.
    pub fn dedupe_result(
        &mut self,
        now: Duration,
        shard: ShardId,
        result: Result<DedupeReplies, GateError>,
    ) -> Vec<(JobKey, Result<DedupeAnswer, GateError>)> {
        let Some(outbox) = self.outboxes.get_mut(shard) else {
            return Vec::new();
        };
        let sent = outbox.take_sent();
        let mut answers = Vec::with_capacity(sent.len());
        let replies = result.unwrap_or_else(|why| vec![Err(why); sent.len()]);
        let mut replies = replies.into_iter();
        let mut retries = Vec::new();
        for (key, candidate) in sent {
            match replies.next() {
                Some(reply @ (Ok(_) | Err(GateError::Refused(_)))) => answers.push((key, reply)),
                _ => retries.push((key, candidate)),
            }
        }
        outbox.retry(now + RETRY_DELAY, retries);
        answers
    }

    /// Removes the jobs for which `is_taken` is true and of which no question is in flight. Returns
    /// them.
    pub fn take_waiting(&mut self, is_taken: impl Fn(JobKey) -> bool) -> Vec<JobKey> {
        let taken = self.outboxes.take_waiting(|(key, _)| is_taken(*key));
        taken.into_iter().map(|(key, _)| key).collect()
    }

    /// Forgets all jobs that have to ask: the broker delivers them again.
    pub fn clear(&mut self) {
        self.outboxes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::tenant::Tenant;

    fn add(candidates: &mut Candidates, key: u64) {
        let owner = candidates.name(JobKey(key));
        candidates.add(
            JobKey(key),
            Candidate {
                tenant: Tenant::parse("a").expect("a tenant"),
                key: "k".to_owned(),
                job: key.to_string(),
                owner,
                seen_before: false,
                lasts_ms: 5,
            },
        );
    }

    const HERE: fn() -> ShardId = ShardId::default;

    #[test]
    fn one_batch_is_in_flight_and_failed_jobs_are_asked_first() {
        let (mut all, now) = (Candidates::new(7), Duration::from_secs(9));
        add(&mut all, 1);
        let sent = all.send(now);
        assert_eq!((sent.len(), sent[0].1[0].owner.as_str()), (1, "7-1"));
        add(&mut all, 2);
        assert!(all.send(now).is_empty() && all.send_at().is_none());
        let away = GateError::Unreachable("a test".to_owned());
        assert!(all.dedupe_result(now, HERE(), Err(away)).is_empty());
        assert_eq!(all.send_at(), Some(now + RETRY_DELAY));
        assert!(all.send(now).is_empty(), "not yet");
        let sent = all.send(now + RETRY_DELAY);
        let jobs: Vec<_> = sent[0].1.iter().map(|it| it.job.as_str()).collect();
        assert_eq!(jobs, ["1", "2"]);
        assert!(all.dedupe_result(now, HERE(), Ok(Vec::new())).is_empty());
        let now = now + 2 * RETRY_DELAY;
        assert_eq!(all.send(now)[0].1.len(), 2, "no reply is no answer");
        let refused = GateError::Refused("a test".to_owned());
        let results =
            all.dedupe_result(now, HERE(), Ok(vec![Ok(DedupeAnswer::First), Err(refused)]));
        assert!(matches!(results[0], (JobKey(1), Ok(DedupeAnswer::First))));
        assert!(matches!(
            results[1],
            (JobKey(2), Err(GateError::Refused(_)))
        ));
        assert_eq!(all.send_at(), None);
    }

    #[test]
    fn a_batch_is_bounded_and_forgotten_with_its_session() {
        let mut all = Candidates::new(7);
        (0..300).for_each(|key| add(&mut all, key));
        assert_eq!(all.send(Duration::ZERO)[0].1.len(), MAX_JOBS_PER_REQUEST);
        all.clear();
        add(&mut all, 300);
        assert!(all.send(Duration::ZERO).is_empty(), "one is under way");
        let replies = vec![Ok(DedupeAnswer::First); MAX_JOBS_PER_REQUEST];
        assert!(
            all.dedupe_result(Duration::ZERO, HERE(), Ok(replies))
                .is_empty()
        );
        assert_eq!(all.send(Duration::ZERO)[0].1.len(), 1);
    }
}
