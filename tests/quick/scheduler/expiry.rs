//! Expiry: wherever a job waits, it is never called later, and ends as a dead letter.

use std::time::Duration;

use broker::{DeliverySource, Message, Outgoing};
use gate::{Answer, End};
use handler::Outcome;
use rules::headers::HeaderValue;
use rules::job::Field;

use crate::scheduler::{CAPACITY, Desk, Done, MS, START, message, trip, wait};

const STORE_MS: i64 = 1_700_000_000_000;

/// Returns a job of tenant `a` that expires after this many milliseconds.
fn expiring(ms: u64) -> Message {
    let mut job = message(&[("x-tenant", HeaderValue::Text("a".into()))]);
    let properties = job.properties.clone();
    job.properties = properties.with_expiration(ms.to_string().into());
    job
}

#[track_caller]
fn dead(done: &Done) -> &Outgoing {
    let [(_, outgoing)] = &done.published[..] else {
        panic!("one dead letter, not {:?}", done.published);
    };
    assert_eq!(&*outgoing.queue, "jobs.dead");
    let Field::Text(reason) = outgoing.message.header("x-sluicegate-reason") else {
        panic!("a reason");
    };
    assert!(reason.starts_with("expired: "), "{reason}");
    assert!(done.asked.is_empty() && done.dispatched.is_empty());
    outgoing
}

#[test]
fn an_expired_job_returns_from_its_delay_queue_without_a_request() {
    let mut desk = Desk::with_clock(4);
    let asked = desk.deliver_messages(DeliverySource::Fresh, vec![expiring(3_000)]);
    assert_eq!(asked.asked.len(), 1);
    let done = desk.answer(MS, vec![vec![wait(10_000, 4)]]);
    let outgoing = desk.leaves(done);
    let trip = trip(&outgoing.message).wait_ms;
    assert!((3_000..=3_500).contains(&trip), "{trip}");
    let travelling = outgoing.message;
    let ends = travelling.header("x-sluicegate-expires");
    // It was seen 5 ms before its question, and the answer brought the clock.
    assert_eq!(ends, Field::Int(STORE_MS + 3_000));
    let expiration = travelling.header("x-sluicegate-expiration");
    assert_eq!(expiration, Field::Text("3000"));
    assert_eq!(
        travelling.properties.expiration(),
        &None,
        "a delay queue would drop it"
    );
    let mut early = travelling.clone().with_headers(&[], &["x-sluicegate-trip"]);
    early.properties = early.properties.with_expiration("1".into());
    desk.step(MS * 2_000);
    let asked = desk.deliver_messages(DeliverySource::Due, vec![early]);
    assert_eq!(
        asked.asked.len(),
        1,
        "counted once, it is not counted again"
    );
    desk.scheduler.session_up(1);

    desk.step(MS * 1_000);
    let done = desk.deliver_messages(DeliverySource::Due, vec![travelling]);
    let letter = &dead(&done).message;
    let expiration = letter.header("x-sluicegate-expiration");
    assert_eq!(expiration, Field::Text("3000"));
    assert_eq!(letter.properties.expiration(), &None);
}

#[test]
fn a_held_job_that_expires_meanwhile_is_a_dead_letter_when_its_turn_comes() {
    let mut desk = Desk::with_clock(4);
    desk.deliver_messages(DeliverySource::Fresh, vec![expiring(200)]);
    let done = desk.answer(MS, vec![vec![wait(300, 4)]]);
    assert!(done.published.is_empty());
    dead(&desk.step(MS * 300));
}

#[test]
fn a_job_that_expires_before_its_call_returns_its_permit() {
    let mut desk = Desk::with_clock(4);
    desk.deliver_messages(DeliverySource::Fresh, vec![expiring(20)]);
    let done = desk.answer(MS * 20, vec![vec![START]]);
    assert!(done.dispatched.is_empty());
    let done = desk.step(MS * 5);
    assert_eq!(done.settled[0].settled[0].end, End::Unused);
    desk.settled_all(1);
    dead(&desk.step(MS * 20));
}

#[test]
fn a_permit_ends_before_its_job_expires() {
    let mut desk = Desk::with_clock(4);
    desk.deliver_messages(DeliverySource::Fresh, vec![expiring(20)]);
    let asked_at = desk.now;
    let done = desk.answer(MS, vec![vec![START]]);
    let (key, _, deadline) = done.dispatched[0];
    // The test's clock reading stands still, so 5 ms count twice.
    assert!(deadline < asked_at + MS * 20, "{deadline:?}");
    desk.ended_within(MS * 19, key, Outcome::Late);
    desk.settled_all(1);
    dead(&desk.step(MS));
}

#[test]
fn jobs_that_expire_while_a_permit_is_missing_do_not_take_it() {
    let mut desk = Desk::with_clock(1);
    let jobs = vec![expiring(60_000), expiring(1_000)];
    desk.deliver_messages(DeliverySource::Fresh, jobs);
    let done = desk.answer(MS, vec![vec![START, CAPACITY]]);
    let key = done.dispatched[0].0;
    desk.step(MS * 1_000);
    dead(&desk.ended_within(MS, key, Outcome::Done));
    // No other job is left to ask for.
    let asked = desk.deliver(DeliverySource::Fresh, &["a"]).asked;
    assert_eq!((asked.len(), asked[0].asks.len()), (1, 1));
}

#[test]
fn a_failed_job_is_a_dead_letter_if_its_next_attempt_would_be_too_late() {
    let mut desk = Desk::with_clock(4);
    desk.deliver_messages(DeliverySource::Fresh, vec![expiring(2_000)]);
    let key = desk.answer(MS, vec![vec![START]]).dispatched[0].0;
    let retry = Outcome::Retry {
        after: Some(Duration::from_secs(60)),
        reason: "500".into(),
    };
    let (key, outgoing) = desk.ended(key, retry).published.remove(0);
    let trip = trip(&outgoing.message).wait_ms;
    assert!(trip < 2_400, "{trip}");
    desk.scheduler.moved(desk.now, vec![(key, Ok(()))]);
    desk.step(MS * 2_000);
    let done = desk.deliver_messages(DeliverySource::Due, vec![outgoing.message]);
    dead(&done);
}

#[test]
fn the_stores_clock_is_read_before_an_expiring_job() {
    let mut desk = Desk::new(4);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![expiring(1_000)]);
    assert_eq!(done.asked.len(), 1);
    assert!(done.asked[0].asks.is_empty());
    desk.answer(MS, vec![Vec::<Answer>::new()]);
    assert_eq!(desk.step(MS * 5).asked[0].asks.len(), 1);
}

#[test]
fn a_publication_time_is_compared_with_the_stores_clock() {
    let mut desk = Desk::with_clock(4);
    let published = HeaderValue::Int(STORE_MS - 500);
    let job = || expiring(1_000).with_headers(&[("timestamp_in_ms", published.clone())], &[]);
    desk.step(MS * 300);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![job()]);
    assert_eq!(done.asked.len(), 1);
    desk.step(MS * 300);
    dead(&desk.deliver_messages(DeliverySource::Fresh, vec![job()]));
    // Timestamps have whole seconds, so it may have been published at their end.
    let mut job = expiring(1_000);
    let seconds = u64::try_from(STORE_MS / 1000).expect("positive");
    job.properties = job.properties.with_timestamp(seconds - 2);
    dead(&desk.deliver_messages(DeliverySource::Fresh, vec![job.clone()]));
    job.properties = job.properties.with_timestamp(seconds);
    assert!(
        desk.deliver_messages(DeliverySource::Fresh, vec![job])
            .published
            .is_empty()
    );
}
