//! The house rules that the compiler does not check: dependencies between modules, headers of the
//! Lua scripts, short files, executable scripts, and no hidden panics. Each rule is also tested on
//! a text that breaks it.

use kit::sources::{File, files};
use proptest::test_runner::RngSeed;

/// Maximum number of code lines per file, without comments, blank lines and unit tests.
const MAX_LINES: usize = 450;

/// Returns the violations of the rule in `files`, one per line.
fn offences(files: &[File], rule: impl Fn(&File) -> Vec<String>) -> String {
    let all: Vec<String> = files.iter().flat_map(rule).collect();
    all.join("\n")
}

/// Returns true if `line` contains `word`, but not as the end of a longer name.
fn names(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

fn forbid(file: &File, words: &[&str], why: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in file.code() {
        for word in words.iter().filter(|word| names(line, word)) {
            found.push(format!("{}:{number}: {word}: {why}", file.path));
        }
    }
    found
}

/// Files in the folders of topics that do I/O or re-export such files. The other files of these
/// folders decide.
const TOPICS_IO: [(&str, &[&str]); 2] = [
    ("src/gate/epoch/", &["mod.rs", "watch"]),
    ("src/gate/fleet/", &["mod.rs", "registry.rs"]),
];

/// Decisions do no I/O, read no clock and know no modules beside their own: all of `rules`, and the
/// other files of topics. The compiler keeps other packages and most libraries out of the rules.
fn decisions_are_pure(file: &File) -> Vec<String> {
    let is_pure = TOPICS_IO.iter().any(|(folder, io)| {
        (file.path.strip_prefix(folder))
            .is_some_and(|path| !io.iter().any(|io| path.starts_with(io)))
    });
    let is_rule = file.path.starts_with("src/rules/");
    if !is_pure && !is_rule {
        return Vec::new();
    }
    let of_std = [
        "std::fs",
        "std::net",
        "std::env",
        "std::process",
        "Instant::now",
        "SystemTime::now",
        "super::super::",
    ];
    let of_packages = [
        "tokio::",
        "lapin::",
        "redis::",
        "hyper::",
        "rand::rng",
        "config::",
        "runtime::",
        "crate::",
    ];
    let why = "what decides does no I/O, reads no clock and knows no module beside its own";
    let mut found = forbid(file, &of_std, why);
    if is_pure {
        found.extend(forbid(file, &of_packages, why));
    }
    found
}

/// The engine knows traits, but not the servers that implement them.
fn engine_knows_traits(file: &File) -> Vec<String> {
    if !file.path.starts_with("src/engine") {
        return Vec::new();
    }
    let words = [
        "broker::amqp",
        "gate::redis",
        "handler::http",
        "AmqpBroker",
        "RedisGate",
        "HttpHandler",
    ];
    forbid(file, &words, "the engine knows the traits only")
}

/// The scheduler decides. The engine's loop logs and counts the facts (`engine::observer`), and the
/// clock is an argument.
fn the_scheduler_only_decides(file: &File) -> Vec<String> {
    if !file.path.starts_with("src/engine/scheduler") {
        return Vec::new();
    }
    let words = [
        "runtime::",
        "telemetry::",
        "tracing::",
        "tokio::",
        "std::fs",
        "std::net",
        "Instant::now",
        "SystemTime::now",
    ];
    forbid(
        file,
        &words,
        "the scheduler decides: facts and actions come out",
    )
}

/// Only `app` and programs name the concrete servers.
fn only_app_wires(file: &File) -> Vec<String> {
    let both = ["AmqpBroker", "RedisGate"]
        .iter()
        .all(|word| file.code().any(|(_, line)| names(line, word)));
    let may = file.path == "src/app/lib.rs" || file.path.starts_with("workers/");
    if both && !may {
        return vec![format!(
            "{}: only src/app/lib.rs names both servers",
            file.path
        )];
    }
    Vec::new()
}

/// A panic in the wrong place is an outage. `expect` says why it can't happen; `unwrap` does not.
fn no_unwrap(file: &File) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in file.code().filter(|(_, line)| line.contains(".unwrap()")) {
        found.push(format!("{}:{number}: {}", file.path, line.trim()));
    }
    found
}

