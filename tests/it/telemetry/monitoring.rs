//! The files in `distribution` for Prometheus, Grafana and KEDA match a worker's metrics and the
//! runbook, and a real Prometheus accepts them.

use std::collections::BTreeSet;
use std::fs;

use kit::api::Api;
use kit::prometheus::{Prometheus, promtool};
use kit::{Bed, job, jobs, root, until};
use serde_json::Value;
use telemetry::metrics::Metrics;

use crate::PROGRAM;

const RULES: &str = "distribution/prometheus/sluicegate.rules.yaml";
const RULES_TEST: &str = "distribution/prometheus/sluicegate.rules.test.yaml";
const DASHBOARD: &str = "distribution/grafana/sluicegate.json";
const KEDA: &str = "distribution/keda/scaledobject.yaml";
const RUNBOOK: &str = include_str!("../../../docs/OPERATIONS.md");

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|why| panic!("{path}: {why}"))
}

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&read(path)).unwrap_or_else(|why| panic!("{path}: {why}"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

fn list(value: &Value) -> &[Value] {
    value
        .as_array()
        .unwrap_or_else(|| panic!("no list: {value}"))
}

/// Returns all rules.
fn rules() -> Vec<Value> {
    let groups = yaml(RULES)["groups"].take();
    let all = list(&groups).iter().flat_map(|group| list(&group["rules"]));
    all.cloned().collect()
}

/// Returns the names of alerts (`alert`) or of recorded series (`record`).
fn named(kind: &str) -> BTreeSet<String> {
    let rules = rules();
    let names = rules.iter().filter_map(|rule| rule[kind].as_str());
    names.map(str::to_owned).collect()
}

/// Returns the expressions of the dashboard's panels with their titles, as Grafana evaluates them
/// for all pipelines.
fn panels() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).expect("JSON");
    let mut found = Vec::new();
    for panel in list(&dashboard["panels"]) {
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}");
        for target in list(&panel["targets"]) {
            let expression = text(&target["expr"])
                .replace("$job", ".*")
                .replace("$pipeline", ".*")
                .replace("$__rate_interval", "1m");
            assert!(!expression.contains('$'), "{expression}");
            found.push((text(&panel["title"]).to_owned(), expression));
        }
    }
    assert!(found.len() > 30, "{found:?}");
    found
}

/// Returns KEDA's query.
fn scaled_by() -> String {
    let triggers = yaml(KEDA)["spec"]["triggers"].take();
    let [trigger] = list(&triggers) else {
        panic!("one trigger: {triggers}");
    };
    text(&trigger["metadata"]["query"]).to_owned()
}

/// Returns every expression with its position.
fn expressions() -> Vec<(String, String)> {
    let of_rule = |rule: &Value| {
        let name = rule["alert"].as_str().or(rule["record"].as_str());
        let name = name.expect("a name").to_owned();
        (name, text(&rule["expr"]).to_owned())
    };
    let mut all: Vec<_> = rules().iter().map(of_rule).collect();
    all.extend(panels());
    all.push((KEDA.to_owned(), scaled_by()));
    all
}

/// Returns the words in `expression` that begin with `sluicegate`: metrics and recorded series.
fn metrics_in(expression: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
    let words = expression.split(|c: char| !is_part(c));
    words
        .filter(|word| word.starts_with("sluicegate") && *word != "sluicegate")
        .collect()
}

/// Returns the names of all series as Prometheus stores them.
fn series() -> BTreeSet<String> {
    let encoded = Metrics::of(Some("a")).encode();
    let lines = encoded.lines().filter(|line| !line.starts_with('#'));
    let names = lines.map(|line| line.split(['{', ' ']).next().unwrap_or_default());
    names.map(str::to_owned).collect()
}

