//! A worker that lacks a resource names it, and no job fails because of it.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use kit::api::{Api, Reply};
use kit::process::Process;
use kit::servers::{Rabbit, shared_redis};
use kit::{Bed, jobs, until};
use tempfile::NamedTempFile;

use crate::PROGRAM;
use crate::cli::sluicegate;

const LIMITS: &str = "max-requests: 1000, window-size: 1s";

/// Returns `sluicegate COMMAND` with `yaml`, in a process with a maximum of `max` file
/// descriptors.
fn with_descriptors(max: u32, command: &str, yaml: &str) -> (Command, NamedTempFile) {
    let mut config = NamedTempFile::with_suffix(".yaml").expect("a file");
    config.write_all(yaml.as_bytes()).expect("written");
    let mut shell = Command::new("sh");
    let path = config.path().display();
    let line = format!(
        "ulimit -n {max}; exec '{}' {command} --config '{path}'",
        PROGRAM.0
    );
    shell.args(["-c", &line]);
    (shell, config)
}

#[tokio::test(flavor = "multi_thread")]
async fn without_file_descriptors_jobs_wait_and_use_no_attempt() {
    const JOBS: usize = 200;
    let api = Api::start().await;
    // Slow answers, so that each concurrent call needs its own connection.
    api.answers(|_| Reply::ok().after(Duration::from_millis(200)));
    let bed = Bed::shared();
    let yaml = bed.yaml(LIMITS, &api.url(), "")
        + "retry: {max-attempts: 3, initial-interval: 100ms, max-interval: 100ms}\n";
    bed.publish(&yaml, jobs("acme", JOBS)).await;
    let (check, _config) = with_descriptors(40, "check", &yaml);
    let out = { check }.output().expect("it runs").stdout;
    let out = String::from_utf8_lossy(&out).into_owned();
    assert!(out.contains("can have 40 file descriptors"), "{out}");

    let (run, _config) = with_descriptors(40, "run", &yaml);
    let worker = Process::start(run);
    until("all calls", || api.count() >= JOBS).await;
    worker
        .logs(&["lacks resources for calls", "LimitNOFILE"])
        .await;
    let unfit = worker.count(&["can't make calls"]);
    assert_eq!(unfit, 0, "it makes some");
    worker.stop();
    let calls = api.calls();
    assert_eq!(calls.len(), JOBS, "each once");
    assert!(calls.iter().all(|call| call.attempt == 1));
    assert!(bed.dead(&yaml).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_rabbitmq_are_named_by_run_and_check() {
    let rabbit = Rabbit::start_with(&["channel_max = 32"]);
    let api = Api::start().await;
    let bed = Bed::on(rabbit.url(), shared_redis().url());
    let yaml = bed.yaml(LIMITS, &api.url(), "");
    // A few channels are enough.
    sluicegate(&yaml, &["check"]).exited(0);
    let worker = PROGRAM.start(&yaml);
    bed.publish(&yaml, jobs("acme", 3)).await;
    until("all calls", || api.count() >= 3).await;
    sluicegate(&yaml, &["check"]).exited(0);
    worker.stop();

    let limits = [
        (
            "few-queues",
            r#"{"max-queues": 20}"#,
            "queue limit in vhost",
        ),
        (
            "no-connection",
            r#"{"max-connections": 0}"#,
            "connection limit",
        ),
    ];
    for (vhost, limit, words) in limits {
        rabbit.ctl(&["add_vhost", vhost]);
        rabbit.ctl(&["set_permissions", "-p", vhost, "guest", ".*", ".*", ".*"]);
        rabbit.ctl(&["set_vhost_limits", "-p", vhost, limit]);
        let yaml = yaml.replace("/%2f", &format!("/{vhost}"));
        let line = |text: &str| {
            let is_at_a_limit =
                |line: &str| line.contains("has reached a limit") && line.contains(words);
            text.lines().any(is_at_a_limit)
        };
        let text = sluicegate(&yaml, &["check"]).exited(1).out;
        assert!(line(&text), "{text}");
        let worker = PROGRAM.start(&yaml);
        worker.logs(&["has reached a limit", words]).await;
        until("readiness names it", || {
            worker.get("/readyz").is_some_and(|text| line(&text))
        })
        .await;
        drop(worker);
    }

    // A worker has two connections.
    rabbit.ctl(&[
        "set_vhost_limits",
        "-p",
        "no-connection",
        r#"{"max-connections": 1}"#,
    ]);
    let one = yaml.replace("/%2f", "/no-connection");
    let text = sluicegate(&one, &["check"]).exited(1).out;
    assert!(
        text.contains("has reached a limit") && text.contains("connection limit"),
        "{text}"
    );

    // Results have two more.
    rabbit.ctl(&[
        "set_vhost_limits",
        "-p",
        "no-connection",
        r#"{"max-connections": 3}"#,
    ]);
    sluicegate(&one, &["check"]).exited(0);
    let http = format!("http: {{url: '{}'}}", api.url());
    let results = one.replace(&http, &format!("{http}, results: {{to: reply-to}}"));
    assert_ne!(results, one);
    let text = sluicegate(&results, &["check"]).exited(1).out;
    assert!(text.contains("connection limit"), "{text}");

    rabbit.ctl(&["add_user", "limited", "limited"]);
    rabbit.ctl(&["set_permissions", "limited", ".*", ".*", ".*"]);
    rabbit.ctl(&["set_user_limits", "limited", r#"{"max-connections": 0}"#]);
    let limited = yaml.replace("guest:guest@", "limited:limited@");
    assert_ne!(limited, yaml);
    let text = sluicegate(&limited, &["check"]).exited(1).out;
    assert!(
        text.contains("has reached a limit") && text.contains("user connection limit"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn too_few_channels_are_named_by_run_and_check() {
    let rabbit = Rabbit::start_with(&["channel_max = 3"]);
    let bed = Bed::on(rabbit.url(), shared_redis().url());
    let yaml = bed.yaml(LIMITS, "http://127.0.0.1:9/", "");
    let text = sluicegate(&yaml, &["check"]).exited(1).out;
    assert!(text.contains("channel_max"), "{text}");
    let worker = PROGRAM.start(&yaml);
    worker
        .logs(&["a server is unavailable", "channel_max"])
        .await;
    until("readiness names it", || {
        let text = worker.get("/readyz").unwrap_or_default();
        text.contains("channel_max")
    })
    .await;
}
