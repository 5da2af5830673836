//! Workers that pass jobs to programs (`dispatch.exec`).

use std::collections::HashSet;
use std::time::Duration;

use kit::api::{Api, Call, Reply};
use kit::process::{DONE, Process};
use kit::{Bed, jobs, root, until};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::PROGRAM;
use crate::cli::sluicegate;

/// Returns a script that reports ready and then runs `commands` for each job, with the job in
/// `$job` and the number of its call in `$call`.
fn each_job(commands: &str) -> String {
    let call = "call=${job#'{\"call\":'}; call=${call%%,*}";
    format!("echo '{{\"ready\": true}}'; while IFS= read -r job; do {call}; {commands}; done")
}

/// Returns a command that answers with `fields` and the number of the call.
fn answer(fields: &str) -> String {
    let fields = fields.replace('"', "\\\"");
    format!("echo \"{{\\\"call\\\": $call, {fields}}}\"")
}

/// Returns a configuration with a shell that runs `script`.
fn yaml(bed: &Bed, limits: &str, script: &str, more: &str) -> String {
    let command = serde_json::json!(["sh", "-c", script]);
    with_command(bed, limits, &command.to_string(), more)
}

fn with_command(bed: &Bed, limits: &str, command: &str, more: &str) -> String {
    let api = bed.yaml(limits, "http://unused/", "");
    let exec = format!("dispatch: {{exec: {{command: {command}{more}}}");
    let yaml = api.replace("dispatch: {http: {url: 'http://unused/'}", &exec);
    format!("{yaml}retry: {{max-attempts: 2, initial-interval: 100ms}}\n")
}

const MANY: &str = "max-requests: 1000, window-size: 1s";

/// Returns the reasons of all dead letters once there are `count`.
async fn reasons(bed: &Bed, yaml: &str, count: usize) -> Vec<String> {
    let letters = bed.all_dead(yaml, count).await;
    let reason = |letter: &broker::Message| format!("{:?}", letter.header("x-sluicegate-reason"));
    letters.iter().map(reason).collect()
}

/// Checks that the job of a program that runs `commands` becomes a dead letter with `word` in its
/// reason.
async fn fails(commands: &str, more: &str, word: &str) -> Process {
    let bed = Bed::shared();
    let yaml = yaml(&bed, MANY, &each_job(commands), more);
    let worker = PROGRAM.start(&yaml);
    bed.publish(&yaml, jobs("acme", 1)).await;
    let reasons = reasons(&bed, &yaml, 1).await;
    assert!(reasons[0].contains(word), "{reasons:?}");
    assert!(
        reasons[0].contains("2 attempts") || word == "no such order",
        "{reasons:?}"
    );
    worker
}

/// Checks that the example does all jobs of two tenants, each once, within each tenant's limit.
async fn example(command: &str, job_of: fn(&Call) -> String) {
    let api = Api::start().await;
    let (bed, folder) = (Bed::shared(), tempfile::tempdir().expect("a folder"));
    let script = folder_with_url(&folder, &api, command);
    let yaml = with_command(
        &bed,
        "max-requests: 5, window-size: 1s, guard: strict",
        &script,
        "",
    );
    let worker = PROGRAM.start(&yaml);
    bed.publish(&yaml, jobs("one", 15).chain(jobs("two", 15)))
        .await;
    let started = Instant::now();
    while api.count() < 30 {
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(120), "{:#?}", worker.log());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let calls = api.calls();
    let ids: HashSet<String> = calls.iter().map(job_of).collect();
    assert_eq!((ids.len(), calls.len()), (30, 30), "each is called once");
    for tenant in ["one", "two"] {
        let of = calls.iter().filter(|call| job_of(call).starts_with(tenant));
        let times: Vec<Instant> = of.map(|call| call.at).collect();
        // Allows for the time between a job and its call in the program. Redis counts whole
        // milliseconds.
        for six in times.windows(6) {
            let took = six[5] - six[0];
            assert!(
                took >= Duration::from_millis(990),
                "{tenant}: 6 calls in {took:?}"
            );
        }
    }
    worker.stop();
    assert_eq!(bed.dead(&yaml).await, []);
}

