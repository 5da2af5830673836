//! A 429 for a partition that all tenants share suspends all of them, in all workers, until its
//! time is over or an operator resumes them.

use kit::api::{Api, Reply};
use kit::process::{DONE, Process, sum};
use kit::{Bed, MS, SECOND, Says, job, jobs, until};

use crate::PROGRAM;
use crate::cli::sluicegate;

fn calls_in_flight(worker: &Process) -> f64 {
    // An unknown scope may be one.
    worker.metric("sluicegate_calls_in_flight").unwrap_or(1.0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_429_for_a_shared_partition_stops_all_tenants() {
    let api = Api::start().await;
    let bed = Bed::shared();
    // The limit denies no job.
    let limits = "scope: global, max-requests: 100000, window-size: 60s, guard: 20s";
    let yaml = bed.yaml(limits, &api.url(), "");
    // Answers 429 to the sixth call and to calls in flight with it, for longer than the test lasts:
    // an operator ends it.
    let started = std::sync::Mutex::new(0);
    api.answers(move |_| {
        let mut calls = started.lock().expect("no panic");
        *calls += 1;
        match *calls {
            6.. => Reply::status(429)
                .header("retry-after", "1800")
                .after(10 * MS),
            _ => Reply::ok(),
        }
    });
    let one = || PROGRAM.start_consuming(&yaml);
    let workers = [one().await, one().await];
    let all = (0..5).flat_map(|tenant| jobs(&format!("t{tenant}"), 400).collect::<Vec<_>>());
    bed.publish(&yaml, all).await;
    // Each worker learns of it from the API or from Redis.
    for worker in &workers {
        worker.logs(&["all tenants"]).await;
    }
    let in_flight = || workers.iter().map(calls_in_flight).sum::<f64>();
    until("the end of calls in flight", || in_flight() == 0.0).await;
    // Calls that were admitted before may still begin.
    tokio::time::sleep(2 * SECOND).await;
    until("the end of these calls", || in_flight() == 0.0).await;
    let before = api.count();
    bed.publish(&yaml, [job("nobody-knows-it-yet", "new")])
        .await;
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(api.count(), before, "no tenant's call");
    let shown = sluicegate(&yaml, &["inspect", "t0"]).exited(0);
    shown.out.says("why       all tenants are suspended (");
    // A new worker reads the state from Redis before its first call.
    let third = PROGRAM.start(&yaml);
    third.logs(&["all tenants are suspended"]).await;
    assert_eq!(api.count(), before, "no tenant's call");

    api.answers(|_| Reply::ok());
    let done = sluicegate(&yaml, &["tenant", "resume", "--all"]).exited(0);
    done.out.says("all tenants");
    let workers = workers.into_iter().chain([third]).collect::<Vec<_>>();
    until("all jobs", || sum(&workers, DONE) >= 2001.0).await;
    workers.into_iter().for_each(Process::stop);
    assert!(bed.dead(&yaml).await.is_empty());
}
