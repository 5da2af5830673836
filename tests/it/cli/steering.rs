//! Operators' instructions to running workers: `job`, `pause --all`, `resume --all`, `drain`,
//! `tenant divert`. Two workers, real servers.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kit::servers::shared_rabbit;
use kit::{PATIENCE, Says, client, drain, holds, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::PROGRAM;
use crate::cli::servers::{bury, yaml};
use crate::cli::{CommandResult, sluicegate};
use crate::worker::holding::with_consumer_timeout;
use crate::worker::running::{Calls, Running};

/// Two workers that count their calls together.
struct Fleet {
    yaml: String,
    calls: Calls,
    workers: [Running; 2],
}

impl Fleet {
    fn start(yaml: String) -> Self {
        let calls = Calls::default();
        let workers = [(); 2].map(|()| Running::configured(&yaml, calls.clone()));
        Self {
            yaml,
            calls,
            workers,
        }
    }

    /// Runs `args` without blocking the threads that the workers run in.
    async fn runs(&self, args: &[&str]) -> CommandResult {
        let (yaml, args) = (self.yaml.clone(), args.iter().map(|it| (*it).to_owned()));
        let args: Vec<String> = args.collect();
        let run = move || {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            sluicegate(&yaml, &args)
        };
        tokio::task::spawn_blocking(run).await.expect("no panic")
    }

    async fn json(&self, args: &[&str]) -> Value {
        let args = [args, &["--json"]].concat();
        self.runs(&args).await.exited(0).json()
    }

    async fn publish(&self, tenant: &str, ids: impl IntoIterator<Item = String>) {
        for id in ids {
            let args = ["publish", "--tenant", tenant, "--id", &id];
            self.runs(&args).await.exited(0);
        }
    }

    /// Repeats `args` until `is_reached` is true of the result.
    async fn runs_until(
        &self,
        args: &[&str],
        is_reached: impl Fn(&CommandResult) -> bool,
    ) -> CommandResult {
        let begun = Instant::now();
        loop {
            let done = self.runs(args).await;
            if is_reached(&done) {
                return done;
            }
            assert!(begun.elapsed() < PATIENCE, "{args:?}: {done:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until both workers have reported.
    async fn is_complete(&self) {
        let args = ["resume", "--all", "--json"];
        self.runs_until(&args, |done| done.json()["workers"] == 2)
            .await;
    }

    async fn stop(self) {
        for worker in self.workers {
            worker.stop().await;
        }
    }
}

fn ids(name: &str, numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|number| format!("{name}-{number}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_job_is_a_dead_letter_and_runs_only_after_a_replay() {
    // 5 per hour.
    let fleet = Fleet::start(yaml());
    fleet.is_complete().await;
    fleet.publish("acme", ids("j", 0..9)).await;
    fleet.calls.are(5).await;
    let waits: Vec<String> = (ids("j", 0..9).into_iter())
        .filter(|id| fleet.calls.of_job(id) == 0)
        .collect();
    let one = waits[0].as_str();
    let of = ["--tenant", "acme", "--id", one];
    let args = [&["job", "cancel"][..], &of, &["--wait", "60s"]].concat();
    let done = fleet.json(&args).await;
    assert_eq!(done["state"], "canceled", "{done}");
    assert_eq!(
        (&done["workers"], &done["workers_following"]),
        (&2.into(), &2.into())
    );
    // A repeated request is the same, and lasts longer.
    let again = fleet.json(&args).await;
    assert_eq!(again["state"], "canceled", "{again}");
    assert!(again["until_ms"].as_u64() >= done["until_ms"].as_u64());
    let listed = fleet.runs(&["dead", "list", "--json"]).await.exited(0);
    let letter = listed.json();
    assert_eq!(letter["id"], one);
    assert_eq!(letter["reason"], "canceled by an operator");
    // No worker has the job any more, and its end is known.
    let show = [&["job", "show"][..], &of, &["--wait", "0s"]].concat();
    assert_eq!(fleet.json(&show).await["seen"]["state"], "canceled");

    fleet
        .runs(&["tenant", "limit", "acme", "100"])
        .await
        .exited(0);
    fleet.calls.are(8).await;
    assert_eq!(fleet.calls.of_job(one), 0);
    // If the job is published again, or RabbitMQ has a copy, it stays canceled.
    fleet.publish("acme", [one.to_owned()]).await;
    let dead = client(&fleet.yaml).await;
    let queue = Arc::clone(&dead.names().dead);
    holds(&dead, &queue, 2).await;
    assert_eq!(fleet.calls.of_job(one), 0);
    let args = ["dead", "replay", "--id", one, "--limit", "1", "--json"];
    let done = fleet.runs(&args).await.exited(0).json();
    assert_eq!(done["replayed"], 1);
    fleet.calls.are(9).await;
    assert_eq!(fleet.calls.of_job(one), 1);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_in_flight_continues_and_an_unseen_job_is_canceled_on_arrival() {
    let fleet = Fleet::start(yaml());
    fleet.is_complete().await;
    fleet.publish("acme", ["slow-1".to_owned()]).await;
    fleet.calls.are(1).await;
    let cancel = |id| ["job", "cancel", "--tenant", "acme", "--id", id];
    let of_slow = cancel("slow-1");
    let args = [&of_slow[..], &["--wait", "3s", "--json"]].concat();
    let running = |done: &CommandResult| done.json()["state"] == "running";
    fleet.runs_until(&args, running).await;
    fleet.calls.go.add_permits(1);
    let args = [&of_slow[..], &["--wait", "60s"]].concat();
    assert_eq!(fleet.json(&args).await["state"], "done");

    let later = cancel("later");
    let args = [&later[..], &["--wait", "1s"]].concat();
    let follow = |done: &CommandResult| done.out.contains("2 workers follow");
    let done = fleet.runs_until(&args, follow).await.exited(0);
    for part in [
        "is to be canceled",
        "within 1s (delay.max-delay)",
        "it stays canceled until",
    ] {
        assert!(done.out.contains(part), "{part}: {}", done.out);
    }
    fleet.publish("acme", ["later".to_owned()]).await;
    let args = [&later[..], &["--wait", "60s"]].concat();
    assert_eq!(fleet.json(&args).await["state"], "canceled");
    // Undoing applies to all workers.
    let undone = cancel("undone");
    fleet.json(&[&undone[..], &["--wait", "0s"]].concat()).await;
    let done = fleet.json(&[&undone[..], &["--undo"]].concat()).await;
    assert_eq!(done["workers_following"], 2);
    fleet.publish("acme", ["undone".to_owned()]).await;
    fleet.calls.are(2).await;
    assert_eq!(
        (fleet.calls.of_job("undone"), fleet.calls.of_job("later")),
        (1, 0)
    );
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_show_shows_the_state_in_the_jobs_worker() {
    let yaml = yaml().replace("max-delay: 1s", "max-delay: 5m");
    let fleet = Fleet::start(yaml);
    fleet.is_complete().await;
    fleet.publish("acme", ids("j", 0..5)).await;
    fleet.calls.are(5).await;
    fleet.publish("acme", ["waits".to_owned()]).await;
    let show = ["job", "show", "--tenant", "acme", "--wait", "60s", "--id"];
    let shown = fleet.json(&[&show[..], &["waits"]].concat()).await;
    let seen = &shown["seen"];
    assert_eq!(shown["workers"], 2);
    assert_eq!(
        (&seen["state"], &seen["attempt"], &seen["cost"]),
        (&"waiting".into(), &1.into(), &1.into()),
        "{shown}"
    );
    let text = fleet.runs(&[&show[..], &["waits"]].concat()).await;
    let text = text.exited(0).out;
    text.begins("job waits of acme waits in a worker's memory\n");
    // Two operators may look at the same time.
    let show = [
        "job", "show", "--tenant", "acme", "--wait", "9s", "--id", "waits",
    ];
    for _ in 0..3 {
        let both = tokio::join!(fleet.runs(&show), fleet.runs(&show));
        for shown in <[_; 2]>::from(both) {
            shown.exited(0);
        }
    }
    let nobody = [
        "job", "show", "--tenant", "acme", "--id", "x", "--wait", "1s",
    ];
    let done = fleet.runs(&nobody).await.exited(1);
    done.err.says("no worker has job x of acme");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_fleet_makes_no_call_until_resumed_even_after_a_restart() {
    let fleet = Fleet::start(yaml());
    fleet.is_complete().await;
    fleet.publish("acme", ids("j", 0..2)).await;
    fleet.calls.are(2).await;
    let done = fleet.json(&["pause", "--all"]).await;
    assert_eq!(done["workers_following"], 2, "{done}");
    // The reports may be older than the ends of the calls.
    let args = ["pause", "--all", "--json"];
    let none_left = |done: &CommandResult| done.json()["calls_in_flight"] == 0;
    fleet.runs_until(&args, none_left).await;
    fleet.publish("acme", ids("k", 0..2)).await;
    let paused = |worker: &Running| worker.shows("sluicegate_paused 1");
    assert!(fleet.workers.iter().all(paused));
    // A worker that starts now follows the instruction before its first call.
    let late = Running::configured(&fleet.yaml, fleet.calls.clone());
    until("a third worker is paused", || paused(&late)).await;
    for args in [&["inspect", "acme"][..], &["check"]] {
        let done = fleet.runs(args).await.exited(0);
        done.out.says("an operator paused all workers");
    }
    let explain = ["explain", "--tenant=acme", "--id=k0", "--wait=1s"];
    let unknown = fleet.runs(&explain).await.exited(1);
    unknown.err.says("an operator paused all workers");
    // The pause is the reason for the wait, even if the job's limits have room.
    let inspected = fleet.json(&["inspect", "acme"]).await;
    assert_eq!(inspected["waits_for"], "pause", "{inspected:#}");
    let work = client(&fleet.yaml).await;
    holds(&work, &work.names().fresh, 2).await;
    assert_eq!(fleet.calls.all(), 2, "nothing was called");
    let done = fleet.json(&["resume", "--all"]).await;
    assert_eq!(
        (&done["was"], &done["workers_following"]),
        (&"pause".into(), &3.into())
    );
    fleet.calls.are(4).await;
    late.stop().await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_fleet_finishes_its_jobs_and_takes_no_new_ones() {
    // One call per two seconds, so the second job waits.
    let yaml = yaml().replace(
        "max-requests: 5, window-size: 1h",
        "max-requests: 1, window-size: 2s",
    );
    let fleet = Fleet::start(yaml);
    fleet.is_complete().await;
    fleet.publish("acme", ids("j", 0..3)).await;
    fleet.publish("other", ["slow-1".to_owned()]).await;
    until("the slow call", || fleet.calls.of_job("slow-1") == 1).await;
    let done = fleet.json(&["drain"]).await;
    assert_eq!(done["workers_following"], 2, "{done}");
    fleet.publish("acme", ids("new", 0..2)).await;
    let in_flight = |done: &CommandResult| done.err.contains("1 call in flight");
    let done = fleet
        .runs_until(&["drain", "--wait", "1s"], in_flight)
        .await;
    let done = done.exited(1);
    done.err.says("not drained within 1s: ");
    fleet.calls.go.add_permits(1);
    // A job in flight to a worker that stopped consuming returns a moment later.
    let started = Instant::now();
    loop {
        let done = fleet.json(&["drain", "--wait", "100s"]).await;
        assert_eq!(done["empty"], true);
        if done["jobs_in_work_queue"] == 2 {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{done}");
    }
    assert_eq!(fleet.calls.all(), 4, "all but the new ones");
    let done = fleet.json(&["resume", "--all"]).await;
    assert_eq!(done["was"], "drain");
    fleet.calls.are(6).await;

    // A drain that ends earlier than the wait for it.
    fleet.publish("other", ["slow-2".to_owned()]).await;
    until("the slow call", || fleet.calls.of_job("slow-2") == 1).await;
    let started = Instant::now();
    let args = ["drain", "--for", "8s", "--wait", "1h"];
    let done = fleet.runs(&args).await.exited(1);
    for words in [
        "not drained: 1 call in flight",
        "workers take new jobs again",
    ] {
        done.err.says(words);
    }
    assert!(started.elapsed() < PATIENCE);
    fleet.calls.go.add_permits(1);
    fleet.stop().await;
}

#[test]
fn impossible_requests_are_refused() {
    let yaml = yaml();
    for (args, why) in [
        (&["pause"][..], "--all"),
        (&["resume"], "--all"),
        (&["pause", "--all", "--for", "0s"], "it must be from 1s to"),
        (&["drain", "--wait", "soon"], "90s or 1h"),
        (&["job", "cancel", "--tenant", "a"], "--id"),
        (
            &["job", "cancel", "--tenant", "", "--id", "1"],
            "the tenant is empty",
        ),
        (
            &["job", "show", "--tenant", "a", "--id", ""],
            "the id has 0 bytes",
        ),
        (
            &[
                "job", "cancel", "--tenant", "a", "--id", "1", "--undo", "--for", "1h",
            ],
            "cannot be used with",
        ),
    ] {
        let done = sluicegate(&yaml, args).exited(2);
        assert!(done.err.contains(why), "{args:?}: {}", done.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn diverted_jobs_wait_in_their_queue_until_returned() {
    let fleet = Fleet::start(yaml());
    fleet.is_complete().await;
    fleet.publish("acme", ids("j", 0..7)).await;
    fleet.calls.are(5).await;
    let done = fleet
        .json(&["tenant", "divert", "acme", "--for", "10m"])
        .await;
    assert_eq!(done["workers_following"], 2, "{done}");
    let queue = done["queue"].as_str().expect("a queue");
    let rabbit = client(&fleet.yaml).await;
    holds(&rabbit, queue, 2).await;
    fleet.publish("acme", ids("k", 0..1)).await;
    fleet.publish("other", ids("o", 0..1)).await;
    holds(&rabbit, queue, 3).await;
    fleet.calls.are(6).await;
    let inspected = fleet.json(&["inspect", "acme"]).await;
    assert_eq!(inspected["diverted_to"], queue);
    assert_eq!(inspected["waits_for"], "divert", "{inspected:#}");
    fleet
        .runs(&["tenant", "limit", "acme", "100"])
        .await
        .exited(0);
    let done = fleet.runs(&["tenant", "undivert", "acme", "--back"]).await;
    let done = done.exited(0).out;
    let words = format!("are no longer diverted to {queue}:");
    done.says(&words);
    done.says("replayed 3 jobs");
    fleet.calls.are(9).await;
    holds(&rabbit, queue, 0).await;
    let own = rabbit.names().fresh.to_string();
    let args = ["tenant", "divert", "acme", "--to", &own];
    let refused = fleet.runs(&args).await.exited(2);
    refused.err.says("one of the workers' own queues");
    fleet.stop().await;
}

/// Runs `sluicegate args`, with input that does not end, and sends `signal` when `ready` completes.
pub async fn interrupted(
    yaml: &str,
    args: &[&str],
    (signal, input): (Signal, &str),
    ready: impl Future<Output = ()>,
) -> Output {
    let mut file = tempfile::NamedTempFile::with_suffix(".yaml").expect("a file");
    file.write_all(yaml.as_bytes()).expect("written");
    let mut command = Command::new(PROGRAM.0);
    command.arg("--config").arg(file.path()).args(args);
    command.stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input.as_bytes()).expect("written");
    ready.await;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process"), signal).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    drop(stdin);
    output
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_a_search_that_finds_nothing() {
    const LETTERS: u32 = 10_000;
    let yaml = yaml();
    let rabbit = client(&yaml).await;
    let letters: Vec<String> = ids("l", 0..LETTERS as usize);
    let letters: Vec<_> = letters.iter().map(|id| (id.as_str(), "a", "x")).collect();
    bury(&rabbit, &letters).await;
    let dead = rabbit.names().dead.clone();
    holds(&rabbit, &dead, LETTERS).await;
    let searches = async { while rabbit.depth(&dead).await.expect("a depth") == LETTERS {} };
    let args = ["dead", "drop", "--tenant", "other", "--json"];
    let ended = interrupted(&yaml, &args, (Signal::INT, ""), searches).await;
    let json: Value = serde_json::from_slice(&ended.stdout).expect("JSON");
    assert_eq!(json["interrupted"], true, "{json}");
    assert_eq!(ended.status.code(), Some(1));
    holds(&rabbit, &dead, LETTERS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_the_input_of_publish_and_reports_its_jobs() {
    let yaml = yaml();
    let rabbit = client(&yaml).await;
    let work = rabbit.names().fresh.clone();
    let lines = "{\"tenant\":\"a\"}\n{\"tenant\":\"b\"}\n";
    let input = (Signal::INT, lines);
    let ended = interrupted(&yaml, &["publish"], input, holds(&rabbit, &work, 2)).await;
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(
        errors.contains("interrupted: the lines after line 2 are not published"),
        "{errors}"
    );
    let out = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(out, format!("confirmed 2 jobs in {work}\n"));
    assert_eq!(ended.status.code(), Some(1));
}

/// Letters that a filter passes over stay unacked for as long as the command runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_replay_outlasts_rabbitmqs_timeout() {
    let server = with_consumer_timeout(Duration::from_secs(20));
    let yaml = yaml()
        .replace(shared_rabbit().url(), server.url())
        .replace("queue:", "consumer-timeout: 20s, queue:");
    let rabbit = client(&yaml).await;
    let letters: Vec<String> = ids("l", 0..24);
    let tenant = |at| if at % 2 == 0 { "other" } else { "a" };
    let letters = letters.iter().enumerate();
    let letters: Vec<_> = (letters.map(|(at, id)| (id.as_str(), tenant(at), "x"))).collect();
    bury(&rabbit, &letters).await;
    let args = [
        "dead", "replay", "--tenant", "a", "--rate", "20/m", "--json",
    ];
    let done = sluicegate(&yaml, &args).exited(0).json();
    assert_eq!(done["replayed"], 12, "{done}");
    assert_eq!(drain(&rabbit, &rabbit.names().fresh).await.len(), 12);
    assert_eq!(drain(&rabbit, &rabbit.names().dead).await.len(), 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_keeps_its_rate_and_ctrl_c_loses_no_dead_letter() {
    let yaml = yaml();
    let rabbit = client(&yaml).await;
    let letters: Vec<String> = ids("l", 0..8);
    let letters: Vec<_> = letters.iter().map(|id| (id.as_str(), "a", "x")).collect();
    bury(&rabbit, &letters).await;
    let args = [
        "dead", "replay", "--all", "--limit", "6", "--rate", "5/s", "--json",
    ];
    let began = Instant::now();
    let done = sluicegate(&yaml, &args).exited(0).json();
    // Two at once, the others a fifth of a second apart.
    assert!(began.elapsed() >= Duration::from_millis(800));
    assert_eq!(
        (&done["replayed"], &done["interrupted"]),
        (&6.into(), &false.into())
    );
    let (work, dead) = (rabbit.names().fresh.clone(), rabbit.names().dead.clone());
    holds(&rabbit, &work, 6).await;

    let args = ["dead", "replay", "--all", "--rate", "1/h"];
    // One goes at once, the other an hour later.
    let ended = interrupted(&yaml, &args, (Signal::TERM, ""), holds(&rabbit, &work, 7)).await;
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{errors}");
    errors.says("interrupted: the other dead letters are still in");
    holds(&rabbit, &dead, 1).await;
    // The command ends with the last letter, not an hour later.
    sluicegate(&yaml, &args).exited(0);
    holds(&rabbit, &work, 8).await;
    for wrong in ["0/s", "fast"] {
        let args = ["dead", "replay", "--all", "--rate", wrong];
        let done = sluicegate(&yaml, &args).exited(2);
        done.err.says("such as 10/s");
    }
}
