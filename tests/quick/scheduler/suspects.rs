//! Redelivered jobs: the scheduler's notes to the gate on their calls, and waiting jobs.

use std::time::Duration;

use broker::{DeliverySource, Message};
use engine::action::{EngineSettings, JobKey};
use gate::{GateError, Note, ShardId, SuspectDecision};
use handler::{Attempt, Fate, Outcome};
use kit::SECOND;
use rules::failures::crash::NOTE_LEASE_MS;
use rules::headers::{self, HeaderValue};
use rules::job::Field;

use crate::scheduler::{
    CAPACITY, Desk, Done, MS, START, by_header, message, settings, usual, wait,
};

const ALONE: SuspectDecision = SuspectDecision::RunAlone { crashes: 2 };

/// Returns jobs with their own IDs.
fn jobs(ids: &[&str]) -> Vec<Message> {
    ids.iter().map(|id| kit::job("a", id)).collect()
}

/// Returns the notes as text: `job: note`.
fn words(done: &Done) -> Vec<String> {
    let word = |suspected: &gate::SuspectNote| {
        let what = match suspected.note {
            Note::Begin { max: 5, alone } => ["begin", "alone"][usize::from(alone)],
            Note::Begin { .. } => panic!("{suspected:?}"),
            Note::Renew => "renew",
            Note::End { answered } => ["end", "answered"][usize::from(answered)],
        };
        format!("{}: {what}", suspected.job)
    };
    done.suspected.iter().map(word).collect()
}

impl Desk {
    fn again(&mut self, ids: &[&str]) -> Done {
        self.deliver_marked(DeliverySource::Fresh, true, jobs(ids))
    }

    fn answer_notes(&mut self, verdicts: &[SuspectDecision]) -> Done {
        let verdicts = verdicts.iter().copied().map(Ok).collect();
        self.scheduler
            .suspected(self.now, ShardId::default(), Ok(verdicts));
        self.step(3 * MS)
    }

    /// Starts a suspect.
    fn suspect_runs(&mut self, id: &str) -> JobKey {
        assert_eq!(words(&self.again(&[id])), [format!("{id}: begin")]);
        assert_eq!(
            self.answer_notes(&[SuspectDecision::Proceed]).asked.len(),
            1
        );
        self.answer(MS, vec![vec![START]]).dispatched[0].0
    }

    fn ends(&mut self, key: JobKey, attempt: impl Into<Attempt>) -> Done {
        self.ended_within(3 * MS, key, attempt)
    }
}

#[test]
fn jobs_delivered_once_cost_no_notes() {
    let mut desk = Desk::new(8);
    let mut notes = 0;
    for round in 0..50 {
        let names: Vec<String> = (0..4).map(|job| format!("{round}-{job}")).collect();
        let ids: Vec<&str> = names.iter().map(String::as_str).collect();
        let done = desk.deliver_messages(DeliverySource::Fresh, jobs(&ids));
        notes += done.suspected.len();
        assert_eq!(done.asked[0].asks.len(), 4, "they ask at once");
        let answers = vec![START, START, wait(60_000, 1), wait(60_001, 2)];
        let done = desk.answer(MS, vec![answers]);
        notes += done.suspected.len();
        let retry = Outcome::Retry {
            after: Some(60 * SECOND),
            reason: "502".to_owned(),
        };
        for ((key, ..), outcome) in done.dispatched.into_iter().zip([Outcome::Done, retry]) {
            let done = desk.ends(key, outcome);
            notes += done.suspected.len();
            for (_, moved) in done.published {
                assert_eq!(moved.message.header(headers::SUSPECT), Field::Missing);
            }
        }
        notes += desk.step(SECOND).suspected.len();
    }
    assert_eq!(notes, 0);
    assert!(desk.scheduler.final_notes().is_empty());
}

#[test]
fn a_suspect_has_a_note_from_before_its_request_to_its_end() {
    let mut desk = Desk::new(8);
    let done = desk.again(&["x"]);
    assert_eq!(
        (words(&done), done.asked.len()),
        (vec!["x: begin".into()], 0)
    );
    let done = desk.answer_notes(&[SuspectDecision::Proceed]);
    assert_eq!((words(&done), done.asked.len()), (vec![], 1));
    let key = desk.answer(MS, vec![vec![START]]).dispatched[0].0;
    let renewed = desk.step(Duration::from_millis(NOTE_LEASE_MS / 4));
    assert_eq!(words(&renewed), ["x: renew"]);
    desk.answer_notes(&[SuspectDecision::Proceed]);
    let retry = Outcome::Retry {
        after: Some(60 * SECOND),
        reason: "502".to_owned(),
    };
    let done = desk.ends(key, retry);
    // It was called and its worker is alive, so it is no longer a suspect.
    assert_eq!(words(&done), ["x: answered"]);
    let (_, moved) = &done.published[0];
    assert_eq!(moved.message.header(headers::SUSPECT), Field::Missing);
    desk.answer_notes(&[SuspectDecision::Proceed]);
    assert!(desk.scheduler.final_notes().is_empty());
}

