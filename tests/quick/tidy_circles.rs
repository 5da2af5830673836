//! Imports within a package: the files of a topic, of `src/config` and of `src/engine` form no
//! cycle. cargo allows none between packages.

use std::collections::{BTreeMap, BTreeSet};

use kit::sources::{File, files};

/// Modules with the modules that they import.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Returns the module of `file` in `folder`, or `None` for the folder's own `mod.rs` or `lib.rs`,
/// which names all of them.
fn module(folder: &str, file: &File) -> Option<String> {
    let path = file.path.strip_prefix(folder)?.strip_prefix('/')?;
    let first = path.split('/').next()?.trim_end_matches(".rs");
    (!["mod", "lib"].contains(&first)).then(|| first.to_owned())
}

/// Returns the names that `code` takes from the module `path`, such as `Z`, `a` and `b` of
/// `super::{Z, a, b::C}`.
fn names(code: &str, path: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices(path) {
        // `super::super::a` is not a sibling, and neither is `x::super::a`.
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == ':' || c == '_') {
            continue;
        }
        let rest = &code[at + path.len()..];
        let (mut depth, mut word, mut within) = (0_u32, String::new(), false);
        for c in rest.chars() {
            match c {
                c if c.is_alphanumeric() || c == '_' => word.push(c),
                '{' => depth += 1,
                ':' | ',' | '}' | ' ' | '\n' if !word.is_empty() || depth > 0 => {
                    if !within && !word.is_empty() {
                        found.insert(std::mem::take(&mut word));
                    }
                    word.clear();
                    match c {
                        // Further names are in the module that was just named.
                        ':' => within = true,
                        ',' if depth <= 1 => within = false,
                        '}' => {
                            depth = depth.saturating_sub(1);
                            if depth == 0 {
                                break;
                            }
                        }
                        _ => {}
                    }
                    if depth == 0 {
                        break;
                    }
                }
                _ => break,
            }
        }
        found.extend((depth == 0 && !within && !word.is_empty()).then_some(word));
    }
    found.remove("super");
    found
}

fn code_of(file: &File) -> String {
    let lines: Vec<&str> = file.code().map(|(_, line)| line).collect();
    lines.join("\n")
}

/// Returns the imports among the modules of `folder`.
fn imports(folder: &str, files: &[File]) -> Imports {
    // Each folder of `src` is a crate.
    let within = folder.split_once('/').map_or("", |(_, folder)| folder);
    let within = within.find('/').map_or("", |at| &within[at..]);
    let parent = format!("crate{}::", within.replace('/', "::"));
    let mut imports = Imports::new();
    for file in files {
        let Some(module) = module(folder, file) else {
            continue;
        };
        let code = code_of(file);
        let all = names(&code, "super::")
            .into_iter()
            .chain(names(&code, &parent));
        let others = all.filter(|name| *name != module);
        imports.entry(module.clone()).or_default().extend(others);
    }
    let modules: BTreeSet<String> = imports.keys().cloned().collect();
    for others in imports.values_mut() {
        others.retain(|name| modules.contains(name));
    }
    imports
}

/// Removes modules without imports until none is left. The rest are modules in cycles, and those
/// that import them.
fn circles(mut imports: Imports) -> Imports {
    loop {
        let done: BTreeSet<String> = (imports.iter())
            .filter(|(_, others)| others.is_empty())
            .map(|(module, _)| module.clone())
            .collect();
        if done.is_empty() {
            return imports;
        }
        imports.retain(|module, _| !done.contains(module));
        for others in imports.values_mut() {
            others.retain(|other| !done.contains(other));
        }
    }
}

#[test]
fn config_files_form_no_import_cycle() {
    for (folder, max) in [
        ("src/config", 13),
        ("src/config/reading", 6),
        ("src/config/values", 8),
        ("src/config/sections", 16),
        ("src/config/sections/http", 6),
        ("src/config/sections/rate_limiter", 3),
    ] {
        let imports = imports(folder, &files(&[folder], ".rs"));
        assert!(imports.len() > max, "{imports:#?}");
        assert_eq!(circles(imports), Imports::new());
    }
}

