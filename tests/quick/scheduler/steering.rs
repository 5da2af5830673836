//! Operators' instructions: once a worker follows them, no job is called against them, wherever it
//! was, and none is lost.

use std::sync::Arc;
use std::time::Duration;

use broker::{DeliverySource, Message, Outgoing, PublishError};
use gate::GateError;
use handler::Outcome;
use operator::letters::for_replay;
use rules::delays::{DelayLevels, QueueNames};
use rules::headers::HeaderValue;
use rules::job::Field;
use rules::steering::{Hold, Instruction, SightedState, Steering};
use rules::tenant::Tenant;

use crate::scheduler::{CAPACITY, Desk, Done, MS, START, STORE_MS, retry, wait};

/// Returns a job of tenant `a` with this ID.
fn job(id: &str) -> Message {
    kit::job("a", id)
}

fn tenant() -> Tenant {
    Tenant::parse("a").expect("a tenant")
}

fn cancel(id: &str) -> Instruction {
    Instruction::Cancel(tenant(), id.to_owned(), 7)
}

fn steer<const N: usize>(desk: &mut Desk, all: [Instruction; N]) -> Done {
    let steering = Arc::new(Steering::of(all));
    desk.scheduler.steer(desk.now, steering);
    desk.step(Duration::ZERO)
}

/// Confirms all returned permits. Returns their number.
fn given_back(desk: &mut Desk) -> usize {
    let settled = desk.step(MS).settled.len();
    desk.settled_all(settled);
    settled
}

#[test]
fn a_tried_limit_is_a_shadow_only_for_its_tenant() {
    let mut desk = Desk::new(4);
    let tried = |tenant| Instruction::Try(tenant, "default".to_owned(), 1);
    let shadows = |done: &Done| -> Vec<(String, u64)> {
        let asked = done.asked.iter();
        let shadows = asked.flat_map(|ask| ask.limits.shadows());
        shadows
            .map(|limit| (limit.name().to_owned(), limit.max()))
            .collect()
    };
    steer(&mut desk, [tried(tenant())]);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![job("1")]);
    assert_eq!(shadows(&done), [("default.tried".to_owned(), 1)]);
    desk.answer(MS, vec![vec![wait(300, 4)]]);
    // The next question has none of it, since another tenant's limit is tried.
    let other = Tenant::parse("b").expect("a tenant");
    steer(&mut desk, [tried(other)]);
    let done = desk.step(300 * MS);
    assert_eq!(shadows(&done), []);
}

/// Returns the IDs of the jobs that go to `queue`.
fn sent(done: &Done, queue: &str) -> Vec<String> {
    let there = (done.published.iter()).filter(|(_, outgoing)| &*outgoing.queue == queue);
    let id = |outgoing: &Message| outgoing.id().unwrap_or_default().to_owned();
    there.map(|(_, outgoing)| id(&outgoing.message)).collect()
}

fn states(done: &Done) -> Vec<(&str, SightedState)> {
    let all = done.sighted.iter();
    all.map(|it| (it.job.as_str(), it.sighting.state)).collect()
}

#[test]
fn a_canceled_job_leaves_memory_at_once_and_the_others_stay() {
    let mut desk = Desk::new(4);
    desk.deliver_messages(DeliverySource::Fresh, vec![job("1"), job("2")]);
    desk.answer(MS, vec![vec![wait(300, 4), wait(300, 5)]]);
    let done = steer(&mut desk, [cancel("1")]);
    assert_eq!(sent(&done, "jobs.dead"), ["1"]);
    let reason = done.published[0].1.message.header("x-sluicegate-reason");
    assert_eq!(reason, Field::Text("canceled by an operator"));
    assert_eq!(states(&done), [("1", SightedState::Canceled)]);
    let key = done.published[0].0;
    assert_eq!(desk.confirmed(key).acked, [1]);
    let asked = desk.step(MS * 301).asked;
    assert_eq!(asked[0].asks.len(), 1, "the other one");
}

