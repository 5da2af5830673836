//! The commands with limits for all tenants or for values of a header.

use kit::Says;
use serde_json::{Value, json};

use crate::cli::servers::yaml;
use crate::cli::{json_of, sluicegate};

const LIMITS: &str = "rate-limiter: {window-size: 1h, limits: [{name: all, max-requests: 100, scope: global}, {name: path, scope: 'header:x-path'}, {name: own}]}";

fn scoped() -> String {
    yaml().replace("rate-limiter: {max-requests: 5, window-size: 1h}", LIMITS)
}

fn names<'a>(found: &'a Value, key: &str) -> Vec<&'a Value> {
    let limits = found["limits"].as_array().expect("a list");
    limits.iter().map(|limit| &limit[key]).collect()
}

#[test]
fn check_shows_the_scope_of_a_limit() {
    let done = sluicegate(LIMITS, &["check", "--offline", "--tenant", "a"]).exited(0);
    for line in [
        "  all: at most 100 units of cost in any 1h, for all tenants together: sliding-window-algo,",
        "  path: at most 5 units of cost in any 1h, per value of the header x-path: \
        sliding-window-algo,",
        "  own: at most 5 units of cost in any 1h: sliding-window-algo,",
    ] {
        done.out.says(line);
    }
    let args = ["check", "--offline", "--tenant", "a", "--json"];
    let found = sluicegate(LIMITS, &args).exited(0).json();
    assert_eq!(
        names(&found, "scope"),
        ["global", "header:x-path", "tenant"]
    );
    let done = sluicegate(LIMITS, &["check", "--offline"]).exited(0);
    done.out.says("\n      scope: global\n");
    let clustered = format!("redis: {{url: 'redis://h', cluster: true}}\n{LIMITS}");
    let done = sluicegate(&clustered, &["check", "--offline"]).exited(2);
    done.err
        .says("rate-limiter.limits: the limit all is global, so in a Redis Cluster");
}

#[test]
fn inspect_shows_the_limits_of_the_jobs_that_are_named() {
    let yaml = scoped();
    let found = json_of(&yaml, &["inspect", "a"]);
    assert_eq!(found["labels"], json!({}));
    assert_eq!(found["labels_missing"], json!(["header:x-path"]));
    assert_eq!(names(&found, "used"), [&json!(0), &Value::Null, &json!(0)]);
    assert_eq!(found["waiting"], Value::Null);
    let text = sluicegate(&yaml, &["inspect", "a"]).exited(0).out;
    text.says("  used    see --header x-path=…\n");

    let one = ["inspect", "a", "--header", "x-path=/v1"];
    let found = json_of(&yaml, &one);
    assert_eq!(found["labels"], json!({"header:x-path": "/v1"}));
    assert_eq!(found["labels_missing"], json!([]));
    assert_eq!(names(&found, "used"), [0, 0, 0]);
    assert_eq!(found["waiting"], 0);
    let text = sluicegate(&yaml, &one).exited(0).out;
    text.says("jobs      header:x-path=\"/v1\"\n");

    for (args, why) in [
        (
            &["--routing-key", "k"][..],
            "--routing-key k: no effective limit has the scope routing-key; there are header:x-path",
        ),
        (&["--header", "x-path"], "it must be NAME=VALUE"),
    ] {
        let args = [&["inspect", "a"], args].concat();
        let done = sluicegate(&yaml, &args).exited(2);
        done.err.says(why);
    }
}

#[test]
fn a_limit_of_all_tenants_cannot_be_changed_for_one() {
    let yaml = scoped();
    let limit = |name: &'static str| ["tenant", "limit", "a", "3", "--limit", name];
    let done = sluicegate(&yaml, &limit("all")).exited(2);
    done.err
        .says("the limit all is global (scope: global), not a's own;");
    sluicegate(&yaml, &limit("path")).exited(0);
    let found = json_of(&yaml, &["inspect", "a"]);
    assert_eq!(names(&found, "max_requests"), [100, 3, 5]);
}

#[test]
fn check_runs_the_scripts_of_every_scope() {
    let limits = |list: &str| {
        let limits = format!("rate-limiter: {{window-size: 1h, limits: [{list}]}}");
        yaml().replace("rate-limiter: {max-requests: 5, window-size: 1h}", &limits)
    };
    for list in [
        "{scope: tenant}",
        "{scope: global}",
        "{scope: 'header:x-path'}",
        "{scope: routing-key}",
        "{name: path, scope: 'header:x-path'}, {name: key, scope: routing-key}",
        "{name: all, scope: global}, {name: own}, {name: path, scope: 'header:x-path'}",
    ] {
        let done = sluicegate(&limits(list), &["check"]).exited(0);
        assert!(!done.out.contains("error"), "{list}: {}", done.out);
    }
}
