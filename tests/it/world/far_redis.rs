//! Redis is far away. Jobs flow, the limit holds, and the worker logs the cost of the distance.

use std::time::Duration;

use kit::api::Api;
use kit::process::sum;
use kit::proxy::{Proxy, Transfers};
use kit::servers::{shared_rabbit, shared_redis};
use kit::{Bed, MS, SECOND, counts, jobs, until};

use crate::PROGRAM;
use crate::cli::sluicegate;

const JOBS: usize = 30;

/// Runs all jobs with two workers and returns the fullest window at the API.
async fn run(round_trip: Duration, guard: &str) -> usize {
    let api = Api::start().await;
    let far = Transfers::round_trip(round_trip);
    let (_way, redis) = Proxy::before(shared_redis().url(), far, 1).await;
    let bed = Bed::on(shared_rabbit().url(), &redis);
    let limits = format!("max-requests: 10, window-size: 5s, guard: {guard}");
    let yaml = bed.yaml(&limits, &api.url_at(api.door.address), "");
    let one = || PROGRAM.start_consuming(&yaml);
    let workers = [one().await, one().await];
    bed.publish(&yaml, jobs("acme", JOBS)).await;
    until("all jobs", || api.count() >= JOBS).await;
    for worker in &workers {
        worker
            .logs(&["Redis's latency is high", "round_trip_ms="])
            .await;
        let base = worker.metric("sluicegate_gate_base_seconds");
        assert!(base >= Some(round_trip.as_secs_f64() * 0.5), "{base:?}");
        assert_eq!(worker.count(&["all permits expire"]), 0);
    }
    let checked = sluicegate(&yaml, &["check"]).exited(0).out;
    assert!(checked.contains("a round trip takes"), "{checked}");
    let found = sluicegate(&yaml, &["inspect", "acme"]).exited(0).out;
    assert!(found.contains("redis     a round trip takes"), "{found}");
    let calls = api.calls();
    assert_eq!(counts::repeated(&calls), 0);
    let (fullest, early) = counts::windows(&counts::arrivals(&calls, "acme"), 10, 5 * SECOND);
    let late = sum(&workers, "sluicegate_expired_permits_total");
    println!(
        "{round_trip:?}, guard {guard}: fullest {fullest}, {early} too early, {late} permits late"
    );
    for worker in workers {
        worker.stop();
    }
    fullest
}

/// Half of the guard (1 s) is shorter than the round trip (1.2 s). While a permit's age counted
/// from its question, no job could start.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_flow_and_the_limit_holds_with_redis_far_away() {
    assert!(run(1_200 * MS, "2s").await <= 10);
}
