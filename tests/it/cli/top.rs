//! `sluicegate top` as an operator meets it: in a terminal, with real servers and two workers.

use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::os::fd::AsFd as _;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use kit::api::Api;
use kit::gate::gate_at;
use kit::process::Process;
use kit::servers::{Redis, shared_rabbit};
use kit::{Bed, MS, PATIENCE, client, jobs, until};
use operator::answer::Answer;
use operator::audit;
use pty_process::Size;
use pty_process::blocking::{Command, Pty, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{LocalModes, tcgetattr};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::block_in_place;

use crate::PROGRAM;
use crate::cli::servers::buried;
use crate::cli::{CommandResult, sluicegate};
use crate::fleet::TwoWorkers;

/// A name with characters that must not reach the terminal unchanged.
const HOSTILE: &str = "\u{202e}evil\u{200b}日本";

fn some(number: u16) -> NonZero<u16> {
    NonZero::new(number).expect("a terminal has rows and columns")
}

/// `sluicegate top`, or another command, in its own terminal.
struct Top {
    pty: Arc<Pty>,
    screen: Arc<Mutex<vt100::Parser>>,
    child: Child,
    folder: TempDir,
}

impl Top {
    fn start(yaml: &str, args: &[&str], size: (u16, u16)) -> Self {
        Self::command(yaml, &[&["top"], args].concat(), size)
    }

    fn command(yaml: &str, args: &[&str], (rows, columns): (u16, u16)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("sluicegate.yaml"), yaml).expect("written");
        let (pty, pts) = open().expect("a pseudo-terminal");
        pty.resize(Size::new(rows, columns)).expect("resized");
        let mut command = Command::new(PROGRAM.0).args(args);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("SLUICEGATE_") || name == "NO_COLOR" {
                command = command.env_remove(name);
            }
        }
        let command = command.env("TERM", "xterm-256color").env("USER", "anna");
        let command = command.env_remove("SUDO_USER").current_dir(folder.path());
        let child = command.spawn(pts).expect("it starts");
        let screen = Arc::new(Mutex::new(vt100::Parser::new(some(rows), some(columns), 0)));
        let pty = Arc::new(pty);
        let (reads, shown) = (Arc::clone(&pty), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The loop ends with an error once the program has closed the terminal.
            while let Ok(number @ 1..) = (&*reads).read(&mut bytes) {
                let mut shown = shown.lock().expect("no panic");
                shown.process(&bytes[..number]);
            }
        });
        Self {
            pty,
            screen,
            child,
            folder,
        }
    }

    fn text(&self) -> String {
        let screen = self.screen.lock().expect("no panic");
        screen.screen().contents()
    }

    fn has_colours(&self) -> bool {
        let screen = self.screen.lock().expect("no panic");
        let screen = screen.screen();
        let (rows, columns) = screen.size();
        let (rows, columns) = (rows.get(), columns.get());
        let cells = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let mut cells = cells.filter_map(|(row, column)| screen.cell(row, column));
        cells.any(|cell| {
            cell.fgcolor() != vt100::Color::Default || cell.bgcolor() != vt100::Color::Default
        })
    }

    fn types(&self, keys: &str) {
        (&*self.pty).write_all(keys.as_bytes()).expect("typed");
    }

    fn resize(&self, rows: u16, columns: u16) {
        let mut screen = self.screen.lock().expect("no panic");
        screen.screen_mut().set_size(some(rows), some(columns));
        self.pty.resize(Size::new(rows, columns)).expect("resized");
    }

    /// Waits until all of these are on the screen at once. Returns the screen's text.
    #[track_caller]
    fn shows(&self, parts: &[&str]) -> impl Future<Output = String> {
        let caller = std::panic::Location::caller();
        async move {
            let started = Instant::now();
            loop {
                let text = self.text();
                if parts.iter().all(|part| text.contains(part)) {
                    return text;
                }
                let waited = started.elapsed();
                assert!(
                    waited < PATIENCE,
                    "{caller}: waited in vain for {parts:?} in\n{text}"
                );
                tokio::time::sleep(20 * MS).await;
            }
        }
    }

    /// Replaces the configuration atomically.
    fn has_file(&self, yaml: &str) {
        let [new, file] = ["new.yaml", "sluicegate.yaml"].map(|name| self.folder.path().join(name));
        std::fs::write(&new, yaml).expect("written");
        std::fs::rename(new, file).expect("renamed");
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).expect("an id");
        kill_process(Pid::from_raw(id).expect("an id"), signal).expect("it runs");
    }

    /// Checks that it ends with this status and has restored the terminal: the usual screen, a
    /// cursor, and echoed lines.
    async fn ends(mut self, status: i32) -> String {
        let started = Instant::now();
        let ended = loop {
            if let Some(ended) = self.child.try_wait().expect("a child") {
                break ended;
            }
            assert!(started.elapsed() < PATIENCE, "it goes on:\n{}", self.text());
            tokio::time::sleep(20 * MS).await;
        };
        assert_eq!(ended.code(), Some(status), "{}", self.text());
        let restored = || {
            let screen = self.screen.lock().expect("no panic");
            let screen = screen.screen();
            !screen.alternate_screen() && !screen.hide_cursor()
        };
        until("the usual screen", restored).await;
        let modes = tcgetattr(self.pty.as_fd()).expect("a terminal").local_modes;
        assert!(modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG));
        self.text()
    }
}

