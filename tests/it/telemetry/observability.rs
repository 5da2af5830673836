//! The lists in docs/OBSERVABILITY.md match the commands: JSON fields and exit statuses.
//! tests/quick/observability.rs checks the rest of the page.

use std::collections::BTreeSet;

use kit::sources::{self, quoted};
use serde_json::Value;

use crate::cli::servers::yaml;
use crate::cli::sluicegate;

const PAGE: &str = include_str!("../../../docs/OBSERVABILITY.md");

/// Returns the section of the page with this heading.
fn section(heading: &str) -> &'static str {
    sources::section(PAGE, heading)
}

/// Returns the fields of `value`, without nested ones.
fn fields(value: &Value) -> BTreeSet<&str> {
    let object = value.as_object().expect("an object");
    object.keys().map(String::as_str).collect()
}

#[test]
fn every_field_of_json_is_listed() {
    let section = section("JSON fields");
    let (commands, rest) = section.split_once("Fields of `inspect`:").expect("a table");
    let (inspect, rest) = rest.split_once("Fields of a limit").expect("a table");
    let (limit, _) = rest.split_once("Fields of a worker").expect("a table");
    let listed = |table: &'static str| -> BTreeSet<&'static str> {
        let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
        let cells = rows.filter_map(|row| row.split_once(" | ").map(|(cell, _)| cell));
        cells
            .flat_map(|cell| cell.split('`').step_by(2))
            .filter(|name| !name.starts_with(','))
            .collect()
    };
    let of = |command: &str| -> BTreeSet<&str> {
        let begin = format!("| `{command}` | ");
        let row = commands.lines().find_map(|line| line.strip_prefix(&begin));
        quoted(row.expect("the command's row")).collect()
    };
    let yaml = yaml();
    let run = |args: &[&str]| sluicegate(&yaml, args).exited(0).json();
    let published = run(&["publish", "--tenant", "acme", "--json"]);
    assert_eq!(fields(&published), of("publish"));
    for command in ["workers", "tenants"] {
        assert_eq!(fields(&run(&[command, "--json"])), of(command));
    }
    let inspected = run(&["inspect", "acme", "--json"]);
    assert_eq!(fields(&inspected), listed(inspect));
    assert_eq!(fields(&inspected["limits"][0]), listed(limit));
    let checked = run(&["check", "--offline", "--tenant", "acme", "--json"]);
    let known = of("check");
    assert!(fields(&checked).is_subset(&known), "{checked}");
    assert!(fields(&checked["checks"][0]).is_subset(&known), "{checked}");
    assert_eq!(
        fields(&checked["limits"][0]).len(),
        13,
        "the page says thirteen"
    );
    assert!(fields(&checked["limits"][0]).is_subset(&listed(limit)));
    let known = of("pause`, `resume`, `drain");
    let drained = run(&["drain", "--wait", "30s", "--json"]);
    assert!(fields(&drained).is_subset(&known), "{drained}");
    assert!(fields(&drained["left"]).is_subset(&known), "{drained}");
    for of_all in ["pause", "resume"] {
        let done = run(&[of_all, "--all", "--json"]);
        assert!(fields(&done).is_subset(&known), "{done}");
    }
    let job = ["--tenant", "acme", "--id", "1", "--wait", "0s", "--json"];
    let canceled = run(&[&["job", "cancel"][..], &job].concat());
    assert_eq!(fields(&canceled), {
        let states = ["canceled", "running", "done", "requested", "undone", "null"];
        &of("job cancel") - &BTreeSet::from(states)
    });
    for change in [
        &["pause", "acme", "--json"][..],
        &["limit", "acme", "3", "--json"],
        &["limit", "acme", "--clear", "--json"],
        &["resume", "acme", "--json"],
        &["resume", "--all", "--json"],
        &["reset", "acme", "--json"],
        &["divert", "acme", "--json"],
        &["undivert", "acme", "--json"],
    ] {
        let changed = run(&[&["tenant"], change].concat());
        let known = match change[0] {
            "divert" | "undivert" => {
                &of("tenant divert`, `tenant undivert") | &["divert", "undivert"].into()
            }
            _ => of("tenant …"),
        };
        assert!(fields(&changed).is_subset(&known), "{changed}");
        let word = changed["change"].as_str().expect("a word");
        assert!(known.contains(word), "{changed}");
    }
}

#[test]
fn exit_statuses_match_the_help() {
    let help = sluicegate("", &["--help"]).exited(0).out;
    let (_, statuses) = help.split_once("Exit status: ").expect("the statuses");
    let statuses = statuses.trim_end().trim_end_matches('.');
    let rows = section("Exit statuses").lines().filter_map(|line| {
        let (status, meaning) = line.strip_prefix("| ")?.split_once(" | ")?;
        let status: u8 = status.parse().ok()?;
        let first = meaning.split([';', ':', '|']).next()?.trim();
        Some(format!("{status} {first}"))
    });
    assert_eq!(rows.collect::<Vec<_>>().join(", "), statuses);
}
