//! What docs/OPERATIONS.md lists is what the code has: metrics, log lines, headers. Links between the pages lead somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use kit::root;
use sluicegate::metrics::Metrics;
use sluicegate::rules::headers::{OURS, PROPERTIES, UNREADABLE};

use crate::tidy::files;

const PAGE: &str = include_str!("../../docs/OPERATIONS.md");

/// The section of the page with this heading.
fn section(heading: &str) -> &'static str {
    let begin = format!("\n## {heading}\n");
    let (_, rest) = PAGE.split_once(&begin).expect("the section");
    rest.split_once("\n## ")
        .map_or(rest, |(section, _)| section)
}

/// The first cells of the section's tables.
fn listed(heading: &str) -> Vec<&'static str> {
    let rows = section(heading).lines().filter_map(|line| {
        let (cell, _) = line.strip_prefix("| ")?.split_once(" |")?;
        (!cell.starts_with("**")).then_some(cell)
    });
    rows.collect()
}

/// What stands in backticks in `cells` and begins with one of `starts`, without labels.
fn names(cells: &[&'static str], starts: &[&str]) -> BTreeSet<String> {
    let quoted = cells
        .iter()
        .flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let named = quoted.filter(|name| starts.iter().any(|start| name.starts_with(start)));
    let bare = named.map(|name| name.split('{').next().unwrap_or_default().to_owned());
    bare.collect()
}

#[test]
fn every_metric_is_listed_and_no_other() {
    let encoded = Metrics::new().encode();
    // `# TYPE NAME KIND`
    let kinds = encoded.lines().filter_map(|line| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        let end = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        Some(format!("{name}{end}"))
    });
    let known: BTreeSet<String> = kinds.collect();
    assert!(known.len() > 20, "{encoded}");
    assert_eq!(names(&listed("Metrics"), &["sluicegate_"]), known);
    // All values of labels are there from the start, and named.
    for value in encoded.lines().filter_map(|line| line.split('"').nth(1)) {
        let named = section("Metrics").contains(&format!("`{value}`"));
        let elsewhere = ["rabbitmq", "redis", env!("CARGO_PKG_VERSION")].contains(&value);
        assert!(
            named || elsewhere || value.parse::<f64>().is_ok() || value == "+Inf",
            "{value}"
        );
    }
}

/// The texts in the arguments with which `text` begins, up to the `)` that ends them.
fn texts(text: &str) -> Vec<String> {
    let (mut found, mut open, mut depth) = (Vec::new(), None::<String>, 1);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (&mut open, c) {
            (Some(text), '\\') => text.extend(chars.next().filter(|c| *c != '\n')),
            (Some(_), '"') => found.extend(open.take()),
            (Some(text), c) => text.push(c),
            (None, '"') => open = Some(String::new()),
            (None, '(') => depth += 1,
            (None, ')') => depth -= 1,
            (None, _) => {}
        }
        if depth == 0 {
            break;
        }
    }
    found
}

/// What `code` says by `warn!` and `error!`: each text up to its first value.
fn said(code: &str) -> Vec<String> {
    let calls = ["warn!(", "error!("].map(|level| code.split(level).skip(1));
    let last = |call| texts(call).pop().expect("a text at the end");
    let said = calls.into_iter().flatten().map(|call| {
        let text = last(call);
        // A text may go on in the next line of the source.
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let constant = words.split('{').next().unwrap_or_default().trim_end();
        constant.trim_end_matches(':').to_owned()
    });
    said.collect()
}

#[test]
fn every_warning_and_error_is_listed_and_no_other() {
    let mut known = BTreeSet::new();
    for file in files(&["src"], ".rs") {
        let code: Vec<&str> = file.code().map(|(_, line)| line).collect();
        known.extend(said(&code.join("\n")));
    }
    // What the API says is a sentence of rules::quota.
    assert!(known.remove(""));
    known.insert("the API says that it takes".to_owned());
    assert!(known.len() > 30, "{known:?}");
    let listed: BTreeSet<String> = (listed("Log lines").iter())
        .filter(|cell| !["line", "---"].contains(cell))
        .map(|cell| (*cell).to_owned())
        .collect();
    let missing: Vec<_> = known.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&known).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "not listed: {missing:#?}\ngone: {gone:#?}"
    );
}

#[test]
fn texts_are_found_however_they_are_laid_out() {
    let code = "warn!(reason = %why, \"one\"),\nerror!(\n  a = b(\"x\"),\n  \"two: {why}\",\n);\nwarn!(\"three (of \\\n   more\")";
    let mut found = said(code);
    found.sort();
    assert_eq!(found, ["one", "three (of more", "two"]);
}

#[test]
fn every_header_is_listed_and_no_other() {
    let mut known: BTreeSet<String> = OURS.map(str::to_owned).into();
    known.extend([UNREADABLE.to_owned(), PROPERTIES.to_owned()]);
    let starts = ["x-sluicegate-", "x-ratelimit-", "retry-after"];
    assert_eq!(names(&listed("Headers"), &starts), known);
}

/// `text` without its blocks of code.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// What leads to a heading: as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let kept = heading.trim().chars().filter(kept).collect::<String>();
    kept.to_lowercase().replace(' ', "-")
}

/// `path` without `..`
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

#[test]
fn every_link_between_the_pages_leads_somewhere() {
    let mut pages: BTreeMap<PathBuf, String> = (files(&["docs"], ".md").into_iter())
        .map(|file| (file.path.into(), prose(&file.text)))
        .collect();
    for name in [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
    ] {
        let text = fs::read_to_string(root().join(name)).expect("it is text");
        pages.insert(name.into(), prose(&text));
    }
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
        for link in text.split("](").skip(1) {
            let (link, _) = link.split_once(')').expect("the end of a link");
            if !link.starts_with("https://") {
                links += 1;
                assert!(leads(page, link), "{}: {link}", page.display());
            }
        }
    }
    assert!(links > 20, "{links} links");
    for nowhere in ["GONE.md", "../README.md#gone", "#gone"] {
        assert!(
            !leads(Path::new("docs/OPERATIONS.md"), nowhere),
            "{nowhere}"
        );
    }
}
