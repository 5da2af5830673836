//! Moves to another Redis and another RabbitMQ while jobs wait, as docs/OPERATIONS.md describes.

use std::process::Command;

use kit::api::Api;
use kit::process::Process;
use kit::redis_topologies::{port, replicated};
use kit::servers::{Rabbit, Redis, shared_rabbit};
use kit::{Bed, SECOND, counts, job, jobs, until};
use tempfile::TempDir;

use crate::PROGRAM;
use crate::cli::{json_of, sluicegate};

/// Its window does not end during a test.
const HOURLY: &str = "max-requests: 5, window-size: 1h";

/// Leaves three waiting jobs of `acme` after five calls.
async fn with_waiting_jobs(bed: &Bed, api: &Api) -> String {
    let yaml = bed.yaml(HOURLY, &api.url(), "");
    let worker = PROGRAM.start(&yaml);
    bed.publish(&yaml, jobs("acme", 8)).await;
    let waiting = || worker.metric("sluicegate_delayed_in_memory");
    until("five calls", || api.count() == 5 && waiting() == Some(3.0)).await;
    worker.stop();
    yaml
}

fn to(yaml: &str, old: &Redis, new: &Redis) -> String {
    let moved = yaml.replace(old.url(), new.url());
    assert_ne!(moved, yaml);
    moved
}

/// Starts a worker with the declaration that Redis has all usage that counts. No worker has seen
/// how the data got there.
fn start_with_known_usage(yaml: &str, folder: &TempDir) -> Process {
    let file = folder.path().join("moved.yaml");
    std::fs::write(&file, yaml).expect("written");
    let mut command = Command::new(PROGRAM.0);
    let run = command.args(["run", "--skip-recovery-wait", "--config"]);
    run.arg(&file);
    Process::start(command)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copied_redis_has_all_usage() {
    let (api, old) = (
        Api::start().await,
        Redis::start_with(&["repl-diskless-sync-delay 0"]),
    );
    let bed = Bed::on(shared_rabbit().url(), old.url());
    let yaml = with_waiting_jobs(&bed, &api).await;
    let new = Redis::start();
    new.ctl(&["replicaof", "127.0.0.1", &port(&old).to_string()]);
    let linked = || {
        new.ctl(&["info", "replication"])
            .contains("master_link_status:up")
    };
    until("the copy", linked).await;
    replicated(&old, &new);
    new.ctl(&["replicaof", "no", "one"]);
    old.stop();

    let (yaml, folder) = (to(&yaml, &old, &new), TempDir::new().expect("a folder"));
    let worker = start_with_known_usage(&yaml, &folder);
    // No job waits for an hour, and none is called beyond the limit.
    bed.publish(&yaml, [job("other", "other-1"), job("acme", "acme-new")])
        .await;
    let inspect = || json_of(&yaml, &["inspect", "acme"]);
    until("another tenant's call", || api.count() == 6).await;
    until("the job that waits, too", || inspect()["waiting"] == 4).await;
    let json = inspect();
    assert_eq!(json["limits"][0]["used"], 5, "{json}");
    assert_eq!(counts::times(&api.calls(), "acme").len(), 5);
    worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_redis_admits_nothing_until_an_operator_allows_it() {
    let (api, old) = (Api::start().await, Redis::start());
    let bed = Bed::on(shared_rabbit().url(), old.url());
    let yaml = with_waiting_jobs(&bed, &api).await;
    let new = Redis::start();
    let yaml = to(&yaml, &old, &new);
    let worker = PROGRAM.start(&yaml);
    let recovers = || worker.metric("sluicegate_gate_recovering");
    until("the recovery wait", || recovers() == Some(1.0)).await;
    bed.publish(&yaml, [job("other", "other-1")]).await;
    let out = sluicegate(&yaml, &["check"]).exited(0).out;
    let waits = "warn  redis     no job with the common limits is admitted until the recovery wait ends, in ";
    assert!(out.contains(waits), "{out}");
    assert_eq!(api.count(), 5);
    worker.stop();

    // An operator who knows that no earlier start counts declares it for one start. If that is
    // wrong, the limit starts over.
    let folder = TempDir::new().expect("a folder");
    let worker = start_with_known_usage(&yaml, &folder);
    let called = |tenant: &str| counts::times(&api.calls(), tenant).len();
    until("the other tenant's call", || called("other") == 1).await;
    // Three jobs wait and ask again.
    until("calls beyond the old limit", || called("acme") == 5 + 3).await;
    bed.publish(&yaml, [job("acme", "acme-new")]).await;
    until("one more", || called("acme") == 5 + 4).await;
    worker.stop();
    assert_eq!(counts::repeated(&api.calls()), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_on_two_rabbitmqs_keep_one_limit_until_the_old_one_is_empty() {
    const MAX: usize = 6;
    let (api, new) = (Api::start().await, Rabbit::start());
    let bed = Bed::shared();
    let limits = format!("max-requests: {MAX}, window-size: 6s, guard: 2s");
    let before = bed.yaml(&limits, &api.url(), "");
    let after = before.replace(&bed.amqp, new.url());
    bed.publish(&before, (0..12).map(|n| job("acme", format!("old-{n}"))))
        .await;
    let old_worker = PROGRAM.start(&before);
    until("the first calls", || api.count() >= MAX).await;
    // Publishers go first. From now on nothing new arrives at the old server.
    bed.publish(&after, (0..12).map(|n| job("acme", format!("new-{n}"))))
        .await;
    let new_worker = PROGRAM.start(&after);
    until("all calls", || api.count() >= 24).await;
    let left = || old_worker.metric("sluicegate_in_memory");
    until("an empty worker", || left() == Some(0.0)).await;
    old_worker.stop();
    let out = sluicegate(&before, &["check"]).exited(0).out;
    for empty in [
        format!("queue {}: 0 messages ready", bed.name),
        format!("queue {}.dead: 0 messages ready", bed.name),
        "35 delay queues: 0 messages ready".to_owned(),
    ] {
        assert!(out.contains(&empty), "{empty}: {out}");
    }
    new_worker.stop();
    let calls = api.calls();
    assert_eq!((calls.len(), counts::repeated(&calls)), (24, 0));
    let arrivals = counts::arrivals(&calls, "acme");
    let (fullest, early) = counts::windows(&arrivals, MAX, 6 * SECOND);
    assert!(fullest <= MAX, "{fullest} in a window, {early} too early");
}
