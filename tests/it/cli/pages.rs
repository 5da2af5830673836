//! `sluicegate completions` and `sluicegate man`: further files for packages.

use std::process::{Command, Stdio};

use kit::sources::page;

use crate::PROGRAM;
use crate::cli::{COMMANDS, CommandResult, sluicegate};

#[test]
fn every_shell_completes_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = sluicegate("", &["completions", shell]).exited(0).out;
        for name in COMMANDS.iter().filter_map(|path| path.last()) {
            assert!(script.contains(name), "{shell}: {name}");
        }
        assert!(script.contains("skip-recovery-wait"), "{shell}");
    }
    for args in [&["completions"][..], &["completions", "dos"]] {
        sluicegate("", args).exited(2);
    }
}

#[test]
fn bash_offers_its_completions() {
    let script = sluicegate("", &["completions", "bash"]).exited(0).out;
    let asks = "COMP_WORDS=(sluicegate dead re) COMP_CWORD=2; _sluicegate sluicegate re dead; echo ${COMPREPLY[@]}";
    let done: CommandResult = Command::new("bash")
        .args(["-c", &format!("{script}\n{asks}")])
        .stdin(Stdio::null())
        .output()
        .expect("bash is there")
        .into();
    assert_eq!(done.exited(0).out, "replay\n");
}

/// A reader that stops early is not an error, as in `sluicegate man | head`.
#[test]
fn a_reader_may_stop_early() {
    for args in ["man", "completions bash"] {
        let line = format!("'{}' {args} | head -n 1 >/dev/null", PROGRAM.0);
        let done: CommandResult = Command::new("bash")
            .args(["-c", &line])
            .output()
            .expect("bash is there")
            .into();
        assert_eq!(done.exited(0).err, "");
    }
}

#[test]
fn every_command_has_a_page_with_its_example() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("man1");
    let args = ["man", "--out", out.to_str().expect("UTF-8")];
    assert_eq!(sluicegate("", &args).exited(0).out, "");
    for path in COMMANDS {
        let name = [&["sluicegate"], *path].concat().join("-");
        let page = std::fs::read_to_string(out.join(format!("{name}.1")));
        let page = page.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(page.contains(".TH"), "{name}");
        assert!(page.contains("Example"), "{name}");
        // roff escapes a minus.
        let example = format!("  {}", [&["sluicegate"], *path].concat().join(" "));
        let example = example.replace('-', "\\-");
        assert!(page.contains(example.trim_end()), "{name}: {page}");
    }
    let pages = std::fs::read_dir(&out).expect("it is there").count();
    assert_eq!(pages, COMMANDS.len(), "one for each command, and no other");

    let alone = sluicegate("", &["man"]).exited(0).out;
    let written = std::fs::read_to_string(out.join("sluicegate.1")).expect("it is there");
    assert_eq!(alone, written);
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let done = sluicegate("", &["man", "--out", "/proc/none"]).exited(1);
    assert!(done.err.starts_with("error: /proc/none: "), "{done:?}");
}

#[test]
fn the_documented_schema_matches_the_commands_output() {
    let printed = sluicegate("", &["schema"]).exited(0).out;
    assert_eq!(printed, page("docs/sluicegate.schema.json"));
}
