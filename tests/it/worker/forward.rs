//! Workers that forward jobs to the queues of other workers (`dispatch.forward`).

mod clients;

use std::time::Duration;

use kit::proxy::{Proxy, Transfers};
use kit::servers::shared_rabbit;
use kit::{Bed, PATIENCE, job, jobs, until, until_async};
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicPublishOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel};

use crate::PROGRAM;
use crate::broker::bed::channel;
use crate::cli::sluicegate;

pub fn yaml(bed: &Bed, limits: &str, forward: &str) -> String {
    let yaml = bed.yaml(limits, "http://unused/", "");
    let forward = format!("dispatch: {{forward: {{{forward}}}");
    let yaml = yaml.replace("dispatch: {http: {url: 'http://unused/'}", &forward);
    format!("{yaml}retry: {{max-attempts: 2, initial-interval: 100ms}}\n")
}

pub async fn queue(channel: &Channel, name: &str) {
    let options = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let declared = channel.queue_declare(name.into(), options, FieldTable::default());
    declared.await.expect("a queue");
}

/// Waits until there is no such queue.
pub async fn disappears(channel: &Channel, queue: &str) {
    until_async(&format!("the end of {queue}"), async || {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let asking = channel.queue_declare(queue.into(), options, FieldTable::default());
        asking.await.is_err()
    })
    .await;
}

