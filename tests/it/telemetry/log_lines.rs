//! A worker's log: few lines when many tenants close and open again, and a reader that stalls.

use std::io::Write;
use std::process::Command;

use kit::api::Api;
use kit::process::Process;
use kit::{Bed, job, jobs, until};
use rustix::process::{Pid, Signal, kill_process};

use crate::PROGRAM;
use crate::cli::sluicegate;

const TENANTS: usize = 40;

/// Returns the number of closed tenants with a line each, and of those that were summed up.
fn closed(worker: &Process) -> (usize, usize) {
    let log = worker.log();
    let text = "tenant closed: its jobs wait for a limit";
    let text = log.iter().filter(|line| line.contains(text));
    let more = log.iter().filter_map(|line| {
        let (_, rest) = line.split_once("more tenants closed more=")?;
        rest.split_whitespace().next()?.parse::<usize>().ok()
    });
    (text.count(), more.sum())
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_tenants_are_logged_in_a_few_lines_and_a_summary() {
    let api = Api::start().await;
    let bed = Bed::shared();
    let limits = "max-requests: 1, window-size: 10m";
    let yaml = bed.yaml(limits, &api.url(), "");
    let worker = PROGRAM.start_consuming(&yaml).await;
    let all = (0..TENANTS).flat_map(|tenant| jobs(&format!("t{tenant}"), 5).collect::<Vec<_>>());
    bed.publish(&yaml, all).await;
    // Four jobs of each are denied, which closes each once. The sum is logged when nothing else
    // happens.
    let all_told = || closed(&worker).0 + closed(&worker).1 == TENANTS;
    until("a line for each", all_told).await;
    let (closed_lines, _) = closed(&worker);
    assert!(closed_lines >= 10, "{closed_lines} lines");
    worker.logs(&["limit=\"default\" wait_ms="]).await;
    worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_and_its_early_end_are_logged() {
    let api = Api::start().await;
    let bed = Bed::shared();
    let yaml = bed.yaml("max-requests: 100, window-size: 1s", &api.url(), "");
    let worker = PROGRAM.start_consuming(&yaml).await;
    sluicegate(&yaml, &["tenant", "pause", "boss", "--for", "1h"]).exited(0);
    bed.publish(&yaml, [job("boss", "paused")]).await;
    let suspended = "tenant closed: suspended";
    worker.logs(&[suspended, "tenant=boss wait_ms=3"]).await;
    sluicegate(&yaml, &["tenant", "resume", "boss"]).exited(0);
    bed.publish(&yaml, [job("boss", "resumed")]).await;
    let open = ["tenant open again", "tenant=boss closed_s=", "denied=1"];
    worker.logs(&open).await;
    worker.stop();
}

/// Standard error is a full pipe, and its reader takes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_log_stalls_makes_calls_and_ends_in_order() {
    let api = Api::start().await;
    let bed = Bed::shared();
    let yaml = bed.yaml("max-requests: 10, window-size: 1s", &api.url(), "");
    let (_reader, mut log) = std::io::pipe().expect("a pipe");
    // The default size of a pipe.
    log.write_all(&[b'x'; 64 << 10]).expect("room");
    let mut file = tempfile::NamedTempFile::with_suffix(".yaml").expect("a file");
    file.write_all(yaml.as_bytes()).expect("written");
    let mut command = Command::new(PROGRAM.0);
    command.arg("--config").arg(file.path()).arg("run");
    let mut worker = command.stderr(log).spawn().expect("it starts");
    bed.publish(&yaml, jobs("acme", 3)).await;
    until("the calls", || api.count() == 3).await;
    let id = i32::try_from(worker.id()).ok().and_then(Pid::from_raw);
    kill_process(id.expect("a process"), Signal::TERM).expect("it runs");
    let mut status = None;
    until("its end", || {
        status = worker.try_wait().expect("a status");
        status.is_some()
    })
    .await;
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
}
