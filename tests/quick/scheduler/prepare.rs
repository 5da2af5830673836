//! The scheduler alone: calls are prepared before their permits are requested.

use std::time::Duration;

use broker::DeliverySource;
use engine::action::JobKey;
use handler::{Attempt, Fate, Outcome};

use crate::scheduler::{CAPACITY, Desk, MS, START, retry, wait};

/// The time to open a connection to a distant API.
const SETUP: Duration = Duration::from_millis(240);

/// Returns a desk without open connections.
fn cold(concurrency: usize) -> Desk {
    let mut desk = Desk::new(concurrency);
    desk.ready = 0;
    desk
}

/// Returns a job that may start and whose call is being prepared.
fn preparing(desk: &mut Desk) -> JobKey {
    desk.deliver(DeliverySource::Fresh, &["a"]);
    desk.answer(MS, vec![vec![CAPACITY]]).prepared[0]
}

fn prepared(desk: &mut Desk, key: JobKey) {
    desk.now += SETUP;
    let now = desk.now;
    desk.scheduler.prepared(now, key, Some(SETUP), Ok(()));
}

#[test]
fn a_permit_is_requested_once_the_call_is_prepared() {
    let mut desk = cold(4);
    let asked = desk.deliver(DeliverySource::Fresh, &["a"]).asked;
    assert_eq!((asked[0].asks.len(), asked[0].budget), (1, 0));
    let done = desk.answer(MS, vec![vec![CAPACITY]]);
    let [key] = done.prepared[..] else {
        panic!("{:?}", done.prepared)
    };
    assert!(desk.step(SETUP).asked.is_empty(), "it waits for its call");
    prepared(&mut desk, key);
    desk.ready = 1;
    let asked = desk.step(MS).asked;
    assert_eq!((asked[0].asks.len(), asked[0].budget), (1, 1));
    let done = desk.answer(MS, vec![vec![START]]);
    assert_eq!(done.dispatched[0].0, key);
    assert!(done.released.is_empty());
}

#[test]
fn a_waiting_job_prepares_nothing_and_releases_its_call() {
    let mut desk = cold(4);
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let done = desk.answer(MS, vec![vec![wait(10_000, 1)]]);
    assert!(done.prepared.is_empty());
    let key = preparing(&mut desk);
    prepared(&mut desk, key);
    desk.ready = 1;
    desk.step(MS);
    let done = desk.answer(MS, vec![vec![wait(10_000, 2)]]);
    assert_eq!(done.released, [key]);
    assert_eq!(done.published.len(), 1);
}

#[test]
fn prepared_jobs_ask_first_and_the_others_keep_their_order() {
    let mut desk = cold(1);
    desk.deliver(DeliverySource::Fresh, &["a", "a", "a"]);
    let done = desk.answer(MS, vec![vec![CAPACITY]]);
    assert_eq!(done.prepared.len(), 1, "each takes a slot");
    assert!(desk.step(MS).asked.is_empty(), "no slot is free");
    prepared(&mut desk, done.prepared[0]);
    desk.ready = 1;
    let asked = desk.step(MS).asked;
    assert_eq!((asked[0].asks.len(), asked[0].budget), (1, 1));
    let done = desk.answer(MS, vec![vec![START]]);
    assert_eq!(done.dispatched.len(), 1);
    assert!(desk.step(MS).asked.is_empty());
    let key = done.dispatched[0].0;
    // Its connection serves the next job.
    let asked = desk.ended_within(MS, key, Outcome::Done).asked;
    assert_eq!((asked[0].asks.len(), asked[0].budget), (1, 1));
}

#[test]
fn an_unusable_call_is_prepared_again() {
    let mut desk = cold(4);
    let key = preparing(&mut desk);
    prepared(&mut desk, key);
    let asked = desk.step(MS).asked;
    assert_eq!(asked[0].budget, 0, "the API has closed it meanwhile");
    let done = desk.answer(MS, vec![vec![CAPACITY]]);
    assert_eq!(done.prepared, [key]);
}

