//! `sluicegate tenant`: its effects on `inspect` and on a running worker.

use gate::Gate;
use gate::redis::RedisGate;
use kit::gate::{FRESH, asking};
use kit::{Says, until};
use serde_json::Value;

use crate::cli::servers::{config, yaml};
use crate::cli::{json_of, sluicegate};
use crate::worker::running::{Calls, Running};

fn inspect(yaml: &str, tenant: &str) -> Value {
    json_of(yaml, &["inspect", tenant])
}

/// Asks for `number` new jobs of `tenant`.
async fn ask(yaml: &str, tenant: &str, number: usize) {
    let config = config(yaml);
    let gate = RedisGate::new(&config.redis.url, &config.redis.prefix).expect("a gate");
    let named = kit::gate::tenant(tenant);
    let limits = config.rate_limiter.policy.limits(&named, None);
    let ask = asking(tenant, limits, &vec![FRESH; number]);
    gate.ask(&[ask]).await.expect("answers");
}

#[tokio::test(flavor = "multi_thread")]
async fn inspect_shows_overrides() {
    let yaml = yaml();
    let done = sluicegate(&yaml, &["tenant", "pause", "acme", "--for", "1h"]).exited(0);
    done.out.begins("paused acme until ");
    done.out.says("within 1s (delay.max-delay)");
    let found = inspect(&yaml, "acme");
    let open_in = |found: &Value| {
        let number = |key: &str| found[key].as_u64().expect("a number");
        number("suspended_until_ms").saturating_sub(number("now_ms"))
    };
    assert!((1..=3_600_000).contains(&open_in(&found)), "{found}");
    assert_eq!(found["suspended_by"], "an operator (tenant pause)");
    assert_eq!(found["waits_for"], "suspended");
    assert_eq!(inspect(&yaml, "other")["waits_for"], Value::Null);

    let done = sluicegate(&yaml, &["tenant", "resume", "acme"]).exited(0);
    done.out.begins("resumed acme\n");
    assert_eq!(open_in(&inspect(&yaml, "acme")), 0);

    // The default of --for is a year, which the output says.
    let done = sluicegate(&yaml, &["tenant", "pause", "acme", "--json"]).exited(0);
    let until = done.json()["until_ms"].as_u64().expect("a number");
    let found = inspect(&yaml, "acme");
    assert_eq!(found["suspended_until_ms"], until);
    assert!(open_in(&found) > 364 * 86_400_000, "{found}");
    sluicegate(&yaml, &["tenant", "resume", "acme", "--json"]).exited(0);

    let done = sluicegate(
        &yaml,
        &["tenant", "limit", "acme", "2", "--for", "30m", "--json"],
    );
    let json = done.exited(0).json();
    assert_eq!(
        (&json["limit"], &json["max_requests"]),
        (&"default".into(), &2.into())
    );
    let found = inspect(&yaml, "acme");
    let limit = &found["limits"][0];
    assert_eq!(limit["max_requests"], 2);
    assert_eq!(limit["configured_max_requests"], 5);
    assert_eq!(limit["override_until_ms"], json["until_ms"]);
    assert_eq!(limit["free"], 2);
    let text = sluicegate(&yaml, &["inspect", "acme"]).exited(0).out;
    text.says("an operator set 2 instead of 5, until ");

    ask(&yaml, "acme", 3).await;
    let found = inspect(&yaml, "acme");
    assert_eq!(found["waits_for"], "limit default");
    assert_eq!(found["waiting"], 1);

    let args = ["tenant", "limit", "acme", "--clear", "--limit", "default"];
    let done = sluicegate(&yaml, &args).exited(0);
    done.out.says("as configured");
    let found = inspect(&yaml, "acme");
    assert_eq!(found["limits"][0]["max_requests"], 5);
    assert_eq!(found["limits"][0]["override_until_ms"], 0);
    assert_eq!(found["waits_for"], "waitlist");

    let done = sluicegate(&yaml, &["tenant", "reset", "acme"]).exited(0);
    done.out
        .begins("reset the waitlist of acme and what its own limits had learned\n");
    let found = inspect(&yaml, "acme");
    assert_eq!(found["waiting"], 0);
    assert_eq!(found["limits"][0]["used"], 2, "what started still counts");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_limits_can_be_changed() {
    let several = "rate-limiter: {window-size: 1h, limits: [{name: calls, max-requests: 5}, {name: tokens, unit: cost, max-requests: 50}], plans: {pro: {max-requests: 9}}, plan-header: x-plan}";
    let yaml = yaml().replace("rate-limiter: {max-requests: 5, window-size: 1h}", several);
    sluicegate(&yaml, &["tenant", "limit", "a", "5"]).exited(2);
    sluicegate(&yaml, &["tenant", "limit", "a", "7", "--limit", "tokens"]).exited(0);
    // A plan that its jobs may name has a limit with this name.
    sluicegate(&yaml, &["tenant", "limit", "a", "8", "--limit", "default"]).exited(0);
    let found = inspect(&yaml, "a");
    let shown = |at: usize| {
        let limit = &found["limits"][at];
        (limit["name"].as_str(), limit["max_requests"].as_u64())
    };
    assert_eq!(shown(0), (Some("calls"), Some(5)));
    assert_eq!(shown(1), (Some("tokens"), Some(7)));
    let args = ["inspect", "a", "--plan", "pro", "--json"];
    let pro = sluicegate(&yaml, &args).exited(0).json();
    assert_eq!(pro["source"], "rate-limiter.plans.pro");
    assert_eq!(pro["limits"][0]["max_requests"], 8);
    let text = sluicegate(&yaml, &["inspect", "a"]).exited(0).out;
    text.says("names a plan in x-plan may have other limits: --plan");
}

/// Waits until `number` units of `tenant` are in its waitlist.
async fn waiting(yaml: &str, tenant: &str, number: u64) {
    until(&format!("{number} waiting of {tenant}"), || {
        inspect(yaml, tenant)["waiting"] == number
    })
    .await;
}

fn publish(yaml: &str, tenant: &str, number: usize) {
    for _ in 0..number {
        sluicegate(yaml, &["publish", "--tenant", tenant]).exited(0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_worker_keeps_a_limit_that_an_operator_raises_and_lowers() {
    // 5 per hour.
    let yaml = yaml();
    let calls = Calls::default();
    let worker = Running::configured(&yaml, calls.clone());
    sluicegate(&yaml, &["tenant", "limit", "acme", "2"]).exited(0);
    publish(&yaml, "acme", 4);
    waiting(&yaml, "acme", 2).await;
    calls.are_of_tenant("acme", 2).await;
    assert_eq!(calls.of_tenant("acme"), 2, "lowered to 2");

    sluicegate(&yaml, &["tenant", "limit", "acme", "3"]).exited(0);
    calls.are_of_tenant("acme", 3).await;
    waiting(&yaml, "acme", 1).await;
    assert_eq!(calls.of_tenant("acme"), 3, "raised to 3");

    sluicegate(&yaml, &["tenant", "limit", "acme", "--clear"]).exited(0);
    calls.are_of_tenant("acme", 4).await;
    publish(&yaml, "acme", 2);
    calls.are_of_tenant("acme", 5).await;
    waiting(&yaml, "acme", 1).await;
    assert_eq!(calls.of_tenant("acme"), 5, "the configured 5");

    sluicegate(&yaml, &["tenant", "limit", "acme", "6"]).exited(0);
    calls.are_of_tenant("acme", 6).await;
    worker.stop().await;
}