fn short(file: &File) -> Vec<String> {
    let lines = file.code().count();
    if lines > MAX_LINES {
        return vec![format!(
            "{}: {lines} lines of code; at most {MAX_LINES}",
            file.path
        )];
    }
    Vec::new()
}

/// A file that two packages include is compiled twice, and belongs to none: what they share is a
/// package.
fn no_included_files(file: &File) -> Vec<String> {
    let lines = file.text.lines().enumerate();
    let includes = lines.filter(|(_, line)| {
        let line = line.trim_start();
        line.starts_with("#[path") || names(line, concat!("include", "!("))
    });
    includes
        .map(|(index, line)| format!("{}:{}: {}", file.path, index + 1, line.trim()))
        .collect()
}

/// Files that may use random names and ports, since no result depends on them.
const MAY_DRAW: [&str; 2] = ["tests/kit/servers.rs", "tests/it/worker/secrets.rs"];

/// A test with random steps would pass or fail by chance.
fn nothing_is_drawn(file: &File) -> Vec<String> {
    if MAY_DRAW.contains(&file.path.as_str()) {
        return Vec::new();
    }
    let words = [
        concat!("rand::", "random"),
        concat!("rand::", "rng("),
        concat!("from_os_", "rng"),
        concat!("Os", "Rng"),
    ];
    forbid(
        file,
        &words,
        "what a test does is fixed: a seed is a number",
    )
}

fn assert_tidy(found: String) {
    assert!(found.is_empty(), "\n{found}");
}

#[test]
fn rules_import_no_other_module() {
    assert_tidy(offences(&files(&["src"], ".rs"), decisions_are_pure));
}

#[test]
fn the_engine_names_no_server() {
    assert_tidy(offences(&files(&["src"], ".rs"), engine_knows_traits));
}

#[test]
fn the_scheduler_logs_counts_and_waits_for_nothing() {
    assert_tidy(offences(
        &files(&["src"], ".rs"),
        the_scheduler_only_decides,
    ));
}

#[test]
fn only_app_and_programs_name_both_servers() {
    assert_tidy(offences(&files(&["src", "workers"], ".rs"), only_app_wires));
}

#[test]
fn no_code_unwraps() {
    assert_tidy(offences(&files(&["src", "workers"], ".rs"), no_unwrap));
}

#[test]
fn files_are_short() {
    assert_tidy(offences(&files(&["src", "workers"], ".rs"), short));
}

#[test]
fn nothing_is_included_by_path() {
    let folders = ["src", "workers", "tests", "benches", "fuzz/fuzz_targets"];
    assert_tidy(offences(&files(&folders, ".rs"), no_included_files));
}

#[test]
fn no_test_depends_on_luck() {
    assert_tidy(offences(&files(&["tests"], ".rs"), nothing_is_drawn));
    // cargo sets it for all tests (.cargo/config.toml). A program started without cargo needs the
    // variable.
    let seed = proptest::test_runner::Config::default().rng_seed;
    assert!(matches!(seed, RngSeed::Fixed(_)), "PROPTEST_RNG_SEED");
}