/// Returns a command that runs `command`, a program with a file of docs/workers, with the URL of
/// `api`.
fn folder_with_url(folder: &TempDir, api: &Api, command: &str) -> String {
    let (program, file) = command.split_once(' ').expect("a program and a file");
    let file = root().join("docs/workers").join(file);
    let script = format!(
        "#!/bin/sh\nexport API_URL='{}'\nexec {program} {}\n",
        api.url(),
        file.display()
    );
    let path = folder.path().join("run.sh");
    std::fs::write(&path, script).expect("written");
    format!("[sh, '{}']", path.display())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_in_python_does_jobs_within_the_limit() {
    example("/usr/bin/python3 worker.py", |call| call.job.clone()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_in_a_shell_does_jobs_within_the_limit() {
    example("sh worker.sh", |call| {
        let job: serde_json::Value = serde_json::from_slice(&call.body).expect("a job");
        job["id"].as_str().expect("an id").to_owned()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_programs_answer_decides_about_its_job() {
    let api = Api::start().await;
    api.answers(|call: &Call| match &*call.job {
        "acme-1" => Reply::status(503),
        "acme-2" => Reply::status(422),
        _ => Reply::ok(),
    });
    let (bed, folder) = (Bed::shared(), tempfile::tempdir().expect("a folder"));
    let command = folder_with_url(&folder, &api, "/usr/bin/python3 worker.py");
    let yaml = with_command(&bed, MANY, &command, "");
    let worker = PROGRAM.start(&yaml);
    bed.publish(&yaml, jobs("acme", 3)).await;
    let reasons = reasons(&bed, &yaml, 2).await;
    assert!(
        reasons.iter().any(|reason| reason.contains("422")),
        "{reasons:?}"
    );
    assert!(
        reasons.iter().any(|reason| reason.contains("503")),
        "{reasons:?}"
    );
    // acme-0 once, acme-1 twice, acme-2 once.
    assert_eq!(api.count(), 4);
    worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_handle_binary_bodies_and_reject_refused_jobs() {
    for example in ["/usr/bin/python3 worker.py", "sh worker.sh"] {
        let api = Api::start().await;
        api.answers(|call: &Call| match &*call.body {
            [0xff, 0x00] => Reply::ok(),
            body if String::from_utf8_lossy(body).contains("\"/wA=\"") => Reply::ok(),
            _ => Reply::status(404),
        });
        let (bed, folder) = (Bed::shared(), tempfile::tempdir().expect("a folder"));
        let command = folder_with_url(&folder, &api, example);
        let yaml = with_command(&bed, MANY, &command, "");
        let worker = PROGRAM.start(&yaml);
        let no_text = broker::Message {
            body: vec![0xff, 0x00].into(),
            ..kit::job("acme", "no-text")
        };
        bed.publish(&yaml, [no_text, kit::job("acme", "unknown")])
            .await;
        let reasons = reasons(&bed, &yaml, 1).await;
        assert!(reasons[0].contains("404"), "{example}: {reasons:?}");
        let done = || worker.metric(DONE) == Some(1.0);
        until("the other one is done", done).await;
        assert_eq!(api.count(), 2, "{example}: each once");
        worker.stop();
        assert_eq!(bed.dead(&yaml).await, []);
    }
}

/// A redirect would be a second call for one permit.
#[tokio::test(flavor = "multi_thread")]
async fn the_example_in_python_follows_no_redirect() {
    let api = Api::start().await;
    api.answers(|call: &Call| match &*call.job {
        "moved" => Reply::status(302).header("location", "/login"),
        _ => Reply::ok(),
    });
    let (bed, folder) = (Bed::shared(), tempfile::tempdir().expect("a folder"));
    let command = folder_with_url(&folder, &api, "/usr/bin/python3 worker.py");
    let yaml = with_command(&bed, MANY, &command, "");
    let worker = PROGRAM.start(&yaml);
    // No Latin letter is in the tenant.
    let jobs = ["moved", "done"].map(|id| kit::job("\u{6771}\u{4eac}", id));
    bed.publish(&yaml, jobs).await;
    let reasons = reasons(&bed, &yaml, 1).await;
    assert!(reasons[0].contains("302"), "{reasons:?}");
    until("the other one is called", || api.count() >= 2).await;
    worker.stop();
    assert_eq!(api.count(), 2);
    assert_eq!(bed.dead(&yaml).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_dies_with_a_job_uses_an_attempt_and_is_replaced() {
    let worker = fails("exit 3", "", "exit status 3").await;
    worker.logs(&["a program has ended", "exit status 3"]).await;
    // One for each of the two attempts.
    until("both are counted", || {
        worker.metric("sluicegate_exec_restarts_total") == Some(2.0)
    })
    .await;
    worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_program_is_killed_with_its_children() {
    let mark = format!("{}.5", 86_400 + std::process::id());
    let hang = format!("sleep {mark} & sleep {mark}");
    let worker = fails(&hang, ", timeout: 200ms", "dispatch.exec.timeout").await;
    let left = || {
        let all = std::process::Command::new("pgrep")
            .args(["-f", &format!("^sleep {mark}")])
            .output();
        String::from_utf8(all.expect("pgrep").stdout).expect("numbers")
    };
    until("nothing of it is left", || left().is_empty()).await;
    worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_and_endless_lines_are_not_answers() {
    fails("echo rubbish", "", "is invalid").await.stop();
    fails("echo rubbish", "", "standard error for the log")
        .await
        .stop();
    let other = answer(r#""outcome": "done", "id": "another""#);
    fails(&other, "", "another job").await.stop();
    let bare = r#"echo '{"outcome": "done"}'"#;
    fails(bare, "", "it has no").await.stop();
    let of_before = r#"echo '{"call": 0, "outcome": "done"}'"#;
    fails(of_before, "", "another call").await.stop();
    fails(
        "head -c 3000000 /dev/zero | tr '\\0' x",
        "",
        "a line longer than",
    )
    .await
    .stop();
    let rejects = answer(r#""outcome": "reject", "reason": "no such order""#);
    fails(&rejects, "", "no such order").await.stop();
}

/// A job is acked only for the answer of a program that had it, even if answers are repeated and
/// jobs share an ID.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_answer_acks_no_other_job() {
    const JOBS: usize = 60;
    let (bed, folder) = (Bed::shared(), tempfile::tempdir().expect("a folder"));
    let started = folder.path().join("begun");
    let done = answer(r#""outcome": "done""#);
    let commands = format!(
        "printf '%s\\n' \"$job\" >>{}; {done}; sleep 0.003; {done}",
        started.display()
    );
    let yaml = yaml(&bed, MANY, &each_job(&commands), "")
        .replace("max-attempts: 2", "max-attempts: 50")
        .replace("exec: {", "concurrency: 4, exec: {");
    let all = (0..JOBS).map(|number| broker::Message {
        body: format!("number {number}.").into(),
        ..kit::job("acme", "the same for all")
    });
    bed.publish(&yaml, all).await;
    let worker = PROGRAM.start(&yaml);
    let acked = || worker.metric(DONE);
    until("all are done", || acked() == Some(JOBS as f64)).await;
    worker.logs(&["a program has ended"]).await;
    worker.stop();
    let started = std::fs::read_to_string(&started).expect("a file");
    for number in 0..JOBS {
        assert!(
            started.contains(&format!("number {number}.")),
            "{number} was never begun"
        );
    }
    assert_eq!(bed.dead(&yaml).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_not_ready_costs_no_permit() {
    let bed = Bed::shared();
    let folder = tempfile::tempdir().expect("a folder");
    let (go, log) = (folder.path().join("go"), folder.path().join("log"));
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.02; done; {}",
        go.display(),
        each_job(&format!(
            "echo x >>{}; {}",
            log.display(),
            answer(r#""outcome": "done""#)
        )),
    );
    let yaml = yaml(&bed, "max-requests: 3, window-size: 1h", &script, "");
    let worker = PROGRAM.start(&yaml);
    bed.publish(&yaml, jobs("acme", 5)).await;
    let used = || {
        let inspect = sluicegate(&yaml, &["inspect", "acme", "--json"]).exited(0);
        let seen: serde_json::Value = serde_json::from_str(&inspect.out).expect("JSON");
        seen["limits"][0]["used"].as_u64().expect("a number")
    };
    until("it has the jobs", || {
        worker
            .metric("sluicegate_deliveries_total{queue=\"new\"}")
            .unwrap_or_default()
            >= 5.0
    })
    .await;
    assert_eq!(used(), 0, "nothing is ready");
    std::fs::write(&go, "").expect("written");
    let done = || std::fs::read_to_string(&log).map_or(0, |text| text.lines().count());
    until("as many as may run have run", || done() >= 3).await;
    assert_eq!(used(), 3);
    worker.stop();
    assert_eq!(done(), 3, "and no more");
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_end_with_their_worker() {
    let bed = Bed::shared();
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let script = format!(
        "trap 'echo stopped >>{0}; exit' TERM; echo '{{\"ready\": true}}'; sleep 0.5; echo said-by-it >&2; while :; do sleep 0.05; done",
        log.display()
    );
    let worker = PROGRAM.start(&yaml(&bed, MANY, &script, ""));
    worker.logs(&["program: said-by-it"]).await;
    worker.logs(&["starting"]).await;
    // The program has set its trap, and the worker knows that it is ready, before this line is
    // logged.
    worker.stop();
    let logged = std::fs::read_to_string(&log).expect("it was told to end");
    assert_eq!(logged, "stopped\n");
}
