//! Jobs ask again after an operator changed what they wait for: each once per change, wherever it
//! is, and no others.

use std::sync::Arc;
use std::time::Duration;

use broker::{DeliverySource, Message, Outgoing};
use rules::headers::{self, HeaderValue};
use rules::job::Field;
use rules::steering::{Instruction, Steering};
use rules::tenant::Tenant;

use crate::scheduler::{CAPACITY, Desk, Done, MS, START, message, retry, wait};

fn named(tenant: &str) -> Option<Tenant> {
    Some(Tenant::parse(tenant).expect("a tenant"))
}

fn wake(desk: &mut Desk, tenant: Option<Tenant>, number: u64) -> Done {
    let steering = Arc::new(Steering::of([Instruction::Wake(tenant, number)]));
    desk.scheduler.steer(desk.now, steering);
    desk.step(Duration::ZERO)
}

/// Returns the tickets with which jobs ask.
fn tickets(done: &Done) -> Vec<Option<u64>> {
    let asks = done.asked.iter().flat_map(|question| &question.asks);
    asks.map(|ask| ask.ticket.map(|ticket| ticket.number))
        .collect()
}

/// Returns a job of tenant `a` with a wait of `wait_ms`, on its way to a delay queue.
fn parked(desk: &mut Desk, wait_ms: u64, ticket: u64) -> Outgoing {
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let done = desk.answer(MS, vec![vec![wait(wait_ms, ticket)]]);
    desk.leaves(done)
}

fn woken(message: &Message) -> Option<i64> {
    match message.header(headers::WOKEN) {
        Field::Int(number) => Some(number),
        _ => None,
    }
}

fn desk() -> Desk {
    let mut desk = Desk::new(4);
    desk.start_one();
    desk
}

#[test]
fn jobs_in_memory_ask_in_ticket_order() {
    let mut desk = desk();
    let later = parked(&mut desk, 100_000, 9);
    let sooner = parked(&mut desk, 100_000, 8);
    assert!(desk.arrives(later).asked.is_empty());
    assert!(desk.arrives(sooner).asked.is_empty());
    desk.deliver(DeliverySource::Fresh, &["a"]);
    desk.answer(MS, vec![vec![wait(400, 7)]]);
    assert!(wake(&mut desk, named("b"), 1).asked.is_empty());
    let done = wake(&mut desk, named("a"), 2);
    assert_eq!(tickets(&done), [Some(7), Some(8), Some(9)]);
    let waits = vec![wait(400, 7), wait(90_000, 8), wait(90_000, 9)];
    let done = desk.answer(MS, vec![waits]);
    // They make room for the jobs behind them.
    assert_eq!(done.published.len(), 2);
    for (_, outgoing) in &done.published {
        assert_eq!(woken(&outgoing.message), Some(2));
    }
    assert!(wake(&mut desk, named("a"), 2).asked.is_empty());
}

#[test]
fn jobs_from_a_delay_queue_ask_once_per_change() {
    let mut desk = desk();
    let first = parked(&mut desk, 200_000, 4);
    assert_eq!(woken(&first.message), None);
    wake(&mut desk, None, 7);
    let done = desk.arrives(first);
    assert_eq!(tickets(&done), [Some(4)]);
    let done = desk.answer(MS, vec![vec![wait(200_000, 4)]]);
    let again = desk.leaves(done);
    assert!(desk.arrives(again.clone()).asked.is_empty());
    assert_eq!(tickets(&wake(&mut desk, named("a"), 8)), [Some(4)]);
    // An older instruction changes nothing, and neither does an ended one.
    desk.answer(MS, vec![vec![wait(200_000, 4)]]);
    for instructions in [vec![Instruction::Wake(None, 5)], Vec::new()] {
        let steering = Arc::new(Steering::of(instructions));
        desk.scheduler.steer(desk.now, steering);
        assert!(desk.step(MS).asked.is_empty());
    }
    assert!(desk.arrives(again).asked.is_empty());
}

#[test]
fn a_longer_pause_than_the_longest_delay_queue_does_not_hide_a_job() {
    let mut desk = desk();
    let parked = parked(&mut desk, 3_600_000, 4);
    let not_before = parked.message.header(headers::NOT_BEFORE);
    assert!(matches!(not_before, Field::Int(_)), "{not_before:?}");
    wake(&mut desk, named("a"), 7);
    assert_eq!(tickets(&desk.arrives(parked)), [Some(4)]);
}

