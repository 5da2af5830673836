//! Results: the report about a job's end, its receiver, and that the ack comes last.

use broker::{DeliverySource, ExternalMessage, Message, PublishError};
use engine::action::{JobKey, ResultSettings, ResultTarget};
use engine::facts::{BrokerFact, Fact, ResultOutcome};
use handler::{ApiAnswer, Attempt, Outcome};
use kit::SECOND;
use rules::job::Field;

use crate::scheduler::{
    Desk, Done, MS, START, STORE_MS, by_header, retry, settings, throttled, usual, wait,
};

fn desk(to: ResultTarget) -> Desk {
    let mut settings = settings(4, usual(), by_header());
    settings.results = Some(ResultSettings { to, max_body: 8 });
    Desk::of(settings)
}

fn exchange() -> ResultTarget {
    ResultTarget::Exchange {
        exchange: "results".into(),
        routing_key: "key".into(),
    }
}

/// Returns a job of tenant `a` whose publisher waits at `reply_to`.
fn job(reply_to: &str) -> Message {
    let mut job = kit::job("a", 7);
    job.properties = (job.properties)
        .with_timestamp(1_600_000_000)
        .with_correlation_id("c".into())
        .with_reply_to(reply_to.into());
    job
}

fn start(desk: &mut Desk, job: Message) -> JobKey {
    desk.deliver_messages(DeliverySource::Fresh, vec![job]);
    let done = desk.answer(MS, vec![vec![START]]);
    done.dispatched[0].0
}

fn answered(outcome: Outcome) -> Attempt {
    let answered = ApiAnswer {
        status: Some(201),
        headers: vec![
            ("location".to_owned(), "/orders/7".to_owned()),
            ("long".to_owned(), "x".repeat(5_000)),
        ],
        content_type: Some("text/plain".to_owned()),
        body: "0123456789".into(),
        ..ApiAnswer::default()
    };
    Attempt {
        answered: Some(Box::new(answered)),
        ..outcome.into()
    }
}

#[track_caller]
fn one(done: &Done) -> (JobKey, &ExternalMessage) {
    let [(key, result)] = &done.results[..] else {
        panic!("one result, not {:?}", done.results);
    };
    assert!(done.acked.is_empty() && done.published.is_empty());
    (*key, result)
}

fn text<'a>(result: &'a ExternalMessage, name: &str) -> &'a str {
    match result.message.header(name) {
        Field::Text(text) => text,
        other => panic!("{name}: {other:?}"),
    }
}

fn reject() -> Outcome {
    Outcome::Reject {
        reason: "no such order".to_owned(),
    }
}

#[test]
fn a_job_is_acked_when_its_result_is_confirmed() {
    for (to, target) in [
        (ResultTarget::ReplyTo, ("", "asker")),
        (exchange(), ("results", "key")),
    ] {
        let mut desk = desk(to);
        let key = start(&mut desk, job("asker"));
        desk.now += 20 * MS;
        let attempt = answered(Outcome::Done);
        desk.scheduler.finished(desk.now, key, 15 * MS, attempt);
        let done = desk.actions();
        let (key, result) = one(&done);
        assert_eq!((&*result.exchange, &*result.routing_key), target);
        let properties = &result.message.properties;
        let of = |name: &Option<lapin::types::ShortString>| name.as_ref().map(|n| n.to_string());
        assert_eq!(of(properties.correlation_id()).as_deref(), Some("c"));
        assert_eq!(result.message.id(), Some("7"));
        assert_eq!(result.message.content_type(), Some("text/plain"));
        assert_eq!(*properties.delivery_mode(), Some(2));
        assert_eq!(result.message.body, "01234567");
        for (name, expected) in [
            ("x-sluicegate-result", "done"),
            ("x-sluicegate-tenant", "a"),
            ("x-sluicegate-job-id", "7"),
            ("x-sluicegate-truncated", "true"),
            ("x-answer-location", "/orders/7"),
        ] {
            assert_eq!(text(result, name), expected);
        }
        let store_ms = i64::try_from(STORE_MS).expect("small");
        for (name, expected) in [
            ("x-sluicegate-status", 201),
            ("x-sluicegate-attempt", 1),
            ("x-sluicegate-published", 1_600_000_000_000),
            ("x-sluicegate-called", store_ms + 5),
            ("x-sluicegate-answered", store_ms + 20),
        ] {
            assert_eq!(result.message.header(name), Field::Int(expected), "{name}");
        }
        assert_eq!(result.message.header("x-answer-long"), Field::Missing);
        assert_eq!(result.message.header("x-sluicegate-reason"), Field::Missing);
        assert!(!desk.scheduler.is_idle(), "a worker that ends waits for it");
        desk.scheduler
            .results_published(desk.now, vec![(key, Ok(()))]);
        let published = |fact: &Fact| matches!(fact, Fact::Broker(BrokerFact::ResultPublished));
        assert!(desk.facts().iter().any(published));
        assert_eq!(desk.actions().acked, [1]);
        assert!(desk.scheduler.is_idle());
    }
}

