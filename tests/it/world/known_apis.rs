//! APIs that Sluicegate knows by their profiles refuse calls in their own ways.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config::{ApiProfile, Config};
use kit::api::{Api, Call, Reply};
use kit::process::DONE;
use kit::{Bed, SECOND, job, jobs, until};
use rules::headers::HeaderValue;
use rules::limit::Limit;
use tokio::time::Instant;

use crate::PROGRAM;

const LIMITS: &str = "max-requests: 100, window-size: 1s, guard: 200ms, max-throttle: 3s";

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
    let bed = Bed::shared();
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

/// A bucket as OpenAI documents it: it refills continuously, and a refused call takes nothing.
#[derive(Clone, Copy)]
pub(super) struct Bucket {
    pub size: f64,
    pub per_second: f64,
    pub left: f64,
}

impl Bucket {
    /// Returns the bucket of `limit`, full.
    pub fn of(limit: &Limit) -> Self {
        let size = limit.burst() as f64;
        Self {
            size,
            per_second: limit.max() as f64 * 1_000.0 / limit.window_ms() as f64,
            left: size,
        }
    }

    /// Refills it for this time.
    pub fn flow(&mut self, passed: Duration) {
        let more = passed.as_secs_f64() * self.per_second;
        self.left = (self.left + more).min(self.size);
    }

    /// Returns the seconds until it has `units`.
    fn wait(&self, units: f64) -> f64 {
        ((units - self.left) / self.per_second).max(0.0)
    }
}

/// The limits of one organization: requests and tokens.
struct Organization {
    buckets: [Bucket; 2],
    at: Instant,
    /// When calls were taken.
    taken: Vec<Instant>,
    refused: usize,
}

impl Organization {
    /// Answers a call with `tokens`, with all headers that OpenAI documents. A refusal names the
    /// time until the call fits, or, if it is not `named`, only the times until all is as at first.
    fn answer(&mut self, at: Instant, tokens: f64, named: bool) -> Reply {
        let passed = at.saturating_duration_since(self.at);
        self.at = self.at.max(at);
        self.buckets
            .iter_mut()
            .for_each(|bucket| bucket.flow(passed));
        let needs = [1.0, tokens];
        let waits = [0, 1].map(|which| self.buckets[which].wait(needs[which]));
        let wait = waits[0].max(waits[1]);
        let mut reply = Reply::ok().body(r#"{"usage": {"total_tokens": 1}}"#);
        if wait > 0.0 {
            self.refused += 1;
            let kind = if waits[0] > 0.0 { "requests" } else { "tokens" };
            reply = Reply::status(429).body(format!(
                r#"{{"error": {{"message": "Rate limit reached on {kind} per min.",
                "type": "{kind}", "param": null, "code": "rate_limit_exceeded"}}}}"#
            ));
        } else {
            self.taken.push(at);
            for (bucket, units) in self.buckets.iter_mut().zip(needs) {
                bucket.left -= units;
            }
        }
        if wait > 0.0 && named {
            reply = reply
                .header("retry-after-ms", &format!("{:.0}", (wait * 1_000.0).ceil()))
                .header("retry-after", &format!("{:.0}", wait.ceil()));
        }
        let [requests, tokens] = self.buckets;
        let left = |bucket: Bucket| format!("{:.0}", bucket.left.floor());
        let reset = |bucket: Bucket| format!("{:.3}s", bucket.wait(bucket.size));
        reply
            .header("content-type", "application/json")
            .header("x-ratelimit-limit-requests", "500")
            .header("x-ratelimit-limit-tokens", "500000")
            .header("x-ratelimit-remaining-requests", &left(requests))
            .header("x-ratelimit-remaining-tokens", &left(tokens))
            .header("x-ratelimit-reset-requests", &reset(requests))
            .header("x-ratelimit-reset-tokens", &reset(tokens))
    }
}

