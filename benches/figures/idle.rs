//! A worker without jobs: its startup time, its resource usage, its shutdown time and the program's
//! size.

use std::time::{Duration, Instant};

use config::QueueType;
use kit::process::Process;
use rustix::process::Signal;

use crate::PROGRAM;
use crate::bare::now_ns;
use crate::bed::{Bed, Limit};
use crate::report::Report;
use crate::steps::Steps;

const WORKLOAD: &str = "idle";
const WHO: &str = "a worker";
/// The default limit.
const LIMIT: Limit = Limit {
    algorithm: "sliding-window-algo",
    max_requests: 5,
    window: Duration::from_secs(60),
    guard: "auto",
};
/// Time until the work after startup is done.
const SETTLED: Duration = Duration::from_secs(2);

/// Measures a start without queues, and another with them.
pub async fn idle(rounds: usize, report: &mut Report) {
    let program = std::fs::metadata(PROGRAM.0).expect("cargo has built it");
    report.add(WORKLOAD, WHO, "program, MB", program.len() as f64 / 1e6);
    let steps = Steps::new(WORKLOAD, 2 * rounds);
    for round in 0..rounds {
        let bed = Bed::empty(QueueType::Quorum).await;
        bed.bare.remove().await;
        steps.begin(round, "without queues");
        one("exec to consuming, without queues, ms", &bed, report).await;
        steps.end();
        steps.begin(round, "with queues");
        one("exec to consuming, with queues, ms", &bed, report).await;
        first_call(&bed, report).await;
        steps.end();
        bed.end().await;
    }
}

/// Measures a worker from start to end.
async fn one(start: &'static str, bed: &Bed, report: &mut Report) {
    let mut add = |figure, value| report.add(WORKLOAD, WHO, figure, value);
    let started = Instant::now();
    let mut worker = bed.worker(LIMIT);
    worker.logs(&["RabbitMQ: consuming"]).await;
    add(start, started.elapsed().as_secs_f64() * 1e3);
    tokio::time::sleep(SETTLED).await;
    add("resident, MB", worker.resident_kb() as f64 / 1e3);
    add("at most resident, MB", worker.peak_kb() as f64 / 1e3);
    let asked = Instant::now();
    worker.signal(Signal::TERM);
    let status = worker.ended();
    add(
        "SIGTERM to its end, ms",
        asked.elapsed().as_secs_f64() * 1e3,
    );
    if !status.success() {
        report.mistake(format!("{WORKLOAD}: the worker ended with {status}"));
    }
}

/// Measures the time from a start to the call of a waiting job.
async fn first_call(bed: &Bed, report: &mut Report) {
    bed.bare.publish(1, |_| "tenant".to_owned()).await;
    let begun_ns = now_ns();
    let worker = bed.worker(LIMIT);
    bed.api.until_called(1).await;
    let calls = bed.api.calls().await;
    let took = calls.first().map(|call| u128::from(call.at_ns) - begun_ns);
    if let Some(ns) = took {
        report.add(WORKLOAD, WHO, "exec to the first call, ms", ns as f64 / 1e6);
    }
    let workers = [worker];
    bed.until_acked(&workers, 1).await;
    workers.into_iter().for_each(Process::stop);
    bed.check(WORKLOAD, 1, &calls, report).await;
}