#[test]
fn a_note_ends_with_its_job_in_every_case() {
    // It must wait and gives up its slot.
    let mut desk = Desk::new(8);
    desk.again(&["x"]);
    desk.answer_notes(&[SuspectDecision::Proceed]);
    let mut notes = words(&desk.answer(MS, vec![vec![wait(60_000, 1)]]));
    let done = desk.step(MS);
    notes.extend(words(&done));
    assert_eq!(notes, ["x: end"]);

    // Its session is lost before it starts, or while the note is written.
    for verdict in [None, Some(SuspectDecision::Proceed)] {
        let mut desk = Desk::new(8);
        desk.again(&["x"]);
        verdict.map(|verdict| desk.answer_notes(&[verdict]));
        desk.scheduler.session_down();
        let mut notes = words(&desk.step(MS));
        notes.extend(words(&desk.answer_notes(&[SuspectDecision::Proceed])));
        assert_eq!(notes, ["x: end"], "{verdict:?}");
    }

    // A call that was not made says nothing about its job, which asks again.
    let mut desk = Desk::new(8);
    let key = desk.suspect_runs("x");
    assert_eq!(words(&desk.ends(key, Outcome::Late)), ["x: end"]);
    // Its permit is returned first.
    desk.settled_all(1);
    assert_eq!(
        words(&desk.answer_notes(&[SuspectDecision::Proceed])),
        ["x: begin"]
    );
    desk.answer_notes(&[SuspectDecision::Proceed]);
    let key = desk.answer(MS, vec![vec![START]]).dispatched[0].0;
    let unwritten = Attempt {
        fate: Fate::Unwritten,
        ..Outcome::Reject { reason: "x".into() }.into()
    };
    assert_eq!(words(&desk.ends(key, unwritten)), ["x: end"]);

    // It runs on without its session.
    let mut desk = Desk::new(8);
    let key = desk.suspect_runs("x");
    desk.scheduler.session_down();
    assert_eq!(words(&desk.step(MS)), [""; 0]);
    assert_eq!(words(&desk.ends(key, Outcome::Done)), ["x: answered"]);
}

#[test]
fn an_orderly_shutdown_leaves_no_note() {
    let mut desk = Desk::new(8);
    desk.suspect_runs("x");
    desk.again(&["y", "z"]);
    desk.scheduler.stop();
    let notes: Vec<_> = desk.scheduler.final_notes();
    let mut ended: Vec<_> = notes.iter().map(|word| word.job.as_str()).collect();
    ended.sort_unstable();
    assert_eq!(ended, ["x", "y", "z"]);
    let end = Note::End { answered: false };
    assert!(notes.iter().all(|word| word.note == end));

    // A graceful stop waits until notes are written.
    let mut desk = Desk::new(8);
    let key = desk.suspect_runs("x");
    desk.scheduler.stop();
    desk.ends(key, Outcome::Done);
    assert!(!desk.scheduler.is_idle());
    desk.answer_notes(&[SuspectDecision::Proceed]);
    assert!(desk.scheduler.is_idle());
}

#[test]
fn notes_are_bounded_by_the_slots_without_spinning() {
    let mut desk = Desk::new(2);
    let done = desk.again(&["1", "2", "3", "4"]);
    assert_eq!(words(&done), ["1: begin", "2: begin"]);
    for _ in 0..10 {
        let done = desk.step(3 * MS);
        assert_eq!((words(&done), done.asked.len()), (vec![], 0));
    }
    let next = desk
        .scheduler
        .next_tick(desk.now)
        .expect("they are renewed");
    assert!(next > desk.now + 4 * SECOND, "{next:?}");
    desk.answer_notes(&[SuspectDecision::Proceed; 2]);
    let done = desk.answer(MS, vec![vec![START, START]]);
    let next = desk.ends(done.dispatched[0].0, Outcome::Done);
    assert_eq!(words(&next), ["1: answered"]);
    assert_eq!(
        words(&desk.answer_notes(&[SuspectDecision::Proceed])),
        ["3: begin"]
    );
    desk.answer_notes(&[SuspectDecision::Proceed]);
    // A call that has yet to be prepared keeps its note.
    let done = desk.answer(MS, vec![vec![CAPACITY]]);
    assert_eq!(words(&done), [""; 0]);
    assert_eq!(words(&desk.step(MS)), [""; 0]);
}

