//! Tracks which suspect jobs this worker is calling (`rules::failures::crash`). The worker writes a
//! note to Redis before it requests a permit, renews it during the call, and ends it afterwards. At
//! most one batch per shard is in flight, so Redis sees the end of a call before the next call of
//! the same job begins.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::action::JobKey;
use crate::scheduler::outbox::ShardOutboxes;
use crate::shards::Shards;
use gate::{GateError, Note, ShardId, SuspectDecision, SuspectNote, SuspectReplies};
use rules::failures::crash::NOTE_LEASE_MS;
use rules::tenant::Tenant;

/// Interval at which notes are renewed.
const NOTE_RENEW_INTERVAL: Duration = Duration::from_millis(NOTE_LEASE_MS / 4);
/// Delay before a failed write is retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of notes per request.
const MAX_NOTES_PER_REQUEST: usize = 256;
/// Maximum number of failed writes per shard that wait to be retried. Earlier ends of calls are
/// dropped, and each of these calls may count as a crash.
const MAX_RETRIES_PER_SHARD: usize = 1024;

/// The terms under which a suspect is called.
pub struct SuspectTerms {
    /// Number of crashes after which it may not be called.
    pub max: u32,
    /// Whether no other job with crashes may be called meanwhile, because it has crashes itself.
    pub alone: bool,
}

/// A call of a suspect by this worker.
#[derive(Debug)]
struct SuspectCall {
    shard: ShardId,
    suspected: SuspectNote,
    /// Whether it was made and has ended.
    answered: bool,
}

/// The notes of this worker. Suspects with a worker slot have one each, so `dispatch.concurrency`
/// bounds their number.
#[derive(Debug)]
pub struct Notes {
    /// A number that no other worker has.
    worker: u64,
    calls: BTreeMap<JobKey, SuspectCall>,
    /// The job with crashes that is being called, until the gate knows that its call has ended.
    alone: Option<JobKey>,
    outboxes: ShardOutboxes<(JobKey, SuspectNote)>,
    renew_at: Duration,
}

impl Notes {
    /// Creates an empty set of notes. `worker` is a number that no other worker has.
    pub fn new(worker: u64) -> Self {
        Self {
            worker,
            calls: BTreeMap::new(),
            alone: None,
            outboxes: ShardOutboxes::default(),
            renew_at: Duration::ZERO,
        }
    }

    /// Sets the mapping of tenants to shards.
    pub fn shard_by(&mut self, shards: Shards) {
        self.outboxes.shard_by(shards);
    }