#[test]
fn a_failed_preparation_uses_an_attempt_and_no_permit() {
    let mut desk = cold(4);
    let key = preparing(&mut desk);
    desk.prepared(key, Err(retry("no connection").into()));
    let done = desk.actions();
    let attempt = done.published[0].1.message.header("x-sluicegate-attempt");
    assert_eq!(attempt, rules::job::Field::Int(2));
    assert!(done.settled.is_empty());
    assert_eq!(desk.scheduler.running(), 0);
    // Its slot is free.
    assert_eq!((0..4).map(|_| preparing(&mut desk)).count(), 4);
}

#[test]
fn an_unwritten_call_returns_its_permit() {
    let mut desk = Desk::new(4);
    let key = desk.start_one();
    let attempt = Attempt {
        fate: Fate::Unwritten,
        ..retry("closed").into()
    };
    let settled = desk.ended_within(MS, key, attempt).settled;
    assert_eq!(settled[0].settled[0].end, gate::End::Unused);
}

#[test]
fn a_held_job_prepares_one_setup_time_before_its_turn() {
    let mut desk = cold(1);
    let key = preparing(&mut desk);
    prepared(&mut desk, key);
    desk.ready = 1;
    desk.step(MS);
    desk.answer(MS, vec![vec![START]]);
    desk.scheduler.finished(desk.now, key, MS, Outcome::Done);
    desk.ready = 0;
    desk.deliver(DeliverySource::Due, &["a", "a"]);
    desk.answer(MS, vec![vec![wait(400, 1)]]);
    // The tenant is limited, so the other job asks without a slot.
    assert_eq!(desk.step(MS * 2).asked[0].asks.len(), 1);
    let done = desk.answer(MS, vec![vec![wait(397, 2)]]);
    assert!(done.prepared.is_empty() && done.published.is_empty());
    // It is the duration of the preparation, plus 20 ms.
    assert!(desk.step(MS * 136).prepared.is_empty());
    let done = desk.step(MS);
    assert_eq!(done.prepared.len(), 1, "there is one slot");
    prepared(&mut desk, done.prepared[0]);
    assert!(desk.step(MS * 19).asked.is_empty());
    desk.ready = 1;
    let asked = desk.step(MS).asked;
    assert_eq!((asked[0].asks.len(), asked[0].budget), (2, 1));
}

#[test]
fn a_held_job_waits_for_a_late_preparation() {
    let mut desk = cold(4);
    let key = preparing(&mut desk);
    prepared(&mut desk, key);
    desk.step(MS);
    let done = desk.answer(MS, vec![vec![wait(300, 1)]]);
    assert_eq!(done.released, [key], "a slot is given back");
    assert_eq!(desk.step(MS * 40).prepared, [key]);
    assert!(desk.step(SETUP * 2).asked.is_empty());
    prepared(&mut desk, key);
    desk.ready = 1;
    assert_eq!(desk.step(MS).asked[0].budget, 1);
}

#[test]
fn a_lost_session_drops_prepared_calls() {
    let mut desk = cold(1);
    let key = preparing(&mut desk);
    desk.scheduler.session_up(1);
    assert_eq!(desk.actions().released, [key]);
    // Its successor gets the slot even before the old preparation has ended.
    let other = preparing(&mut desk);
    assert_ne!(key, other);
    prepared(&mut desk, key);
    assert_eq!(desk.actions().released, [key]);
    prepared(&mut desk, other);
    desk.ready = 1;
    assert_eq!(desk.step(MS).asked[0].budget, 1);
}

#[test]
fn a_stopping_worker_does_not_wait_for_preparations() {
    let mut desk = cold(4);
    let key = preparing(&mut desk);
    desk.scheduler.stop();
    assert!(desk.scheduler.is_idle());
    desk.prepared(key, Err(retry("no connection").into()));
    assert!(desk.actions().published.is_empty(), "it is left unacked");
}
