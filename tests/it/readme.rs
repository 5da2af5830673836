//! Runs the quickstart as pasted. It ends with a wait that `inspect` shows.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kit::PATIENCE;
use kit::servers::{free_port, shared_rabbit, shared_redis};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::PROGRAM;

const PAGE: &str = include_str!("../../docs/QUICKSTART.md");

/// A shell with everything it starts. Dropping it kills all of it.
struct Shell(Child);

impl Drop for Shell {
    fn drop(&mut self) {
        if let Some(group) = Pid::from_raw(self.0.id().cast_signed()) {
            // An error means that none of it runs any more.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// Returns the page's first shell block.
fn block() -> &'static str {
    let (_, block) = PAGE.split_once("```sh\n").expect("a shell block");
    block.split_once("```").expect("its end").0
}

#[test]
#[expect(clippy::disallowed_methods, reason = "it waits for a process")]
fn the_quickstart_runs_as_pasted_and_shows_a_wait() {
    let (install, rest): (Vec<_>, Vec<_>) = block()
        .lines()
        .partition(|line| line.starts_with("cargo install "));
    assert_eq!(install.len(), 1, "the binary of this build stands for it");
    // Another process may use the default port here.
    let (usual, free) = ("127.0.0.1:8080", format!("127.0.0.1:{}", free_port()));
    let mut script = rest.join("\n");
    for (pasted, here) in [
        (format!("http://{usual}/"), format!("http://{free}/")),
        (
            "sluicegate echo ".into(),
            format!("sluicegate echo --listen {free} "),
        ),
        // A minute may pass on a busy machine.
        ("window-size: 1m".into(), "window-size: 1h".into()),
        ("--limit 3/1m".into(), "--limit 3/1h".into()),
    ] {
        assert!(script.contains(&pasted), "{pasted}");
        script = script.replace(&pasted, &here);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = Path::new(PROGRAM.0);
    let paths = std::env::var("PATH").expect("a PATH");
    let programs = program.parent().expect("a folder").display();
    let out = tempfile::NamedTempFile::new().expect("a file");
    let file = || Stdio::from(out.reopen().expect("the file"));
    let child = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &script])
        .current_dir(folder.path())
        .env("PATH", format!("{programs}:{paths}"))
        .env("SLUICEGATE_AMQP__URL", shared_rabbit().url())
        .env("SLUICEGATE_REDIS__URL", shared_redis().url())
        .env("SLUICEGATE_ADMIN__LISTEN", "127.0.0.1:0")
        .stdin(Stdio::null())
        // Processes left behind would keep a pipe open.
        .stdout(file())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("bash");
    let mut shell = Shell(child);
    let started = Instant::now();
    let output = || {
        let mut text = String::new();
        let mut file = out.reopen().expect("the file");
        file.read_to_string(&mut text).expect("text");
        text
    };
    let status = loop {
        match shell.0.try_wait().expect("it can be asked") {
            Some(status) => break status,
            None => assert!(started.elapsed() < PATIENCE, "{}", output()),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{status}: {}", output());
    // Calls that have started may be in flight. On a busy machine a permit may come too late, and
    // another job is first.
    let called = |output: &str| {
        let line = |number| format!("200 acme order-{number} attempt 1: {{\"order\": {number}}}\n");
        (1..=5)
            .filter(|number| output.contains(&line(*number)))
            .count()
    };
    while called(&output()) < 3 {
        assert!(started.elapsed() < PATIENCE, "{}", output());
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(shell);
    let output = output();
    let answers = |status| output.matches(&format!("\n{status} acme order-")).count();
    assert_eq!((answers(200), answers(429)), (3, 0), "{output}");
    let (_, end) = output.rsplit_once("tenant    acme\n").expect("inspect");
    for line in [
        "  used    3 of 3, 0 free\n",
        // One of the two may still be in RabbitMQ.
        " waiting, the last is admitted in ",
        "why       the limit default is exhausted: the next unit becomes available in ",
    ] {
        assert!(end.contains(line), "{line}: {end}");
    }
}