#[test]
fn rules_are_valid_and_their_tests_pass() {
    let [rules, tests] = [RULES, RULES_TEST].map(|path| root().join(path));
    let path = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
    let out = promtool(&["check", "rules", &path(&rules)]);
    out.unwrap_or_else(|why| panic!("{why}"));
    let out = promtool(&["test", "rules", &path(&tests)]);
    out.unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn every_alert_is_tested_to_fire_and_not_to() {
    let tests = yaml(RULES_TEST);
    let mut fires = BTreeSet::new();
    let mut is_silent = BTreeSet::new();
    for test in list(&tests["tests"]) {
        let Some(of_alerts) = test.get("alert_rule_test") else {
            continue;
        };
        for check in list(of_alerts) {
            let name = text(&check["alertname"]).to_owned();
            match list(&check["exp_alerts"]).is_empty() {
                true => is_silent.insert(name),
                false => fires.insert(name),
            };
        }
    }
    assert_eq!(fires, named("alert"));
    assert_eq!(is_silent, named("alert"));
    let checked: String = read(RULES_TEST);
    for record in named("record") {
        assert!(checked.contains(&record), "{record} is not tested");
    }
}

#[test]
fn every_alert_has_its_section_in_the_runbook_and_every_section_its_alert() {
    let (_, alerts) = RUNBOOK.split_once("\n## Alerts\n").expect("the alerts");
    let alerts = alerts.split("\n## ").next().unwrap_or_default();
    let mut sections = BTreeSet::new();
    for section in alerts.split("\n### ").skip(1) {
        let (name, body) = section.split_once('\n').expect("a heading");
        sections.insert(name.to_owned());
        for part in ["**Means:**", "**Look:**", "**Do:**"] {
            assert!(body.contains(part), "{name}: {part}");
        }
    }
    assert_eq!(sections, named("alert"));
    for rule in rules().iter().filter(|rule| rule["alert"].is_string()) {
        let name = text(&rule["alert"]);
        let runbook = format!("docs/OPERATIONS.md#{}", name.to_lowercase());
        assert_eq!(text(&rule["annotations"]["runbook"]), runbook);
        assert!(rule["labels"]["severity"].is_string(), "{name}");
    }
}

#[test]
fn rules_dashboard_and_keda_use_existing_metrics_and_labels() {
    let (series, recorded) = (series(), named("record"));
    let encoded = Metrics::of(Some("a")).encode();
    // Labels that Prometheus and Grafana add.
    let given = ["job", "pipeline", "instance", "le"];
    for (place, expression) in expressions() {
        let used = metrics_in(&expression);
        assert!(!used.is_empty(), "{place}: {expression}");
        for name in used {
            let known = series.contains(name) || recorded.contains(name);
            assert!(known, "{place}: no worker has {name}");
        }
        // The form `label="value"`.
        let pairs = expression.split("=\"").collect::<Vec<_>>();
        for pair in pairs.windows(2) {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let label = pair[0].rsplit(|c| !is_name(c)).next().unwrap_or_default();
            let value = pair[1].split('"').next().unwrap_or_default();
            let known = encoded.contains(&format!("{label}=\"{value}\""));
            assert!(known || given.contains(&label), "{place}: {label}={value}");
        }
        // The form `by (label, label)`.
        for listed in expression.split("by (").skip(1) {
            let labels = listed.split(')').next().unwrap_or_default();
            for label in labels.split(", ") {
                let known = encoded.contains(&format!("{label}=\""));
                assert!(known || given.contains(&label), "{place}: by {label}");
            }
        }
    }
}

#[test]
fn every_expression_of_the_dashboard_and_keda_can_be_read() {
    let mut asked = panels();
    asked.push((KEDA.to_owned(), scaled_by()));
    let as_rule = |(number, (_, expression)): (usize, &(String, String))| serde_json::json!({"record": format!("x:{number}"), "expr": expression});
    let as_rules: Vec<Value> = asked.iter().enumerate().map(as_rule).collect();
    let file = tempfile::NamedTempFile::with_suffix(".yaml").expect("a file");
    let check = |rules: &[Value]| {
        let groups = serde_json::json!({"groups": [{"name": "all", "rules": rules}]});
        // JSON is YAML.
        fs::write(file.path(), groups.to_string()).expect("written");
        promtool(&["check", "rules", file.path().to_str().expect("UTF-8")])
    };
    check(&as_rules).unwrap_or_else(|why| panic!("{why}"));
    let wrong = serde_json::json!({"record": "x:wrong", "expr": "sum by (a ("});
    assert!(check(&[wrong]).is_err(), "what can't be read is noticed");
}

#[test]
fn the_dashboard_requires_its_data_source_and_loads_nothing_else() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).expect("JSON");
    let variables = list(&dashboard["templating"]["list"]).iter();
    let names: Vec<&str> = variables.map(|it| text(&it["name"])).collect();
    assert_eq!(names, ["datasource", "job", "pipeline"]);
    assert!(!read(DASHBOARD).contains("://"));
    let ids: Vec<&Value> = (list(&dashboard["panels"]).iter())
        .map(|it| &it["id"])
        .collect();
    let different: BTreeSet<String> = ids.iter().map(ToString::to_string).collect();
    assert_eq!(different.len(), ids.len());
}

