//! API profiles: each file in `apis` can be read and its limits can be enforced, and recorded
//! answers in `tests/apis` mean what their fixtures say.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, SystemTime};

use config::{ApiProfile, Config, parse_duration};
use http::{HeaderMap, HeaderName};
use jiff::Timestamp;
use kit::root;
use kit::sources::page;
use rules::answers::{Answers, Consequence, Interpretation, ReceivedAnswer, verdict};
use rules::named::Named;
use serde::Deserialize;
use serde_json::{Map, Value as Json};

/// Minimum number of recorded answers per profile.
const MIN_FIXTURES: usize = 6;

/// A recorded answer and its meaning.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fixture {
    name: String,
    /// The public page that shows the answer.
    source: String,
    /// When the answer is read.
    now: String,
    status: u16,
    #[serde(default)]
    headers: Map<String, Json>,
    #[serde(default)]
    body: String,
    expect: Expected,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    means: String,
    /// A duration, or `none`.
    wait: Option<Json>,
    scope: Option<String>,
    cost: Option<u64>,
}

/// Returns the names of the YAML files in `folder`.
fn names(folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(root().join(folder)).expect("a folder");
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.expect("readable").file_name().into_string();
        let name = name.expect("our names are UTF-8");
        name.strip_suffix(".yaml").expect("a profile").to_owned()
    };
    entries.map(name).collect()
}

fn profiles() -> impl Iterator<Item = ApiProfile> {
    names("apis").into_iter().map(|name| {
        let path = root().join(format!("apis/{name}.yaml"));
        let text = fs::read_to_string(path).expect("a profile");
        ApiProfile::parse(&name, &text).unwrap_or_else(|errors| panic!("{errors}"))
    })
}

fn fixtures(name: &str) -> Vec<Fixture> {
    let path = root().join(format!("tests/apis/{name}.yaml"));
    let text = fs::read_to_string(path).unwrap_or_else(|why| panic!("{name}: {why}"));
    serde_saphyr::from_str(&text).unwrap_or_else(|why| panic!("tests/apis/{name}.yaml: {why}"))
}

/// Parses a duration with a fraction, or `none`.
fn wait(text: &Json) -> Option<Duration> {
    let text = text
        .as_str()
        .map_or_else(|| text.to_string(), str::to_owned);
    if text == "none" {
        return None;
    }
    let seconds = text.trim_end_matches('s').parse().ok();
    let wait = parse_duration(&text).or_else(|| seconds.map(Duration::from_secs_f64));
    Some(wait.unwrap_or_else(|| panic!("{text} is no duration")))
}

/// Returns the pause that an answer causes, or the delay of a retry.
fn pause(found: &Interpretation<'_>) -> Option<Duration> {
    let refused = found.seen.refused.and_then(|refused| refused.after);
    refused.or(found.seen.used_up).or(found.retry_after)
}

/// Compares the meaning of a recorded answer with its fixture. Returns the number of the rule that
/// decided.
fn check(profile: &ApiProfile, answers: &Answers, fixture: &Fixture) -> Option<usize> {
    let at = format!("tests/apis/{}.yaml: {}", profile.name, fixture.name);
    assert!(fixture.source.starts_with("https://"), "{at}");
    let now: Timestamp = fixture.now.parse().expect(&at);
    let now = SystemTime::try_from(now).expect(&at);
    let headers = fixture.headers.iter().map(|(name, value)| {
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        let name: HeaderName = name.parse().expect(&at);
        (name, value.parse().expect(&at))
    });
    let headers: HeaderMap = headers.collect();
    let needs_body = answers.need_body(fixture.status, &headers);
    let answer = ReceivedAnswer {
        status: fixture.status,
        headers: &headers,
        body: needs_body.then_some(fixture.body.as_bytes()),
    };
    let found = verdict(answers, &answer, now);
    let Expected {
        means,
        wait: pauses,
        scope,
        cost,
    } = &fixture.expect;
    assert_eq!(found.meaning.name(), means, "{at}: {:?}", found.rule);
    if let Some(pauses) = pauses {
        assert_eq!(pause(&found), wait(pauses), "{at}: {:?}", found.rule);
    }
    if let Some(scope) = scope {
        let stops_all = Some(scope == "global");
        assert_eq!(found.seen.stops_all, stops_all, "{at}");
    }
    if cost.is_some() {
        assert_eq!(found.seen.actual_cost, *cost, "{at}");
    }
    // A field that is not read can't decide.
    let whole = ReceivedAnswer {
        body: Some(fixture.body.as_bytes()),
        ..answer
    };
    assert_eq!(verdict(answers, &whole, now), found, "{at}");
    let mut rules = profile.rules.rules.iter();
    rules.position(|rule| found.rule == Some(rule))
}

#[test]
fn each_profile_is_built_in_and_has_fixtures() {
    let built_in = ApiProfile::names().map(str::to_owned).collect();
    let list = "src/config/sections/http/api_profiles.rs";
    assert_eq!(names("apis"), built_in, "{list}");
    assert_eq!(names("tests/apis"), built_in);
    let page = page("docs/APIS.md");
    for name in ApiProfile::names() {
        let title = ApiProfile::find(name).expect(name).title;
        let row = format!("| `{name}` | {title} |");
        assert!(page.contains(&row), "docs/APIS.md: {row}");
    }
}

