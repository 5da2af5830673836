//! The lists in docs/OBSERVABILITY.md match the code: metrics, log lines, queues, headers and Redis
//! keys. tests/it/telemetry/observability.rs checks JSON fields and exit statuses.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use broker::topology::Topology;
use config::QueueType;
use gate::BreakerScope;
use gate::keys::Keys;
use kit::sources::{self, files, quoted};
use rules::calendar::{Calendar, Zone};
use rules::delays::DelayLevels;
use rules::headers::{
    ANSWERED, CALLED, DONE, DONE_TOKEN, HeaderValue, JOB_ID, OURS, PROPERTIES, PUBLISHED, RESULT,
    STATUS, TENANT, TRUNCATED, UNREADABLE,
};
use rules::layout::Layout;
use rules::limit::{Algorithm, DEFAULT_LIMIT, Limit, Unit};
use rules::scope::{Labels, Scope};
use rules::tenant::Tenant;
use telemetry::metrics::Metrics;

const PAGE: &str = include_str!("../../docs/OBSERVABILITY.md");

/// Returns the section of the page with this heading.
fn section(heading: &str) -> &'static str {
    sources::section(PAGE, heading)
}

/// Returns the first cells of the section's tables.
fn listed(heading: &str) -> Vec<&'static str> {
    let rows = section(heading).lines().filter_map(|line| {
        let (cell, _) = line.strip_prefix("| ")?.split_once(" |")?;
        (!cell.starts_with("**")).then_some(cell)
    });
    rows.collect()
}