/// Returns the next message of `queue` after acking it.
pub async fn next(channel: &Channel, queue: &str) -> lapin::message::BasicGetMessage {
    let getting = async {
        loop {
            let options = BasicGetOptions::default();
            if let Some(got) = channel
                .basic_get(queue.into(), options)
                .await
                .expect("an answer")
            {
                got.acker
                    .ack(BasicAckOptions::default())
                    .await
                    .expect("acked");
                return got;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let got = tokio::time::timeout(PATIENCE, getting).await;
    got.unwrap_or_else(|_| panic!("nothing comes to {queue}"))
}

pub fn header(message: &lapin::message::BasicGetMessage, name: &str) -> Option<String> {
    let headers = message.properties.headers().as_ref()?;
    match headers.inner().get(name)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        other => Some(format!("{other:?}")),
    }
}

/// Reports `body` about the job of `message`.
async fn report(channel: &Channel, message: &lapin::message::BasicGetMessage, body: &str) {
    let queue = header(message, "x-sluicegate-done").expect("a queue");
    let token = header(message, "x-sluicegate-done-token").expect("a token");
    let properties = BasicProperties::default().with_correlation_id(token.into());
    let options = BasicPublishOptions::default();
    let body = body.as_bytes();
    let publishing = channel.basic_publish("".into(), queue.into(), options, body, properties);
    publishing.await.expect("it is sent");
}

const MANY: &str = "max-requests: 1000, window-size: 1s";

#[tokio::test(flavor = "multi_thread")]
async fn a_forwarded_job_is_unchanged() {
    let bed = Bed::shared();
    let work = format!("{}-orders", bed.name);
    let limits = "max-requests: 1, window-size: 1s";
    let yaml = yaml(&bed, limits, "routing-key: '{header:x-to}'");
    let channel = channel().await;
    queue(&channel, &work).await;
    let publisher = |id: &str| {
        let mut message = job("acme", id);
        let mut headers = message.properties.headers().clone().expect("some");
        headers.insert("x-to".into(), AMQPValue::LongString(work.as_str().into()));
        headers.insert(
            "x-list".into(),
            AMQPValue::FieldArray(vec![AMQPValue::Boolean(true)].into()),
        );
        message.properties = BasicProperties::default()
            .with_message_id(id.into())
            .with_headers(headers)
            .with_content_type("application/json".into())
            .with_correlation_id("c".into())
            .with_reply_to("answers".into())
            .with_type("order".into())
            .with_priority(4);
        message
    };
    let jobs = ["first", "second", "third"].map(publisher);
    let sent = jobs.clone();
    let worker = PROGRAM.start(&yaml);
    bed.publish(&yaml, jobs).await;
    // The second and the third wait, in a delay queue or in memory, where they have our headers.
    for _ in 0..3 {
        let got = next(&channel, &work).await;
        let id = got.properties.message_id().clone();
        let of = |message: &&broker::Message| *message.properties.message_id() == id;
        let came = sent.iter().find(of).expect("one of them");
        let expected = came.properties.clone().with_delivery_mode(2);
        assert_eq!(got.properties, expected);
        assert_eq!(got.data, came.body);
    }
    worker.stop();
    assert_eq!(bed.dead(&yaml).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unroutable_job_is_kept_and_one_that_would_return_is_refused() {
    let bed = Bed::shared();
    let (missing, exchange) = (format!("{}-missing", bed.name), format!("{}-x", bed.name));
    for (forward, reason) in [
        (format!("routing-key: {missing}"), "no queue received it"),
        (format!("exchange: {exchange}"), "no queue received it"),
        ("exchange: ''".to_owned(), "it would come back"),
        (
            "routing-key: amq.rabbitmq.reply-to.garbage".to_owned(),
            "direct reply-to",
        ),
        (
            "routing-key: amq.rabbitmq.reply-to.".to_owned(),
            "direct reply-to",
        ),
    ] {
        let yaml = yaml(&bed, MANY, &forward);
        let check = sluicegate(&yaml, &["check"]);
        let worker = PROGRAM.start(&yaml);
        bed.publish(&yaml, jobs("acme", 1)).await;
        let started = tokio::time::Instant::now();
        let mut letters = Vec::new();
        while letters.is_empty() {
            assert!(started.elapsed() < PATIENCE, "{:#?}", worker.log());
            letters = bed.dead(&yaml).await;
        }
        let why = format!("{:?}", letters[0].header("x-sluicegate-reason"));
        assert!(why.contains(reason), "{why}");
        if reason.starts_with("no queue") {
            assert!(check.exited(1).out.contains("does not exist"));
        }
        worker.stop();
    }
}

/// RabbitMQ is far away: a late handover counts from its arrival, as an API's call would.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_handover_counts_from_its_arrival() {
    let (way, far) = Proxy::before(shared_rabbit().url(), Transfers::OPEN, 5).await;
    let bed = Bed::shared();
    let work = format!("{}-orders", bed.name);
    let limits = "max-requests: 2, window-size: 2s, guard-budget: 100%";
    let near = yaml(&bed, limits, &format!("routing-key: {work}"));
    let channel = channel().await;
    queue(&channel, &work).await;
    let worker = PROGRAM.start(&near.replace(shared_rabbit().url(), &far));
    worker.logs(&["RabbitMQ: consuming"]).await;
    way.set(Transfers::round_trip(Duration::from_millis(600)));
    bed.publish(&near, jobs("acme", 3)).await;
    let late = || {
        let by = |how: &str| format!("sluicegate_late_calls_total{{detected_by=\"{how}\"}}");
        let all = ["acknowledgement", "answer", "nothing"].map(by);
        let all = all.map(|series| worker.metric(&series).unwrap_or_default());
        all.iter().sum::<f64>()
    };
    until("all of them are late", || late() >= 3.0).await;
    for _ in 0..3 {
        next(&channel, &work).await;
    }
    way.set(Transfers::OPEN);
    worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forwarded_job_is_done_when_its_worker_reports_it() {
    let bed = Bed::shared();
    let work = format!("{}-orders", bed.name);
    let limits = "limits: [{name: running, max-concurrent: 1}]";
    let forward = format!("routing-key: {work}, done: true, timeout: 15s");
    let yaml = yaml(&bed, limits, &forward);
    let channel = channel().await;
    queue(&channel, &work).await;
    let worker = PROGRAM.start(&yaml);
    bed.publish(&yaml, jobs("acme", 4)).await;

    let first = next(&channel, &work).await;
    let done = header(&first, "x-sluicegate-done").expect("a queue");
    assert!(done.starts_with(&format!("{}.done.", bed.name)), "{done}");
    let none = async |why: &str| {
        let got = channel
            .basic_get(work.as_str().into(), BasicGetOptions::default())
            .await;
        assert!(got.expect("an answer").is_none(), "{why}");
    };
    none("one at a time").await;
    // Reports by strangers change nothing.
    let options = BasicPublishOptions::default();
    let nobody = BasicProperties::default().with_correlation_id("0".into());
    for properties in [BasicProperties::default(), nobody] {
        let queue = done.as_str().into();
        let publishing = channel.basic_publish("".into(), queue, options, b"{}", properties);
        publishing.await.expect("it is sent");
    }
    worker.logs(&["without a known job"]).await;
    none("the first is not done").await;
    report(&channel, &first, "").await;
    let second = next(&channel, &work).await;
    report(
        &channel,
        &second,
        r#"{"outcome": "reject", "reason": "no such order"}"#,
    )
    .await;
    let third = next(&channel, &work).await;
    report(&channel, &third, "rubbish").await;
    // Two are left, and one of them was tried already. No report about the next one comes in time.
    let fourth = next(&channel, &work).await;
    let started = tokio::time::Instant::now();
    worker.logs(&["dispatch.forward.timeout"]).await;
    assert!(started.elapsed() >= Duration::from_secs(1));
    none("it may be under way still").await;
    report(&channel, &fourth, "").await;
    for _ in 0..2 {
        let again = next(&channel, &work).await;
        report(&channel, &again, r#"{"outcome": "done"}"#).await;
    }
    until("all are done", || {
        worker.metric("sluicegate_calls_in_flight").unwrap_or(1.0) == 0.0
    })
    .await;
    let letters = bed.dead(&yaml).await;
    assert_eq!(letters.len(), 1, "{letters:?}");
    worker.stop();
    // The done queue ends with its worker.
    disappears(&channel, &done).await;
}