/// Returns the values of `query`, or none yet.
fn values(prometheus: &Prometheus, query: &str) -> Vec<f64> {
    let answer = prometheus
        .query("/api/v1/query?", query)
        .unwrap_or_default();
    let Ok(answer) = serde_json::from_str::<Value>(&answer) else {
        return Vec::new();
    };
    assert_eq!(answer["status"], "success", "{query}: {answer}");
    let found = list(&answer["data"]["result"]).iter();
    let value = |it: &Value| text(&it["value"][1]).parse().expect("a number");
    found.map(value).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_prometheus_scrapes_a_worker_and_evaluates_all_of_it() {
    let api = Api::start().await;
    let bed = Bed::shared();
    // Two jobs of a tenant start, and the others wait for an hour.
    let limits = "limits: [{name: hourly, max-requests: 2, window-size: 1h}]";
    let yaml = bed.yaml(limits, &api.url(), ", timeout: 300s");
    let yaml = yaml.replace("dispatch: {", "dispatch: {concurrency: 1, ");
    bed.publish(&yaml, jobs("a", 4)).await;
    let worker = PROGRAM.start(&yaml);
    until("two calls", || api.count() == 2).await;
    // An invalid message becomes a dead letter.
    let mut stray = job("a", "stray");
    stray.properties = lapin::BasicProperties::default().with_message_id("stray".into());
    bed.publish(&yaml, [stray]).await;
    let denied = "sluicegate_denials_total{limit=\"hourly\"}";
    until("two denials", || worker.metric(denied) >= Some(2.0)).await;
    // The only slot is in use while the API is frozen, and another job needs it.
    api.stand_still(true);
    bed.publish(&yaml, [job("b", "first"), job("c", "second")])
        .await;

    until("the admin port", || worker.listen().is_some()).await;
    let target = worker.listen().expect("it listens");
    let prometheus = Prometheus::start("sluicegate", &[target], &root().join(RULES));
    let shows = |query: &str, expected: f64| {
        values(&prometheus, query)
            .iter()
            .any(|value| (value - expected).abs() < 1e-9)
    };
    for (query, expected) in [
        ("up{job=\"sluicegate\"}", 1.0),
        ("sluicegate_up{server=\"redis\"}", 1.0),
        ("sluicegate_quota_idle{lacks=\"slot\"}", 1.0),
        ("sluicegate:quota_idle:sum{lacks=\"slot\"}", 1.0),
        ("sluicegate_saturation", 1.0),
        ("sluicegate_worker_slots", 1.0),
        ("sluicegate_backlog_jobs{state=\"dead\"}", 1.0),
        ("sluicegate:backlog_jobs:max{state=\"dead\"}", 1.0),
        // The two waiting jobs are in the window of their delay queue, and the job without a slot
        // is in memory, too.
        ("sluicegate_backlog_jobs{state=\"ready\"}", 0.0),
        ("sluicegate_tenants{state=\"waiting\"}", 2.0),
        ("sluicegate_denials_total{limit=\"hourly\"} >= bool 2", 1.0),
    ] {
        until(query, || shows(query, expected)).await;
    }
    let idle_for = || values(&prometheus, "sluicegate_oldest_ready_seconds > 1").len();
    until("a job that is due", || idle_for() == 1).await;
    // Two samples are enough for a counter that always grows.
    until("the share of the slots", || {
        values(&prometheus, "sluicegate:saturation:ratio5m > 0.1").len() == 1
    })
    .await;

    api.stand_still(false);
    let late_starts = || values(&prometheus, "sluicegate_late_starts_total > 0").len();
    until("a late start", || late_starts() == 1).await;
    let exemplars = || {
        let path = "/api/v1/query_exemplars?start=0&end=9999999999&";
        prometheus
            .query(path, "sluicegate_start_delay_seconds_bucket")
            .unwrap_or_default()
    };
    until("its exemplar", || {
        exemplars().contains("\"job_id\":\"second\"")
    })
    .await;
    until("nobody lacks a slot", || {
        shows("sum(sluicegate_quota_idle)", 0.0)
    })
    .await;

    // Each rule was evaluated without an error.
    let evaluated = || {
        let answer = prometheus.get("/api/v1/rules").unwrap_or_default();
        let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
        let Some(groups) = answer["data"]["groups"].as_array() else {
            return false;
        };
        let all: Vec<&Value> = groups
            .iter()
            .flat_map(|group| list(&group["rules"]))
            .collect();
        let errors: Vec<_> = all.iter().filter(|rule| rule["health"] == "err").collect();
        assert!(
            errors.is_empty(),
            "{errors:?}\n{}",
            prometheus.log().join("\n")
        );
        all.len() == rules().len() && all.iter().all(|rule| rule["health"] == "ok")
    };
    until("all rules", evaluated).await;
    for (place, expression) in expressions() {
        // The expression is valid, with or without a value.
        values(&prometheus, &expression);
        let has_value =
            !place.starts_with("Sluicegate") && place != "sluicegate:late_starts:ratio5m";
        if has_value {
            until(&place, || !values(&prometheus, &expression).is_empty()).await;
        }
    }
    worker.stop();
}
