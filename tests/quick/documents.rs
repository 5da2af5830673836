//! Links between the pages have targets, and source files and tests that pages name exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use kit::root;

use kit::sources::{files, page};

/// The targets of README's links in the library's documentation.
const README_LINKS: &str = "src/readme-links.md";

/// The suites whose tests pages name.
const SUITES: [&str; 3] = ["it", "quick", "simulation"];

/// Returns all pages by their paths.
fn pages() -> BTreeMap<PathBuf, String> {
    let folders = [
        "docs", "src", "lua", "workers", "tests", "scripts", "benches",
    ];
    let mut pages: BTreeMap<PathBuf, String> = (files(&folders, ".md").into_iter())
        .map(|file| (file.path.into(), file.text))
        .collect();
    for entry in fs::read_dir(root()).expect("the root can be read") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|end| end == "md") {
            let name = path.file_name().expect("a file's name").into();
            pages.insert(name, fs::read_to_string(&path).expect("it is text"));
        }
    }
    assert!(pages.contains_key(Path::new("README.md")) && pages.len() > 10);
    pages
}

/// Returns the source files that `text` names in backticks and that are not in `known`, by their
/// path from the root or by its end.
fn missing_files<'a>(text: &'a str, known: &[String]) -> Vec<&'a str> {
    let quoted = text.split('`').skip(1).step_by(2);
    let named = quoted.filter(|name| {
        let is_path = |c: char| c.is_ascii_alphanumeric() || "/_.-".contains(c);
        (name.ends_with(".rs") || name.ends_with(".lua")) && name.chars().all(is_path)
    });
    // `NAME` stands for any name.
    let real = named.filter(|name| !name.contains("NAME"));
    let is_there = |name: &str| {
        let end = format!("/{name}");
        (known.iter()).any(|path| path == name || path.ends_with(&end))
    };
    real.filter(|name| !is_there(name)).collect()
}

#[test]
fn files_named_by_pages_exist() {
    let folders = ["src", "lua", "workers", "tests", "benches"];
    let mut known = Vec::new();
    for end in [".rs", ".lua"] {
        known.extend(files(&folders, end).into_iter().map(|file| file.path));
    }
    let mut missing = Vec::new();
    for (page, text) in pages() {
        let text = prose(&text);
        let gone = missing_files(&text, &known).into_iter();
        missing.extend(gone.map(|name| format!("{}: {name}", page.display())));
    }
    assert!(missing.is_empty(), "{missing:#?}");
    let text = "`src/app/lib.rs`, `lib.rs`, `lua/NAME.lua`, `src/gone.rs`, `x.rs`, `a b.rs`";
    assert_eq!(missing_files(text, &known), ["src/gone.rs", "x.rs"]);
}

/// Returns the modules and functions of the suites, as `SUITE PATH`.
fn suites() -> BTreeSet<String> {
    let mut known = BTreeSet::new();
    for suite in SUITES {
        let folder = format!("tests/{suite}/");
        for file in files(&[&folder], ".rs") {
            let path = file.path.strip_prefix(&folder).unwrap_or(&file.path);
            let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
            let module = format!("{suite} {}", path.replace('/', "::"));
            for line in file.text.lines() {
                let name = line.split_once("fn ").map(|(_, name)| name);
                let name = name.and_then(|name| name.split(['(', '<']).next());
                known.extend(name.map(|name| format!("{module}::{name}")));
            }
            known.insert(module);
        }
    }
    known
}

/// Returns the tests that `text` names in backticks, such as `it worker::epoch::`, and with whose
/// path nothing in `known` begins.
fn missing_tests<'a>(text: &'a str, known: &BTreeSet<String>) -> Vec<&'a str> {
    let quoted = text.split('`').skip(1).step_by(2);
    let plain = quoted.map(|words| words.strip_prefix("cargo test --test ").unwrap_or(words));
    let named = plain.filter(|name| {
        let is_path = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c);
        let parts = name.split_once(' ');
        parts.is_some_and(|(suite, path)| SUITES.contains(&suite) && path.chars().all(is_path))
    });
    let is_there = |name: &str| {
        let path = name.trim_end_matches(':');
        known.iter().any(|test| test.starts_with(path))
    };
    named.filter(|name| !is_there(name)).collect()
}

#[test]
fn tests_named_by_pages_exist() {
    let known = suites();
    let (mut named, mut missing) = (0, Vec::new());
    for (page, text) in pages() {
        let text = prose(&text);
        let gone = missing_tests(&text, &known).into_iter();
        missing.extend(gone.map(|name| format!("{}: {name}", page.display())));
        named += text.matches("`it ").count();
    }
    assert!(missing.is_empty() && named > 20, "{named} {missing:#?}");
    let text =
        "`quick documents::tests`, `quick gone::`, `cargo test --test it gone`, `it NAME`, `it`";
    assert_eq!(missing_tests(text, &known), ["quick gone::", "it gone"]);
}

/// Returns `text` without its code blocks.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// Returns the anchor of a heading, as GitHub forms it.
fn anchor(heading: &str) -> String {
    let remains = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let remains = heading.trim().chars().filter(remains).collect::<String>();
    remains.to_lowercase().replace(' ', "-")
}

/// Returns `path` without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    plain
}

