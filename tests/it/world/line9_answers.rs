//! What answers mean: a 403 with Retry-After closes its tenant, others are tried again or are what the configuration says.

use std::sync::atomic::{AtomicBool, Ordering};

use super::kit::api::{Api, Reply};
use super::kit::{Bed, SECOND, job, jobs, until};
use crate::process::Process;
use crate::servers::{shared_rabbit, shared_redis};

#[tokio::test(flavor = "multi_thread")]
async fn answers_mean_what_they_say_and_what_is_configured() {
    let api = Api::start().await;
    let refused = AtomicBool::new(false);
    api.answers(move |call| match call.tenant.as_str() {
        // GitHub's secondary rate limit, once.
        "limited" if !refused.swap(true, Ordering::SeqCst) => {
            Reply::status(403).header("retry-after", "3")
        }
        "locked" if call.attempt == 1 => Reply::status(423),
        "conflict" if call.attempt == 1 => Reply::status(409),
        "gone" => Reply::status(410),
        "forbidden" => Reply::status(403),
        _ => Reply::ok(),
    });
    let bed = Bed::on(shared_rabbit().url(), shared_redis().url());
    let answers = ", answers: {409: retry, 410: done}";
    let limits = "max-requests: 50, window-size: 1s";
    let yaml = bed.yaml(limits, &api.url(), answers) + "retry: {initial-interval: 100ms}\n";
    let worker = Process::start(&yaml);
    worker.says(&["RabbitMQ: consuming"]).await;
    bed.publish(&yaml, [job("limited", "first")]).await;
    worker.says(&["closed this tenant", "limited"]).await;
    let others = ["locked", "conflict", "gone", "forbidden"];
    let others = others.map(|tenant| job(tenant, tenant));
    bed.publish(&yaml, jobs("limited", 5).chain(others)).await;
    let done = "sluicegate_dispatches_total{outcome=\"done\"}";
    until("all jobs", || worker.metric(done) == Some(9.0)).await;
    worker.says(&["dead letter", "forbidden"]).await;
    worker.stop();
    let calls = api.calls();
    let limited = calls.iter().filter(|call| call.tenant == "limited");
    let limited: Vec<_> = limited.collect();
    assert_eq!(limited.len(), 7, "one was refused");
    assert!(limited.iter().all(|call| call.attempt == 1), "it waited");
    assert!(limited[1].at - limited[0].at >= 3 * SECOND, "it was closed");
    let dead = bed.dead(&yaml).await;
    let ids: Vec<_> = dead.iter().filter_map(|letter| letter.id()).collect();
    assert_eq!(ids, ["forbidden"]);
}