#[test]
fn the_result_of_a_dead_letter_goes_first_then_the_letter_then_the_ack() {
    let mut desk = desk(ResultTarget::ReplyTo);
    let key = start(&mut desk, job("asker"));
    let attempt = answered(reject());
    let done = desk.ended(key, attempt);
    let (key, result) = one(&done);
    assert_eq!(text(result, "x-sluicegate-result"), "dead");
    assert_eq!(text(result, "x-sluicegate-reason"), "no such order");
    assert_eq!(
        result.message.header("x-sluicegate-status"),
        Field::Int(201)
    );
    desk.scheduler
        .results_published(desk.now, vec![(key, Ok(()))]);
    let done = desk.actions();
    assert!(done.acked.is_empty());
    let (_, letter) = &done.published[0];
    assert_eq!(&*letter.queue, "jobs.dead");
    // A replayed job also requests a result.
    assert_eq!(letter.message.reply_to(), Some("asker"));
    // A second answer does nothing, and neither does a second confirm.
    desk.scheduler
        .results_published(desk.now, vec![(key, Ok(()))]);
    let again = desk.actions();
    assert!(again.published.is_empty() && again.acked.is_empty());
    assert_eq!(desk.confirmed(key).acked, [1]);
    assert!(desk.confirmed(key).acked.is_empty());
    assert!(desk.scheduler.is_idle());
}

#[test]
fn invalid_messages_and_expired_jobs_have_results() {
    let mut desk = desk(ResultTarget::ReplyTo);
    let key = start(&mut desk, job("asker"));
    let key = desk.ended(key, Outcome::Done).results[0].0;
    desk.scheduler
        .results_published(desk.now, vec![(key, Ok(()))]);
    desk.actions();

    let mut nobody = job("asker").with_headers(&[], &["x-tenant"]);
    nobody.properties = nobody.properties.with_message_id("8".into());
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![nobody]);
    let (_, result) = one(&done);
    assert_eq!(text(result, "x-sluicegate-result"), "dead");
    assert!(text(result, "x-sluicegate-reason").contains("x-tenant"));
    assert_eq!(result.message.header("x-sluicegate-tenant"), Field::Missing);

    let mut late = job("asker");
    late.properties = late.properties.with_expiration("1000".into());
    // The job was published long ago.
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![late]);
    let (_, result) = one(&done);
    assert_eq!(text(result, "x-sluicegate-result"), "expired");
    assert!(text(result, "x-sluicegate-reason").starts_with("expired"));
    assert_eq!(result.message.header("x-sluicegate-status"), Field::Missing);
}

#[test]
fn intermediate_outcomes_have_no_result_and_their_answers_are_dropped() {
    let mut desk = desk(ResultTarget::ReplyTo);
    for outcome in [
        retry("500"),
        Outcome::Snooze { after: SECOND },
        throttled(Some(SECOND)),
        Outcome::Late,
    ] {
        let key = start(&mut desk, job("asker"));
        let done = desk.ended(key, answered(outcome));
        assert!(done.results.is_empty());
        for (block, _) in done.blocked {
            desk.scheduler.blocked(desk.now, block, Ok(()));
        }
        desk.scheduler.session_up(1);
        desk.actions();
    }
    // If its attempts are used up in a later call without an answer, nothing is reported of an
    // earlier call.
    let mut desk = desk_with_attempts(1);
    let key = start(&mut desk, job("asker"));
    let done = desk.ended(key, retry("no answer"));
    let (_, result) = one(&done);
    assert_eq!(text(result, "x-sluicegate-result"), "dead");
    assert!(text(result, "x-sluicegate-reason").starts_with("gave up after 1 attempts"));
    assert_eq!(result.message.header("x-sluicegate-status"), Field::Missing);
    assert!(result.message.body.is_empty());
}

