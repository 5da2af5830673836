//! Jobs that were unacked for as long as RabbitMQ may allow are released wherever they wait. No
//! others are.

use std::time::Duration;

use broker::{DeliverySource, Message, Outgoing};
use engine::action::EngineSettings;
use gate::{GateError, ShardId};
use handler::Outcome;
use kit::SECOND;
use rules::broker::holding::Holding;
use rules::headers::{self, HeaderValue};
use rules::job::Field;

use crate::scheduler::{CAPACITY, Desk, Done, MS, by_header, settings, trip, usual, wait};

/// The store's clock at the first answer.
const STORE_MS: i64 = 1_700_000_000_000;

/// Returns a desk with a RabbitMQ timeout of 100 s and calls of up to 10 s, so that jobs wait for
/// up to 50 s.
fn desk(concurrency: usize) -> Desk {
    Desk::of(EngineSettings {
        holding: Holding::new(100 * SECOND, 10 * SECOND),
        ..settings(concurrency, usual(), by_header())
    })
}

fn published(done: Done) -> Vec<Outgoing> {
    done.published.into_iter().map(|(_, it)| it).collect()
}

/// Returns the jobs that leave within this many seconds, in steps of one second.
fn leaves_within(desk: &mut Desk, seconds: u32) -> Vec<Outgoing> {
    (0..seconds)
        .flat_map(|_| published(desk.step(SECOND)))
        .collect()
}

fn cold(desk: &mut Desk, wait: Duration) {
    let why = GateError::Cold {
        wait,
        why: "a test".to_owned(),
    };
    desk.answered(Err(why));
    desk.actions();
}

#[test]
fn jobs_that_wait_for_a_recovering_gate_are_released() {
    let mut desk = desk(4);
    desk.deliver(DeliverySource::Fresh, &["a", "b"]);
    cold(&mut desk, 600 * SECOND);
    let mut left = Vec::new();
    for _ in 0..60 {
        let done = desk.step(SECOND);
        let asked = !done.asked.is_empty();
        left.extend(published(done));
        if asked {
            cold(&mut desk, 550 * SECOND);
        }
    }
    assert_eq!(left.len(), 2);
    for outgoing in left {
        let wait_ms = trip(&outgoing.message).wait_ms;
        assert!(wait_ms > 100_000, "{wait_ms}: as long as max-delay allows");
    }
    assert_eq!(desk.scheduler.in_memory(), 2, "until that is confirmed");
}

#[test]
fn jobs_that_wait_for_a_slot_are_released_briefly_and_running_ones_stay() {
    let mut desk = desk(1);
    let runs = desk.start_one();
    desk.deliver(DeliverySource::Fresh, &["a", "b"]);
    assert!(leaves_within(&mut desk, 45).is_empty());
    let left = leaves_within(&mut desk, 15);
    assert_eq!(left.len(), 2);
    for outgoing in left {
        assert!(trip(&outgoing.message).wait_ms <= 1_000);
    }
    assert_eq!(desk.ended(runs, Outcome::Done).acked.len(), 1);
}

#[test]
fn jobs_of_a_delivery_window_move_on_for_the_rest_of_their_wait() {
    let mut desk = desk(4);
    desk.start_one();
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let done = desk.answer(MS, vec![vec![wait(200_000, 7)]]);
    let parked = desk.leaves(done);
    desk.arrives(parked);
    assert!(leaves_within(&mut desk, 45).is_empty());
    let left = leaves_within(&mut desk, 15);
    assert_eq!(left.len(), 1);
    let wait_ms = trip(&left[0].message).wait_ms;
    assert!((130_000..155_000).contains(&wait_ms), "{wait_ms}");
}

#[test]
fn a_shorter_timeout_applies_to_held_jobs() {
    let mut desk = desk(1);
    desk.start_one();
    desk.deliver(DeliverySource::Fresh, &["a"]);
    assert!(leaves_within(&mut desk, 20).is_empty());
    let timeout = 40 * SECOND;
    desk.scheduler.timeout_is(desk.now, timeout);
    assert_eq!(published(desk.step(MS)).len(), 1, "it waited for 20 s");
    // A longer timeout changes nothing.
    desk.deliver(DeliverySource::Fresh, &["a"]);
    desk.scheduler.timeout_is(desk.now, 100 * SECOND);
    assert_eq!(leaves_within(&mut desk, 25).len(), 1);
}

#[test]
fn while_the_timeout_is_unknown_jobs_wait_only_briefly() {
    let mut desk = Desk::of(EngineSettings {
        holding: Holding::new(100 * SECOND, 10 * SECOND).with_detection(),
        ..settings(1, usual(), by_header())
    });
    desk.scheduler.timeout_is_unknown(desk.now);
    desk.start_one();
    desk.deliver(DeliverySource::Fresh, &["a"]);
    assert_eq!(leaves_within(&mut desk, 25).len(), 1);
    // A timeout below a minute would be known by then.
    desk.step(45 * SECOND);
    desk.deliver(DeliverySource::Fresh, &["a"]);
    assert!(leaves_within(&mut desk, 45).is_empty());
    assert_eq!(leaves_within(&mut desk, 15).len(), 1);
}

