//! The house rules that no compiler keeps: who may know whom, headers of the Lua scripts, short files,
//! executable scripts, no hidden panics. Each rule is also run over a text that breaks it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use kit::root;

/// Lines of code in one file at most: comments, blank lines and unit tests not counted.
const MAX_LINES: usize = 450;

/// A file of the repository.
pub struct File {
    /// From the repository's root, with `/`.
    pub path: String,
    pub text: String,
}

impl File {
    fn new(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    /// Rust without comment lines and without what is there for unit tests alone, with the lines' numbers.
    pub fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut tests = TestItems::default();
        self.text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line))
            .filter(|(_, line)| !line.trim().is_empty() && !line.trim_start().starts_with("//"))
            .filter(move |(_, line)| !tests.have(line))
    }
}

/// The items behind `#[cfg(test)]`. Where one ends is seen by rustfmt's indentation: in its first line, or in the next one that
/// closes something and begins where the item did.
#[derive(Default, Clone, Copy)]
enum TestItems {
    #[default]
    Outside,
    /// Behind the attribute, which begins at this column: the item's first line comes, or more attributes.
    Before(usize),
    /// In an item that begins at this column.
    Inside(usize),
}

impl TestItems {
    /// Whether the next line belongs to one.
    fn have(&mut self, line: &str) -> bool {
        let column = line.len() - line.trim_start().len();
        let line = line.trim();
        *self = match *self {
            Self::Outside if line == "#[cfg(test)]" => Self::Before(column),
            Self::Outside => return false,
            Self::Before(from) if line.starts_with("#[") => Self::Before(from),
            Self::Before(_) if line.ends_with([';', '}', ',']) => Self::Outside,
            Self::Before(from) => Self::Inside(from),
            Self::Inside(from)
                if column == from
                    && line.starts_with(['}', ')', ']'])
                    && !line.ends_with(['{', '(', '[']) =>
            {
                Self::Outside
            }
            inside => inside,
        };
        true
    }
}

/// Every file under `folders` whose name ends with `end`.
pub fn files(folders: &[&str], end: &str) -> Vec<File> {
    let root = root();
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).expect("the folder is there") {
            let path = entry.expect("the folder can be read").path();
            let name = path.strip_prefix(root).expect("it is below the root");
            let name = name.to_str().expect("our names are UTF-8").to_owned();
            if path.is_dir() {
                open.push(path);
            } else if name.ends_with(end) {
                let text = fs::read_to_string(&path).expect("it is text");
                found.push(File { path: name, text });
            }
        }
    }
    assert!(!found.is_empty(), "no {end} files under {folders:?}");
    found
}

/// The rule's offences in `files`, one a line.
fn offences(files: &[File], rule: impl Fn(&File) -> Vec<String>) -> String {
    let all: Vec<String> = files.iter().flat_map(rule).collect();
    all.join("\n")
}

/// Whether `line` has `word` with nothing before it that would make it the end of a longer name.
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

/// Arrows point at `rules`, which knows nobody, does no I/O and reads no clock.
fn rules_are_pure(file: &File) -> Vec<String> {
    if !file.path.starts_with("src/rules/") {
        return Vec::new();
    }
    let words = [
        "tokio::",
        "lapin::",
        "redis::",
        "hyper::",
        "std::fs",
        "std::net",
        "std::env",
        "Instant::now",
        "SystemTime::now",
        "rand::rng",
        "crate::admin",
        "crate::app",
        "crate::broker",
        "crate::config",
        "crate::engine",
        "crate::gate",
        "crate::handler",
        "crate::metrics",
        "crate::telemetry",
        "super::super",
    ];
    forbid(
        file,
        &words,
        "rules decide: no I/O, no clock, no other module",
    )
}

/// The engine knows traits, never the servers behind them.
fn engine_knows_traits(file: &File) -> Vec<String> {
    if !file.path.starts_with("src/engine") {
        return Vec::new();
    }
    let words = [
        "lapin::",
        "redis::",
        "hyper::",
        "AmqpBroker",
        "RedisGate",
        "HttpHandler",
    ];
    forbid(file, &words, "the engine knows the traits only")
}

/// One place wires the concrete servers: `app`; programs may, too.
fn only_app_wires(file: &File) -> Vec<String> {
    let both = ["AmqpBroker", "RedisGate"]
        .iter()
        .all(|word| file.code().any(|(_, line)| names(line, word)));
    let may = file.path == "src/app.rs" || file.path.starts_with("workers/");
    if both && !may {
        return vec![format!("{}: only src/app.rs names both servers", file.path)];
    }
    Vec::new()
}

/// A panic in the wrong place is an outage: `expect` says why it cannot happen, `unwrap` says nothing.
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

