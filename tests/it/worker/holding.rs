//! A RabbitMQ that closes channels with deliveries that are unacked for less than a minute or two,
//! and workers that don't know about it.

use std::time::Duration;

use kit::api::{Api, Reply};
use kit::process::Process;
use kit::servers::{Rabbit, Redis, shared_redis};
use kit::{Bed, MS, SECOND, counts, jobs, until};

use crate::PROGRAM;

pub fn with_consumer_timeout(timeout: Duration) -> Rabbit {
    let timeout = format!("consumer_timeout = {}", timeout.as_millis());
    // RabbitMQ checks for old deliveries once a minute by default.
    Rabbit::start_with(&[
        &timeout,
        "advanced {rabbit, [{channel_tick_interval, 5000}]}",
    ])
}

/// Returns the number of lost sessions.
fn lost(worker: &Process) -> usize {
    worker.count(&["session lost"])
}

/// One slot and long calls: jobs that wait for it, or for their turns in delay queues, are released
/// before RabbitMQ takes them back.
#[tokio::test(flavor = "multi_thread")]
async fn waits_beyond_rabbitmqs_timeout_lose_no_session() {
    let rabbit = with_consumer_timeout(30 * SECOND);
    let api = Api::start().await;
    api.answers(|_| Reply::ok().after(600 * MS));
    let bed = Bed::on(rabbit.url(), shared_redis().url());
    let limits = "max-requests: 1000, window-size: 1s";
    let yaml = bed
        .yaml(limits, &api.url(), "")
        .replace("dispatch: {", "dispatch: {concurrency: 1, ");
    let worker = PROGRAM.start_consuming(&yaml).await;
    bed.publish(&yaml, jobs("acme", 120)).await;
    until("all calls", || api.count() >= 120).await;
    assert_eq!(lost(&worker), 0, "{}", worker.log().join("\n"));
    assert_eq!(counts::repeated(&api.calls()), 0);
    worker
        .logs(&["consumer_timeout is shorter", "timeout_ms=30000"])
        .await;
    worker.stop();
}

/// Redis lost its data: the jobs with the long window wait until it has passed, and those of
/// another tenant continue.
#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_wait_beyond_rabbitmqs_timeout_loses_no_session() {
    let (rabbit, redis) = (with_consumer_timeout(60 * SECOND), Redis::start());
    let api = Api::start().await;
    let bed = Bed::on(rabbit.url(), redis.url());
    let limits =
        "max-requests: 50, window-size: 10m, tenants: {quick: {max-requests: 5, window-size: 1s}}";
    let yaml = bed.yaml(limits, &api.url(), "");
    let worker = PROGRAM.start_consuming(&yaml).await;
    bed.publish(&yaml, jobs("slow", 10)).await;
    until("calls", || api.count() >= 10).await;
    redis.ctl(&["flushall"]);
    bed.publish(&yaml, jobs("other", 100)).await;
    bed.publish(&yaml, jobs("quick", 350)).await;
    until("the quick tenant's calls", || {
        counts::times(&api.calls(), "quick").len() >= 350
    })
    .await;
    assert_eq!(lost(&worker), 0, "{}", worker.log().join("\n"));
    assert_eq!(counts::repeated(&api.calls()), 0);
    assert!(counts::times(&api.calls(), "other").is_empty(), "they wait");
    worker.stop();
}