    /// Returns true if no note is active, queued or in flight.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.outboxes.is_empty()
    }

    /// Returns true if the job's call is noted, or about to be.
    pub fn has(&self, key: JobKey) -> bool {
        self.calls.contains_key(&key)
    }

    /// Returns true if a job with crashes is being called. No other such job may be.
    pub fn is_alone(&self) -> bool {
        self.alone.is_some()
    }

    /// Begins a note for a job that is about to be called under `terms`.
    pub fn begin(
        &mut self,
        now: Duration,
        key: JobKey,
        tenant: &Tenant,
        job: &str,
        terms: SuspectTerms,
    ) {
        let SuspectTerms { max, alone } = terms;
        if self.calls.is_empty() {
            self.renew_at = now + NOTE_RENEW_INTERVAL;
        }
        if alone {
            self.alone = Some(key);
        }
        let call = SuspectCall {
            shard: self.outboxes.shard_of(tenant),
            suspected: SuspectNote {
                tenant: tenant.clone(),
                job: job.to_owned(),
                owner: format!("{:x}-{}", self.worker, key.0),
                note: Note::Begin { max, alone },
            },
            answered: false,
        };
        self.outboxes
            .push(call.shard, (key, call.suspected.clone()));
        self.calls.insert(key, call);
    }

    /// Records that the job's call was made and has ended.
    pub fn answered(&mut self, key: JobKey) {
        if let Some(call) = self.calls.get_mut(&key) {
            call.answered = true;
        }
    }

    /// Ends the notes of all jobs that are neither called nor about to be.
    pub fn end(&mut self, is_called: impl Fn(JobKey) -> bool) {
        let ended = self.calls.keys().filter(|key| !is_called(**key));
        for key in ended.copied().collect::<Vec<_>>() {
            if let Some(call) = self.calls.remove(&key) {
                self.outboxes.push(call.shard, (key, call.end_note()));
            }
        }
    }

    /// Returns the notes to send now, by shard.
    pub fn send(&mut self, now: Duration) -> Vec<(ShardId, Vec<SuspectNote>)> {
        if self.renews_at().is_some_and(|at| at <= now) {
            self.renew_at = now + NOTE_RENEW_INTERVAL;
            for (key, call) in &self.calls {
                let renewal = call.with_note(Note::Renew);
                self.outboxes.push(call.shard, (*key, renewal));
            }
        }
        let note = |(_, suspected): &(JobKey, SuspectNote)| suspected.clone();
        self.outboxes.send(now, MAX_NOTES_PER_REQUEST, note)
    }

    /// Returns when [`Notes::send`] may have something to send.
    pub fn send_at(&self) -> Option<Duration> {
        let queued = self.outboxes.send_at();
        queued.into_iter().chain(self.renews_at()).min()
    }

    fn renews_at(&self) -> Option<Duration> {
        (!self.calls.is_empty()).then_some(self.renew_at)
    }

    /// Handles the result of the last request to `shard`. Returns the verdicts on jobs that wanted
    /// to begin.
    pub fn notes_result(
        &mut self,
        now: Duration,
        shard: ShardId,
        result: Result<SuspectReplies, GateError>,
    ) -> Vec<(JobKey, Result<SuspectDecision, GateError>)> {
        let Some(outbox) = self.outboxes.get_mut(shard) else {
            return Vec::new();
        };
        let sent = outbox.take_sent();
        let mut replies = match result {
            Ok(verdicts) => verdicts,
            Err(why) => vec![Err(why); sent.len()],
        }
        .into_iter();
        let (mut started, mut retries) = (Vec::new(), Vec::new());
        let mut failure = None;
        for (key, suspected) in sent {
            let nothing = || Err(GateError::Unreachable("no reply".to_owned()));
            let reply = replies.next().unwrap_or_else(nothing);
            // Redis would refuse it again.
            let failed = reply.as_ref().err();
            let failed = failed.filter(|why| !matches!(why, GateError::Refused(_)));
            failure = failed.cloned().or(failure);
            match suspected.note {
                Note::Begin { .. } => {
                    if matches!(&reply, Ok(verdict) if *verdict != SuspectDecision::Proceed) {
                        self.calls.remove(&key);
                        self.alone.take_if(|alone| *alone == key);
                    }
                    started.push((key, reply));
                }
                Note::End { .. } if failed.is_some() => retries.push((key, suspected)),
                Note::End { .. } => {
                    self.alone.take_if(|alone| *alone == key);
                }
                Note::Renew => {}
            }
        }
        if let Some(why) = failure {
            self.renew_at = self.renew_at.min(now + RETRY_DELAY);
            // Jobs that want to begin do not wait for the retry.
            retries.extend(outbox.take_waiting(|_| true));
            let begins = |(_, it): &(JobKey, SuspectNote)| matches!(it.note, Note::Begin { .. });
            let (begins, mut open): (Vec<_>, Vec<_>) = retries.into_iter().partition(begins);
            started.extend(begins.into_iter().map(|(key, _)| (key, Err(why.clone()))));
            let too_many = open.len().saturating_sub(MAX_RETRIES_PER_SHARD);
            for (key, _) in open.drain(..too_many) {
                self.alone.take_if(|alone| *alone == key);
            }
            outbox.retry(now + RETRY_DELAY, open);
        }
        started
    }

    /// Returns true if a request is in flight.
    pub fn is_sending(&self) -> bool {
        self.outboxes.is_sending()
    }

    /// Ends the request in flight to `shard`, with any outcome. Its ends of calls are sent
    /// again, which does no harm.
    pub fn give_up_batch(&mut self, shard: ShardId) {
        if let Some(outbox) = self.outboxes.get_mut(shard) {
            let sent = outbox.take_sent().into_iter();
            let ends = sent.filter(|(_, it)| matches!(it.note, Note::End { .. }));
            ends.for_each(|note| outbox.push(note));
        }
    }

    /// Returns the ends of all notes that are not known to have ended, because the worker stops.
    pub fn final_notes(&mut self) -> Vec<SuspectNote> {
        self.end(|_| false);
        let all = self.outboxes.take_all().into_iter();
        let ended = all.filter(|(_, suspected)| matches!(suspected.note, Note::End { .. }));
        ended.map(|(_, suspected)| suspected).collect()
    }
}

impl SuspectCall {
    fn with_note(&self, note: Note) -> SuspectNote {
        SuspectNote {
            note,
            ..self.suspected.clone()
        }
    }

