//! Delayed starts: wherever a job waits, it does not ask earlier, and its delay counts once.

use broker::{DeliverySource, Message};
use handler::Outcome;
use kit::Says;
use rules::headers::HeaderValue;
use rules::job::Field;

use crate::scheduler::{Desk, Done, MS, START, message, trip, wait};

const STORE_MS: i64 = 1_700_000_000_000;
const DAY_MS: i64 = 86_400_000;

/// Returns a job of tenant `a` with one more header.
fn job(name: &str, value: HeaderValue) -> Message {
    let tenant = ("x-tenant", HeaderValue::Text("a".into()));
    message(&[tenant, (name, value)])
}

fn delayed(ms: i64) -> Message {
    job("x-delay", HeaderValue::Int(ms))
}

/// Returns the only message on its way to a delay queue, and confirms it.
#[track_caller]
fn travelling(desk: &mut Desk, done: Done) -> Message {
    assert!(done.asked.is_empty() && done.dispatched.is_empty());
    assert_eq!(done.published.len(), 1, "{:?}", done.published);
    let outgoing = desk.leaves(done);
    outgoing.queue.begins("jobs.delay.");
    outgoing.message
}

fn not_before(message: &Message) -> i64 {
    let Field::Int(ms) = message.header("x-sluicegate-not-before") else {
        panic!("a time: {message:?}");
    };
    ms
}

#[test]
fn a_short_delay_is_spent_in_memory_and_then_the_job_asks() {
    let mut desk = Desk::with_clock(4);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![delayed(300)]);
    assert!(done.asked.is_empty() && done.published.is_empty());
    assert!(desk.step(MS * 250).asked.is_empty());
    // The clock is known to the precision of its last reading.
    let asked = (0..80).any(|_| !desk.step(MS).asked.is_empty());
    assert!(asked);
    let done = desk.answer(MS, vec![vec![START]]);
    assert_eq!(done.dispatched.len(), 1);
}

#[test]
fn a_long_delay_is_counted_once_and_travels_as_a_time() {
    let mut desk = Desk::with_clock(4);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![delayed(3 * DAY_MS)]);
    let first = travelling(&mut desk, done);
    let at = not_before(&first);
    let late = at - STORE_MS - 3 * DAY_MS;
    assert!((0..=20).contains(&late), "{late} ms after its time");
    assert!(trip(&first).wait_ms <= 300_000, "one trip of many");
    assert_eq!(first.header("x-delay"), Field::Int(3 * DAY_MS));
    // The start time stays the same on every trip.
    let mut travels = first;
    for _ in 0..20 {
        desk.step(MS * 300_000);
        let done = desk.deliver_messages(DeliverySource::Due, vec![travels]);
        travels = travelling(&mut desk, done);
        assert_eq!(not_before(&travels), at);
    }
}

#[test]
fn a_job_returning_late_asks_at_once_and_a_retry_is_not_delayed_again() {
    let mut desk = Desk::with_clock(4);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![delayed(2_000)]);
    let travels = travelling(&mut desk, done);
    desk.step(MS * 2_100);
    let done = desk.deliver_messages(DeliverySource::Due, vec![travels]);
    assert_eq!(done.asked.len(), 1);
    let key = desk.answer(MS, vec![vec![START]]).dispatched[0].0;
    let retry = Outcome::Retry {
        after: Some(MS * 1_000),
        reason: "500".into(),
    };
    let done = desk.ended(key, retry);
    let travels = travelling(&mut desk, done);
    let ahead = not_before(&travels) - STORE_MS;
    assert!(ahead < 3_300, "the retry's time alone: {ahead}");
    desk.step(MS * 1_100);
    let done = desk.deliver_messages(DeliverySource::Due, vec![travels]);
    assert_eq!(done.asked.len(), 1);
    // When denied, it waits for its turn, and not for its delay.
    let done = desk.answer(MS, vec![vec![wait(10_000, 1)]]);
    let travels = travelling(&mut desk, done);
    assert!(trip(&travels).wait_ms <= 10_000);
    desk.step(MS * 10_100);
    let done = desk.deliver_messages(DeliverySource::Due, vec![travels]);
    assert_eq!(done.asked.len(), 1);
}

#[test]
fn the_delay_of_a_redelivered_job_counts_from_its_publication() {
    let mut desk = Desk::with_clock(4);
    let published = HeaderValue::Int(STORE_MS - 9_000);
    let job = delayed(10_000).with_headers(&[("timestamp_in_ms", published)], &[]);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![job.clone()]);
    let travels = travelling(&mut desk, done);
    assert_eq!(not_before(&travels), STORE_MS + 1_000);
    desk.scheduler.session_up(1);
    desk.step(MS * 1_100);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![job]);
    assert_eq!(done.asked.len(), 1);
}

#[test]
fn a_start_time_is_awaited_and_one_too_far_ahead_makes_a_dead_letter() {
    let mut desk = Desk::with_clock(4);
    let at = |ms| job("x-not-before", HeaderValue::Int(ms));
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![at(STORE_MS + 60_000)]);
    let travels = travelling(&mut desk, done);
    assert_eq!(not_before(&travels), STORE_MS + 60_000);
    let past = desk.deliver_messages(DeliverySource::Fresh, vec![at(STORE_MS - 1)]);
    assert_eq!(past.asked.len(), 1);
    desk.answer(MS, vec![vec![START]]);
    for far in [at(STORE_MS + 31 * DAY_MS), delayed(31 * DAY_MS)] {
        let done = desk.deliver_messages(DeliverySource::Fresh, vec![far]);
        let [(_, letter)] = &done.published[..] else {
            panic!("{:?}", done.published);
        };
        assert_eq!(&*letter.queue, "jobs.dead");
        let Field::Text(reason) = letter.message.header("x-sluicegate-reason") else {
            panic!("a reason");
        };
        reason.says("job.max-delayed-start");
    }
}

#[test]
fn only_a_publishers_start_time_counts_in_the_work_queue() {
    let mut desk = Desk::with_clock(4);
    let forged = job(
        "x-sluicegate-not-before",
        HeaderValue::Int(STORE_MS + DAY_MS),
    );
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![forged]);
    assert_eq!(done.asked.len(), 1);
    // A header that only workers set does not hide the publisher's either.
    let hidden =
        delayed(60_000).with_headers(&[("x-sluicegate-attempt", HeaderValue::Int(1))], &[]);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![hidden]);
    assert_eq!(done.published.len(), 1);
}

#[test]
fn a_job_that_expires_before_its_start_time_never_asks() {
    let mut desk = Desk::with_clock(4);
    let mut job = delayed(60_000);
    job.properties = job.properties.clone().with_expiration("1000".into());
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![job]);
    let travels = travelling(&mut desk, done);
    assert!(
        trip(&travels).wait_ms <= 1_200,
        "it looks when it has expired"
    );
    desk.step(MS * 1_200);
    let done = desk.deliver_messages(DeliverySource::Due, vec![travels]);
    assert!(done.asked.is_empty());
    assert_eq!(&*done.published[0].1.queue, "jobs.dead");
}
