//! `sluicegate inspect` and `check`: the API's advertised limits, and the policies of other
//! workers.

use std::time::{Duration, Instant};

use gate::fleet::registry::{NamedPolicy, Registry};
use gate::redis::RedisGate;
use handler::{Handler, Outcome, Permit};
use kit::api::{Api, Reply};
use kit::servers::{Redis, shared_redis};
use kit::{PATIENCE, Says};
use rules::job::Job;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::PROGRAM;
use crate::cli::servers::{config, yaml};
use crate::cli::{json_of, sluicegate};
use crate::worker::running::Running;

/// A handler that is never called.
struct UnusedHandler;

impl Handler for UnusedHandler {
    async fn handle(&self, _: &Job, _: Permit) -> Outcome {
        Outcome::Done
    }
}

fn inspect(yaml: &str, tenant: &str) -> Value {
    json_of(yaml, &["inspect", tenant])
}

fn text(yaml: &str, tenant: &str) -> String {
    sluicegate(yaml, &["inspect", tenant]).exited(0).out
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_says_that_jobs_are_admitted_while_redis_refuses_writes() {
    let redis = Redis::start();
    let yaml = yaml().replace(shared_redis().url(), redis.url());
    let _worker = Running::configured(&yaml, UnusedHandler);
    let is_open = |found: &Value| found["recovery_wait_until_ms"] == 0;
    inspected(&yaml, "a worker has begun", is_open).await;
    let set = |what: &str| redis.ctl(&what.split(' ').collect::<Vec<_>>());
    for (refuse, accept, error) in [
        (
            "config set maxmemory 1",
            "config set maxmemory 0",
            "Redis has no memory left; raise maxmemory",
        ),
        (
            "replicaof 127.0.0.1 1",
            "replicaof no one",
            "this is a replica",
        ),
    ] {
        set(refuse);
        let found = inspect(&yaml, "acme");
        assert_eq!(found["waits_for"], "redis", "{found}");
        assert_eq!(found["new_job_in_ms"], Value::Null, "{found}");
        let shown = text(&yaml, "acme");
        shown.says("why       no job is admitted: Redis ");
        shown.says(error);
        let tenants = sluicegate(&yaml, &["tenants"]).exited(0).out;
        tenants.begins("no job is admitted: Redis ");
        tenants.says(error);
        let job = ["explain", "--tenant", "acme", "--id", "order-1"];
        let explained = sluicegate(&yaml, &job).exited(1).err;
        explained.says(error);
        set(accept);
    }
}

/// Waits until the worker has stored the API's advertised limits for `tenant`.
async fn advertised(yaml: &str, tenant: &str) -> Value {
    let started = Instant::now();
    loop {
        let found = inspect(yaml, tenant);
        if found["advertised_at_ms"] != 0 {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "nothing was noted: {found}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn advertised_limits_are_shown_with_a_warning_if_lower() {
    const WARNING: &str = "the API allows 3 calls in 1h, but the limit default admits 5: set \
                           its max-requests to 3";
    let mut headers = vec![("ratelimit-policy", "\"default\";q=3;w=3600, 900;w=86400")];
    let yaml = yaml();
    let shown = inspect(&yaml, "acme");
    assert_eq!(
        (&shown["advertised"], &shown["advertised_at_ms"]),
        (&json!([]), &json!(0))
    );
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("sluicegate.yaml");
    for (tenant, warns) in [("acme", true), ("plain", false)] {
        let api = Api::start().await;
        let sent = headers.clone();
        api.answers(move |_| {
            (sent.iter()).fold(Reply::ok(), |reply, (name, value)| {
                reply.header(name, value)
            })
        });
        let rest = format!(
            "dispatch: {{http: {{url: '{}'}}}}\nadmin: {{listen: '127.0.0.1:0'}}\n",
            api.url()
        );
        std::fs::write(&file, format!("{yaml}{rest}")).expect("written");
        let mut worker = PROGRAM.start_with(&file);
        for _ in 0..2 {
            sluicegate(&yaml, &["publish", "--tenant", tenant]).exited(0);
        }
        let found = advertised(&yaml, tenant).await;
        let quotas = &found["advertised"];
        let text = text(&yaml, tenant);
        if warns {
            assert_eq!(quotas[0]["limit"], 3, "{found}");
            assert_eq!(quotas[0]["window_ms"], 3_600_000);
            assert_eq!(quotas[0]["exceeded"]["allowed"], 5);
            assert_eq!(quotas[0]["exceeded"]["limit"], "default");
            assert_eq!(quotas[0]["exceeded"]["max_requests"], 3);
            assert_eq!(quotas[0]["exceeded"]["warning"], WARNING);
            let day = json!({"limit": 900, "window_ms": 86_400_000});
            assert_eq!(quotas[1], day, "ours keep it");
            assert!(text.contains("says that it takes 3 in 1h, 900 in 1d"));
            text.says(&format!("warning   {WARNING}\n"));
            worker.logs(&["WARN", WARNING, "tenant=acme"]).await;
        } else {
            // A quota without a window can't be compared.
            assert_eq!(quotas, &json!([{"limit": 2, "window_ms": null}]));
            assert!(text.contains("2 in a window that it does not name"));
            assert!(!text.contains("warning"), "{text}");
        }
        worker.signal(Signal::TERM);
        assert!(worker.ended().success());
        // Two calls had the same limits, which were reported once.
        assert_eq!(worker.count(&["WARN", WARNING]), usize::from(warns));
        headers = vec![("x-ratelimit-limit", "2")];
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_of_other_workers_are_shown_beside_the_files() {
    let own = yaml();
    let other = own.replace(
        "rate-limiter: {max-requests: 5, window-size: 1h}",
        "rate-limiter: {window-size: 1h, limits: [{name: calls, unit: calls, max-requests: 3}], \
         tenants: {acme: {max-requests: 2}}}",
    );
    assert_ne!(own, other);
    let register = async |yaml: &str| {
        let config = config(yaml);
        let gate = RedisGate::new(&config.redis.url, &config.redis.prefix).expect("a gate");
        let named = NamedPolicy::new(config.rate_limiter.policy).expect("small");
        let mut registry = Registry::new(gate.into(), named);
        registry.exchange().await.expect("agreed");
    };
    let check = |yaml: &str| sluicegate(yaml, &["check"]).exited(0).out;
    assert!(!check(&own).contains("another configuration"));

    // Only the other policy is in force.
    let worker = Running::configured(&other, UnusedHandler);
    let only = "another configuration is enforced, but no worker enforces this one: default, calls";
    let started = Instant::now();
    while !check(&own).contains(only) {
        assert!(started.elapsed() < PATIENCE, "{}", check(&own));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let found = inspect(&own, "b");
    assert_eq!(found["in_force"], false);
    let text_of_b = text(&own, "b");
    assert!(text_of_b.contains("also      no worker enforces the limits of this configuration\n"));
    assert_eq!(inspect(&other, "b")["in_force"], true);

    // Both policies are in force.
    for (yaml, tenant, limits, beside) in [
        (
            &own,
            "b",
            vec![("default", 5), ("calls", 3)],
            "calls: at most 3 calls in any 1h",
        ),
        (
            &own,
            "acme",
            vec![("default", 2)],
            "default: at most 2 units of cost in any 1h",
        ),
        (
            &other,
            "b",
            vec![("calls", 3), ("default", 5)],
            "default: at most 5 units of cost in any 1h",
        ),
    ] {
        // Again, since what no worker repeats is over after a while.
        register(&own).await;
        let found = inspect(yaml, tenant);
        assert_eq!(found["in_force"], true);
        let shown: Vec<_> = (found["limits"].as_array().expect("limits").iter())
            .map(|limit| (limit["name"].as_str(), limit["max_requests"].as_u64()))
            .collect();
        let expected: Vec<_> =
            (limits.iter().map(|(name, max)| (Some(*name), Some(*max)))).collect();
        assert_eq!(shown, expected, "all that is enforced: {found}");
        let others = found["other_configurations"].as_array().expect("others");
        assert_eq!(others.len(), 1);
        let words = others[0]["limits"][0].as_str().expect("words");
        words.begins(beside);
        let text = text(yaml, tenant);
        text.says("also      another configuration, until ");
        text.says("until at least ");
        text.says(&format!("\n  limit  {beside}"));
        assert_eq!(
            others[0]["differing_keys"].as_array().map(Vec::len),
            Some(3)
        );
        assert!(!text.contains("no worker has"), "{text}");
    }
    let line = "another configuration is also enforced: default, calls, tenants.acme differ";
    register(&own).await;
    let checked = check(&own);
    checked.says(&format!("warn  redis     {line}; inspect TENANT"));
    register(&own).await;
    let workers = sluicegate(&own, &["workers"]).exited(0).out;
    workers.begins(&format!("{line} (sluicegate check)\n"));
    worker.stop().await;
}

/// Waits until `is_reached` is true of the output of `inspect` for the tenant `acme`.
async fn inspected(yaml: &str, what: &str, is_reached: impl Fn(&Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        let found = inspect(yaml, "acme");
        if is_reached(&found) {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "{what}: {found}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn inspect_and_check_show_the_end_of_a_recovery_wait() {
    let redis = Redis::start();
    let yaml = yaml().replace(shared_redis().url(), redis.url());
    let check = || sluicegate(&yaml, &["check"]).exited(0).out;
    let unlooked = "Redis is new or was emptied, and the next worker that checks it decides\n";
    let found = inspect(&yaml, "acme");
    assert_eq!(found["recovery_wait_until_ms"], Value::Null, "{found}");
    assert!(text(&yaml, "acme").contains(unlooked));
    assert!(check().contains(&format!(
        "ok    redis     whether jobs are admitted is unknown: {unlooked}"
    )));

    let worker = Running::configured(&yaml, UnusedHandler);
    let found = inspected(&yaml, "a worker has begun", |found| {
        found["recovery_wait_until_ms"] == 0
    })
    .await;
    assert_eq!(found["waits_for"], Value::Null);
    assert!(text(&yaml, "acme").contains("why       a job of cost 1 is admitted now\n"));
    assert!(check().contains("ok    redis     has lost no data; jobs are admitted\n"));

    redis.ctl(&["flushall"]);
    let is_told = |found: &Value| found["recovery_wait_until_ms"].as_u64() > Some(0);
    inspected(&yaml, "the worker has noticed", is_told).await;
    let asked = Instant::now();
    let found = inspect(&yaml, "acme");
    // `inspect` reads Redis's clock more than once.
    let took = asked.elapsed().as_millis() + 1;
    // During this window no job is admitted, although quota is available.
    let number = |key: &str| found[key].as_u64().expect("a number");
    let wait = number("recovery_wait_until_ms") - number("now_ms");
    assert!((1_000_000..=3_601_000).contains(&wait), "{found}");
    let differs = number("new_job_in_ms").abs_diff(wait);
    assert!(u128::from(differs) <= took, "{found}: it took {took} ms");
    assert_eq!(found["limits"][0]["free"], 5, "{found}");
    assert_eq!(found["waits_for"], "recovery");
    let why = "its memory was emptied while workers ran";
    assert_eq!(found["recovery_wait_reason"], why);
    let shown = text(&yaml, "acme");
    for line in [
        "recovery  ends in ",
        "why       no job is admitted before the recovery wait ends, in ",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let tenants = sluicegate(&yaml, &["tenants"]).exited(0).out;
    tenants.begins("recovery wait: ends in ");
    let out = check();
    let warning = "warn  redis     no job with the common limits is admitted until the recovery wait ends, in ";
    let line = out.lines().find(|line| line.starts_with(warning));
    assert!(line.is_some_and(|line| line.ends_with(why)), "{out}");
    worker.stop().await;
}
