//! The commands as a user meets them: help, exit statuses, and one clear line per error. No server
//! is needed.

mod check;
mod echo;
mod health;
mod init;
mod inspect;
mod pages;
mod pipelines;
mod scopes;
pub mod servers;
pub mod steering;
mod tenant;
mod top;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use kit::Says;

use crate::PROGRAM;

/// The result of a command.
#[derive(Debug)]
pub struct CommandResult {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for CommandResult {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).expect("output is UTF-8"),
            err: String::from_utf8(output.stderr).expect("errors are UTF-8"),
        }
    }
}

impl CommandResult {
    /// Checks that it ended with `code`, and shows everything if not.
    #[track_caller]
    pub fn exited(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// Returns its output as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Returns `sluicegate` without variables of this process's environment that could change it.
fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM.0);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SLUICEGATE_") {
            command.env_remove(name);
        }
    }
    command.current_dir(folder).args(args);
    command
}

/// Runs `sluicegate args` with `yaml` as sluicegate.yaml and `input` as standard input.
pub fn sluicegate_with(yaml: Option<&str>, args: &[&str], input: &[u8]) -> CommandResult {
    let folder = tempfile::tempdir().expect("a folder");
    if let Some(yaml) = yaml {
        std::fs::write(folder.path().join("sluicegate.yaml"), yaml).expect("written");
    }
    sluicegate_in(folder.path(), args, input)
}