/// A script that takes arguments says what they are; parts that others are put together from take none.
fn lua_header(file: &File) -> Vec<String> {
    let lines = || file.text.lines();
    let is_entry =
        lines().any(|line| !line.trim_start().starts_with("--") && line.contains("ARGV["));
    if !is_entry {
        return Vec::new();
    }
    let header: Vec<&str> = lines().take_while(|line| line.starts_with("--")).collect();
    ["KEYS[1]", "ARGV[1]", "Reply"]
        .iter()
        .filter(|word| !header.iter().any(|line| line.contains(**word)))
        .map(|word| format!("{}: its header does not explain {word}", file.path))
        .collect()
}

/// A file that two packages include is compiled twice, and belongs to none: what they share is a package.
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

fn assert_tidy(found: String) {
    assert!(found.is_empty(), "\n{found}");
}

#[test]
fn rules_know_nobody() {
    assert_tidy(offences(&files(&["src"], ".rs"), rules_are_pure));
}

#[test]
fn the_engine_names_no_server() {
    assert_tidy(offences(&files(&["src"], ".rs"), engine_knows_traits));
}

#[test]
fn only_app_and_programs_name_both_servers() {
    assert_tidy(offences(&files(&["src", "workers"], ".rs"), only_app_wires));
}

#[test]
fn nothing_unwraps() {
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
fn scripts_can_be_run() {
    let root = root();
    let public = [
        "scripts/test",
        "scripts/demo",
        "scripts/torture",
        "scripts/fuzz",
        ".ci/run",
        "scripts/lib/private-redis",
        "scripts/lib/private-rabbitmq",
    ];
    for script in public {
        let mode = fs::metadata(root.join(script))
            .expect(script)
            .permissions()
            .mode();
        assert_eq!(mode & 0o111, 0o111, "{script} is not executable");
    }
}

/// Each rule must find what breaks it, at its line, and nothing in what keeps it.
#[test]
fn every_rule_can_fail() {
    type Rule = fn(&File) -> Vec<String>;
    let bad: [(Rule, &str, &str, &str); 15] = [
        (
            no_included_files,
            "workers/a/main.rs",
            concat!("\n    #", "[path = \"../b.rs\"]\n    mod b;"),
            "workers/a/main.rs:2",
        ),
        // Behind what unit tests need, all else is read.
        (
            rules_are_pure,
            "src/rules/a.rs",
            "#[cfg(test)]\nmod tests;\nuse tokio::time;",
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
            rules_are_pure,
            "src/rules/a.rs",
            "\nlet x = Instant::now();",
            "src/rules/a.rs:2",
        ),
        (
            rules_are_pure,
            "src/rules/a.rs",
            "use crate::gate::Answer;",
            "crate::gate",
        ),
        (
            rules_are_pure,
            "src/rules/a.rs",
            "use tokio::time::sleep;",
            "tokio::",
        ),
        (
            engine_knows_traits,
            "src/engine/mod.rs",
            "fn f(e: lapin::Error) {}",
            "lapin::",
        ),
        (
            engine_knows_traits,
            "src/engine/a.rs",
            "use crate::gate::redis::X;",
            "redis::",
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
        (
            lua_header,
            "lua/a.lua",
            "-- KEYS[1] a\n-- Reply: b\nreturn ARGV[1]",
            "ARGV[1]",
        ),
        (
            lua_header,
            "lua/a.lua",
            "-- KEYS[1], ARGV[1] a\nreturn ARGV[1]",
            "Reply",
        ),
        (lua_header, "lua/a.lua", "return ARGV[1]", "KEYS[1]"),
    ];
    for (rule, path, text, expected) in bad {
        let found = rule(&File::new(path, text)).join("\n");
        assert!(found.contains(expected), "{path}: {text:?} gave {found:?}");
    }
    let good: [(Rule, &str, &str); 10] = [
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
            rules_are_pure,
            "src/rules/a.rs",
            "// Instant::now\nuse crate::rules::job::Job;",
        ),
        (
            rules_are_pure,
            "src/rules/a.rs",
            "x();\n#[cfg(test)]\nmod t {\n    use tokio::time;\n}",
        ),
        (rules_are_pure, "src/gate/a.rs", "use tokio::time;"),
        (
            engine_knows_traits,
            "src/engine/mod.rs",
            "let redis = 1; my_redis::f();",
        ),
        (
            only_app_wires,
            "src/app.rs",
            "struct A(AmqpBroker, RedisGate);",
        ),
        (
            no_unwrap,
            "src/a.rs",
            "x.unwrap_or(1);\n#[cfg(test)]\nfn t() {\n    x.unwrap();\n}",
        ),
        (short, "src/a.rs", &"// x\n\n".repeat(MAX_LINES)),
        (lua_header, "lua/part.lua", "return KEYS[2]"),
    ];
    for (rule, path, text) in good {
        assert_eq!(rule(&File::new(path, text)), [""; 0], "{path}: {text:?}");
    }
}