    fn end_note(&self) -> SuspectNote {
        self.with_note(Note::End {
            answered: self.answered,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::SECOND;

    const GO: Result<SuspectDecision, GateError> = Ok(SuspectDecision::Proceed);
    fn tenant() -> Tenant {
        Tenant::parse("a").expect("a good id")
    }

    fn away() -> GateError {
        GateError::Unreachable("a test".to_owned())
    }

    fn terms(alone: bool) -> SuspectTerms {
        SuspectTerms { max: 5, alone }
    }

    /// Returns the notes that are sent now, in words.
    fn sent(notes: &mut Notes, now: Duration) -> Vec<String> {
        let word = |suspected: SuspectNote| {
            let what = match suspected.note {
                Note::Begin { .. } => "begin",
                Note::Renew => "renew",
                Note::End { .. } => "end",
            };
            format!("{what} {}", suspected.owner)
        };
        let sent = notes.send(now).into_iter();
        sent.flat_map(|(_, batch)| batch).map(word).collect()
    }

    fn result_of(notes: &mut Notes, replies: Result<SuspectReplies, GateError>) -> usize {
        notes
            .notes_result(SECOND, ShardId::default(), replies)
            .len()
    }

    #[test]
    fn an_end_is_resent_until_confirmed_and_precedes_the_next_beginning() {
        let mut notes = Notes::new(7);
        notes.begin(SECOND, JobKey(1), &tenant(), "x", terms(true));
        assert_eq!(sent(&mut notes, SECOND), ["begin 7-1"]);
        assert_eq!(result_of(&mut notes, Ok(vec![GO])), 1);
        notes.end(|_| false);
        assert_eq!(sent(&mut notes, SECOND), ["end 7-1"]);
        notes.begin(SECOND, JobKey(2), &tenant(), "x", terms(false));
        assert_eq!(sent(&mut notes, SECOND), [""; 0], "one at a time");
        // A job that wants to begin learns at once that no note can be written.
        assert_eq!(result_of(&mut notes, Err(away())), 1);
        assert!(notes.is_alone() && !notes.is_empty());
        assert_eq!(sent(&mut notes, SECOND), [""; 0], "not at once");
        notes.end(|_| false);
        assert_eq!(sent(&mut notes, 2 * SECOND), ["end 7-1", "end 7-2"]);
        assert_eq!(result_of(&mut notes, Ok(vec![GO, GO])), 0);
        assert!(!notes.is_alone() && notes.is_empty());
        assert_eq!(notes.send_at(), None);
    }

    #[test]
    fn resent_notes_are_bounded_and_refused_ones_are_dropped() {
        let mut notes = Notes::new(7);
        for key in 0..2 * MAX_RETRIES_PER_SHARD as u64 {
            notes.begin(SECOND, JobKey(key), &tenant(), "x", terms(false));
        }
        notes.end(|_| false);
        let batch = sent(&mut notes, SECOND);
        assert_eq!(batch.len(), MAX_NOTES_PER_REQUEST);
        let started = result_of(&mut notes, Err(away()));
        assert_eq!(started, 2 * MAX_RETRIES_PER_SHARD, "all of them hear it");
        let mut ends = 0;
        loop {
            let batch = sent(&mut notes, 2 * SECOND).len();
            let refused = |_| Err(GateError::Refused("a test".to_owned()));
            if batch == 0 {
                break;
            }
            ends += batch;
            result_of(&mut notes, Ok((0..batch).map(refused).collect()));
        }
        assert_eq!(ends, MAX_RETRIES_PER_SHARD);
        assert!(notes.is_empty());
    }

    #[test]
    fn the_final_notes_end_everything_that_may_be_noted() {
        let mut notes = Notes::new(7);
        for key in 1..=3 {
            notes.begin(SECOND, JobKey(key), &tenant(), "x", terms(false));
            notes.send(SECOND);
        }
        notes.answered(JobKey(2));
        notes.end(|key| key != JobKey(2));
        let suspects = notes.final_notes();
        let ended = |word: &SuspectNote| match word.note {
            Note::End { answered } => (word.owner.clone(), answered),
            _ => panic!("{word:?}"),
        };
        let mut ended: Vec<_> = suspects.iter().map(ended).collect();
        ended.sort_unstable();
        let all = [("7-1", false), ("7-2", true), ("7-3", false)];
        assert_eq!(
            ended,
            all.map(|(owner, answered)| (owner.to_owned(), answered))
        );
        assert!(notes.is_empty());
    }

    #[test]
    fn the_final_notes_include_an_end_in_flight_and_wait_for_a_beginning() {
        let mut notes = Notes::new(7);
        notes.begin(SECOND, JobKey(1), &tenant(), "x", terms(false));
        notes.send(SECOND);
        assert!(notes.is_sending());
        notes.give_up_batch(ShardId::default());
        assert!(!notes.is_sending());
        notes.end(|_| false);
        assert_eq!(sent(&mut notes, SECOND), ["end 7-1"]);
        notes.give_up_batch(ShardId::default());
        assert!(!notes.is_sending());
        let suspects = notes.final_notes();
        assert_eq!(suspects.len(), 1, "{suspects:?}");
    }
}