#[test]
fn a_job_without_a_slot_or_arriving_later_is_canceled_without_a_request() {
    let mut desk = Desk::new(1);
    desk.start_one();
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![job("1")]);
    assert!(done.asked.is_empty(), "there is no slot");
    let done = steer(&mut desk, [cancel("1"), cancel("2")]);
    assert_eq!(sent(&done, "jobs.dead"), ["1"]);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![job("2"), job("3")]);
    assert_eq!(sent(&done, "jobs.dead"), ["2"]);
}

#[test]
fn an_answer_in_flight_starts_no_canceled_job_and_its_permit_is_returned() {
    let mut desk = Desk::new(4);
    desk.deliver_messages(DeliverySource::Fresh, vec![job("1")]);
    steer(&mut desk, [cancel("1")]);
    let done = desk.answer(MS, vec![vec![START]]);
    assert!(done.dispatched.is_empty());
    assert_eq!(given_back(&mut desk), 1, "its unit is for another");
    let done = desk.step(MS * 5);
    assert!(done.asked.is_empty());
    assert_eq!(sent(&done, "jobs.dead"), ["1"]);
}

#[test]
fn a_preparing_job_is_canceled_once_it_is_prepared() {
    let mut desk = Desk::new(4);
    desk.ready = 0;
    desk.deliver_messages(DeliverySource::Fresh, vec![job("1")]);
    let key = desk.answer(MS, vec![vec![CAPACITY]]).prepared[0];
    steer(&mut desk, [cancel("1")]);
    desk.scheduler.prepared(desk.now, key, None, Ok(()));
    let done = desk.step(MS * 5);
    assert_eq!(sent(&done, "jobs.dead"), ["1"]);
    assert_eq!(done.released, [key]);
    assert!(done.asked.is_empty());
}

#[test]
fn a_call_in_flight_continues_and_only_the_next_one_is_canceled() {
    let mut desk = Desk::new(4);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![job("1"), job("2")]);
    assert_eq!(done.asked[0].asks.len(), 2);
    let done = desk.answer(MS, vec![vec![START, START]]);
    let keys: Vec<_> = done.dispatched.iter().map(|(key, ..)| *key).collect();
    let done = steer(&mut desk, [cancel("1"), cancel("2")]);
    assert!(done.published.is_empty());
    assert_eq!(
        states(&done),
        [("1", SightedState::Running), ("2", SightedState::Running)]
    );
    desk.scheduler.sighted(desk.now, &Ok(()));
    let done = desk.ended_within(MS, keys[0], Outcome::Done);
    assert_eq!(done.acked, [1]);
    assert_eq!(states(&done), [("1", SightedState::Done)]);
    desk.scheduler.sighted(desk.now, &Ok(()));
    let done = desk.ended_within(MS, keys[1], retry("HTTP 500"));
    let (_, outgoing) = done.published.into_iter().next().expect("it waits");
    assert!(outgoing.queue.starts_with("jobs.delay."));
    let done = desk.back(outgoing);
    assert_eq!(sent(&done, "jobs.dead"), ["2"]);
}

#[test]
fn failed_sightings_are_resent_unless_outdated_or_no_longer_requested() {
    let mut desk = Desk::new(4);
    let show = || Instruction::Show(tenant(), "1".to_owned(), 9);
    desk.deliver_messages(DeliverySource::Fresh, vec![job("1")]);
    desk.answer(MS, vec![vec![wait(400, 4)]]);
    let done = steer(&mut desk, [show()]);
    let [sighted] = &done.sighted[..] else {
        panic!("{:?}", done.sighted)
    };
    let seen = &sighted.sighting;
    assert_eq!((seen.state, seen.show), (SightedState::Waiting, Some(9)));
    assert_eq!((seen.wait_ms, seen.ticket), (Some(400), Some(4)));
    assert_eq!(seen.limit.as_deref(), Some("default"));
    assert_eq!((seen.queue.as_str(), seen.attempt), ("jobs", 1));
    let lost = || Err(GateError::Unreachable("a test".to_owned()));
    desk.scheduler.sighted(desk.now, &lost());
    assert!(desk.step(MS * 100).sighted.is_empty(), "after a second");
    desk.step(MS * 320);
    let done = desk.step(MS * 600);
    assert_eq!(states(&done), [("1", SightedState::Waiting)]);
    assert_eq!(done.sighted[0].sighting.wait_ms, None, "news");
    steer(&mut desk, []);
    desk.scheduler.sighted(desk.now, &lost());
    assert!(desk.step(MS * 2_000).sighted.is_empty(), "nobody asks");
}