#[test]
fn a_job_that_may_run_elsewhere_waits_in_a_delay_queue_as_a_suspect() {
    let mut desk = Desk::new(8);
    desk.again(&["x"]);
    let done = desk.answer_notes(&[SuspectDecision::Wait { ms: 19_000 }]);
    let (_, moved) = &done.published[0];
    assert_eq!(moved.message.header(headers::SUSPECT), Field::Int(0));
    let moved = moved.clone();
    let mut notes = words(&desk.back(moved));
    notes.extend(words(&desk.step(SECOND)));
    // The clock is not known yet.
    let done = desk.answer(MS, vec![vec![]]);
    notes.extend(words(&done));
    for _ in 0..400 {
        notes.extend(words(&desk.step(100 * MS)));
    }
    assert_eq!(notes[0], "x: begin");

    // A short wait is spent here.
    let mut desk = Desk::new(8);
    desk.again(&["x"]);
    let done = desk.answer_notes(&[SuspectDecision::Wait { ms: 300 }]);
    assert!(done.published.is_empty());
    assert_eq!(words(&desk.step(301 * MS)), ["x: begin"]);
}

#[test]
fn jobs_with_crashes_run_one_at_a_time() {
    let mut desk = Desk::new(8);
    desk.again(&["1", "2"]);
    let done = desk.answer_notes(&[ALONE; 2]);
    assert_eq!(words(&done), ["1: alone"]);
    // The other one waits here or in a delay queue, and remains a suspect there.
    let (_, moved) = &done.published[0];
    assert_eq!(moved.message.header(headers::SUSPECT), Field::Int(2));
    // A job that has not crashed is called at the same time.
    assert_eq!(words(&desk.again(&["3"])), [""; 0]);
    let done = desk.answer_notes(&[SuspectDecision::Proceed]);
    assert_eq!(words(&done), ["3: begin"]);
    desk.answer_notes(&[SuspectDecision::Proceed]);
    let key = desk.answer(MS, vec![vec![START]]).dispatched[0].0;
    assert_eq!(words(&desk.ends(key, Outcome::Done)), ["1: answered"]);
    desk.answer(MS, vec![vec![START]]);
    // Its turn ends when the gate knows that its call has ended.
    let done = desk.again(&["4"]);
    assert_eq!(words(&done), [""; 0]);
    let done = desk.answer_notes(&[SuspectDecision::Proceed]);
    assert_eq!(words(&done), ["4: begin"]);
    assert_eq!(words(&desk.answer_notes(&[ALONE])), ["4: alone"]);
}

#[test]
fn a_job_that_crashed_too_many_workers_is_a_dead_letter() {
    let mut desk = Desk::new(8);
    desk.again(&["x"]);
    let done = desk.answer_notes(&[SuspectDecision::Dead { crashes: 5 }]);
    let (_, letter) = &done.published[0];
    assert_eq!(&*letter.queue, "jobs.dead");
    let reason = "5 of its calls ended their workers (retry.max-crashes)";
    assert_eq!(letter.message.header(headers::REASON), Field::Text(reason));
    assert_eq!(words(&done), [""; 0]);
}

#[test]
fn a_job_without_an_id_gets_one_on_its_way_through_a_delay_queue() {
    let mut desk = Desk::new(8);
    let plain = message(&[("x-tenant", HeaderValue::Text("a".to_owned()))]);
    let done = desk.deliver_marked(DeliverySource::Fresh, true, vec![plain]);
    assert_eq!(words(&done), [""; 0]);
    let (_, moved) = done.published[0].clone();
    let id = moved.message.id().expect("it has one now").to_owned();
    let mut notes = words(&desk.back(moved));
    desk.answer(MS, vec![vec![]]);
    notes.extend((0..10).flat_map(|_| words(&desk.step(100 * MS))));
    assert_eq!(notes, [format!("{id}: begin")]);
}

#[test]
fn suspects_wait_like_all_jobs_while_the_gate_is_unreachable() {
    let mut desk = Desk::new(8);
    desk.again(&["x"]);
    let away = || GateError::Unreachable("a test".to_owned());
    let shard = ShardId::default();
    desk.scheduler.suspected(desk.now, shard, Err(away()));
    let done = desk.step(MS);
    assert!(done.published.is_empty());
    // The note may have been written. It is ended when the gate answers again, and then the call
    // begins again.
    let mut notes = words(&done);
    notes.extend((0..10).flat_map(|_| words(&desk.step(200 * MS))));
    assert_eq!(notes, ["x: end"]);
    assert_eq!(
        words(&desk.answer_notes(&[SuspectDecision::Proceed])),
        ["x: begin"]
    );

    // If only one tenant's primary fails, only its jobs wait.
    let mut desk = Desk::new(8);
    desk.again(&["x", "y"]);
    let verdicts = vec![Err(away()), Ok(SuspectDecision::Proceed)];
    desk.scheduler.suspected(desk.now, shard, Ok(verdicts));
    let done = desk.step(3 * MS);
    assert_eq!((done.published.len(), done.asked.len()), (1, 1));
}

#[test]
fn with_max_crashes_zero_no_crash_is_counted() {
    let mut settings: EngineSettings = settings(8, usual(), by_header());
    settings.live.retry.max_crashes = 0;
    let mut desk = Desk::of(settings);
    let done = desk.again(&["x"]);
    assert_eq!((words(&done), done.asked.len()), (vec![], 1));
}
