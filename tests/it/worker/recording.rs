//! `run --record`: a worker that restarts records next to the existing file, and one that can't
//! record still does its jobs.

use std::path::Path;
use std::process::{Command, Stdio};

use kit::api::Api;
use kit::process::Process;
use kit::{Bed, jobs, until};
use rules::headers::HeaderValue;

use crate::PROGRAM;
use crate::cli::sluicegate_in;

const JOBS: usize = 3;

/// Starts a worker with the configuration in `folder` that records to `file`.
fn recording(folder: &Path, file: &str) -> Process {
    let mut command = Command::new(PROGRAM.0);
    command.args(["run", "--config", "sluicegate.yaml", "--record", file]);
    command.current_dir(folder).stdin(Stdio::null());
    Process::start(command)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_is_a_new_file_and_never_keeps_a_worker_down() {
    let api = Api::start().await;
    let bed = Bed::shared();
    let yaml = bed.yaml("max-requests: 100, window-size: 1s", &api.url(), "");
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let text = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a file");
    std::fs::write(folder.join("sluicegate.yaml"), &yaml).expect("written");
    std::fs::write(folder.join("jobs.jsonl"), "mine\n").expect("written");
    for (file, lines) in [
        (
            "jobs.jsonl",
            [
                "recording new jobs",
                "file=jobs.jsonl.1 max_bytes=67108864 names=\"pseudonyms\"",
            ],
        ),
        ("jobs.jsonl", ["recording new jobs", "file=jobs.jsonl.2 "]),
        (
            "gone/jobs.jsonl",
            ["nothing is recorded", "file=gone/jobs.jsonl "],
        ),
    ] {
        let before = api.count();
        let worker = recording(folder, file);
        worker.logs(&lines).await;
        worker.logs(&["RabbitMQ: consuming"]).await;
        bed.publish(&yaml, jobs("acme", JOBS)).await;
        until("all are called", || api.count() == before + JOBS).await;
        worker.stop();
    }
    assert_eq!(text("jobs.jsonl"), "mine\n");
    for name in ["jobs.jsonl.1", "jobs.jsonl.2"] {
        assert_eq!(text(name).lines().count(), JOBS, "{name}: {}", text(name));
        let args = ["simulate", "--jobs", name, "--json"];
        let played = sluicegate_in(folder, &args, b"").exited(0).json();
        assert_eq!(played["configurations"][0]["calls"], JOBS, "{played}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_recorded_under_the_limits_in_force() {
    let api = Api::start().await;
    let bed = Bed::shared();
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let write = |limits: &str| {
        let yaml = bed.yaml(limits, &api.url(), "");
        std::fs::write(folder.join("new"), &yaml).expect("written");
        std::fs::rename(folder.join("new"), folder.join("sluicegate.yaml")).expect("renamed");
        yaml
    };
    write("max-requests: 100, window-size: 1s");
    let worker = recording(folder, "jobs.jsonl");
    worker.logs(&["RabbitMQ: consuming"]).await;
    let yaml = write(
        "max-requests: 100, window-size: 1s, plan-header: x-plan, plans: {pro: {max-requests: 200}}",
    );
    worker.logs(&["configuration applied", "new limits"]).await;
    let plan = ("x-plan", HeaderValue::Text("pro".to_owned()));
    let job = kit::job("acme", "1").with_headers(&[plan], &[]);
    bed.publish(&yaml, [job]).await;
    until("it is called", || api.count() == 1).await;
    worker.stop();
    let text = std::fs::read_to_string(folder.join("jobs.jsonl")).expect("a file");
    assert!(text.contains("\"plan\":\"pro\""), "{text}");
}
