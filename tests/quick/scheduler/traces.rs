//! The spans of jobs: their contents, their parents, and the trace context that a job carries.

use broker::{DeliverySource, Message};
use engine::action::{ResultSettings, ResultTarget};
use engine::scheduler::Scheduler;
use handler::Outcome;
use rules::headers::HeaderValue;
use rules::job::Field;
use rules::trace::{Context, Sampler, Span, SpanSubject};

use crate::scheduler::{Desk, MS, START, by_header, message, retry, settings, usual, wait};

const PUBLISHER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn desk(sampler: &str) -> Desk {
    let mut settings = settings(4, usual(), by_header());
    settings.results = Some(ResultSettings {
        to: ResultTarget::Exchange {
            exchange: "results".into(),
            routing_key: "key".into(),
        },
        max_body: 8,
    });
    let mut desk = Desk::of(settings.clone());
    let sampler = Sampler::parse(sampler, None).expect("a sampler");
    desk.scheduler = Scheduler::new(settings, 7).tracing(Some(sampler));
    desk.scheduler.session_up(1);
    desk
}

fn job(headers: &[(&'static str, &str)]) -> Message {
    let text = |text: &str| HeaderValue::Text(text.to_owned());
    let mut all = vec![("x-tenant", text("a"))];
    all.extend(headers.iter().map(|(name, value)| (*name, text(value))));
    message(&all)
}

fn spans(desk: &mut Desk) -> Vec<Span> {
    desk.scheduler.take_spans()
}

fn parse(text: &str) -> Context {
    Context::parse(text).expect("a context")
}

fn text<'a>(message: &'a Message, name: &str) -> &'a str {
    match message.header(name) {
        Field::Text(text) => text,
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn a_wait_a_call_and_a_result_belong_to_the_publishers_span() {
    let mut desk = desk("parentbased_always_on");
    desk.deliver_messages(
        DeliverySource::Fresh,
        vec![job(&[("traceparent", PUBLISHER)])],
    );
    for number in 1..=20 {
        desk.answer(MS, vec![vec![wait(300, number)]]);
        desk.step(300 * MS);
    }
    let done = desk.answer(MS, vec![vec![START]]);
    let (key, job, _) = &done.dispatched[0];
    let call = parse(&job.traceparent().expect("the context of its call"));
    let publisher = parse(PUBLISHER);
    assert_eq!(call, publisher.beside(call.span));
    let [waited] = &spans(&mut desk)[..] else {
        panic!("one span");
    };
    assert_eq!(waited.parent, Some(publisher));
    let SpanSubject::Wait { denials, more } = &waited.about else {
        panic!("{waited:?}");
    };
    assert_eq!((denials.len(), *more), (16, 4), "a bounded number is told");
    assert_eq!(
        (
            denials[0].limits[denials[0].limit].name(),
            denials[0].ttl_ms
        ),
        ("default", 300)
    );
    desk.now += 20 * MS;
    desk.scheduler
        .finished(desk.now, *key, 15 * MS, Outcome::Done);
    let done = desk.actions();
    let (key, reply) = &done.results[0];
    let result = parse(text(&reply.message, "traceparent"));
    desk.now += MS;
    desk.scheduler
        .results_published(desk.now, vec![(*key, Ok(()))]);
    let [called, result_span] = &spans(&mut desk)[..] else {
        panic!("two spans");
    };
    assert_eq!((called.context, called.parent), (call, Some(publisher)));
    assert!(called.ended - called.began == 15 * MS && called.first_call.is_none());
    assert!(matches!(
        called.about,
        SpanSubject::Call {
            outcome: "done",
            reason: None
        }
    ));
    assert_eq!(
        (result_span.context, result_span.parent),
        (result, Some(publisher))
    );
    assert!(
        matches!(result_span.about, SpanSubject::Result)
            && result_span.ended - result_span.began == MS
    );
}

#[test]
fn a_retry_is_in_the_same_trace_and_names_its_first_call() {
    let mut desk = desk("parentbased_always_on");
    desk.deliver_messages(DeliverySource::Fresh, vec![job(&[])]);
    let done = desk.answer(MS, vec![vec![START]]);
    let (key, _, _) = done.dispatched[0];
    desk.scheduler.finished(desk.now, key, MS, retry("503"));
    let first = spans(&mut desk);
    let [root, called] = &first[..] else {
        panic!("{first:?}");
    };
    assert_eq!((root.parent, called.parent), (None, Some(root.context)));
    let moved = desk.actions().published.remove(0).1.message;
    let carried = text(&moved, "x-sluicegate-trace").to_owned();
    assert_eq!(
        carried,
        format!("{}:{:016x}", root.context, called.context.span)
    );
    // Another worker has other IDs.
    for (source, is_ours) in [
        (DeliverySource::Delay(3), true),
        (DeliverySource::Fresh, false),
    ] {
        desk.deliver_messages(source, vec![moved.clone()]);
        if is_ours {
            desk.step(20_000 * MS);
        }
        let done = desk.answer(MS, vec![vec![START]]);
        let (key, again, _) = &done.dispatched[0];
        let again = parse(&again.traceparent().expect("a context"));
        desk.scheduler.finished(desk.now, *key, MS, Outcome::Done);
        let spans = spans(&mut desk);
        let called = spans.last().expect("its call");
        assert_eq!(called.context, again);
        assert_eq!(
            called.context.trace == root.context.trace,
            is_ours,
            "whose word counts"
        );
        assert_eq!(called.first_call.is_some(), is_ours);
        desk.actions();
    }
}

#[test]
fn an_unsampled_trace_is_forwarded_as_unsampled() {
    let unsampled = PUBLISHER.replace("-01", "-00");
    for (sampler, header) in [
        ("always_off", PUBLISHER),
        ("parentbased_always_on", &unsampled),
    ] {
        let mut desk = desk(sampler);
        desk.deliver_messages(DeliverySource::Fresh, vec![job(&[("traceparent", header)])]);
        let done = desk.answer(MS, vec![vec![START]]);
        let (key, job, _) = &done.dispatched[0];
        let call = parse(&job.traceparent().expect("a context"));
        assert!(!call.sampled && call.trace == parse(PUBLISHER).trace);
        desk.scheduler.finished(desk.now, *key, MS, retry("503"));
        assert!(spans(&mut desk).is_empty());
        let moved = &desk.actions().published[0].1.message;
        assert_eq!(
            parse(&text(moved, "x-sluicegate-trace")[..55]),
            parse(&unsampled)
        );
    }
}

#[test]
fn without_a_sampler_there_are_no_spans() {
    let mut desk = Desk::new(4);
    desk.deliver_messages(
        DeliverySource::Fresh,
        vec![job(&[("traceparent", PUBLISHER)])],
    );
    let done = desk.answer(MS, vec![vec![START]]);
    let (key, job, _) = &done.dispatched[0];
    assert_eq!(job.traceparent(), None);
    let moved = &desk.ended(*key, retry("503")).published[0].1.message;
    assert_eq!(moved.header("x-sluicegate-trace"), Field::Missing);
    assert_eq!(
        text(moved, "traceparent"),
        PUBLISHER,
        "its publisher's word stays"
    );
    assert!(spans(&mut desk).is_empty());
}