/// Runs `sluicegate args` in `folder` with `input` as standard input.
pub fn sluicegate_in(folder: &Path, args: &[&str], input: &[u8]) -> CommandResult {
    let mut child = command(folder, args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    // Uses a thread, since the child may write before it has read everything.
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let done = child.wait_with_output().expect("it ends").into();
    // The child may end without reading all of its input.
    let _ = writer.join().expect("no panic");
    done
}

/// Runs `sluicegate args` with `yaml` as sluicegate.yaml.
pub fn sluicegate(yaml: &str, args: &[&str]) -> CommandResult {
    sluicegate_with(Some(yaml), args, b"")
}

/// Returns the JSON output of `sluicegate args --json`.
#[track_caller]
pub fn json_of(yaml: &str, args: &[&str]) -> serde_json::Value {
    sluicegate(yaml, &[args, &["--json"]].concat())
        .exited(0)
        .json()
}

/// Every command with its parents.
pub const COMMANDS: &[&[&str]] = &[
    &[],
    &["init"],
    &["run"],
    &["publish"],
    &["check"],
    &["simulate"],
    &["test"],
    &["workers"],
    &["tenants"],
    &["top"],
    &["inspect"],
    &["explain"],
    &["job"],
    &["job", "cancel"],
    &["job", "show"],
    &["pause"],
    &["resume"],
    &["drain"],
    &["dead"],
    &["dead", "list"],
    &["dead", "show"],
    &["dead", "replay"],
    &["dead", "drop"],
    &["tenant"],
    &["tenant", "pause"],
    &["tenant", "resume"],
    &["tenant", "limit"],
    &["tenant", "divert"],
    &["tenant", "undivert"],
    &["tenant", "reset"],
    &["health"],
    &["echo"],
    &["schema"],
    &["completions"],
    &["man"],
    &["demo"],
];

#[test]
fn every_command_has_help_with_an_example() {
    for args in COMMANDS {
        let all = [*args, &["--help"]].concat();
        let done = sluicegate("", &all).exited(0);
        let example = format!("  sluicegate {}", args.join(" "));
        assert!(done.out.contains("Example"), "{args:?}: {}", done.out);
        assert!(
            done.out.contains(example.trim_end()),
            "{args:?}: {}",
            done.out
        );
        // Commands without a configuration accept the option but don't show it.
        let alone = ["init", "test", "echo", "schema", "completions", "man"];
        let offers = !args.first().is_some_and(|name| alone.contains(name));
        assert_eq!(
            done.out.contains("--config <FILE>"),
            offers,
            "{args:?}: {}",
            done.out
        );
    }
    let none = ["--config", "none.yaml", "schema"];
    assert!(sluicegate("", &none).exited(0).out.contains("$defs"));
    let version = sluicegate("", &["--version"]).exited(0).out;
    assert_eq!(
        version,
        format!("sluicegate {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for args in [
        &[][..],
        &["rnu"],
        &["publish", "--cost", "x"],
        &["publish", "--tenant", "a", "--file", "f"],
        &["publish", "--tenant", ""],
        &["publish", "--tenant", "a", "--cost", "6"],
        &["publish", "--header", "x-path=/v1"],
        &["publish", "--tenant", "a", "--header", "x-path"],
        &["publish", "--tenant", "a", "--header", "=/v1"],
        &["publish", "--tenant", "a", "--header", "x-tenant=b"],
        &[
            "publish",
            "--tenant",
            "a",
            "--header",
            "x-sluicegate-ticket=1:1",
        ],
        &[
            "publish", "--tenant", "a", "--header", "x=1", "--header", "x=2",
        ],
        &["publish", "--file", "f", "--header", "x=1"],
        &["publish", "BODY"],
        &["publish", "--file", "none.jsonl"],
        &["inspect"],
        &["inspect", ""],
        &["dead", "replay"],
        &["dead", "drop"],
        &["dead", "drop", "--all", "--id", "7"],
        &["dead", "list", "--limit", "0"],
        &["tenants", "--limit", "0"],
        &["tenants", "--sort", "size"],
        &["workers", "a"],
        &["check", "--plan", "pro"],
        &["check", "--tenant", "a", "--plan", "pro"],
        &["inspect", "a", "--plan", "pro"],
        &["publish", "--tenant", "a", "--plan", "pro"],
        &["tenant"],
        &["tenant", "pause"],
        &["tenant", "pause", ""],
        &["tenant", "pause", "a", "--for", "soon"],
        &["tenant", "pause", "a", "--for", "0"],
        &["tenant", "pause", "a", "--for", "366d"],
        &["tenant", "resume", "a", "--for", "1h"],
        &["tenant", "limit", "a"],
        &["tenant", "limit", "a", "0"],
        &["tenant", "limit", "a", "1000000000001"],
        &["tenant", "limit", "a", "5", "--clear"],
        &["tenant", "limit", "a", "--clear", "--for", "1h"],
        &["tenant", "limit", "a", "5", "--limit", "other"],
        &["tenant", "rest", "a"],
        &["run"],
    ] {
        let done = sluicegate("", args).exited(2);
        assert!(!done.err.is_empty(), "{args:?}");
        assert_eq!(done.out, "", "{args:?}");
    }
    for cost in ["-1", "abc", "0", "1.5"] {
        let args = ["publish", "--tenant", "a", "--cost", cost];
        let done = sluicegate("", &args).exited(2);
        let says = done
            .err
            .contains("a cost must be a whole number of at least 1\n");
        assert!(says, "{cost}: {}", done.err);
    }
    let done = sluicegate("", &["publish", "jobs.jsonl"]).exited(2);
    assert_eq!(
        done.err,
        "error: the job has no tenant: give --tenant, or --file FILE for jobs in lines\n"
    );
    let done = sluicegate("", &["dead", "drop"]).exited(2);
    assert_eq!(
        done.err,
        "error: no dead letters selected; set reason, tenant, id or all\n"
    );
    let done = sluicegate("", &["tenant", "limit", "a", "5", "--limit", "defult"]).exited(2);
    assert_eq!(
        done.err,
        "error: a has no limit called \"defult\" (rate-limiter); did you mean default?\n"
    );
    let plans = "rate-limiter: {plans: {pro: {guard: 0}}, plan-header: x-plan}";
    let done = sluicegate(plans, &["inspect", "a", "--plan", "prod"]).exited(2);
    assert_eq!(
        done.err,
        "error: rate-limiter.plans has no plan \"prod\"; did you mean pro?\n"
    );
    let done = sluicegate("", &["run"]).exited(2);
    assert_eq!(
        done.err,
        "error: sluicegate.yaml: dispatch.http.url: is not set; run needs a destination for jobs: \
        set dispatch.http.url, dispatch.exec.command or dispatch.forward\n"
    );
}

#[test]
fn a_wrong_config_is_exit_code_2_with_a_line_for_each_mistake() {
    let yaml = "rate-limiter:\n  window-size: 0\ncolour: blue\n";
    for args in [
        &["run"][..],
        &["check", "--offline"],
        &["publish", "--tenant", "a"],
        &["inspect", "a"],
        &["tenant", "pause", "a"],
        &["dead", "list"],
        &["demo"],
    ] {
        let done = sluicegate(yaml, args).exited(2);
        assert_eq!(
            done.err,
            "error: sluicegate.yaml:2:3: rate-limiter.window-size: is 0; it must be from 100ms to 31d\n\
             error: sluicegate.yaml:3:1: unknown key \"colour\"; docs/CONFIGURATION.md lists all keys\n",
            "{args:?}"
        );
    }
}

#[test]
fn the_config_is_the_named_file_or_the_default_one_or_none() {
    let check = ["check", "--offline"];
    let done = sluicegate_with(None, &check, b"").exited(0);
    done.out.says("  queue: \"jobs\"\n");
    let done = sluicegate("amqp: {queue: mine}", &check).exited(0);
    done.out.says("  queue: \"mine\"\n");

    let named = [&check[..], &["--config", "none.yaml"]].concat();
    let done = sluicegate("", &named).exited(2);
    assert_eq!(
        done.err,
        "error: none.yaml: can't be read: No such file or directory (os error 2)\n"
    );

    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("other.yaml"), "amqp: {queue: other}").expect("written");
    let run = |env: &[(&str, &str)]| -> CommandResult {
        let output = command(folder.path(), &check)
            .envs(env.iter().copied())
            .output();
        output.expect("it runs").into()
    };
    let done = run(&[("SLUICEGATE_CONFIG", "other.yaml")]).exited(0);
    done.out.says("  queue: \"other\"\n");
    let done = run(&[("SLUICEGATE_AMQP__QUEUE", "mine")]).exited(0);
    done.out.says("  queue: \"mine\"\n");
    let done = run(&[("SLUICEGATE_AMQP__QUEU", "mine")]).exited(2);
    assert_eq!(
        done.err,
        "error: environment variable SLUICEGATE_AMQP__QUEU: sets no key; did you mean SLUICEGATE_AMQP__QUEUE?\n"
    );
}

#[test]
fn check_shows_the_configuration_without_passwords() {
    let yaml = "
amqp: {url: 'amqp://u:hunter2@127.0.0.1:1/%2f'}
redis: {url: 'redis://:hunter2@127.0.0.1:1/0'}
rate-limiter: {max-requests: 7, window-size: 10}
";
    let done = sluicegate(yaml, &["check", "--offline"]).exited(0);
    done.out.says("amqp://u:***@127.0.0.1:1/%2f");
    done.out.says("redis://:***@127.0.0.1:1/0");
    done.out.says("ok    config    is valid\n");

    let done = sluicegate(yaml, &["check", "--offline", "--tenant", "acme"]).exited(0);
    let limits = "limits of acme, from rate-limiter:\n  default: at most 7 units of cost in any 10s: sliding-window-algo, guard 50ms; worst case in any window: 7\n";
    done.out.ends(limits);

    let json = json_of(yaml, &["check", "--offline", "--tenant", "acme"]);
    assert_eq!(json["ok"], true);
    assert_eq!(json["tenant"], "acme");
    assert_eq!(json["source"], "rate-limiter");
    assert_eq!(json["limits"][0]["max_requests"], 7);
}

#[test]
fn check_shows_a_strict_guard() {
    let yaml = "rate-limiter: {max-requests: 7, window-size: 10, guard: strict}";
    let args = ["check", "--offline", "--tenant", "acme"];
    let done = sluicegate(yaml, &args).exited(0);
    let limit = "\n  default: at most 7 units of cost in any 10s: sliding-window-algo, guard strict; worst case in any window: 7\n";
    done.out.ends(limit);

    let json = json_of(yaml, &args);
    let limit = &json["limits"][0];
    assert_eq!(limit["algorithm"], "sliding-window-algo");
    assert_eq!(limit["guard"], "strict");
    assert_eq!(limit["guard_ms"], serde_json::Value::Null);
}

#[test]
fn check_shows_a_tenants_limits_their_source_and_idle_entries() {
    let yaml = "
rate-limiter:
  plans:
    pro:
      limits:
        - {name: requests, use-algo: leaky-bucket-algo, max-requests: 60, burst: 3}
        - {name: tokens, unit: cost, use-algo: token-bucket-algo, max-requests: 1000, guard: 0}
        - {name: aligned, use-algo: fixed-window-algo, max-requests: 9, window-size: 1h}
        - {name: idle, max-requests: 1000, window-size: 1s}
  tenants: {trial-*: {plan: pro}}
";
    let done = sluicegate(yaml, &["check", "--offline", "--tenant", "trial-7"]).exited(0);
    let limits = "limits of trial-7, from rate-limiter.plans.pro, by rate-limiter.tenants.trial-*:
  requests: at most 60 calls per 1m: leaky-bucket-algo, burst 3, guard 50ms; worst case in any window: 62
  tokens: at most 1000 units of cost per 1m: token-bucket-algo, burst 1000, guard 0ms; worst case in any window: 1999
  aligned: at most 9 calls in each aligned 1h: fixed-window-algo, guard 50ms; worst case in any window: 18
  idle: at most 1000 calls in any 1s: sliding-window-algo, guard 50ms; worst case in any window: 1000
";
    done.out.ends(limits);
    let warning = "warn  config    rate-limiter.plans.pro: the limit idle never has an effect: \
        requests is stricter in every respect\n";
    done.out.says(warning);

    let of = |args: &[&str]| {
        let args = [&["check", "--offline", "--json", "--tenant"], args].concat();
        sluicegate(yaml, &args).exited(0).json()
    };
    let json = of(&["trial-7"]);
    assert_eq!(json["limits"][1]["burst"], 1000);
    assert_eq!(json["limits"][1]["worst_case"], 1999);
    assert_eq!(json["limits"][2]["burst"], serde_json::Value::Null);
    assert_eq!(of(&["a"])["source"], "rate-limiter");
    assert_eq!(
        of(&["a", "--plan", "pro"])["source"],
        "rate-limiter.plans.pro"
    );
}

/// Covers `sluicegate publish 2>&1 | head -1`.
#[test]
fn a_command_ends_as_usual_if_its_errors_are_not_read() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let args = ["simulate", "--burst", "3", "--tenants", "0"];
    let ended = Command::new(PROGRAM.0).args(args).stderr(writer).status();
    assert_eq!(ended.expect("it runs").code(), Some(2));
}