#[test]
fn an_answer_from_before_a_change_is_requested_once_more() {
    let mut desk = desk();
    desk.deliver(DeliverySource::Fresh, &["a"]);
    assert!(wake(&mut desk, named("a"), 7).asked.is_empty());
    let done = desk.answer(MS, vec![vec![wait(200_000, 4)]]);
    assert!(done.published.is_empty());
    assert_eq!(tickets(&desk.step(MS)), [Some(4)]);
    let done = desk.answer(MS, vec![vec![wait(200_000, 4)]]);
    assert_eq!(woken(&desk.leaves(done).message), Some(7));
    // A job that arrives now asks after the change.
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let done = desk.answer(MS, vec![vec![wait(200_000, 5)]]);
    assert_eq!(woken(&desk.leaves(done).message), Some(7));
}

#[test]
fn a_retry_waits_for_its_time() {
    let mut desk = desk();
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let done = desk.answer(MS, vec![vec![wait(400, 4)]]);
    assert!(done.published.is_empty());
    desk.step(MS * 500);
    let done = desk.answer(MS, vec![vec![START]]);
    let done = desk.ended_within(MS, done.dispatched[0].0, retry("503"));
    let outgoing = desk.leaves(done);
    wake(&mut desk, named("a"), 7);
    assert!(desk.arrives(outgoing).asked.is_empty());
    assert!(wake(&mut desk, named("a"), 8).asked.is_empty());
}

/// Its old ticket is ahead of the jobs that have waited since.
#[test]
fn a_retry_asks_without_the_ticket_of_its_call() {
    let mut desk = desk();
    desk.deliver(DeliverySource::Fresh, &["a"]);
    desk.answer(MS, vec![vec![wait(400, 4)]]);
    assert_eq!(tickets(&desk.step(MS * 500)), [Some(4)]);
    let done = desk.answer(MS, vec![vec![START]]);
    let done = desk.ended_within(MS, done.dispatched[0].0, retry("503"));
    let outgoing = desk.leaves(done);
    desk.step(MS * 60_000);
    assert_eq!(tickets(&desk.arrives(outgoing)), [None]);
}

#[test]
fn a_delayed_start_in_memory_waits_for_its_time() {
    let mut desk = Desk::with_clock(4);
    let tenant = ("x-tenant", HeaderValue::Text("a".to_owned()));
    let delayed = message(&[tenant, ("x-delay", HeaderValue::Int(300))]);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![delayed]);
    assert!(done.asked.is_empty() && done.published.is_empty());
    assert!(wake(&mut desk, named("a"), 7).asked.is_empty());
    assert!(desk.step(250 * MS).asked.is_empty());
    assert_eq!(tickets(&desk.step(100 * MS)), [None]);
}

/// Publishers can't set the header.
#[test]
fn a_publishers_wake_header_is_ignored() {
    let mut desk = desk();
    wake(&mut desk, None, 7);
    let tenant = ("x-tenant", HeaderValue::Text("a".to_owned()));
    let claimed = message(&[tenant, headers::woken(1_000)]);
    desk.deliver_messages(DeliverySource::Fresh, vec![claimed]);
    let done = desk.answer(MS, vec![vec![wait(200_000, 4)]]);
    assert_eq!(woken(&desk.leaves(done).message), Some(7));
}

#[test]
fn a_retry_after_a_failed_preparation_goes_on() {
    let mut desk = Desk::with_clock(4);
    desk.ready = 0;
    desk.deliver(DeliverySource::Fresh, &["a"]);
    desk.answer(MS, vec![vec![wait(400, 4)]]);
    assert_eq!(desk.step(MS * 500).asked.len(), 1);
    let key = desk.answer(MS, vec![vec![CAPACITY]]).prepared[0];
    desk.prepared(key, Err(retry("no connection").into()));
    let done = desk.actions();
    let outgoing = desk.leaves(done);
    wake(&mut desk, None, 1);
    desk.ready = usize::MAX;
    assert!(desk.arrives(outgoing).asked.is_empty());
    assert!(wake(&mut desk, None, 2).asked.is_empty());
}
