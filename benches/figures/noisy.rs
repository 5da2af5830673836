//! A tenant with far more jobs than its limit, next to a quiet one: how fast the backlog is parked,
//! and how it affects the quiet tenant.

use std::pin::pin;
use std::time::{Duration, Instant};

use config::QueueType;
use kit::process::Process;
use tokio::time::{MissedTickBehavior, interval};

use crate::api::Call;
use crate::bare::{PATIENCE, now_ns};
use crate::bed::{Bed, CONCURRENCY, Limit, POLL, account, makespan};
use crate::counts::{self, Work};
use crate::report::Report;
use crate::steps::Steps;
use crate::{Size, rate};

const WORKLOAD: &str = "noisy";
/// The limit of each of the two tenants.
const LIMIT: Limit = Limit {
    algorithm: "sliding-window-algo",
    max_requests: 50,
    window: Duration::from_secs(1),
    guard: "auto",
};
const NOISY: &str = "noisy";
const QUIET: &str = "quiet";
/// Number of jobs of the noisy tenant in a burst, and the time between bursts: 2,000 jobs per
/// second.
const BURST: usize = 50;
const EVERY: Duration = Duration::from_millis(25);
/// Time between jobs of the quiet tenant.
const PAUSE: Duration = Duration::from_millis(200);
/// The number of noisy jobs, and how long the quiet tenant is watched afterwards.
#[derive(Clone, Copy)]
struct Load {
    jobs: usize,
    after: Duration,
}

/// Measures quorum and classic queues with one worker and with two. A round takes two minutes, so
/// there are half as many rounds as in other workloads.
pub async fn noisy(size: Size, rounds: usize, report: &mut Report) {
    let load = Load {
        jobs: size.of(20_000, 1_000),
        after: Duration::from_secs(size.of(5, 1) as u64),
    };
    let rounds = (rounds / 2).max(1);
    let steps = Steps::new(WORKLOAD, 10 * rounds);
    for round in 0..rounds {
        for (kind, queue_type) in [
            ("quorum", QueueType::Quorum),
            ("classic", QueueType::Classic),
        ] {
            let who = format!("bare loop, {kind}");
            steps.begin(round, &who);
            let floor = floor(&who, queue_type, load, report).await;
            steps.end();
            for (name, count) in [("one worker", 1), ("two workers", 2)] {
                let who = format!("{name}, {kind}");
                steps.begin(round, &format!("{who}, a backlog"));
                backlog((&who, queue_type, count), load, floor, report).await;
                steps.end();
                steps.begin(round, &format!("{who}, a flood"));
                flood((&who, queue_type, count), load, report).await;
                steps.end();
            }
        }
    }
}

/// Moves all jobs to another queue, as a baseline.
async fn floor(who: &str, queue_type: QueueType, load: Load, report: &mut Report) -> f64 {
    let bed = Bed::empty(queue_type).await;
    bed.bare.publish(load.jobs, |_| NOISY.to_owned()).await;
    let before = Work::read();
    let rate = rate(load.jobs, bed.bare.park_all(load.jobs).await);
    before.add(report, (WORKLOAD, who), load.jobs);
    report.add(WORKLOAD, who, "parked jobs/s", rate);
    bed.end().await;
    rate
}

/// The workers: a name, the type of the queues, and the number of workers.
type TenantRole<'a> = (&'a str, QueueType, usize);

/// Measures how fast a backlog of published jobs is parked.
async fn backlog(
    (who, queue_type, count): TenantRole<'_>,
    load: Load,
    floor: f64,
    report: &mut Report,
) {
    let bed = Bed::empty(queue_type).await;
    bed.bare.publish(load.jobs, |_| NOISY.to_owned()).await;
    let before = Work::read();
    let workers = start(&bed, count);
    let parked_ns = until_parked(&workers, load.jobs).await;
    before.add(report, (WORKLOAD, who), load.jobs);
    let calls = bed.api.calls().await;
    // The first job is called at once. The startup time is another figure.
    if let (Some(first), Some(parked_ns)) = (calls.first(), parked_ns) {
        let took = Duration::from_nanos(parked_ns.saturating_sub(first.at_ns));
        let rate = rate(load.jobs, took);
        report.add(WORKLOAD, who, "parked jobs/s", rate);
        report.add(WORKLOAD, who, "parked jobs/s, to the loop's", rate / floor);
    } else {
        eprintln!("{WORKLOAD}, {who}: not parked within {PATIENCE:?}");
    }
    let deliveries = counts::deliveries(|series| counts::sum(&workers, series));
    let each = deliveries / load.jobs as f64;
    report.add(WORKLOAD, who, "deliveries per parked job", each);
    workers.into_iter().for_each(Process::stop);
    let calls = bed.api.calls().await;
    let what = format!("{WORKLOAD}, {who}, a backlog");
    let jobs = calls.iter().map(|call| &*call.job);
    account(&what, &bed.bare, load.jobs, jobs, report).await;
    bed.end().await;
}

