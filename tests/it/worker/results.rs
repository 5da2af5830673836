//! A worker that reports how its jobs end.

use std::collections::HashMap;
use std::time::Duration;

use kit::api::{Api, Call, Reply};
use kit::process::Process;
use kit::servers::{shared_rabbit, shared_redis, unique};
use kit::{PATIENCE, until};
use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, ExchangeKind};

use crate::PROGRAM;
use crate::broker::bed::channel;
use crate::cli::sluicegate;

/// Starts an API that answers by the job's ID: jobs that begin with `bad` are rejected, and those
/// with `long` have a long answer.
async fn api() -> Api {
    let api = Api::start().await;
    api.answers(|call: &Call| {
        let reply = match &call.job {
            id if id.starts_with("bad") => Reply::status(422).body("no such order"),
            id if id.starts_with("long") => Reply::ok().body("0123456789".repeat(10)),
            id => Reply::status(201).body(format!("made {id}")),
        };
        reply
            .header("location", "/orders/7")
            .header("content-type", "text/plain")
    });
    api
}

fn yaml(name: &str, api: &Api, results: &str) -> String {
    format!(
        "amqp: {{url: '{}', queue: '{name}'}}\nredis: {{url: '{}', prefix: '{name}'}}\nadmin: {{listen: '127.0.0.1:0'}}\nrate-limiter: {{max-requests: 100, window-size: 1s}}\ndispatch: {{http: {{url: '{}'}}, results: {results}}}\n",
        shared_rabbit().url(),
        shared_redis().url(),
        api.url(),
    )
}

pub async fn queue(channel: &Channel, name: &str) {
    let (options, none) = (QueueDeclareOptions::default(), FieldTable::default());
    let declared = channel.queue_declare(name.into(), options, none);
    declared.await.expect("a queue");
}

async fn job(channel: &Channel, work: &str, id: &str, reply_to: &str) {
    let mut headers = FieldTable::default();
    let tenant = AMQPValue::LongString("acme".into());
    headers.insert("x-tenant".into(), tenant);
    let mut properties = BasicProperties::default()
        .with_message_id(id.into())
        .with_correlation_id(format!("c-{id}").into())
        .with_reply_to(reply_to.into())
        .with_headers(headers);
    if id.starts_with("old") {
        // The job was published long ago.
        properties = properties
            .with_timestamp(1_600_000_000)
            .with_expiration("60000".into());
    }
    if id.starts_with("nobody") {
        properties = properties.with_headers(FieldTable::default());
    }
    let options = BasicPublishOptions::default();
    let publishing = channel.basic_publish("".into(), work.into(), options, b"", properties);
    publishing.await.expect("it is sent");
}

/// A result: its body, and its headers as text.
pub type Result = (String, HashMap<String, String>);

/// Returns the next `count` results in `queue` by the correlation IDs of their jobs.
pub async fn results(channel: &Channel, queue: &str, count: usize) -> HashMap<String, Result> {
    let mut found = HashMap::new();
    let all = async {
        while found.len() < count {
            let options = BasicGetOptions { no_ack: true };
            let got = channel.basic_get(queue.into(), options).await;
            let Some(got) = got.expect("an answer") else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let properties = &got.properties;
            assert_eq!(*properties.delivery_mode(), Some(2));
            let headers = properties.headers().as_ref().expect("headers");
            let headers = headers.inner().iter().map(|(name, value)| {
                let value = match value {
                    AMQPValue::LongString(text) => text.to_string(),
                    AMQPValue::LongLongInt(n) => n.to_string(),
                    other => panic!("{other:?}"),
                };
                (name.to_string(), value)
            });
            let id = properties
                .correlation_id()
                .as_ref()
                .expect("one")
                .to_string();
            let body = String::from_utf8(got.data.clone()).expect("text");
            found.insert(id, (body, headers.collect()));
        }
    };
    let ended = tokio::time::timeout(PATIENCE, all).await;
    assert!(ended.is_ok(), "{count} results, not {found:#?}");
    found
}