/// Kills the program if a test has ended early.
impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl TwoWorkers {
    fn command(&self, args: &[&str]) -> CommandResult {
        block_in_place(|| sluicegate(&self.yaml, args).exited(0))
    }

    /// Returns until when the gate suspends the tenant and why, or `None` if it does not.
    fn suspended(&self, tenant: &str) -> Option<String> {
        let found = self.command(&["inspect", tenant, "--json"]).json();
        let is = found["suspended_until_ms"].as_u64() > found["now_ms"].as_u64();
        is.then(|| found["suspended_by"].as_str().expect("a text").to_owned())
    }

    /// Returns the audited actions with their operators, the newest first.
    async fn audit(&self) -> Vec<Value> {
        let gate = gate_at(&self.bed.redis, &self.bed.name);
        let page = audit::read(&gate, None, 20).await.expect("it answers");
        page.entries.iter().map(Answer::as_json).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shadow_limits_report_hypothetical_denials() {
    let api = Api::start().await;
    let bed = Bed::shared();
    let limits = "window-size: 1h, limits: [{name: few, max-requests: 2}, {name: one, max-requests: 1, shadow: true}]";
    let yaml = bed.yaml(limits, &api.url(), "");
    let worker = PROGRAM.start_consuming(&yaml).await;
    let args = ["tenant", "limit", "many", "1", "--limit", "few", "--shadow"];
    block_in_place(|| sluicegate(&yaml, &args).exited(0));
    bed.publish(&yaml, jobs("many", 20)).await;
    until("two calls", || api.count() == 2).await;
    let top = Top::start(&yaml, &[], (40, 120));
    top.types("3");
    let row = "shadow, would have made 1 of 2 wait, the longest ";
    let is_shadow = |text: &str, limit: &str| {
        let named = |line: &&str| line.contains(limit) && line.contains(row);
        text.lines().filter(named).count() == 1
    };
    let text = top.shows(&["[3 Limits]", "2/2", row]).await;
    assert!(
        is_shadow(&text, " few ") && is_shadow(&text, " one "),
        "{text}"
    );
    top.types("/many\r");
    let page = ["tenant many", row, "by an operator, until "];
    let text = top.shows(&page).await;
    assert!(
        is_shadow(&text, " few ") && is_shadow(&text, " one "),
        "{text}"
    );
    top.types("q");
    top.ends(0).await;
    worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_waiting_tenant_is_found_paused_and_resumed() {
    let two = TwoWorkers::start("").await;
    two.command(&["tenant", "pause", HOSTILE]);
    let all = jobs("many", 40)
        .chain(jobs("few", 2))
        .chain(jobs(HOSTILE, 3));
    two.bed.publish(&two.yaml, all).await;

    let top = Top::start(&two.yaml, &[], (40, 120));
    let text = top.shows(&["[1 Fleet]", "2 workers, 2 ready"]).await;
    for worker in &two.workers {
        assert!(text.contains(&format!(":{}", worker.id())), "{text}");
    }
    assert!(top.has_colours());

    // The tenant that waits longest, with the reason and the end.
    top.types("2");
    let text = top
        .shows(&[
            ">many",
            "limit default",
            "many: waits for the limit default; 39 in line",
        ])
        .await;
    assert!(text.contains("\\u{202e}evil\\u{200b}日本"), "{text}");
    assert!(text.contains("the last starts in 1d "), "{text}");
    top.types("3");
    top.shows(&["[3 Limits]", "1/1", "#]"]).await;

    // The tenant's own page, by its name.
    top.types("/man");
    top.shows(&["/man_", "with \"man\" in the name: 1 tenant"])
        .await;
    top.types("\r");
    top.shows(&[
        "tenant many",
        "state     open, jobs wait",
        "line      39 waiting, ends in 1d ",
        "why       the limit default is exhausted",
        "output of inspect",
        "source    rate-limiter",
        "limit     default: at most 1 call",
    ])
    .await;

    // Also on a smaller screen.
    top.resize(24, 80);
    top.shows(&["tenant many", "p pause  r resume  l limit"])
        .await;

    // Needs a confirmation, and is not done without a yes.
    top.types("p\r");
    top.shows(&[
        "Pause many for 1h: no worker starts its jobs.",
        "Do it? (y/N)",
    ])
    .await;
    top.types("n");
    top.shows(&["nothing was changed"]).await;
    assert_eq!(two.suspended("many"), None);
    assert_eq!(two.audit().await.len(), 1, "the pause by the command");

    top.types("p\ry");
    top.shows(&[
        "paused many until ",
        "SUSPENDED, opens in 59:",
        "UTC): an operator (tenant pause)",
    ])
    .await;
    let by = two.suspended("many").expect("it is");
    assert_eq!(by, "an operator (tenant pause)");
    let audit = two.audit().await;
    let newest = &audit[0];
    assert_eq!(
        (&newest["action"], &newest["operator"]),
        (&"tenant pause".into(), &"anna".into())
    );
    assert_eq!(
        (&newest["peer"], &newest["of"]["tenant"]),
        (&"command".into(), &"many".into())
    );
    assert_eq!(newest["request"]["for_ms"], 3_600_000);

    top.types("r");
    top.shows(&["Resume many: ends its pause"]).await;
    top.types("y");
    top.shows(&["resumed many", "state     open, jobs wait"])
        .await;
    assert_eq!(two.suspended("many"), None);

    // Another limit, then the configured one again.
    top.types("l5\r\r");
    top.shows(&["Limit default of many: max-requests is 5 for 1h"])
        .await;
    top.types("y");
    top.shows(&["max-requests is 5 until", "/5*"]).await;
    top.types("cy");
    top.shows(&["max-requests is as configured"]).await;
    // A tried limit denies nothing and shows what it would do. Then it is enforced, or ended.
    top.types("t5\r\r");
    top.shows(&["Try max-requests 5 for the limit default of many for 1h"])
        .await;
    top.types("y");
    top.shows(&[
        "trying max-requests 5 until",
        ": 2 workers follow",
        "shadow, has counted no start",
        "e enforce the trial  x end it",
    ])
    .await;
    top.types("e\ry");
    let text = top
        .shows(&["max-requests is 5 until", "/5*", "t try  z reset"])
        .await;
    assert!(!text.contains("shadow"), "{text}");
    top.types("t7\r\ry");
    top.shows(&["trying max-requests 7 until", "x end it"])
        .await;
    top.types("xy");
    top.shows(&[
        "max-requests 7 is no longer tried: 2 workers follow",
        "t try",
    ])
    .await;
    top.types("zy");
    top.shows(&["reset the waitlist of many"]).await;
    let actions: Vec<Value> = (two.audit().await.iter())
        .map(|entry| entry["action"].clone())
        .collect();
    let expected = [
        "reset", "limit", "limit", "limit", "limit", "limit", "limit", "resume", "pause", "pause",
    ];
    let audit = two.audit().await;
    let requests: Vec<_> = audit[1..5].iter().map(|it| &it["request"]).collect();
    let tries =
        |max: u32| json!({"limit": "default", "max": max, "for_ms": 3_600_000, "shadow": true});
    let ends = json!({"limit": "default", "clear": true, "shadow": true});
    let sets = json!({"limit": "default", "max": 5, "for_ms": 3_600_000});
    assert_eq!(requests, [&ends, &tries(7), &sets, &tries(5)]);
    assert_eq!(
        actions,
        expected.map(|it| Value::from(format!("tenant {it}")))
    );

    // Changes at the workers are shown when they happen.
    top.types("\u{1b}");
    top.shows(&["[2 Tenants]"]).await;
    two.command(&["pause", "--all", "--for", "1h"]);
    top.types("1");
    top.shows(&["an operator paused all workers", "not ready"])
        .await;
    two.command(&["resume", "--all"]);

    top.types("?");
    top.shows(&["sluicegate top: keys"]).await;
    top.types("x");
    top.shows(&["[1 Fleet]"]).await;
    top.types("q");
    let left = top.ends(0).await;
    assert_eq!(left.trim(), "", "nothing is left behind");
    two.workers.into_iter().for_each(Process::stop);
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_shown_and_replayed() {
    let api = Api::start().await;
    api.answers(|_| kit::api::Reply::status(422));
    let bed = Bed::shared();
    let yaml = bed.yaml("max-requests: 1000, window-size: 1h", &api.url(), "");
    let worker = PROGRAM.start(&yaml);
    bed.publish(&yaml, jobs("acme", 3).chain(jobs("{evil}*", 1)))
        .await;
    until("four calls", || api.count() == 4).await;

    let top = Top::start(&yaml, &["--no-color"], (24, 80));
    top.shows(&["1 worker, 1 ready"]).await;
    top.types("4");
    // Later dead letters are fetched with the key.
    let started = Instant::now();
    while !top.text().contains("4 dead letters, newest first") {
        assert!(started.elapsed() < PATIENCE, "{}", top.text());
        top.types("f");
        tokio::time::sleep(500 * MS).await;
    }
    let text = top.shows(&["answered 422", "acme", "{evil}*"]).await;
    assert!(!top.has_colours(), "{text}");

    api.answers(|_| kit::api::Reply::ok());
    // Fetched letters return to the queue a moment later.
    buried(&client(&yaml).await, 4).await;
    top.types("A");
    top.shows(&["Replay ALL dead letters of all tenants (4 dead letters in the list)"])
        .await;
    top.types("y");
    top.shows(&["replayed 4 dead letters", "0 dead letters"])
        .await;
    until("four calls more", || api.count() == 8).await;
    top.types("\u{3}");
    top.ends(0).await;
    let gate = gate_at(&bed.redis, &bed.name);
    let audit = audit::read(&gate, None, 9).await.expect("it answers");
    let newest = audit.entries[0].as_json();
    assert_eq!(newest["action"], "dead replay");
    assert_eq!(newest["request"]["all"], true);
    worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_server_does_not_freeze_the_screen() {
    let redis = block_in_place(Redis::start);
    let bed = Bed::on(shared_rabbit().url(), redis.url());
    let yaml = bed.yaml(
        "max-requests: 1, window-size: 1h",
        "http://127.0.0.1:9/",
        "",
    );
    let top = Top::start(&yaml, &[], (24, 80));
    top.shows(&["no worker is running, or Redis refuses writes: no report in the last 10 s"])
        .await;
    block_in_place(|| redis.pause());
    top.shows(&[
        "NO ANSWER from Redis since",
        "the picture below is",
        "can't be reached",
    ])
    .await;
    top.types("2");
    top.shows(&["[2 Tenants]", "NO ANSWER from Redis since"])
        .await;
    block_in_place(|| redis.resume());
    let started = Instant::now();
    while top.text().contains("NO ANSWER") {
        assert!(started.elapsed() < PATIENCE, "{}", top.text());
        tokio::time::sleep(20 * MS).await;
    }
    top.shows(&["no tenant has jobs at these workers"]).await;
    // Redis is unavailable, and leaving needs no further key.
    block_in_place(|| redis.stop());
    top.shows(&["NO ANSWER from Redis since", "can't be reached"])
        .await;
    top.signal(Signal::TERM);
    top.ends(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_configuration_is_reloaded() {
    let bed = Bed::shared();
    let yaml = |limits: &str| bed.yaml(limits, "http://127.0.0.1:9/", "");
    let top = Top::start(&yaml("max-requests: 1, window-size: 1h"), &[], (24, 80));
    top.shows(&["[1 Fleet]"]).await;
    top.types("/acme\r");
    top.shows(&["tenant acme", "0/1 "]).await;
    top.has_file(&yaml("max-requests: 37, window-size: 1h"));
    top.shows(&["0/37 ", "the changed configuration was read"])
        .await;
    // An unusable configuration leaves the old one in use, and is reported for as long as it is
    // there.
    top.has_file(&yaml("max-requests: many"));
    let text = top
        .shows(&["OLD CONFIGURATION", "sluicegate.yaml:", "max-requests"])
        .await;
    assert!(text.contains("0/37 "), "{text}");
    std::fs::remove_file(top.folder.path().join("sluicegate.yaml")).expect("removed");
    top.shows(&[
        "OLD CONFIGURATION",
        "sluicegate.yaml: can't be read",
        "0/37 ",
    ])
    .await;
    top.has_file(&yaml("max-requests: 38, window-size: 1h"));
    let text = top.shows(&["0/38 ", "t try  z reset"]).await;
    assert!(!text.contains("OLD CONFIGURATION"), "{text}");
    top.types("q");
    top.ends(0).await;
}

#[test]
fn without_a_terminal_top_suggests_other_commands() {
    let done = sluicegate("", &["top"]).exited(2);
    assert!(
        done.err.contains("top needs a terminal") && done.err.contains("sluicegate tenants --json"),
        "{done:?}"
    );
    assert_eq!(done.out, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_while_watching_stays_on_the_screen() {
    let redis = block_in_place(Redis::start);
    let yaml = format!("redis: {{url: '{}'}}", redis.url());
    let watch = Top::command(&yaml, &["workers", "--watch"], (24, 80));
    watch.shows(&["no worker is running"]).await;
    block_in_place(|| redis.kill());
    watch.shows(&["error: "]).await;
}
