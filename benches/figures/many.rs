//! Many tenants with two jobs each, one of which must wait: the complete path, with one worker and
//! with two.

use std::time::Duration;

use kit::process::Process;

use crate::Size;
use crate::bed::{Bed, Limit, check_calls, makespan};
use crate::counts::{self, Decisions, Work};
use crate::loops;
use crate::report::Report;
use crate::steps::Steps;

const WORKLOAD: &str = "many";
/// One job per tenant in each window. The bare loop delays the other jobs by the same time.
const LIMIT: Limit = Limit {
    algorithm: "sliding-window-algo",
    max_requests: 1,
    window: Duration::from_secs(2),
    guard: "auto",
};

/// Runs the loop, one worker and two workers in turns.
pub async fn many(size: Size, rounds: usize, report: &mut Report) {
    let tenants = size.of(10_000, 300);
    let steps = Steps::new(WORKLOAD, 3 * rounds);
    for round in 0..rounds {
        steps.begin(round, "the bare loop");
        let floor = floor(2 * tenants, report).await;
        steps.end();
        steps.begin(round, "one worker");
        let one = workers("one worker", 1, tenants, floor, report).await;
        steps.end();
        steps.begin(round, "two workers");
        let two = workers("two workers", 2, tenants, floor, report).await;
        let two = two.as_secs_f64() / one.as_secs_f64();
        report.add(WORKLOAD, "two workers", "makespan, to one worker's", two);
        steps.end();
    }
}

/// Creates a bed with two adjacent jobs per tenant.
async fn bed(jobs: usize) -> Bed {
    Bed::preloaded(jobs, |n| format!("tenant-{}", n / 2)).await
}

async fn floor(jobs: usize, report: &mut Report) -> Duration {
    let who = "bare loop";
    let bed = bed(jobs).await;
    let process = loops::finish("many", &bed, jobs).await;
    let calls = bed.api.calls().await;
    let took = makespan(&calls);
    report.add(WORKLOAD, who, "makespan, s", took.as_secs_f64());
    let cpu = process.cpu().as_secs_f64() * 1e6 / jobs as f64;
    report.add(WORKLOAD, who, "its CPU, us per job", cpu);
    drop(process);
    check_calls(&format!("{WORKLOAD}, {who}"), jobs, &calls, report);
    bed.end().await;
    took
}

async fn workers(
    name: &'static str,
    count: usize,
    tenants: usize,
    floor: Duration,
    report: &mut Report,
) -> Duration {
    let jobs = 2 * tenants;
    let bed = bed(jobs).await;
    let who = (WORKLOAD, name);
    let before = Work::read();
    let workers: Vec<Process> = (0..count).map(|_| bed.worker(LIMIT)).collect();
    bed.api.until_called(jobs).await;
    bed.until_acked(&workers, jobs).await;
    let cpu: Duration = workers.iter().map(Process::cpu).sum();
    let calls = bed.api.calls().await;
    let took = makespan(&calls);
    let mut add = |figure, value| report.add(WORKLOAD, name, figure, value);
    add("makespan, s", took.as_secs_f64());
    let ratio = took.as_secs_f64() / floor.as_secs_f64();
    add("makespan, to the loop's", ratio);
    add("its CPU, us per job", cpu.as_secs_f64() * 1e6 / jobs as f64);
    before.add(report, who, jobs);
    counts::add(report, who, &workers, jobs);
    // Each job must start, and one job of each tenant must be denied once.
    let needless = Decisions::read(&workers).all() - (jobs + tenants) as f64;
    let needless = needless / jobs as f64;
    report.add(WORKLOAD, name, "questions for nothing, per job", needless);
    LIMIT.add_above(report, who, &calls);
    workers.into_iter().for_each(Process::stop);
    bed.check(&format!("{WORKLOAD}, {name}"), jobs, &calls, report)
        .await;
    bed.end().await;
    took
}