#[test]
fn while_all_is_paused_no_job_asks_or_starts_and_deliveries_are_returned() {
    let mut desk = Desk::new(4);
    let key = desk.start_one();
    desk.deliver_messages(DeliverySource::Fresh, vec![job("1")]);
    let done = steer(&mut desk, [Instruction::All(Hold::Paused)]);
    assert_eq!(done.rests, 0, "a call is in flight");
    assert!(desk.answer(MS, vec![vec![START]]).dispatched.is_empty());
    given_back(&mut desk);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![job("2")]);
    assert!(done.asked.is_empty());
    let done = desk.ended_within(MS, key, Outcome::Done);
    assert_eq!((done.rests, done.acked), (1, vec![1]));
    assert_eq!(desk.step(MS * 1_000).rests, 0, "once");
    desk.scheduler.session_down();
    let done = steer(&mut desk, []);
    assert_eq!(done.takes, 1);
    desk.settled_all(1);
    desk.scheduler.session_up(1);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![job("1")]);
    assert_eq!(done.asked.len(), 1);
}

#[test]
fn a_draining_fleet_takes_no_new_jobs_and_finishes_the_others() {
    let mut desk = Desk::new(4);
    let done = steer(&mut desk, [Instruction::All(Hold::Draining)]);
    assert_eq!((done.new, done.rests), (vec![false], 0));
    let asked = desk
        .deliver_messages(DeliverySource::Due, vec![job("1")])
        .asked;
    assert_eq!(asked.len(), 1);
    let done = steer(&mut desk, [Instruction::All(Hold::Paused)]);
    assert_eq!(done.new, [true], "whoever is paused takes none at all");
    let done = steer(&mut desk, [Instruction::All(Hold::Draining)]);
    assert_eq!(done.new, [false]);
    assert_eq!(steer(&mut desk, []).new, [true]);
}

#[test]
fn jobs_of_a_diverted_tenant_go_to_its_queue_and_those_of_others_stay() {
    let mut desk = Desk::new(4);
    desk.deliver_messages(DeliverySource::Fresh, vec![job("1")]);
    desk.answer(MS, vec![vec![wait(300, 4)]]);
    let queue: Arc<str> = "jobs.diverted".into();
    let done = steer(&mut desk, [Instruction::Divert(tenant(), queue)]);
    assert_eq!(sent(&done, "jobs.diverted"), ["1"]);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![job("2")]);
    assert_eq!(sent(&done, "jobs.diverted"), ["2"]);
    assert_eq!(desk.deliver(DeliverySource::Fresh, &["b"]).asked.len(), 1);
    steer(&mut desk, []);
    desk.answer(MS, vec![vec![START]]);
    let asked = desk
        .deliver_messages(DeliverySource::Fresh, vec![job("3")])
        .asked;
    assert_eq!(asked.len(), 1, "it is over");
}

/// Diverts jobs of tenant `a`, and brings them back after `later`.
fn diverted_and_back(desk: &mut Desk, jobs: Vec<Message>, later: Duration) -> Done {
    let number = jobs.len();
    steer(desk, [Instruction::Divert(tenant(), "elsewhere".into())]);
    let done = desk.deliver_messages(DeliverySource::Fresh, jobs);
    assert_eq!(done.published.len(), number);
    steer(desk, []);
    desk.step(later);
    back(desk, done)
}

