//! Waiting jobs notice at once what an operator or a changed file has changed, including those in
//! delay queues, and the waitlist counts all of them in the meantime.

use std::cell::Cell;

use kit::api::Api;
use kit::process::{Process, sum};
use kit::{Bed, MS, SECOND, Says, counts, jobs, until};
use serde_json::Value;
use tempfile::NamedTempFile;
use tokio::time::Instant;

use crate::PROGRAM;
use crate::cli::{CommandResult, sluicegate};

/// More than fit into the windows of all delay queues.
const JOBS: usize = 400;

struct Waiting {
    yaml: String,
    api: Api,
    workers: [Process; 2],
}

impl Waiting {
    async fn under(limits: &str) -> Self {
        let (bed, api) = (Bed::shared(), Api::start().await);
        let yaml = bed
            .yaml(limits, &api.url(), "")
            .replace("amqp: {", "amqp: {prefetch: 40, ")
            .replace("dispatch: {", "dispatch: {concurrency: 10, ");
        let workers = [(); 2].map(|()| PROGRAM.start(&yaml));
        for worker in &workers {
            worker.logs(&["admin.listen="]).await;
        }
        let waiting = Self { yaml, api, workers };
        waiting.runs(&["tenant", "pause", "acme", "--for", "2h"]);
        bed.publish(&waiting.yaml, jobs("acme", JOBS)).await;
        until("a line of all", || waiting.line() == JOBS as u64).await;
        until("all are on their way or in delay queues", || {
            sum(&waiting.workers, "sluicegate_in_memory") < JOBS as f64
        })
        .await;
        assert_eq!(waiting.api.count(), 0);
        waiting
    }

    fn runs(&self, args: &[&str]) -> CommandResult {
        tokio::task::block_in_place(|| sluicegate(&self.yaml, args)).exited(0)
    }

    fn line(&self) -> u64 {
        let found: Value = self.runs(&["inspect", "acme", "--json"]).json();
        found["waiting"].as_u64().expect("a number")
    }

    /// Waits until all jobs are called, which would happen only minutes later by itself. Returns
    /// the smallest error of the waitlist while some of them were called.
    async fn all_are_called(&self) -> usize {
        let off = Cell::new(JOBS);
        until("all calls", || {
            let (before, line) = (self.api.count(), self.line() as usize);
            if (JOBS / 4..JOBS * 3 / 4).contains(&before) {
                off.set(off.get().min((JOBS - before).abs_diff(line)));
            }
            before == JOBS
        })
        .await;
        off.get()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_tenants_jobs_start_at_once_and_all_are_in_its_waitlist() {
    let waiting = Waiting::under("max-requests: 20, window-size: 1s, guard: 100ms").await;
    let out = waiting.runs(&["tenant", "resume", "acme"]).out;
    out.says("waiting jobs ask again within seconds");
    let off = waiting.all_are_called().await;
    assert!(off <= JOBS / 10, "{off}");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_all_resumed_tenants_start_at_once_and_raised_limits_apply_at_once() {
    let waiting = Waiting::under("max-requests: 100, window-size: 1h, guard: 100ms").await;
    waiting.runs(&["tenant", "resume", "acme"]);
    until("what the limit allows", || waiting.api.count() == 100).await;
    tokio::time::sleep(1_000 * MS).await;
    waiting.runs(&["tenant", "limit", "acme", "300", "--for", "1h"]);
    until("what the raised limit allows", || {
        waiting.api.count() == 300
    })
    .await;
    waiting.runs(&["tenant", "limit", "acme", "1000", "--for", "1h"]);
    waiting.all_are_called().await;
}

/// Workers that read one file, and jobs that wait under its limit of 10 per 2 s.
struct FileWorkers {
    bed: Bed,
    api: Api,
    file: NamedTempFile,
}

/// Number of jobs: two minutes with 10 per 2 s, and half a minute with 40.
const FILED: usize = 600;

impl FileWorkers {
    /// Returns a configuration with a limit of `max` per 2 s.
    fn yaml(bed: &Bed, api: &Api, max: usize) -> String {
        let limits = format!("max-requests: {max}, window-size: 2s");
        bed.yaml(&limits, &api.url(), "")
    }

    async fn new() -> Self {
        let bed = Bed::shared();
        let api = Api::start().await;
        let file = NamedTempFile::with_suffix(".yaml").expect("a file");
        let filed = Self { bed, api, file };
        filed.allow(10);
        filed
    }

    fn allow(&self, max: usize) {
        let yaml = Self::yaml(&self.bed, &self.api, max);
        std::fs::write(self.file.path(), yaml).expect("written");
    }

    async fn worker(&self) -> Process {
        let worker = PROGRAM.start_with(self.file.path());
        worker.logs(&["RabbitMQ: consuming"]).await;
        worker
    }

    /// Waits until all jobs wait for their turns, most of them in delay queues.
    async fn jobs_wait(&self, workers: &[Process]) {
        let yaml = Self::yaml(&self.bed, &self.api, 10);
        self.bed.publish(&yaml, jobs("acme", FILED)).await;
        until("some calls, and the others wait", || {
            let denied = sum(workers, "sluicegate_decisions_total{answer=\"wait\"}");
            self.api.count() >= 25 && denied >= 500.0
        })
        .await;
    }

    /// Waits until most of the other jobs are called. Checks that this takes far less time than by
    /// the old limit, which is 80 s for the calls that take 20 s by the new one.
    async fn most_are_called_soon(&self) {
        const MOST: usize = 400;
        let (changed, before) = (Instant::now(), self.api.count());
        until("most calls", || self.api.count() >= before + MOST).await;
        let took = changed.elapsed();
        let calls = self.api.calls();
        let arrivals = counts::arrivals(&calls, "acme");
        let (fullest, _) = counts::windows(&arrivals, 40, 2 * SECOND);
        println!("{MOST} calls in {took:?}, {fullest} in the fullest window");
        assert!(fullest <= 40, "{fullest}");
        assert!(took < 45 * SECOND, "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_is_raised_in_the_file_is_used_by_waiting_jobs_at_once() {
    let filed = FileWorkers::new().await;
    let workers = [filed.worker().await, filed.worker().await];
    filed.jobs_wait(&workers).await;
    filed.allow(40);
    filed.most_are_called_soon().await;
    until("all calls", || filed.api.count() == FILED).await;
    assert_eq!(counts::repeated(&filed.api.calls()), 0);
    let deliveries = |queue: &str| {
        let series = format!("sluicegate_deliveries_total{{queue=\"{queue}\"}}");
        sum(&workers, &series)
    };
    let all: f64 = ["new", "due", "recheck", "delay"]
        .map(deliveries)
        .iter()
        .sum();
    println!("{:.2} deliveries of a job", all / FILED as f64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_raised_while_no_worker_ran_is_used_at_once() {
    let filed = FileWorkers::new().await;
    let worker = filed.worker().await;
    filed.jobs_wait(std::slice::from_ref(&worker)).await;
    worker.stop();
    filed.allow(40);
    // The worker's former policy is no longer known by then.
    tokio::time::sleep(14 * SECOND).await;
    let _worker = filed.worker().await;
    filed.most_are_called_soon().await;
}
