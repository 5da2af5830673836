//! Jobs that wait see at once what an operator has changed, those in delay queues as well, and the waitlist counts all of them meanwhile.

use std::cell::Cell;

use kit::api::Api;
use kit::process::Process;
use kit::servers::{shared_rabbit, shared_redis};
use kit::{Bed, MS, jobs, until};
use serde_json::Value;

use crate::PROGRAM;
use crate::cli::{Done, sluicegate};

/// More than the windows of all delay queues have room for.
const JOBS: usize = 400;

struct Waiting {
    yaml: String,
    api: Api,
    workers: [Process; 2],
}

impl Waiting {
    async fn under(limits: &str) -> Self {
        let (bed, api) = (
            Bed::on(shared_rabbit().url(), shared_redis().url()),
            Api::start().await,
        );
        let yaml = bed
            .yaml(limits, &api.url(), "")
            .replace("amqp: {", "amqp: {prefetch: 40, ")
            .replace("dispatch: {", "dispatch: {concurrency: 10, ");
        let workers = [(); 2].map(|()| PROGRAM.start(&yaml));
        for worker in &workers {
            worker.says(&["admin.listen="]).await;
        }
        let waiting = Self { yaml, api, workers };
        waiting.runs(&["tenant", "pause", "acme", "--for", "2h"]);
        bed.publish(&waiting.yaml, jobs("acme", JOBS)).await;
        until("a line of all", || waiting.line() == JOBS as u64).await;
        until("all are on their way or in delay queues", || {
            let in_memory = |worker: &Process| worker.metric("sluicegate_in_memory").unwrap_or(0.0);
            let delayed: f64 = waiting.workers.iter().map(in_memory).sum();
            delayed < JOBS as f64
        })
        .await;
        assert_eq!(waiting.api.count(), 0);
        waiting
    }

    fn runs(&self, args: &[&str]) -> Done {
        tokio::task::block_in_place(|| sluicegate(&self.yaml, args)).exited(0)
    }

    fn line(&self) -> u64 {
        let found: Value = self.runs(&["inspect", "acme", "--json"]).json();
        found["waiting"].as_u64().expect("a number")
    }

    /// They came back by themselves only minutes later. How far from the truth the waitlist was at best while a part of them was called.
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
async fn a_resumed_tenants_jobs_start_at_once_and_its_line_has_all_of_them() {
    let waiting = Waiting::under("max-requests: 20, window-size: 1s, guard: 100ms").await;
    let said = waiting.runs(&["tenant", "resume", "acme"]).out;
    assert!(
        said.contains("jobs that wait ask anew within seconds"),
        "{said}"
    );
    let off = waiting.all_are_called().await;
    assert!(off <= JOBS / 10, "{off}");
}

#[tokio::test(flavor = "multi_thread")]
async fn so_do_those_of_all_tenants_and_a_raised_limit_is_seen_as_soon() {
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