/// A name that `mod.rs` re-exports has its own file, and other files import it from there.
#[test]
fn config_files_do_not_import_through_their_own_module() {
    let mut found = Vec::new();
    for file in files(&["src/config"], ".rs") {
        let code = code_of(&file);
        for module in ["super::", "crate::"] {
            let taken = names(&code, module).into_iter();
            let types = taken.filter(|name| name.starts_with(char::is_uppercase));
            found.extend(types.map(|name| format!("{}: {module}{name}", file.path)));
        }
    }
    assert_eq!(found, [""; 0]);
}

#[test]
fn files_of_a_topic_form_no_import_cycle() {
    for topic in [
        "src/gate/epoch",
        "src/gate/fleet",
        "src/rules",
        "src/rules/delays",
        "src/rules/failures",
        "src/rules/gate",
        "src/rules/job",
    ] {
        let imports = imports(topic, &files(&[topic], ".rs"));
        assert!(imports.len() > 4, "{imports:#?}");
        assert_eq!(circles(imports), Imports::new());
    }
}

/// Lists the lines of a file that name the scheduler outside of an `impl Scheduler`. A part knows
/// its own state only (docs/decisions/scheduler.md).
fn parts_that_know_the_scheduler(file: &File) -> Vec<String> {
    let (mut is_step, mut found) = (false, Vec::new());
    for (number, line) in file.code() {
        match line {
            "impl Scheduler {" => is_step = true,
            "}" => is_step = false,
            line if !is_step && !line.starts_with("use ") && line.contains("Scheduler") => {
                found.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
            _ => {}
        }
    }
    found
}

#[test]
fn engine_files_form_no_import_cycle() {
    for (folder, max) in [
        ("src/engine", 10),
        ("src/engine/scheduler", 14),
        ("src/engine/scheduler/intake", 4),
        ("src/engine/scheduler/asking", 12),
        ("src/engine/scheduler/delays", 3),
        ("src/engine/scheduler/calling", 5),
        ("src/engine/scheduler/calling/answers", 2),
        ("src/engine/scheduler/leaving", 5),
        ("src/engine/scheduler/reporting", 3),
    ] {
        let imports = imports(folder, &files(&["src/engine"], ".rs"));
        assert!(imports.len() > max, "{imports:#?}");
        assert_eq!(circles(imports), Imports::new());
    }
}

#[test]
fn parts_of_the_scheduler_do_not_import_it() {
    let files = files(&["src/engine/scheduler"], ".rs");
    let found: Vec<String> = files
        .iter()
        .flat_map(parts_that_know_the_scheduler)
        .collect();
    assert_eq!(found, [""; 0]);
    let text = "use super::Scheduler;\nimpl Scheduler {\n    fn f(&self, a: &Scheduler) {}\n}\nimpl Part {\n    fn f(s: &Scheduler) {}\n}\n";
    let found = parts_that_know_the_scheduler(&File::new("a.rs", text));
    assert_eq!(found, ["a.rs:6: fn f(s: &Scheduler) {}"]);
}

#[test]
fn cycles_are_found_and_acyclic_files_pass() {
    let c = File::new("src/f/c.rs", "//! Of super::a.\nuse crate::rules::x;\n");
    for (a, b, circle) in [
        ("use super::b;", "use super::a;", true),
        ("use super::b::X;", "fn f() { super::a::g() }", true),
        ("use super::{Z, b};", "use crate::a::Y;", true),
        (
            "use super::{c::{X, Y}, b::Z};",
            "use super::{\n    a,\n};",
            true,
        ),
        ("use super::b;", "use super::c;", false),
        ("use super::{b, c::a};", "use super::c::a;", false),
        (
            "use super::b;",
            "#[cfg(test)]\nmod tests {\n    use super::a;\n}",
            false,
        ),
        ("use super::b;", "use super::super::a;", false),
    ] {
        let files = [
            File::new("src/f/mod.rs", "mod a;"),
            File::new("src/f/a.rs", a),
            File::new("src/f/b.rs", b),
            File::new(&c.path, &c.text),
        ];
        let found = circles(imports("src/f", &files));
        assert_eq!(!found.is_empty(), circle, "{a} {b} {found:?}");
    }
}