fn desk_with_attempts(max: u32) -> Desk {
    let mut settings = settings(4, usual(), by_header());
    settings.results = Some(ResultSettings {
        to: ResultTarget::ReplyTo,
        max_body: 8,
    });
    settings.live.retry.max_attempts = max;
    Desk::of(settings)
}

#[test]
fn jobs_without_a_result_target_have_no_result() {
    let mut plain = Desk::new(4);
    let key = start(&mut plain, job("asker"));
    let done = plain.ended(key, answered(Outcome::Done));
    assert_eq!((done.results.len(), &done.acked[..]), (0, &[1][..]));

    let mut desk = desk(ResultTarget::ReplyTo);
    let key = desk.start_one();
    let done = desk.ended(key, answered(Outcome::Done));
    assert_eq!((done.results.len(), &done.acked[..]), (0, &[1][..]));
}

#[test]
fn a_job_that_names_a_queue_of_the_workers_is_done_without_a_result() {
    for queue in ["jobs", "jobs.dead", "jobs.due", "jobs.delay.from-250"] {
        let mut desk = desk(ResultTarget::ReplyTo);
        let key = start(&mut desk, job(queue));
        let done = desk.ended(key, answered(Outcome::Done));
        assert_eq!((done.results.len(), &done.acked[..]), (0, &[1][..]));
        let lost = |fact: &Fact| {
            let sent = ResultOutcome::Unroutable;
            matches!(fact, Fact::Broker(BrokerFact::ResultLost { sent: s, is_news: true, .. }) if *s == sent)
        };
        assert!(desk.facts().iter().any(lost), "{queue}");
    }
}

#[test]
fn a_result_without_a_target_is_counted_and_an_unconfirmed_one_is_resent() {
    let mut desk = desk(ResultTarget::ReplyTo);
    let key = start(&mut desk, job("asker"));
    let done = desk.ended(key, answered(Outcome::Done));
    let (key, first) = one(&done);
    let first = first.clone();
    let down = PublishError::Down("cut".to_owned());
    desk.scheduler
        .results_published(desk.now, vec![(key, Err(down))]);
    let done = desk.actions();
    assert!(done.acked.is_empty() && done.results.is_empty());
    let done = desk.step(100 * MS);
    let (key, again) = one(&done);
    assert_eq!(*again, first);
    let returned = Err(PublishError::Returned);
    desk.facts();
    desk.scheduler
        .results_published(desk.now, vec![(key, returned)]);
    assert_eq!(desk.actions().acked, [1]);
    let facts = desk.facts();
    let [Fact::Broker(BrokerFact::ResultLost { sent, is_news, .. })] = &facts[..] else {
        panic!("{facts:?}");
    };
    assert_eq!((*sent, *is_news), (ResultOutcome::Unroutable, true));
}

#[test]
fn a_rejected_result_is_given_up_after_a_bound() {
    let failures = [
        PublishError::Nacked,
        PublishError::Unconfirmed,
        PublishError::Down("cut".to_owned()),
        PublishError::Refused("541".to_owned()),
    ];
    for (to, why) in failures
        .iter()
        .flat_map(|why| [(ResultTarget::ReplyTo, why), (exchange(), why)])
    {
        let is_named = to == ResultTarget::ReplyTo;
        let mut desk = desk(to);
        let key = start(&mut desk, job("asker"));
        let (mut done, began) = (desk.ended(key, answered(Outcome::Done)), desk.now);
        while done.acked.is_empty() {
            if let [(key, _)] = done.results[..] {
                let result = vec![(key, Err(why.clone()))];
                desk.scheduler.results_published(desk.now, result);
                done = desk.actions();
            } else {
                done = desk.step(SECOND);
            }
            assert!(done.published.is_empty());
            assert!(desk.now - began < 1_000 * SECOND, "{why:?} never ends");
        }
        let took = (desk.now - began).as_secs();
        let expected = match (is_named, why) {
            (true, PublishError::Refused(_)) => 0..1,
            (true, _) => 30..45,
            (false, _) => 600..660,
        };
        assert!(expected.contains(&took), "{why:?}: {took} s");
        let lost = |fact: &Fact| {
            let sent = ResultOutcome::Refused;
            matches!(fact, Fact::Broker(BrokerFact::ResultLost { sent: s, is_news: true, .. }) if *s == sent)
        };
        assert!(desk.facts().iter().any(lost), "{why:?}");
    }
}

