//! APIs that Sluicegate knows by their profiles refuse calls in their own ways.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kit::api::{Api, Call, Reply};
use kit::servers::{shared_rabbit, shared_redis};
use kit::{Bed, SECOND, job, until};

use crate::PROGRAM;

const LIMITS: &str = "max-requests: 100, window-size: 1s, guard: 200ms, max-throttle: 3s";
const DONE: &str = "sluicegate_dispatches_total{outcome=\"done\"}";

/// Runs a job of each of `tenants` at an API with the profile `name`, until `done` of them are done
/// and the others are dead letters. Each tenant's first call has the answer that `refuse` returns.
/// Returns the calls and the tenants of the dead letters.
async fn run(
    name: &str,
    tenants: &[&'static str],
    done: usize,
    refuse: fn(&str) -> Option<Reply>,
    usual: fn() -> Reply,
) -> (Vec<Call>, HashSet<String>) {
    let api = Api::start().await;
    let called = Mutex::new(HashSet::new());
    api.answers(move |call| {
        let is_first = called.lock().expect("no panic").insert(call.tenant.clone());
        let refusal = refuse(&call.tenant).filter(|_| is_first);
        refusal.unwrap_or_else(usual)
    });
    let bed = Bed::on(shared_rabbit().url(), shared_redis().url());
    let yaml = bed.yaml(LIMITS, &api.url(), &format!(", api: {name}"));
    let jobs = tenants
        .iter()
        .map(|tenant| job(tenant, format!("job-of-{tenant}")));
    bed.publish(&yaml, jobs).await;
    let worker = PROGRAM.start(&yaml);
    until("all that can be done", || {
        worker.metric(DONE) == Some(done as f64)
    })
    .await;
    let dead = tenants.len() - done;
    let rejected = "sluicegate_dispatches_total{outcome=\"reject\"}";
    until("the others", || {
        worker.metric(rejected).unwrap_or_default() == dead as f64
    })
    .await;
    worker.stop();
    let dead = bed.dead(&yaml).await;
    let dead = dead.iter().filter_map(|letter| letter.id());
    let dead = dead.map(|id| id.trim_start_matches("job-of-").to_owned());
    (api.calls(), dead.collect())
}

/// Returns the time between the answer to the first call of `tenant` and its second call. Both are
/// the first attempt.
fn pause(calls: &[Call], tenant: &str) -> Duration {
    let own: Vec<&Call> = calls.iter().filter(|call| call.tenant == tenant).collect();
    let [first, second] = own.as_slice() else {
        panic!("{tenant} has {} calls", own.len());
    };
    assert_eq!(
        second.attempt, 1,
        "{tenant}: a throttled job uses no attempt"
    );
    second.at - first.ended.expect("it was answered")
}

fn calls_of(calls: &[Call], tenant: &str) -> usize {
    calls.iter().filter(|call| call.tenant == tenant).count()
}

/// Returns an error of Shopify's GraphQL API, which has the status 200. The query needs 100 points
/// more than there are, and the bucket gains 50 per second.
fn shopify_error(code: &str) -> Reply {
    let body = format!(
        r#"{{"errors": [{{"message": "no", "extensions": {{"code": "{code}"}}}}],
        "extensions": {{"cost": {{"requestedQueryCost": 112, "actualQueryCost": null,
        "throttleStatus": {{"maximumAvailable": 2000, "currentlyAvailable": 12, "restoreRate": 50}}}}}}}}"#
    );
    Reply::ok()
        .header("content-type", "application/json")
        .body(body)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_200_of_shopify_can_be_a_refusal_that_names_its_points() {
    let refuse = |tenant: &str| match tenant {
        "throttled" => Some(shopify_error("THROTTLED")),
        "denied" => Some(shopify_error("ACCESS_DENIED")),
        _ => None,
    };
    let usual =
        || Reply::ok().body(r#"{"data": {}, "extensions": {"cost": {"actualQueryCost": 10}}}"#);
    let tenants = ["throttled", "denied", "fine"];
    let (calls, dead) = run("shopify-graphql", &tenants, 2, refuse, usual).await;
    assert!(pause(&calls, "throttled") >= 2 * SECOND, "{calls:#?}");
    assert_eq!(calls_of(&calls, "fine"), 1);
    assert_eq!(calls_of(&calls, "denied"), 1);
    assert_eq!(dead, ["denied".to_owned()].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_403_of_github_is_a_limit_or_none_by_its_headers_and_its_message() {
    let refuse = |tenant: &str| {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970");
        // The API names whole seconds, of which the first is partly over.
        let reset = (now.as_secs() + 3).to_string();
        let secondary = r#"{"message": "You have exceeded a secondary rate limit."}"#;
        match tenant {
            "primary" => Some(
                Reply::status(403)
                    .header("x-ratelimit-remaining", "0")
                    .header("x-ratelimit-reset", &reset)
                    .body(r#"{"message": "API rate limit exceeded"}"#),
            ),
            "secondary" => Some(
                Reply::status(403)
                    .header("x-ratelimit-remaining", "4000")
                    .header("x-ratelimit-reset", &reset)
                    .body(secondary),
            ),
            "named" => Some(
                Reply::status(403)
                    .header("retry-after", "2")
                    .body(secondary),
            ),
            "plain" => Some(
                Reply::status(403)
                    .header("x-ratelimit-remaining", "4000")
                    .body(r#"{"message": "Resource not accessible by integration"}"#),
            ),
            _ => None,
        }
    };
    let tenants = ["primary", "secondary", "named", "plain", "fine"];
    let (calls, dead) = run("github", &tenants, 4, refuse, Reply::ok).await;
    for (tenant, least) in [("primary", 2), ("named", 2), ("secondary", 3)] {
        let pause = pause(&calls, tenant);
        assert!(pause >= least * SECOND, "{tenant}: {pause:?} {calls:#?}");
    }
    assert_eq!(calls_of(&calls, "plain"), 1);
    assert_eq!(calls_of(&calls, "fine"), 1);
    assert_eq!(dead, ["plain".to_owned()].into());
}
