//! `sluicegate demo` in small: each scenario ends by itself with figures. Figures that depend on
//! the machine's speed (P2, P3) are counted but not asserted here; `scripts/demo` does that.

mod interrupted;

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tokio::net::TcpListener;

use crate::cli::servers::yaml;
use crate::cli::sluicegate;
use crate::cli::steering::interrupted;

/// Runs a scenario of 2 tenants. Returns its figures.
fn figures(scenario: &str, jobs: u32, [window, guard]: [&str; 2]) -> Value {
    let args = format!(
        "demo --scenario {scenario} --tenants 2 --jobs {jobs} --limit 5 --window {window} \
         --guard {guard} --workers 1 --json"
    );
    let done = sluicegate(&yaml(), &args.split(' ').collect::<Vec<_>>());
    let figures = done.json();
    let holds = figures["holds"].as_bool().expect("a verdict");
    done.exited(i32::from(!holds)).json()
}

/// Runs a scenario with windows of 400 ms and more. The guard absorbs the pauses of a loaded
/// machine; with a short one, permits expire and the run takes minutes. Returns its figures.
fn demo(scenario: &str, jobs: u32) -> Value {
    let figures = figures(scenario, jobs, ["400ms", "150ms"]);
    assert_eq!(figures["never_lost"]["holds"], true, "{figures:#}");
    let p6 = &figures["throttling_is_not_failure"];
    assert_eq!(p6["holds"], true, "{figures:#}");
    assert_eq!(figures["never_lost"]["dead"], 2, "each tenant's last job");
    assert_eq!(figures["never_exceeded"]["strangers"], 0);
    assert_eq!(figures["tenants"].as_array().map(Vec::len), Some(2));
    figures
}

/// Returns the counted limits with the fullest window of each.
fn limits(figures: &Value) -> Vec<(&str, u64)> {
    let limits = figures["never_exceeded"]["limits"]
        .as_array()
        .expect("limits");
    let mut all = Vec::new();
    for limit in limits {
        let (name, units) = (limit["name"].as_str(), limit["units"].as_u64());
        all.push((name.expect("a name"), units.expect("a number")));
    }
    all
}

#[test]
fn several_limits() {
    let figures = demo("limits", 60);
    let limits = limits(&figures);
    assert!(
        matches!(limits[..], [("short", 1..), ("middle", 6..), ("long", 6..)]),
        "{limits:?}"
    );
}

#[test]
fn calls_and_tokens() {
    let figures = demo("costs", 100);
    let limits = limits(&figures);
    assert!(
        matches!(limits[..], [("calls", 1..), ("tokens", 5..)]),
        "{limits:?}"
    );
    let p3 = &figures["never_idle"];
    let seconds = |key: &str| p3[key].as_f64().expect("a number");
    assert!(
        seconds("ideal_corrected_seconds") < seconds("ideal_seconds"),
        "{p3}"
    );
}

#[test]
fn throttling() {
    let figures = demo("throttling", 30);
    let p2 = &figures["never_exceeded"];
    // Every 12th call of a tenant.
    assert!(p2["closings"].as_u64() >= Some(4), "{p2}");
}

#[test]
fn results() {
    let figures = demo("results", 30);
    let p9 = &figures["answers_back"];
    assert_eq!(p9["holds"], true, "{p9}");
    assert_eq!(
        (&p9["results"], &p9["again"]),
        (&60.into(), &0.into()),
        "{p9}"
    );
}

#[test]
fn pipelines_beside_each_other() {
    let figures = figures("pipelines", 20, ["500ms", "50ms"]);
    for (name, jobs) in [("steady", 40), ("flooded", 120), ("away", 40)] {
        let of = &figures["pipelines"][name];
        let p1 = &of["never_lost"];
        assert_eq!(p1["holds"], true, "{name}: {figures:#}");
        assert_eq!(
            (&p1["confirmed"], &p1["dead"]),
            (&jobs.into(), &2.into()),
            "{name}: {figures:#}"
        );
        assert_eq!(of["tenants"][0]["tenant"], format!("{name}-1"));
        // The costs of an API's outage break no promise.
        assert_eq!(of["never_idle"].is_object(), name != "away");
    }
    // These figures depend on no clock: the stages, and which calls reached which API.
    let p10 = &figures["pipelines_apart"];
    assert!(p10["calls"].as_u64() >= Some(40), "{p10}");
    assert!(p10["failed_calls"].as_u64() >= Some(1), "{p10}");
    assert!(p10["called_after_return"].as_u64() >= Some(20), "{p10}");
    assert_eq!(
        (&p10["astray"], &p10["restarts"]),
        (&0.into(), &0.into()),
        "{p10}"
    );
}

#[test]
fn invalid_demo_arguments_are_reported() {
    for (args, why) in [
        (
            ["--scenario", "costs", "--seconds", "9"],
            "--seconds requires --scenario limit",
        ),
        (
            ["--scenario", "limits", "--algo", "fixed-window-algo"],
            "--algo fixed-window-algo requires --scenario limit",
        ),
    ] {
        let done = sluicegate("", &[&["demo"], &args[..]].concat()).exited(2);
        assert!(done.err.contains(why), "{}", done.err);
    }
    let sentinels = "redis: {url: redis://main, sentinels: redis://localhost:26379}";
    let done = sluicegate(sentinels, &["demo"]).exited(2);
    let why = "error: the demo can't use redis.sentinels: use a --config with one RabbitMQ";
    assert!(done.err.starts_with(why), "{}", done.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_a_demo_that_waits_for_rabbitmq() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let at = silent.local_addr().expect("an address");
    let mut connection = None;
    let connects = async { connection = silent.accept().await.ok() };
    let yaml = format!("amqp: {{url: 'amqp://{at}'}}");
    let began = Instant::now();
    let ended = interrupted(&yaml, &["demo"], (Signal::INT, ""), connects).await;
    assert_eq!(ended.stderr, b"error: interrupted\n");
    assert_eq!(ended.status.code(), Some(1));
    assert!(connection.is_some() && began.elapsed() < Duration::from_secs(20));
}