#[test]
fn a_job_that_was_called_ends_though_too_many_results_wait() {
    let mut desk = desk(ResultTarget::ReplyTo);
    let share = 80 / 8;
    let mut keys = Vec::new();
    for _ in 0..30 {
        let key = start(&mut desk, job("asker"));
        keys.extend(
            desk.ended(key, answered(Outcome::Done))
                .results
                .into_iter()
                .map(|(key, _)| key),
        );
    }
    let failed = (keys.iter()).map(|key| (*key, Err(PublishError::Unconfirmed)));
    desk.scheduler.results_published(desk.now, failed.collect());
    let done = desk.step(MS);
    assert_eq!(done.acked.len(), 30 - share);
    // No result is sent before it is known whether another attempt follows.
    assert!(done.results.is_empty());
    let key = start(&mut desk, job("asker"));
    assert!(desk.ended(key, answered(Outcome::Done)).results.is_empty());
    let tried = desk.step(SECOND);
    let [(key, _)] = tried.results[..] else {
        panic!("{:?}", tried.results)
    };
    desk.scheduler
        .results_published(desk.now, vec![(key, Ok(()))]);
    assert!(desk.actions().results.len() >= share - 1);
}

/// Publishers name many direct reply-to targets over which RabbitMQ closes the connection.
#[test]
fn a_late_answer_to_a_result_that_was_given_up_changes_nothing() {
    let (mut desk, share) = (desk(ResultTarget::ReplyTo), 80 / 8);
    let mut keys = Vec::new();
    for n in 0..share + 3 {
        let key = start(&mut desk, job(&format!("amq.rabbitmq.reply-to.{n}")));
        let done = desk.ended(key, answered(reject()));
        keys.push(one(&done).0);
    }
    let done = desk.step(SECOND);
    assert_eq!(done.released, keys[..3], "they are not published any more");
    let letters: Vec<JobKey> = done.published.iter().map(|(key, _)| *key).collect();
    assert_eq!(letters, keys[..3]);
    let down = PublishError::Down("cut".to_owned());
    let late = [
        Err(down),
        Ok(()),
        Err(PublishError::Refused("541".to_owned())),
    ];
    let late = keys.iter().copied().zip(late).collect();
    desk.scheduler.results_published(desk.now, late);
    for _ in 0..40 {
        let done = desk.step(100 * MS);
        assert!(done.published.is_empty() && done.results.is_empty());
        assert_eq!(done.acked, [0; 0]);
    }
    for (n, key) in keys[..3].iter().enumerate() {
        assert_eq!(desk.confirmed(*key).acked, [n as u64 + 1]);
    }
}

#[test]
fn a_result_is_forgotten_with_its_session() {
    let mut desk = desk(ResultTarget::ReplyTo);
    let key = start(&mut desk, job("asker"));
    let key = one(&desk.ended(key, answered(Outcome::Done))).0;
    desk.scheduler.session_up(2);
    desk.scheduler
        .results_published(desk.now, vec![(key, Ok(()))]);
    assert!(desk.actions().acked.is_empty(), "it is called again");
    assert!(desk.step(60 * SECOND).results.is_empty());
    // If its session was lost before it ended, the next call's result is reported.
    let mut desk = self::desk(ResultTarget::ReplyTo);
    let key = start(&mut desk, job("asker"));
    desk.scheduler.session_up(2);
    let done = desk.ended(key, answered(Outcome::Done));
    assert!(done.results.is_empty() && done.acked.is_empty());
}

#[test]
fn a_job_that_waits_for_its_turn_has_no_result() {
    let mut desk = desk(exchange());
    desk.deliver_messages(DeliverySource::Fresh, vec![job("asker")]);
    let done = desk.answer(MS, vec![vec![wait(10_100, 4)]]);
    assert!(done.results.is_empty());
    assert_eq!(done.published.len(), 1);
}