/// Returns the texts in backticks in `cells` that begin with one of `starts`, without labels.
fn names(cells: &[&'static str], starts: &[&str]) -> BTreeSet<String> {
    let quoted = cells.iter().flat_map(|cell| quoted(cell));
    let named = quoted.filter(|name| starts.iter().any(|start| name.starts_with(start)));
    let bare = named.map(|name| name.split('{').next().unwrap_or_default().to_owned());
    bare.collect()
}

#[test]
fn every_metric_is_listed_and_no_other() {
    let encoded = Metrics::new().encode();
    // The format is `# TYPE NAME KIND`.
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
    // All values of labels exist from the start and are documented.
    for value in encoded.lines().filter_map(|line| line.split('"').nth(1)) {
        let named = section("Metrics").contains(&format!("`{value}`"));
        let elsewhere = ["rabbitmq", "redis", env!("CARGO_PKG_VERSION")].contains(&value);
        assert!(
            named || elsewhere || value.parse::<f64>().is_ok() || value == "+Inf",
            "{value}"
        );
    }
}

/// Returns the texts in the arguments at the start of `text`, up to their closing `)`.
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

/// Returns the texts of `warn!` and `error!` in `code`, each up to its first value.
fn logged_texts(code: &str) -> Vec<String> {
    let calls = ["warn!(", "error!("].map(|level| code.split(level).skip(1));
    let last = |call| texts(call).pop().expect("a text at the end");
    let logged = calls.into_iter().flatten().map(|call| {
        let text = last(call);
        // A text may continue in the next line of the source.
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let constant = words.split('{').next().unwrap_or_default().trim_end();
        constant.trim_end_matches(':').to_owned()
    });
    logged.collect()
}

#[test]
fn every_warning_and_error_is_listed_and_no_other() {
    let mut known = BTreeSet::new();
    for file in files(&["src"], ".rs") {
        let code: Vec<&str> = file.code().map(|(_, line)| line).collect();
        known.extend(logged_texts(&code.join("\n")));
    }
    // rules::answers has the sentence about the API's statements.
    assert!(known.remove(""));
    known.insert("the API allows".to_owned());
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
fn texts_are_found_in_any_layout() {
    let code = "warn!(reason = %why, \"one\"),\nerror!(\n  a = b(\"x\"),\n  \"two: {why}\",\n);\nwarn!(\"three (of \\\n   more\")";
    let mut found = logged_texts(code);
    found.sort();
    assert_eq!(found, ["one", "three (of more", "two"]);
}

#[test]
fn every_header_is_listed_and_no_other() {
    let mut known: BTreeSet<String> = OURS.map(str::to_owned).into();
    known.extend([UNREADABLE.to_owned(), PROPERTIES.to_owned()]);
    let of_results = [
        RESULT, STATUS, TRUNCATED, JOB_ID, TENANT, PUBLISHED, CALLED, ANSWERED,
    ];
    known.extend(of_results.map(str::to_owned));
    known.extend([DONE, DONE_TOKEN].map(str::to_owned));
    let starts = ["x-sluicegate-", "x-ratelimit-", "retry-after"];
    assert_eq!(names(&listed("Headers"), &starts), known);
}

/// Returns the cells of each row of the section's tables, without headers.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let lines = section(heading)
        .lines()
        .filter(|line| line.starts_with("| `"));
    let cells = |line: &'static str| line.trim_matches('|').split(" | ").map(str::trim).collect();
    lines.map(cells).collect()
}

#[test]
fn every_queue_is_listed_with_its_arguments() {
    let levels = DelayLevels::new(Duration::from_secs(300));
    let topology = Topology::new("jobs", QueueType::Quorum, &levels).expect("the name is fine");
    let arguments = |name: &str| -> BTreeSet<String> {
        let queue = topology.queues.iter().find(|queue| &*queue.name == name);
        let arguments = &queue.expect("it is declared").arguments;
        let shown = arguments.iter().map(|(name, value)| match value {
            HeaderValue::Text(text) => format!("{name}={text}"),
            HeaderValue::Int(n) => format!("{name}={n}"),
        });
        shown.collect()
    };
    let mut listed = BTreeMap::new();
    for row in rows("Queues") {
        let mut own: BTreeSet<String> = quoted(row[2])
            .filter(|argument| argument.contains('='))
            .map(str::to_owned)
            .collect();
        if let Some(like) = row[2].strip_prefix("as `jobs`") {
            let jobs: &BTreeSet<String> = &listed["jobs"];
            let named = |argument: &&String| {
                let (name, _) = argument.split_once('=').expect("a value");
                !like.contains(&format!("`{name}="))
            };
            own.extend(jobs.iter().filter(named).cloned());
        }
        let name = quoted(row[0]).next().expect("a name");
        listed.insert(name.replace("MS", "512000"), own);
    }
    let delay_queues = (topology.names.delays().iter()).filter(|name| !name.ends_with("-512000"));
    let delay_queues: BTreeSet<&str> = delay_queues.map(|name| &**name).collect();
    let declared: BTreeSet<&str> = (topology.queues.iter())
        .map(|queue| &*queue.name)
        .filter(|name| !delay_queues.contains(name))
        .collect();
    assert_eq!(
        listed.keys().map(String::as_str).collect::<BTreeSet<_>>(),
        declared
    );
    for (name, own) in &listed {
        assert_eq!(own, &arguments(name), "{name}");
    }
    let all = format!("All {} are durable", topology.queues.len());
    assert!(section("Queues").contains(&all), "{all}");
    let number = format!("the {} delay queues", topology.names.delays().len());
    assert!(section("Queues").contains(&number), "{number}");
}

/// Returns a limit of 5 per minute.
fn limit(name: &str, algorithm: Algorithm, unit: Unit, scope: Scope) -> Limit {
    let window = Duration::from_secs(60);
    let limit = match algorithm {
        Algorithm::Concurrency => Limit::concurrent(name, 5),
        Algorithm::CalendarWindow => {
            let calendar = Calendar::parse("day", Zone::UTC, None).expect("a calendar");
            Limit::calendar(name, 5, calendar, Duration::ZERO)
        }
        algorithm => Limit::new(name, algorithm, 5, window, Duration::ZERO),
    };
    limit.expect("a limit").with_unit(unit).with_scope(scope)
}

/// Returns all keys of the prefix `P` and the tenant `T` as the page writes them, with their types.
fn keys() -> BTreeMap<String, &'static str> {
    let (keys, tenant) = (Keys::new("P"), Tenant::parse("T").expect("a tenant"));
    let header = Scope::parse("header:h").expect("a scope");
    let mut found = BTreeMap::from([
        (keys.epoch(None), "hash"),
        (keys.policies(None), "hash"),
        (keys.breaker(&BreakerScope::Api), "hash"),
        (keys.board(None), "hash"),
        (keys.audit(), "zset"),
        (keys.report("WORKER"), "string"),
        (keys.suspect(&tenant, "ID"), "string"),
        (keys.first(&tenant, "KEY"), "string"),
        (keys.sighting(&tenant, "ID"), "string"),
        (
            keys.mark(&Layout::of(&[], &tenant, &Labels::default()), "CALL"),
            "string",
        ),
    ]);
    let mut add = |limits: &[Limit]| {
        let labels = Labels::of(limits, |_| "VALUE".to_owned());
        let layout = Layout::of(limits, &tenant, &labels);
        let call = keys.call(&layout, limits, 0);
        found.extend(call.names.into_iter().zip(call.types));
    };
    for name in [DEFAULT_LIMIT, "name"] {
        for algorithm in Algorithm::EVERY {
            for unit in [Unit::Cost, Unit::Calls] {
                add(&[limit(name, algorithm, unit, Scope::Tenant)]);
            }
        }
    }
    let log = |scope| limit(DEFAULT_LIMIT, Algorithm::SlidingWindow, Unit::Cost, scope);
    add(&[log(Scope::Global)]);
    add(&[
        log(header),
        limit("name", Algorithm::SlidingWindow, Unit::Cost, Scope::Tenant),
    ]);
    let shadow = limit("name", Algorithm::SlidingWindow, Unit::Cost, Scope::Tenant);
    add(&[shadow.in_shadow().expect("it holds no leases")]);
    let written = found.into_iter().filter_map(|(key, holds)| {
        // The page describes in words what replaces `P:T`.
        if key.contains("=VALUE") || key == "P:%global" || key == "P:%global:spans" {
            return None;
        }
        let parts: Vec<&str> = key.split(':').collect();
        let own = parts.iter().any(|part| part.contains('+'));
        let shown = parts
            .iter()
            .enumerate()
            .filter_map(|(at, part)| match *part {
                "calls" if own => None,
                part if part.starts_with("day/") => Some("PERIOD/STARTS/ZONE"),
                DEFAULT_LIMIT | "name" if at == 2 || parts[2] == "%shadow" => Some("NAME"),
                "sliding-window-algo" => Some("ALGORITHM"),
                "cost" => Some("UNIT"),
                part if part.contains('+') => Some("SPAN"),
                part if part.contains('/') => Some("MAX/BURST"),
                "0" | "1" => Some("INDEX"),
                part => Some(part),
            });
        Some((shown.collect::<Vec<_>>().join(":"), holds))
    });
    written.collect()
}

#[test]
fn every_redis_key_is_listed_with_its_content() {
    let mut listed = BTreeMap::new();
    for row in rows("Redis keys") {
        listed.extend(quoted(row[0]).map(|key| (key.to_owned(), row[1])));
    }
    assert_eq!(listed, keys());
    let in_a_cluster = Keys::new("P").epoch(Some(7)).replace('7', "N");
    assert!(section("Redis keys").contains(&format!("`{in_a_cluster}`")));
}