/// Returns link definitions by their names: `[name]: target`.
fn definitions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().filter_map(|line| line.strip_prefix('['));
    lines.filter_map(|line| line.split_once("]: "))
}

#[test]
fn every_link_between_the_pages_leads_somewhere() {
    let pages: BTreeMap<PathBuf, String> = (pages().into_iter())
        .map(|(path, text)| (path, prose(&text)))
        .collect();
    let leads = |page: &Path, link: &str| {
        let (path, to) = link.split_once('#').unwrap_or((link, ""));
        let path = match path {
            "" => page.to_owned(),
            path => plain(&page.with_file_name(path)),
        };
        let mut headings = (pages.get(&path).into_iter())
            .flat_map(|text| text.lines())
            .filter_map(|line| line.strip_prefix('#'))
            .map(|heading| anchor(heading.trim_start_matches('#')));
        root().join(&path).exists() && (to.is_empty() || headings.any(|heading| heading == to))
    };
    let mut links = 0;
    for (page, text) in &pages {
        let inline = text.split("](").skip(1);
        let inline = inline.map(|link| link.split_once(')').expect("the end of a link").0);
        let apart = definitions(text).map(|(_, link)| link);
        // The next test checks the library's targets of README's links.
        let apart = apart.filter(|_| page != Path::new(README_LINKS));
        for link in inline.chain(apart) {
            if !link.starts_with("https://") {
                links += 1;
                assert!(leads(page, link), "{}: {link}", page.display());
            }
        }
    }
    assert!(links > 20, "{links} links");
    for nowhere in ["GONE.md", "../README.md#gone", "#gone"] {
        assert!(!leads(Path::new("docs/HANDLERS.md"), nowhere), "{nowhere}");
    }
}

/// README is the front page of the library's documentation, where paths of the repository don't
/// work.
#[test]
fn links_of_the_readme_lead_to_the_same_pages_from_the_library() {
    let (readme, library) = (page("README.md"), page(README_LINKS));
    let library: BTreeMap<&str, &str> = definitions(&library).collect();
    let here: BTreeMap<&str, &str> = definitions(&readme)
        .filter(|(_, path)| !path.starts_with("https://"))
        .collect();
    assert!(here.len() > 10 && here.keys().eq(library.keys()));
    for (name, path) in here {
        let item = match path {
            "workers/echo/src/main.rs" => Some("Handler"),
            "workers/pipe/src/main.rs" => Some("PreparingHandler"),
            _ => None,
        };
        let published = format!("https://docs.rs/crate/sluicegate/latest/source/{path}");
        assert_eq!(library[name], item.unwrap_or(&published), "{name}");
    }
    let prose = prose(&readme);
    assert!(
        !prose.contains("]("),
        "a link that README does not define apart"
    );
}

#[test]
fn the_page_of_handlers_shows_the_examples_as_they_are() {
    let text = page("docs/HANDLERS.md");
    for (file, fence) in [
        ("worker.sh", "```sh program\n"),
        ("celery_tasks.py", "```python worker\n"),
    ] {
        let code = text
            .split_once(fence)
            .and_then(|(_, rest)| rest.split_once("```\n"));
        let file = page(&format!("docs/workers/{file}"));
        assert_eq!(code.map(|(code, _)| code), Some(file.as_str()));
    }
}

/// Returns the test modules that `.config/nextest.toml` leaves to the slices of `scripts/test`,
/// each with `::` at its end.
fn modules_of_slices() -> Vec<String> {
    let filter = page(".config/nextest.toml");
    let groups = filter.split("test(/^(").skip(1);
    let groups = groups.map(|rest| rest.split_once(")::/").expect("modules").0);
    let modules = groups.flat_map(|group| group.split('|'));
    modules.map(|module| format!("{module}::")).collect()
}

#[test]
fn no_promise_depends_on_a_slice_alone() {
    let slices = modules_of_slices();
    assert!(slices.len() > 20, "{slices:?}");
    let runs_each_time = |suites: &[&str], name: &str| {
        let (suite, test) = name.split_once(' ').unwrap_or((name, ""));
        let test = format!("{}::", test.trim_end_matches("::"));
        suites.contains(&suite) && !slices.iter().any(|slice| test.starts_with(slice))
    };
    let (mut alone, mut promises) = (Vec::new(), 0);
    let guarantees = page("docs/GUARANTEES.md");
    let mut check = |section: &str, suites: &[&str]| {
        let heading = section.lines().next().unwrap_or_default();
        let tests: Vec<_> = section.split("**Tested by**").skip(1).collect();
        let names = tests
            .iter()
            .flat_map(|tests| tests.split('`').skip(1).step_by(2));
        if !tests.is_empty() && !names.clone().any(|name| runs_each_time(suites, name)) {
            alone.push(heading.to_owned());
        }
        promises += tests.len();
    };
    for promise in guarantees.split("\n## ").skip(1) {
        // `it demo::` runs the demo.
        check(promise, &["it", "scripts/demo"]);
        for part in promise.split("\n### ") {
            check(part, &["it", "scripts/demo", "simulation", "quick"]);
        }
    }
    assert!(promises > 20, "{promises}");
    assert_eq!(alone, Vec::<String>::new());
}
