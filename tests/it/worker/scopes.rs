//! A worker on real servers with the tenant in the routing key.

use std::collections::BTreeMap;

use kit::until;
use lapin::options::{BasicPublishOptions, QueueBindOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel};

use crate::broker::bed::channel;
use crate::cli::servers::{config, yaml};
use crate::cli::sluicegate;
use crate::worker::running::{Calls, Running};

/// Returns a channel on which the work queue is bound to `amq.topic` with each of `keys`.
async fn bound(yaml: &str, keys: &[String]) -> Channel {
    kit::client(yaml).await.close().await;
    let channel = channel().await;
    let config = config(yaml);
    let queue = config.amqp.queue.as_str();
    for key in keys {
        let (options, none) = (QueueBindOptions::default(), FieldTable::default());
        let binding = channel.queue_bind(
            queue.into(),
            "amq.topic".into(),
            key.as_str().into(),
            options,
            none,
        );
        binding.await.expect("it is bound");
    }
    channel
}

async fn publish(channel: &Channel, key: &str, body: &str) {
    let publishing = channel.basic_publish(
        "amq.topic".into(),
        key.into(),
        BasicPublishOptions::default(),
        body.as_bytes(),
        BasicProperties::default(),
    );
    publishing.await.expect("it is sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waited_keeps_its_routing_key() {
    let rate = "rate-limiter: {max-requests: 1, window-size: 300ms}";
    let job = "job: {tenant: routing-key}\n";
    let yaml = yaml()
        .replace("rate-limiter: {max-requests: 5, window-size: 1h}", rate)
        .replace("max-delay: 1s", "max-delay: 1s, max-in-memory: 0");
    let yaml = format!("{yaml}{job}");
    let queue = config(&yaml).amqp.queue;
    let keys = ["acme", "globex"].map(|tenant| format!("{queue}.{tenant}"));
    let channel = bound(&yaml, &keys).await;
    for key in keys.iter().cycle().take(6) {
        publish(&channel, key, "x").await;
    }
    let calls = Calls::default();
    let worker = Running::configured(&yaml, calls.clone());
    calls.are(6).await;
    worker.stop().await;
    let expected = keys.map(|key| (format!("{key} x"), 3));
    assert_eq!(calls.by_body(), BTreeMap::from(expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_routing_key_has_a_quota_and_all_tenants_share_one() {
    let limits = "rate-limiter: {window-size: 1h, limits: [{name: all, max-requests: 5, scope: global}, {name: key, max-requests: 2, scope: routing-key}]}";
    let yaml = yaml().replace("rate-limiter: {max-requests: 5, window-size: 1h}", limits);
    let yaml = format!("{yaml}job: {{tenant: json:/t}}\n");
    let queue = config(&yaml).amqp.queue;
    let keys = ["a", "b"].map(|key| format!("{queue}.{key}"));
    let channel = bound(&yaml, &keys).await;
    let calls = Calls::default();
    let worker = Running::configured(&yaml, calls.clone());
    let inspect = |tenant: &str, key: &str| {
        let args = ["inspect", tenant, "--routing-key", key, "--json"];
        sluicegate(&yaml, &args).exited(0).json()
    };
    // One key after the other, so that each is at its limit before the next.
    let steps = [("x", 0, 2), ("x", 1, 4), ("y", 0, 5)];
    for (tenant, key, started) in steps {
        for _ in 0..4 {
            publish(&channel, &keys[key], &format!("{{\"t\":\"{tenant}\"}}")).await;
        }
        calls.are(started).await;
        let waiting = 4 - if tenant == "x" { 2 } else { 1 };
        // Redis may answer late on a busy machine. A job then asks for another ticket, and the
        // waitlist counts both.
        until(&format!("{waiting} waiting"), || {
            let found = inspect(tenant, &keys[key])["waiting"].as_u64();
            found.is_some_and(|found| (waiting..=2 * waiting).contains(&found))
        })
        .await;
    }
    let found = inspect("y", &keys[0]);
    assert_eq!(found["waits_for"], "limit all");
    let used = |limit: usize| found["limits"][limit]["used"].as_u64();
    assert_eq!((used(0), used(1)), (Some(5), Some(1)));
    let found = inspect("x", &keys[1]);
    assert_eq!(found["limits"][1]["used"], 2);
    worker.stop().await;
    let counts = calls.by_body();
    let expected = [("x {\"t\":\"x\"}", 4), ("y {\"t\":\"y\"}", 1)];
    let expected = expected.map(|(name, count)| (name.to_owned(), count));
    assert_eq!(counts, BTreeMap::from(expected));
}