fn counted(worker: &Process, outcome: &str) -> u32 {
    let series = format!("sluicegate_results_total{{outcome=\"{outcome}\"}}");
    worker.metric(&series).unwrap_or_default() as u32
}

#[track_caller]
fn has(result: &Result, name: &str, expected: &str) {
    let found = result.1.get(name).map(String::as_str);
    assert_eq!(found, Some(expected), "{name}: {result:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn results_report_done_dead_and_expired_jobs() {
    let api = api().await;
    let work = unique("results");
    let asker = format!("{work}-asker");
    let yaml = yaml(
        &work,
        &api,
        "{to: reply-to, headers: [location], max-body: 50}",
    );
    sluicegate(&yaml, &["publish", "--tenant", "acme", "--id", "first"]).exited(0);
    let channel = channel().await;
    queue(&channel, &asker).await;
    let jobs = ["good", "bad", "old", "nobody", "long"];
    for id in jobs {
        job(&channel, &work, id, &asker).await;
    }
    job(&channel, &work, "lost", "no such queue").await;
    // A publisher can't make the worker write to the worker's own queues.
    job(&channel, &work, "own", &format!("{work}.dead")).await;
    let worker = PROGRAM.start(&yaml);
    let results = results(&channel, &asker, jobs.len()).await;

    let good = &results["c-good"];
    assert_eq!(good.0, "made good");
    for (name, value) in [
        ("x-sluicegate-result", "done"),
        ("x-sluicegate-status", "201"),
        ("x-sluicegate-attempt", "1"),
        ("x-sluicegate-job-id", "good"),
        ("x-sluicegate-tenant", "acme"),
        ("x-answer-location", "/orders/7"),
    ] {
        has(good, name, value);
    }
    let ms = |name: &str| good.1[name].parse::<u64>().expect("a number");
    let (called, answered) = (ms("x-sluicegate-called"), ms("x-sluicegate-answered"));
    assert!(1_600_000_000_000 < called && called <= answered, "{good:?}");
    assert!(!good.1.contains_key("x-sluicegate-truncated"));

    let long = &results["c-long"];
    assert_eq!(long.0, "0123456789".repeat(5));
    has(long, "x-sluicegate-truncated", "true");

    let bad = &results["c-bad"];
    assert_eq!(bad.0, "no such order");
    has(bad, "x-sluicegate-result", "dead");
    has(bad, "x-sluicegate-status", "422");
    assert!(bad.1["x-sluicegate-reason"].contains("no such order"));

    for (id, ended, reason) in [
        ("old", "expired", "expired"),
        ("nobody", "dead", "x-tenant"),
    ] {
        let result = &results[&format!("c-{id}")];
        has(result, "x-sluicegate-result", ended);
        assert!(
            result.1["x-sluicegate-reason"].contains(reason),
            "{result:?}"
        );
        assert!(!result.1.contains_key("x-sluicegate-status"), "{result:?}");
        assert_eq!(result.0, "");
    }
    until("all ends are counted", || {
        counted(&worker, "unroutable") == 2 && counted(&worker, "published") == 5
    })
    .await;
    until("the log has both", || {
        worker.count(&["result not delivered"]) == 2
    })
    .await;
    // Each job has left its queue, and only the dead letters are elsewhere. A result precedes its
    // job's dead letter.
    until("the dead letters", || {
        let dead = sluicegate(&yaml, &["dead", "list", "--json"]).exited(0);
        dead.out.lines().count() == 3
    })
    .await;
    worker.stop();
    // The first job, and those that are neither expired nor invalid.
    assert_eq!(api.count(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn results_go_to_an_exchange_and_a_missing_one_delays_no_job() {
    let api = api().await;
    let work = unique("results");
    let (exchange, ends) = (format!("{work}-x"), format!("{work}-ends"));
    let results_to = format!("{{to: exchange, exchange: '{exchange}', routing-key: ends}}");
    let yaml = yaml(&work, &api, &results_to);
    let publish = |id: &str| {
        sluicegate(&yaml, &["publish", "--tenant", "acme", "--id", id]).exited(0);
    };
    let worker = PROGRAM.start(&yaml);
    for id in ["1", "2", "bad"] {
        publish(id);
    }
    until("results have no exchange", || {
        counted(&worker, "unroutable") == 3
    })
    .await;
    let dead = || sluicegate(&yaml, &["dead", "list", "--json"]).exited(0);
    until("the letter is there", || dead().out.lines().count() == 1).await;
    let missing = format!(
        "error rabbitmq  the exchange {exchange} does not exist: results are dropped (dispatch.results.exchange)"
    );
    let check = sluicegate(&yaml, &["check"]).exited(1);
    assert!(check.out.contains(&missing), "{}", check.out);

    let channel = channel().await;
    let (options, none) = (ExchangeDeclareOptions::default(), FieldTable::default());
    let kind = ExchangeKind::Direct;
    let declared = channel.exchange_declare(exchange.as_str().into(), kind, options, none);
    declared.await.expect("an exchange");
    let check = sluicegate(&yaml, &["check"]).exited(0);
    let there = format!("the exchange {exchange} exists");
    assert!(check.out.contains(&there), "{}", check.out);
    publish("3");
    until("nothing is bound", || counted(&worker, "unroutable") == 4).await;
    queue(&channel, &ends).await;
    let (options, none) = (QueueBindOptions::default(), FieldTable::default());
    let (to, from) = (ends.as_str().into(), exchange.as_str().into());
    let bound = channel.queue_bind(to, from, "ends".into(), options, none);
    bound.await.expect("it is bound");
    publish("4");
    // Without a correlation ID, the job's ID is used.
    let found = results(&channel, &ends, 1).await;
    assert_eq!(found["4"].0, "made 4");
    until("it is counted", || counted(&worker, "published") == 1).await;
    // Each was called once, so no session was lost.
    assert_eq!(api.count(), 5);
    worker.stop();
    let (options, name) = (Default::default(), exchange.as_str().into());
    channel.exchange_delete(name, options).await.expect("gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn publish_waits_for_the_answer() {
    let api = api().await;
    let work = unique("results");
    let yaml = yaml(&work, &api, "{to: reply-to, headers: [location]}");
    let wait = |more: &[&str]| {
        let args = [&["publish", "--tenant", "acme"][..], more].concat();
        tokio::task::block_in_place(|| sluicegate(&yaml, &args))
    };
    let late = wait(&["--id", "late", "--wait", "300ms"]).exited(1);
    assert!(
        late.err.contains("no result of late within 300ms"),
        "{late:?}"
    );
    assert!(late.err.contains("dispatch.results.to"), "{late:?}");
    let note = "note: dispatch.results.to is not reply-to in this configuration";
    assert!(!late.err.contains(note), "{late:?}");
    let nobody = yaml.replace("to: reply-to", "to: none");
    let args = [
        "publish", "--tenant", "acme", "--id", "nobody's", "--wait", "1ms",
    ];
    let done = tokio::task::block_in_place(|| sluicegate(&nobody, &args)).exited(1);
    assert!(done.err.starts_with(note), "{done:?}");
    let worker = PROGRAM.start(&yaml);
    let done = wait(&["--id", "7", "--wait", "120s"]).exited(0);
    assert_eq!(done.out, "made 7\n");
    let json = wait(&["--id", "8", "--wait", "120s", "--json"]).exited(0);
    let json = json.json();
    for (name, expected) in [
        ("id", "8"),
        ("result", "done"),
        ("body", "made 8"),
        ("encoding", "utf-8"),
        ("content_type", "text/plain"),
    ] {
        assert_eq!(json[name], expected, "{json}");
    }
    assert_eq!(json["status"], 201);
    assert_eq!(json["headers"]["location"], "/orders/7");
    let dead = wait(&["--id", "bad", "--wait", "120s"]).exited(1);
    assert_eq!(dead.out, "no such order\n");
    assert!(
        dead.err.contains("the job is dead: the API answered 422"),
        "{dead:?}"
    );
    worker.stop();
}
