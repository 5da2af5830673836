//! A 429 for a budget that all tenants share closes all of them, in all workers.

use super::kit::api::{Api, Reply};
use super::kit::{Bed, MS, SECOND, jobs, until};
use crate::process::Process;
use crate::servers::{shared_rabbit, shared_redis};

#[tokio::test(flavor = "multi_thread")]
async fn a_429_for_a_shared_budget_closes_all_tenants() {
    let api = Api::start().await;
    let bed = Bed::on(shared_rabbit().url(), shared_redis().url());
    let limits = "scope: global, max-requests: 1000, window-size: 60s, guard: 20s";
    let yaml = bed.yaml(limits, &api.url(), "");
    // The sixth call, and whatever was under way beside it.
    let begun = std::sync::Mutex::new(0);
    api.answers(move |_| {
        let mut calls = begun.lock().expect("nobody panics");
        *calls += 1;
        match *calls {
            6.. => Reply::status(429)
                .header("retry-after", "20")
                .after(10 * MS),
            _ => Reply::ok(),
        }
    });
    let workers = [Process::start(&yaml), Process::start(&yaml)];
    for worker in &workers {
        worker.says(&["RabbitMQ: consuming"]).await;
    }
    let all = (0..5).flat_map(|tenant| jobs(&format!("t{tenant}"), 40).collect::<Vec<_>>());
    bed.publish(&yaml, all).await;
    until("a refusal", || api.count() >= 6).await;
    // Another worker looks each second; what it started until then ends.
    tokio::time::sleep(2 * SECOND).await;
    let before = api.count();
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(api.count(), before, "no tenant's call");
    api.answers(|_| Reply::ok());
    let done = "sluicegate_dispatches_total{outcome=\"done\"}";
    let sum = || {
        workers
            .iter()
            .filter_map(|worker| worker.metric(done))
            .sum::<f64>()
    };
    until("all jobs", || sum() >= 200.0).await;
    workers.into_iter().for_each(Process::stop);
    assert!(bed.dead(&yaml).await.is_empty());
}