/// Covers `sluicegate init … | true`.
#[test]
fn a_command_ends_as_usual_if_its_output_is_not_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let args = ["init", "--url", "https://h/", "--limit", "3/s"];
    let mut command = Command::new(PROGRAM.0);
    let command = command.args(args).current_dir(folder.path());
    let ended = command.stdin(Stdio::null()).stdout(writer).status();
    assert_eq!(ended.expect("it runs").code(), Some(0));
}

#[test]
fn an_unreachable_server_is_exit_code_1_and_one_line() {
    // No server listens on port 1 of this machine.
    let yaml = "
amqp: {url: 'amqp://u:hunter2@127.0.0.1:1/%2f'}
redis: {url: 'redis://:hunter2@127.0.0.1:1/0'}
";
    for args in [
        &["publish", "--tenant", "a", "x"][..],
        &["publish"],
        &["dead", "list"],
        &["dead", "show", "7"],
        &["dead", "replay", "--all"],
        &["dead", "drop", "--all"],
        &["inspect", "a"],
        &["tenant", "pause", "a"],
        &["tenant", "limit", "a", "--clear"],
    ] {
        let done = sluicegate(yaml, args).exited(1);
        assert_eq!(done.err.lines().count(), 1, "{args:?}: {}", done.err);
        assert!(done.err.starts_with("error: "), "{args:?}: {}", done.err);
        assert!(
            done.err.contains("can't be reached"),
            "{args:?}: {}",
            done.err
        );
        let hints = [
            "; check that it is running and that redis.url is correct\n",
            "; check that it is running and that amqp.url is correct\n",
        ];
        let hinted = hints.iter().any(|hint| done.err.ends_with(hint));
        assert!(
            hinted && !done.err.contains("IO error"),
            "{args:?}: {}",
            done.err
        );
        assert_eq!(done.out, "", "{args:?}");
        assert!(!done.err.contains("hunter2"), "{args:?}: {}", done.err);
    }
    let done = sluicegate(yaml, &["check"]).exited(1);
    for server in ["error rabbitmq  ", "error redis     "] {
        let line = done.out.lines().find(|line| line.starts_with(server));
        assert!(
            line.is_some_and(|line| line.contains("can't be reached")),
            "{}",
            done.out
        );
    }
    assert!(!done.out.contains("hunter2"), "{}", done.out);
    let json = sluicegate(yaml, &["check", "--json"]).exited(1).json();
    assert_eq!(json["ok"], false);
}