#[test]
fn recorded_answers_mean_what_the_profile_says() {
    for profile in profiles() {
        let answers = Answers::default().with_profile(profile.rules.clone());
        let fixtures = fixtures(&profile.name);
        let enough = fixtures.len() >= MIN_FIXTURES;
        assert!(enough, "{}: {} fixtures", profile.name, fixtures.len());
        let throttle = Consequence::Throttle.name();
        let refused = |fixture: &&Fixture| fixture.expect.means == throttle;
        let refusals = fixtures.iter().filter(refused).count();
        let all = 1..fixtures.len();
        assert!(
            all.contains(&refusals),
            "{}: a refusal and a near miss",
            profile.name
        );
        let checked = fixtures
            .iter()
            .filter_map(|fixture| check(&profile, &answers, fixture));
        let decided: BTreeSet<usize> = checked.collect();
        for (number, rule) in profile.rules.rules.iter().enumerate() {
            assert!(
                decided.contains(&number),
                "{}: no fixture for {rule}",
                profile.name
            );
        }
    }
}

#[test]
fn the_limits_of_each_plan_can_be_enforced() {
    for profile in profiles() {
        for plan in &profile.plans {
            let limits = plan.limits.join(", ");
            let name = &profile.name;
            let yaml = format!(
                "rate-limiter: {{limits: [{limits}]}}\n\
                dispatch: {{http: {{url: 'https://h/', api: {name}}}}}\n"
            );
            let config = Config::parse("c.yaml", &yaml, std::iter::empty());
            let config = config.unwrap_or_else(|errors| panic!("{name} {}: {errors}", plan.name));
            assert_eq!(config.warnings(), [""; 0], "{name} {}", plan.name);
        }
        assert!(!profile.sources.is_empty() && !profile.title.is_empty());
        let sources = profile.sources.iter();
        let others: Vec<&String> = sources
            .filter(|page| !page.starts_with("https://"))
            .collect();
        assert!(others.is_empty(), "{others:?}");
        let date = profile.checked.as_bytes();
        assert!(date.len() == 10 && date[4] == b'-', "{}", profile.checked);
        for rule in &profile.rules.rules {
            assert!(!rule.why.is_empty(), "{}: {rule}", profile.name);
        }
    }
}

#[test]
fn a_profile_with_a_host_and_a_token_per_tenant_says_what_is_missing() {
    let mut names = Vec::new();
    for profile in profiles() {
        let name = &profile.name;
        let limits = profile.plans[0].limits.join(", ");
        let advice = |url: &str, http: &str, job: &str| {
            let yaml = format!(
                "rate-limiter: {{limits: [{limits}]}}\n\
                dispatch: {{http: {{url: '{url}', api: {name}{http}}}}}\njob: {{{job}}}\n"
            );
            let config = Config::parse("c.yaml", &yaml, std::iter::empty());
            config
                .unwrap_or_else(|errors| panic!("{name}: {errors}"))
                .advice()
        };
        let Some(url) = &profile.url else {
            assert!(profile.headers.is_empty());
            continue;
        };
        names.push(name.clone());
        let headers = profile.headers.iter();
        let headers = headers.map(|(name, value)| format!("{name}: '{value}'"));
        let headers: Vec<String> = headers.collect();
        let http = format!(", headers: {{{}}}, secrets-folder: /", headers.join(", "));
        assert_eq!(advice(url, &http, "cost: header:x-cost"), [""; 0], "{name}");
        let one = advice("https://h/", "", "");
        let has = |advice: &[String], key: &str| advice.iter().any(|line| line.starts_with(key));
        assert!(has(&one, "dispatch.http.headers: has no "), "{one:?}");
        let is_limited = !profile.plans[0]
            .limits
            .iter()
            .all(|limit| limit.contains("global"));
        assert_eq!(has(&one, "dispatch.http.url: "), is_limited, "{one:?}");
        assert_eq!(
            has(&one, "job.cost: "),
            limits.contains("unit: cost"),
            "{one:?}"
        );
        let single = advice("https://h/", "", "tenant: all");
        assert!(!has(&single, "dispatch.http.url: "), "{single:?}");
    }
    let expected = [
        "atlassian",
        "azure-openai",
        "salesforce",
        "shopify",
        "shopify-graphql",
        "zendesk",
    ];
    assert_eq!(names, expected);
}

#[test]
fn all_mistakes_of_a_profile_are_reported() {
    let text = "title: A\nsources: [https://a/]\nchecked: 2026-11-26\nplans: {a: {limts: []}}\n\
        answers:\n  - {when: {status: 600}, means: retry}\n  - {when: {status: 200}, means: retyr}\n";
    let errors = ApiProfile::parse("a", text).expect_err("four mistakes");
    let lines: Vec<String> = errors.problems().iter().map(ToString::to_string).collect();
    let expected = [
        "apis/a.yaml:4:13: unknown key \"limts\" in a.plans.a; did you mean limits?",
        "apis/a.yaml:6:13: a.answers[0].when.status: is 600; it must be a status (409), a class \
        (4xx), or a list of them",
        "apis/a.yaml:7:27: a.answers[1].means: is \"retyr\"; it must be done, retry, throttle or \
        reject; did you mean retry?",
    ];
    assert_eq!(lines, expected);
}