/// Publishes the jobs of both tenants while the workers run.
async fn flood((who, queue_type, count): TenantRole<'_>, load: Load, report: &mut Report) {
    let bed = Bed::empty(queue_type).await;
    let workers = start(&bed, count);
    for worker in &workers {
        worker.logs(&["RabbitMQ: consuming"]).await;
    }
    let PublishedJobs {
        took,
        parked_ns,
        quiet,
    } = both(&bed, &workers, load).await;
    let calls = until_quiet(&bed, quiet).await;
    let mut add = |figure, value| report.add(WORKLOAD, who, figure, value);
    add("published jobs/s", rate(load.jobs, took));
    let parked_ns = parked_ns.unwrap_or(u64::MAX);
    let (during, after): (Vec<_>, Vec<_>) = (calls.iter())
        .filter(|call| call.tenant == QUIET)
        .partition(|call| call.sent_ns < parked_ns);
    for (figures, calls) in [
        (
            ["quiet p50 meanwhile, ms", "quiet p99 meanwhile, ms"],
            during,
        ),
        (
            ["quiet p50 afterwards, ms", "quiet p99 afterwards, ms"],
            after,
        ),
    ] {
        let mut latencies: Vec<_> = calls.iter().map(|call| latency_ms(call)).collect();
        latencies.sort_by(f64::total_cmp);
        for (figure, share) in figures.into_iter().zip([0.5, 0.99]) {
            let at = (latencies.len() as f64 * share) as usize;
            if let Some(latency) = latencies.get(at) {
                add(figure, *latency);
            }
        }
    }
    let noisy: Vec<_> = calls
        .iter()
        .filter(|call| call.tenant == NOISY)
        .cloned()
        .collect();
    add("noisy calls/s", rate(noisy.len(), makespan(&noisy)));
    LIMIT.add_above(report, (WORKLOAD, who), &calls);
    workers.into_iter().for_each(Process::stop);
    let calls = bed.api.calls().await;
    let what = format!("{WORKLOAD}, {who}, a flood");
    let jobs = calls.iter().map(|call| &*call.job);
    account(&what, &bed.bare, load.jobs + quiet, jobs, report).await;
    bed.end().await;
}

/// The published jobs.
struct PublishedJobs {
    /// How long publishing took.
    took: Duration,
    /// When all noisy jobs were parked, in nanoseconds since the Unix epoch, or `None` if that took
    /// too long.
    parked_ns: Option<u64>,
    /// The number of the quiet tenant's jobs.
    quiet: usize,
}

/// Publishes the noisy tenant's jobs, and the quiet tenant's until a while after those were parked.
async fn both(bed: &Bed, workers: &[Process], load: Load) -> PublishedJobs {
    let noisy = async {
        let started = Instant::now();
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for burst in 0..load.jobs / BURST {
            ticks.tick().await;
            let job = |n: usize| ((burst * BURST + n).to_string(), NOISY.to_owned(), body());
            bed.bare.publish_jobs(BURST, job).await;
        }
        let took = started.elapsed();
        let parked_ns = until_parked(workers, load.jobs).await;
        tokio::time::sleep(load.after).await;
        (took, parked_ns)
    };
    let mut noisy = pin!(noisy);
    let mut pauses = interval(PAUSE);
    let mut quiet = 0;
    loop {
        tokio::select! {
            (took, parked_ns) = &mut noisy => return PublishedJobs { took, parked_ns, quiet },
            _ = pauses.tick() => {
                let job = |_| (format!("{QUIET}-{quiet}"), QUIET.to_owned(), body());
                bed.bare.publish_jobs(1, job).await;
                quiet += 1;
            }
        }
    }
}

fn body() -> [u8; 16] {
    now_ns().to_be_bytes()
}

fn latency_ms(call: &Call) -> f64 {
    call.at_ns.saturating_sub(call.sent_ns) as f64 / 1e6
}

fn start(bed: &Bed, count: usize) -> Vec<Process> {
    (0..count).map(|_| bed.worker(LIMIT)).collect()
}

/// Waits until this many jobs were taken and are waiting or called. Returns the time in nanoseconds
/// since the Unix epoch, or `None` if it takes too long.
async fn until_parked(workers: &[Process], jobs: usize) -> Option<u64> {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        let of = |series: &str| counts::sum(workers, series);
        let fresh = of("sluicegate_deliveries_total{queue=\"new\"}");
        // Some of the waiting jobs are always about to be decided on again.
        if fresh >= jobs as f64 && counts::moving(of) <= CONCURRENCY as f64 {
            return u64::try_from(now_ns()).ok();
        }
        tokio::time::sleep(POLL).await;
    }
    None
}

/// Returns all calls, once the quiet tenant's jobs were all called.
async fn until_quiet(bed: &Bed, jobs: usize) -> Vec<Call> {
    let started = Instant::now();
    loop {
        let calls = bed.api.calls().await;
        let quiet = calls.iter().filter(|call| call.tenant == QUIET).count();
        if quiet >= jobs || started.elapsed() > PATIENCE {
            return calls;
        }
        tokio::time::sleep(POLL).await;
    }
}