/// Returns a configuration for `run` with servers that don't exist.
fn run_nowhere(listen: &str) -> String {
    format!(
        "
amqp: {{url: 'amqp://u:hunter2@127.0.0.1:1/%2f'}}
redis: {{url: 'redis://:hunter2@127.0.0.1:1/0'}}
dispatch: {{http: {{url: 'http://u:hunter2@127.0.0.1:1/'}}}}
admin: {{listen: '{listen}'}}
"
    )
}

#[test]
fn run_waits_for_its_servers_and_ends_at_sigterm() {
    let folder = tempfile::tempdir().expect("a folder");
    let yaml = run_nowhere("127.0.0.1:0");
    std::fs::write(folder.path().join("sluicegate.yaml"), yaml).expect("written");
    let mut child = command(folder.path(), &["run"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut log = String::new();
    let mut lines = BufReader::new(child.stderr.take().expect("piped"));
    while !log.contains("can't be reached") {
        let read = lines.read_line(&mut log).expect("a line");
        assert!(read > 0, "it ended: {log}");
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it still runs");
    lines.read_to_string(&mut log).expect("the rest");
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("hunter2"), "{log}");
}

#[test]
fn run_reports_that_its_port_is_taken() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = taken.local_addr().expect("an address").to_string();
    let done = sluicegate(&run_nowhere(&at), &["run"]).exited(1);
    let errors: Vec<&str> = (done.err.lines())
        .filter(|line| line.starts_with("error: "))
        .collect();
    assert_eq!(errors.len(), 1, "{}", done.err);
    let expected = format!(
        "admin.listen: {at} is in use; set another address, or 127.0.0.1:0 for any free port"
    );
    assert!(errors[0].ends_with(&expected), "{}", done.err);
}

#[test]
fn check_recommends_segments_for_large_logs() {
    let yaml = "
rate-limiter:
  max-requests: 5
  plans:
    pro: {max-requests: 10000, window-size: 1h}
    slow: {max-requests: 10000, window-size: 1h, limits: [{name: hour}, {name: day, max-requests: 500, window-size: 1d}]}
  tenants: {acme: {max-requests: 10000, window-size: 1h, guard: strict}, small: {plan: slow}}
  plan-header: x-plan
";
    let done = sluicegate(yaml, &["check", "--offline"]).exited(0);
    let advice: Vec<_> = done
        .out
        .lines()
        .filter(|line| line.contains("an entry for each call"))
        .collect();
    let [plan, tenant] = advice[..] else {
        panic!("{advice:?}");
    };
    assert_eq!(
        plan,
        "warn  config    rate-limiter.plans.pro: the limit default keeps an entry for each call: \
         up to 1.3 MB of Redis for a tenant that uses it up; use-algo: sliding-segments-algo takes \
         3.2 kB, with the same worst case (10000 in any window) and the same burst (10000 at once). \
         It loses 0.5 % of the quota, since a call counts for up to 19s longer, and it does not \
         count calls that come later than the guard from their arrival"
    );
    assert!(
        tenant.contains("rate-limiter.tenants.acme: ") && tenant.contains("calls in flight"),
        "{tenant}"
    );
    let other = yaml.replace(
        "pro: {",
        "pro: {use-algo: sliding-segments-algo, guard: 50ms, ",
    );
    let done = sluicegate(&other, &["check", "--offline"]).exited(0);
    assert!(!done.out.contains("plans.pro: the limit"), "{}", done.out);
}