/// One organization uses up its requests, and one its tokens. Another program has used up the
/// requests of `reset`, and the tokens of `named`, just before.
#[tokio::test(flavor = "multi_thread")]
async fn requests_and_tokens_of_openai_are_used_up_without_refusals() {
    const GUARD: Duration = Duration::from_millis(200);
    // The tokens of a job, and as many jobs as fit into about 15 s.
    let load = HashMap::from([
        ("warm", (1.0, 30_u32)),
        ("requests", (100.0, 133)),
        ("tokens", (10_000.0, 62)),
        ("reset", (100.0, 40)),
        ("named", (100.0, 40)),
    ]);
    let profile = ApiProfile::find("openai").expect("it is known");
    let plan = profile.plan(Some("tier-1")).expect("a plan");
    let limits = format!("guard: 200ms, limits: [{}]", plan.limits.join(", "));
    let api = Api::start().await;
    let bed = Bed::shared();
    let yaml = bed.yaml(&limits, &api.url(), ", api: openai");
    let config = Config::parse("c.yaml", &yaml, std::iter::empty()).expect("valid");
    let limits = config.rate_limiter.policy.default_limits().all();
    let full = [Bucket::of(&limits[0]), Bucket::of(&limits[1])];
    let organizations: Arc<Mutex<HashMap<String, Organization>>> = Arc::default();
    let (of_api, loads) = (Arc::clone(&organizations), load.clone());
    api.answers(move |call| {
        let mut all = of_api.lock().expect("no panic");
        let organization = all.entry(call.tenant.clone()).or_insert_with(|| {
            let mut buckets = full;
            match call.tenant.as_str() {
                "reset" => buckets[0].left = 0.0,
                "named" => buckets[1].left = 0.0,
                _ => {}
            }
            Organization {
                buckets,
                at: call.at,
                taken: Vec::new(),
                refused: 0,
            }
        });
        let (tokens, _) = loads[call.tenant.as_str()];
        organization.answer(call.at, tokens, call.tenant != "reset")
    });
    let worker = PROGRAM.start(&yaml);
    let publish = async |tenant: &str, numbers: Range<usize>| {
        let (tokens, _) = load[tenant];
        let cost = [("x-cost", HeaderValue::Int(tokens as i64))];
        let jobs = jobs(tenant, numbers.end).skip(numbers.start);
        bed.publish(&yaml, jobs.map(|job| job.with_headers(&cost, &[])))
            .await;
    };
    // Once connections are open, the first calls take no longer than the others.
    publish("warm", 0..30).await;
    until("open connections", || worker.metric(DONE) == Some(30.0)).await;
    // Calls that are in flight at a refusal are refused as well, so one call comes first.
    let refused = |of: &str| {
        let all = organizations.lock().expect("no panic");
        all.get(of).map_or(0, |organization| organization.refused)
    };
    let shared = ["reset", "named"];
    for tenant in shared {
        publish(tenant, 0..1).await;
    }
    until("both refusals", || shared.map(refused) == [1, 1]).await;
    for tenant in ["requests", "tokens", "reset", "named"] {
        let first = usize::from(shared.contains(&tenant));
        publish(tenant, first..load[tenant].1 as usize).await;
    }
    let all: u32 = load.values().map(|(_, count)| count).sum();
    until("all jobs", || worker.metric(DONE) == Some(f64::from(all))).await;
    let expired = worker.metric("sluicegate_expired_permits_total");
    let expired = expired.expect("a count");
    worker.stop();
    let refused = ["requests", "tokens", "reset", "named"].map(refused);
    // The share of all that the API had given at a call. The best of the last calls counts, since a
    // call that this machine delays says nothing about the others.
    let used = [("requests", 0), ("tokens", 1)].map(|(tenant, which)| {
        let all = organizations.lock().expect("no panic");
        let taken = &all[tenant].taken;
        let units = if which == 0 { 1.0 } else { load[tenant].0 };
        let share = |(number, at): (usize, &Instant)| {
            let elapsed = (*at - taken[0]).as_secs_f64();
            (number + 1) as f64 * units / (full[which].size + elapsed * full[which].per_second)
        };
        let last = taken.iter().enumerate().skip(taken.len() * 2 / 3);
        last.map(share).fold(0.0, f64::max)
    });
    println!("{refused:?} refused, {used:.3?} used, {expired} permits expired");
    // After a longer pause of this machine, calls come together that were made apart.
    if api.longest_pause() < GUARD {
        let [requests, tokens, reset, named] = refused;
        assert!(requests <= 1 && tokens <= 1, "{refused:?} refused");
        assert_eq!([reset, named], [1, 1], "{refused:?} refused");
    }
    // A permit that expires because the worker was delayed loses at most a job's units.
    for (share, tenant) in used.into_iter().zip(["requests", "tokens"]) {
        let lost = expired / f64::from(load[tenant].1);
        assert!(share >= 0.97 - lost, "{tenant}: {share:.3} used");
    }
}
