//! An API stands still for longer than `timeout` and then reads the requests in its kernel's
//! buffers. Calls that the worker gave up count as in flight until they have ended.

use kit::api::{Api, Call, Reply};
use kit::process::DONE;
use kit::{Bed, MS, SECOND, counts, jobs, until};

use crate::PROGRAM;

const JOBS: usize = 8;

/// Runs jobs while the API stands still for several timeouts and then resumes. Returns all calls
/// that arrived.
async fn calls_of_an_api_that_stands_still(limits: &str) -> Vec<Call> {
    let api = Api::start().await;
    api.answers(|_| Reply::ok().after(50 * MS));
    api.stand_still(true);
    let bed = Bed::shared();
    let retry = "retry: {initial-interval: 100ms, max-interval: 100ms, max-attempts: 100}\n";
    let yaml = bed.yaml(limits, &api.url(), ", timeout: 1s") + retry;
    bed.publish(&yaml, jobs("acme", JOBS)).await;
    let worker = PROGRAM.start(&yaml);
    let retried = "sluicegate_dispatches_total{outcome=\"retry\"}";
    until("calls that are given up", || {
        worker.metric(retried) >= Some(2.0)
    })
    .await;
    // If abandoned calls were not counted, two more would be sent after each timeout and lie there,
    // too.
    tokio::time::sleep(6 * SECOND).await;
    let waiting = "sluicegate_abandoned_calls";
    println!(
        "{retried} {:?}, {waiting} {:?}",
        worker.metric(retried),
        worker.metric(waiting)
    );
    assert_eq!(api.count(), 0, "it stands still");
    api.stand_still(false);
    until("all jobs", || worker.metric(DONE) == Some(JOBS as f64)).await;
    worker.stop();
    api.calls()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strict_window_counts_abandoned_calls() {
    let limits = "max-requests: 2, window-size: 1s, guard: strict";
    let calls = calls_of_an_api_that_stands_still(limits).await;
    let (fullest, early) = counts::windows(&counts::times(&calls, "acme"), 2, SECOND);
    assert_eq!(early, 0, "a window had {fullest} of 2");
}

#[tokio::test(flavor = "multi_thread")]
async fn max_concurrent_counts_abandoned_calls() {
    let limits = "limits: [{name: running, max-concurrent: 2}]";
    let calls = calls_of_an_api_that_stands_still(limits).await;
    let max = counts::at_once(&calls);
    assert!(max <= 2, "{max} of 2 at once");
}
