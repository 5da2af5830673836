//! `sluicegate init`: the file exists, is private and valid, and is never overwritten without
//! --force.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::cli::{CommandResult, sluicegate_in};

fn init(folder: &Path, args: &[&str]) -> CommandResult {
    sluicegate_in(folder, &[&["init"], args].concat(), b"")
}

const API: [&str; 4] = [
    "--url",
    "https://api.example.com/",
    "--limit",
    "100/min, 5 at once",
];

#[test]
fn init_writes_a_private_file_that_check_accepts() {
    let folder = tempfile::tempdir().expect("a folder");
    let done = init(folder.path(), &API).exited(0);
    let told = "sluicegate.yaml: 100 calls in 1m, 5 at once for each tenant. Next:";
    assert!(done.out.starts_with(told), "{}", done.out);
    let file = folder.path().join("sluicegate.yaml");
    let mode = file.metadata().expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let check = sluicegate_in(folder.path(), &["check", "--offline"], b"").exited(0);
    let findings: Vec<&str> = check
        .out
        .lines()
        .filter(|line| line.starts_with("warn"))
        .collect();
    assert_eq!(findings, [""; 0]);
}

#[test]
fn an_existing_file_is_kept_unless_forced() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("sluicegate.yaml");
    std::fs::write(&file, "mine").expect("written");
    let done = init(folder.path(), &API).exited(2);
    assert!(done.err.contains("already exists; --force"), "{}", done.err);
    assert_eq!(std::fs::read_to_string(&file).expect("it is there"), "mine");
    let printed = init(folder.path(), &[&API[..], &["--output", "-"]].concat()).exited(0);
    init(folder.path(), &[&API[..], &["--force"]].concat()).exited(0);
    let written = std::fs::read_to_string(&file).expect("it is there");
    assert_eq!(printed.out, written);
}

#[test]
fn without_a_terminal_no_question_is_asked() {
    let folder = tempfile::tempdir().expect("a folder");
    let done = init(folder.path(), &["--limit", "3/s"]).exited(2);
    assert!(done.err.contains("--url is required"), "{}", done.err);
    assert!(!folder.path().join("sluicegate.yaml").exists());
}