/// Brings diverted jobs back.
fn back(desk: &mut Desk, done: Done) -> Done {
    let names = QueueNames::new("jobs", &DelayLevels::new(Duration::from_secs(300)));
    let back = |(_, outgoing): (_, Outgoing)| {
        let Outgoing { queue, message } = for_replay(outgoing.message, &names);
        assert_eq!(queue, names.due);
        message
    };
    let back = done.published.into_iter().map(back).collect();
    desk.deliver_messages(DeliverySource::Due, back)
}

#[test]
fn a_diverted_job_that_comes_back_keeps_its_delayed_start() {
    let mut desk = Desk::with_clock(4);
    let delayed = |id| job(id).with_headers(&[("x-delay", HeaderValue::Int(86_400_000))], &[]);
    let done = diverted_and_back(&mut desk, vec![delayed("1")], MS * 1_000);
    assert!(done.asked.is_empty());
    // Its start was counted before it was diverted.
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![delayed("2")]);
    let outgoing = desk.leaves(done);
    let done = diverted_and_back(&mut desk, vec![outgoing.message], MS * 1_000);
    assert!(done.asked.is_empty());
}

#[test]
fn a_diverted_job_that_comes_back_asks_at_once_for_its_turn() {
    let mut desk = Desk::with_clock(4);
    desk.deliver_messages(DeliverySource::Fresh, vec![job("1")]);
    let done = desk.answer(MS, vec![vec![wait(3_600_000, 4)]]);
    let outgoing = desk.leaves(done);
    assert!(desk.arrives(outgoing).asked.is_empty());
    let done = steer(
        &mut desk,
        [Instruction::Divert(tenant(), "elsewhere".into())],
    );
    assert_eq!(sent(&done, "elsewhere"), ["1"]);
    steer(&mut desk, []);
    let asked = back(&mut desk, done).asked;
    let number = asked[0].asks[0].ticket.map(|ticket| ticket.number);
    assert_eq!(number, Some(4), "its place is not empty");
}

#[test]
fn a_diverted_job_that_its_full_queue_does_not_take_is_called_once_its_tenant_is_back() {
    let mut desk = Desk::with_clock(4);
    let diversion = || Instruction::Divert(tenant(), "elsewhere".into());
    steer(&mut desk, [diversion()]);
    let mut done = desk.deliver_messages(DeliverySource::Fresh, vec![job("1"), job("2")]);
    let parked = loop {
        assert!(desk.now < Duration::from_secs(120), "it is parked by then");
        let full = |(key, _): &(_, _)| (*key, Err(PublishError::Nacked));
        let results = done.published.iter().map(full).collect();
        desk.scheduler.moved(desk.now, results);
        done = desk.step(MS * 1_000);
        let mut parked = (done.published.iter()).filter(|(_, it)| &*it.queue != "elsewhere");
        if let Some((_, outgoing)) = parked.next() {
            break outgoing.clone();
        }
    };
    let done = desk.back(parked.clone());
    assert!(done.asked.is_empty(), "its tenant is still diverted");
    steer(&mut desk, []);
    let done = desk.back(parked);
    assert_eq!(done.asked.len(), 1, "{:?}", done.published);
}

#[test]
fn a_diverted_job_that_comes_back_expires_on_time() {
    let mut desk = Desk::with_clock(4);
    let published = HeaderValue::Int(i64::try_from(STORE_MS).expect("a time"));
    let mut job = job("1").with_headers(&[("timestamp_in_ms", published)], &[]);
    job.properties = job.properties.with_expiration("5000".into());
    let done = diverted_and_back(&mut desk, vec![job], MS * 60_000);
    assert!(done.asked.is_empty());
    assert_eq!(&*done.published[0].1.queue, "jobs.dead");
}

#[test]
fn diverted_jobs_with_one_dedupe_key_are_still_duplicates() {
    let mut desk = Desk::with_clock(4);
    let key = ("x-dedupe-key", HeaderValue::Text("k".to_owned()));
    let jobs = ["1", "2"].map(|id| job(id).with_headers(std::slice::from_ref(&key), &[]));
    let done = diverted_and_back(&mut desk, jobs.to_vec(), MS * 1_000);
    assert_eq!((done.deduped.len(), done.asked.len()), (2, 0));
}
