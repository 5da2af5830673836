//! Jobs with dedupe keys: each first asks whether it is the first. The first one continues for
//! good, and the others are acked.

use std::sync::Arc;
use std::time::Duration;

use broker::{DeliverySource, Message};
use engine::action::{ResultSettings, ResultTarget};
use engine::facts::{Fact, JobFact};
use gate::{DedupeAnswer, GateError, ShardId};
use rules::headers::HeaderValue;
use rules::job::Field;

use crate::scheduler::{Desk, Done, MS, START, by_header, settings, usual, wait};

const DUPLICATE: DedupeAnswer = DedupeAnswer::Duplicate { left_ms: 5 };

fn job(id: &str) -> Message {
    let key = ("x-dedupe-key", HeaderValue::Text("k".to_owned()));
    kit::job("a", id).with_headers(&[key], &[])
}

fn answer_dedupe(desk: &mut Desk, deduped: Vec<DedupeAnswer>) -> Done {
    let all = deduped.into_iter().map(Ok).collect();
    desk.scheduler
        .deduped(desk.now, ShardId::default(), Ok(all));
    desk.step(MS * 5)
}

#[test]
fn the_first_job_continues_and_duplicates_are_acked_with_results() {
    let mut settings = settings(4, usual(), by_header());
    settings.results = Some(ResultSettings {
        to: ResultTarget::Exchange {
            exchange: Arc::from("results"),
            routing_key: Arc::from("jobs"),
        },
        max_body: 100,
    });
    let mut desk = Desk::of(settings);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![job("1"), job("2")]);
    assert!(done.asked.is_empty(), "before all else");
    let [one, two] = &done.deduped[..] else {
        panic!("{:?}", done.deduped);
    };
    assert_eq!(
        (one.key.as_str(), one.job.as_str(), one.lasts_ms),
        ("k", "1", 600_000)
    );
    assert!(one.owner != two.owner && !one.seen_before);
    let done = answer_dedupe(&mut desk, vec![DedupeAnswer::First, DUPLICATE]);
    assert_eq!(done.asked[0].asks.len(), 1);
    let [(key, reply)] = &done.results[..] else {
        panic!("{:?}", done.results);
    };
    assert_eq!(
        reply.message.header("x-sluicegate-result"),
        Field::Text("duplicate")
    );
    assert_eq!(
        reply.message.header("x-sluicegate-job-id"),
        Field::Text("2")
    );
    assert!(done.acked.is_empty(), "its result goes first");
    desk.scheduler
        .results_published(desk.now, vec![(*key, Ok(()))]);
    assert_eq!(desk.actions().acked, [2]);
    let facts = desk.facts();
    let duplicates = facts
        .iter()
        .filter(|it| matches!(it, Fact::Job(JobFact::Duplicate(..))));
    assert_eq!(duplicates.count(), 1);
    let done = desk.answer(MS, vec![vec![START]]);
    assert_eq!(done.dispatched[0].1.id, "1");
}

#[test]
fn the_first_job_does_not_ask_again_after_a_delay_queue() {
    let mut desk = Desk::new(4);
    desk.deliver_messages(DeliverySource::Fresh, vec![job("1")]);
    answer_dedupe(&mut desk, vec![DedupeAnswer::First]);
    let (_, outgoing) = desk
        .answer(MS, vec![vec![wait(10_000, 1)]])
        .published
        .remove(0);
    let back = desk.back(outgoing);
    assert!(back.deduped.is_empty(), "{:?}", back.deduped);
    let (_, again) = desk
        .answer(MS, vec![vec![wait(10_000, 1)]])
        .published
        .remove(0);
    assert_eq!(again.message.header("x-sluicegate-first"), Field::Int(1));
    // In a publisher's message this header has no meaning.
    let forged = again.message.with_headers(&[], &["x-sluicegate-trip"]);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![forged]);
    assert_eq!(done.deduped.len(), 1);
    assert!(!done.deduped[0].seen_before);
}

#[test]
fn a_redelivered_job_is_marked_in_the_request() {
    let mut desk = Desk::new(4);
    let done = desk.deliver_marked(DeliverySource::Fresh, true, vec![job("1")]);
    assert!(done.deduped[0].seen_before);
    desk.scheduler.session_up(1);
    let replies = vec![Ok(DedupeAnswer::First)];
    desk.scheduler
        .deduped(desk.now, ShardId::default(), Ok(replies));
    assert!(desk.step(MS).asked.is_empty(), "its session is gone");
}

#[test]
fn a_job_without_an_id_gets_one_before_it_asks() {
    let mut desk = Desk::with_clock(4);
    let mut nameless = job("1");
    nameless.properties = Default::default();
    let text = |text: &str| HeaderValue::Text(text.to_owned());
    let headers = [("x-tenant", text("a")), ("x-dedupe-key", text("k"))];
    let nameless = nameless.with_headers(&headers, &[]);
    let mut done = desk.deliver_messages(DeliverySource::Fresh, vec![nameless]);
    assert!(done.deduped.is_empty());
    let (_, outgoing) = done.published.remove(0);
    let id = outgoing.message.id().expect("it has one now").to_owned();
    let done = desk.back(outgoing);
    assert_eq!(done.deduped[0].job, id);
    assert!(done.deduped[0].seen_before);
}

#[test]
fn a_job_waits_while_redis_is_unreachable_and_returns_later_if_redis_refuses() {
    let mut desk = Desk::with_clock(4);
    desk.deliver_messages(DeliverySource::Fresh, vec![job("1")]);
    let away = GateError::Unreachable("a test".into());
    desk.scheduler
        .deduped(desk.now, ShardId::default(), Err(away));
    let done = desk.step(MS);
    assert!(done.deduped.is_empty() && done.asked.is_empty() && done.published.is_empty());
    let again = desk.step(Duration::from_secs(1));
    assert_eq!(again.deduped.len(), 1);
    // The job's key, or all keys: out of memory, or without a right.
    let refused = || GateError::Refused("a test".into());
    for result in [Ok(vec![Err(refused())]), Err(refused())] {
        desk.scheduler.deduped(desk.now, ShardId::default(), result);
        let (_, outgoing) = desk.actions().published.remove(0);
        assert_eq!(
            outgoing.message.header("x-sluicegate-first"),
            Field::Missing
        );
        let back = desk.back(outgoing);
        assert_eq!(back.deduped.len(), 1, "it asks again");
    }
}

#[test]
fn a_job_without_a_key_skips_deduplication_and_a_bad_key_is_a_dead_letter() {
    let mut desk = Desk::new(4);
    let done = desk.deliver(DeliverySource::Fresh, &["a"]);
    assert!(done.deduped.is_empty() && done.asked.len() == 1);
    let bad = job("1").with_headers(&[("x-dedupe-key", HeaderValue::Text("k".repeat(256)))], &[]);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![bad]);
    assert_eq!(&*done.published[0].1.queue, "jobs.dead");
    // An expired job must not become the first, since it would not be called.
    let mut expired = job("2");
    expired.properties = expired.properties.with_expiration("0".into());
    desk.answer(MS, vec![vec![START]]);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![expired]);
    assert!(done.deduped.is_empty());
    assert_eq!(&*done.published[0].1.queue, "jobs.dead");
}
