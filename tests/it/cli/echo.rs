//! `sluicegate echo` over real connections.

use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use kit::Says;

use crate::PROGRAM;

/// A running echo. Dropping it kills the process.
struct Echo(Child);

impl Drop for Echo {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an echo on any port with `args`, and reads its first lines.
fn echo(folder: &Path, args: &[&str]) -> (Echo, Lines<BufReader<ChildStdout>>, String) {
    let mut child = Command::new(PROGRAM.0)
        .args(["echo", "--listen", "127.0.0.1:0"])
        .args(args)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let out = child.stdout.take().expect("piped");
    let echo = Echo(child);
    let mut lines = BufReader::new(out).lines();
    let begins = lines.next().expect("a line").expect("text");
    (echo, lines, begins)
}

/// Returns the complete answer to a call for `tenant`.
fn call(address: &str, tenant: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let length = body.len();
    write!(
        stream,
        "POST /v1 HTTP/1.1\r\nhost: here\r\nconnection: close\r\nx-tenant: {tenant}\r\nx-job-id: 7\r\n\
         x-attempt: 2\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

#[test]
fn echo_prints_requests_and_enforces_requested_limits() {
    let folder = tempfile::tempdir().expect("a folder");
    // It has no configuration, so an invalid one does not matter.
    std::fs::write(folder.path().join("sluicegate.yaml"), "no: such").expect("written");
    let (_echo, mut lines, begins) = echo(folder.path(), &["--limit", "1/1h"]);
    let mut line = || lines.next().expect("a line").expect("text");
    let (_, rest) = begins.split_once("http://").expect("its address");
    let (address, rest) = rest.split_once('/').expect("its end");
    let strict = "; answers 200, and takes 1 call of a tenant in any 1h";
    assert_eq!(rest, strict);

    let answer = call(address, "acme", "{\"order\": 7}\u{1b}");
    answer.begins("HTTP/1.1 200 ");
    assert_eq!(line(), "200 acme 7 attempt 2: {\"order\": 7}\\u{1b}");
    let answer = call(address, "acme", &"x".repeat(1_000_000));
    answer.begins("HTTP/1.1 429 ");
    let wait = answer
        .lines()
        .find_map(|line| line.strip_prefix("retry-after: "));
    let wait: u64 = wait.expect("a header").parse().expect("seconds");
    assert!((1..=3_600).contains(&wait), "{wait}");
    let shown = format!("429 acme 7 attempt 2: {}…", "x".repeat(200));
    assert_eq!(line(), shown);
    assert!(call(address, "other", "").starts_with("HTTP/1.1 200 "));
    assert_eq!(line(), "200 other 7 attempt 2: ");
}

#[test]
fn echo_is_as_slow_and_strict_as_a_simulated_api_and_shows_arrivals() {
    let folder = tempfile::tempdir().expect("a folder");
    let api = [
        "--latency",
        "300ms",
        "--errors",
        "100%",
        "--limit",
        "1/1h:all",
    ];
    let (_echo, mut lines, begins) = echo(folder.path(), &[&api[..], &["--times"]].concat());
    let (_, rest) = begins.split_once("http://").expect("its address");
    let (address, rest) = rest.split_once('/').expect("its end");
    rest.ends(", and takes 1 call of all tenants in any 1h");
    let mut call_at = |tenant: &str, status: &str| {
        let started = Instant::now();
        let answer = call(address, tenant, "");
        answer.begins(&format!("HTTP/1.1 {status} "));
        assert!(started.elapsed() >= Duration::from_millis(300));
        let line = lines.next().expect("a line").expect("text");
        let (at, rest) = line.trim_start().split_once(' ').expect("a time");
        assert_eq!(rest, format!("{status} {tenant} 7 attempt 2: "));
        at.parse::<f64>().expect("seconds")
    };
    assert_eq!(call_at("acme", "500"), 0.0, "the first one");
    assert!(call_at("other", "429") >= 0.3);
}