#[test]
fn a_job_that_asks_without_a_slot_is_still_released() {
    let mut desk = desk(1);
    desk.start_one();
    desk.step(MS);
    desk.deliver(DeliverySource::Fresh, &["b"]);
    let mut left = 0;
    for _ in 0..60 {
        let done = desk.step(SECOND);
        let asked = done.asked.len();
        left += done.published.len();
        if asked > 0 {
            desk.answer(MS, vec![vec![CAPACITY]]);
        }
    }
    assert_eq!(left, 1);
}

/// Returns a job of tenant `a` with this ID and more headers.
fn job(headers: &[(&'static str, HeaderValue)]) -> Message {
    kit::job("a", "1").with_headers(headers, &[])
}

fn dedupe_key() -> (&'static str, HeaderValue) {
    ("x-dedupe-key", HeaderValue::Text("k".to_owned()))
}

/// Delivers a job with a dedupe key, and returns its messages within 60 s if Redis does not say
/// whether it is the first.
fn released_without_answer(desk: &mut Desk, job: Message) -> Vec<Outgoing> {
    let mut done = desk.deliver_messages(DeliverySource::Fresh, vec![job]);
    let mut left = Vec::new();
    for _ in 0..60 {
        if !done.deduped.is_empty() {
            let away = GateError::Unreachable("a test".to_owned());
            (desk.scheduler).deduped(desk.now, ShardId::default(), Err(away));
        }
        done = desk.step(SECOND);
        left.append(&mut done.published);
    }
    left.into_iter().map(|(_, outgoing)| outgoing).collect()
}

#[test]
fn a_job_that_has_to_ask_whether_it_is_the_first_is_released() {
    let left = released_without_answer(&mut desk(4), job(&[dedupe_key()]));
    assert_eq!(left.len(), 1);
}

#[test]
fn a_delayed_start_lasts_while_a_job_asks_whether_it_is_the_first() {
    let mut desk = desk(4);
    desk.start_one();
    let delay = ("x-delay", HeaderValue::Int(3_600_000));
    let start = STORE_MS + 3_600_000;
    let left = released_without_answer(&mut desk, job(&[dedupe_key(), delay]));
    let [released] = &left[..] else {
        panic!("{left:?}");
    };
    assert!(trip(&released.message).wait_ms <= 1_000, "it asks again");
    let at = released.message.header(headers::NOT_BEFORE);
    assert!(
        matches!(at, Field::Int(ms) if (start..start + 50).contains(&ms)),
        "{at:?}"
    );
    // The rest of the delay is known, so a step of the clock does not cut it short.
    let Field::Int(seconds) = released.message.header(headers::RETRY_AFTER) else {
        panic!("{released:?}");
    };
    assert!(seconds > 3_500, "{seconds}");
}

/// Delivers a job, releases it because Redis does not show its clock, and delivers it again at the
/// end of its trip, with the clock.
fn released_without_clock(desk: &mut Desk, job: Message) -> Done {
    let mut done = desk.deliver_messages(DeliverySource::Fresh, vec![job]);
    let mut left = Vec::new();
    for _ in 0..60 {
        if !done.asked.is_empty() {
            desk.answered(Err(GateError::Unreachable("a test".to_owned())));
        }
        done = desk.step(SECOND);
        left.append(&mut done.published);
    }
    let [(key, released)] = &left[..] else {
        panic!("{left:?}");
    };
    desk.confirmed(*key);
    desk.start_one();
    assert!(desk.arrives(released.clone()).asked.is_empty());
    desk.step(Duration::from_millis(trip(&released.message).wait_ms))
}

#[test]
fn an_expiration_lasts_while_redis_never_showed_its_clock() {
    let mut expires = job(&[("timestamp_in_ms", HeaderValue::Int(STORE_MS))]);
    expires.properties = expires.properties.with_expiration("500".into());
    let done = released_without_clock(&mut desk(4), expires);
    assert!(done.asked.is_empty());
    assert_eq!(&*done.published[0].1.queue, "jobs.dead");
}

#[test]
fn a_delayed_start_lasts_while_redis_never_showed_its_clock() {
    let delay = ("x-delay", HeaderValue::Int(3_600_000));
    let delayed = released_without_clock(&mut desk(4), job(&[delay]));
    assert!(delayed.asked.is_empty());
    let at = delayed.published[0].1.message.header(headers::NOT_BEFORE);
    assert!(
        matches!(at, Field::Int(ms) if ms >= STORE_MS + 3_600_000),
        "{at:?}"
    );
}