/// Each rule must find what breaks it, at its line, and nothing in what keeps it.
#[test]
fn every_rule_can_fail() {
    type Rule = fn(&File) -> Vec<String>;
    let bad: [(Rule, &str, &str, &str); 15] = [
        (
            nothing_is_drawn,
            "tests/it/a.rs",
            concat!("\nlet seed: u64 = rand::", "random();"),
            "tests/it/a.rs:2",
        ),
        (
            no_included_files,
            "workers/a/main.rs",
            concat!("\n    #", "[path = \"../b.rs\"]\n    mod b;"),
            "workers/a/main.rs:2",
        ),
        // Code after unit tests is checked.
        (
            decisions_are_pure,
            "src/rules/a.rs",
            "#[cfg(test)]\nmod tests;\nuse std::fs;",
            "src/rules/a.rs:3",
        ),
        (
            no_unwrap,
            "src/a.rs",
            "#[cfg(test)]\n#[rustfmt::skip]\nmod tests {\n    fn f() {\n    }\n}\nx.unwrap();",
            "src/a.rs:7",
        ),
        (
            no_unwrap,
            "src/a.rs",
            "impl A {\n    #[cfg(test)]\n    fn f() {\n        y()\n    }\n    fn g() {\n        x.unwrap();\n    }\n}",
            "src/a.rs:7",
        ),
        (
            decisions_are_pure,
            "src/rules/a.rs",
            "\nlet x = Instant::now();",
            "src/rules/a.rs:2",
        ),
        (
            decisions_are_pure,
            "src/gate/fleet/agree.rs",
            "use tokio::time::sleep;",
            "tokio::",
        ),
        (
            decisions_are_pure,
            "src/gate/epoch/decide.rs",
            "use crate::link::Link;",
            "crate::",
        ),
        (
            engine_knows_traits,
            "src/engine/lib.rs",
            "fn f(e: broker::amqp::Client) {}",
            "broker::amqp",
        ),
        (
            engine_knows_traits,
            "src/engine/a.rs",
            "use gate::redis::X;",
            "gate::redis",
        ),
        (
            the_scheduler_only_decides,
            "src/engine/scheduler.rs",
            "\nuse tracing::warn;",
            "src/engine/scheduler.rs:2",
        ),
        (
            the_scheduler_only_decides,
            "src/engine/scheduler/a.rs",
            "use telemetry::metrics::Metrics;",
            "telemetry::",
        ),
        (
            only_app_wires,
            "src/b.rs",
            "struct A(AmqpBroker);\nstruct B(RedisGate);",
            "src/b.rs",
        ),
        (
            no_unwrap,
            "workers/a.rs",
            "fn f() {\n    x.unwrap();\n}",
            "workers/a.rs:2: x.unwrap();",
        ),
        (
            short,
            "src/a.rs",
            &"x();\n".repeat(MAX_LINES + 1),
            "451 lines",
        ),
    ];
    for (rule, path, text, expected) in bad {
        let found = rule(&File::new(path, text)).join("\n");
        assert!(found.contains(expected), "{path}: {text:?} gave {found:?}");
    }
    let good: [(Rule, &str, &str); 11] = [
        (
            no_included_files,
            "src/a.rs",
            "let path = include_str!(\"a\");",
        ),
        (
            no_unwrap,
            "src/a.rs",
            "x();\n#[cfg(test)]\nuse a::{\n    b,\n};\n#[cfg(test)]\nmod t {\n    fn f() {\n        x.unwrap();\n    }\n}",
        ),
        (
            decisions_are_pure,
            "src/rules/a.rs",
            "// Instant::now\nuse crate::rules::job::Job;",
        ),
        (
            decisions_are_pure,
            "src/rules/a.rs",
            "x();\n#[cfg(test)]\nmod t {\n    use tokio::time;\n}",
        ),
        (decisions_are_pure, "src/gate/a.rs", "use tokio::time;"),
        (
            decisions_are_pure,
            "src/gate/epoch/watch/hash.rs",
            "use tokio::time;",
        ),
        (
            engine_knows_traits,
            "src/engine/lib.rs",
            "let redis = 1; my_broker::amqp::f();",
        ),
        (
            the_scheduler_only_decides,
            "src/engine/observer.rs",
            "use tracing::warn;",
        ),
        (
            only_app_wires,
            "src/app/lib.rs",
            "struct A(AmqpBroker, RedisGate);",
        ),
        (
            no_unwrap,
            "src/a.rs",
            "x.unwrap_or(1);\n#[cfg(test)]\nfn t() {\n    x.unwrap();\n}",
        ),
        (short, "src/a.rs", &"// x\n\n".repeat(MAX_LINES)),
    ];
    for (rule, path, text) in good {
        assert_eq!(rule(&File::new(path, text)), [""; 0], "{path}: {text:?}");
    }
}
