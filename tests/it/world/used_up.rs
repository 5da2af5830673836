//! APIs whose limits are their profiles' are used up, and refuse no call but the first of a tenant
//! that another program has used up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config::{ApiProfile, Config};
use kit::api::{Api, Call, Reply};
use kit::process::DONE;
use kit::{Bed, job, until};
use rules::headers::HeaderValue;
use tokio::time::Instant;

use super::known_apis::Bucket;
use crate::PROGRAM;

/// Minimum share of an API's quota that must be used.
const MIN_SHARE: f64 = 0.95;

/// The observations of an API and its worker.
struct Observed {
    tenants: HashMap<String, Seen>,
    /// The longest time by which this machine may have delayed a call.
    paused: Duration,
    /// Number of permits that expired because the worker was delayed by more than the guard.
    expired: f64,
}

/// The calls of a tenant as its API saw them.
#[derive(Default)]
struct Seen {
    /// When calls were taken, with their units.
    taken: Vec<(Instant, f64)>,
    /// The share of all that the API had given at each of these calls, if it has a bucket.
    shares: Vec<f64>,
    refused: usize,
}

/// The jobs of a tenant: their costs, by their numbers.
struct Load {
    tenant: &'static str,
    costs: Vec<i64>,
    /// Whether another program has used up the tenant's limits just before.
    shared: bool,
}

impl Load {
    fn new(tenant: &'static str, costs: Vec<i64>) -> Self {
        Self {
            tenant,
            costs,
            shared: false,
        }
    }

    fn shared(tenant: &'static str, costs: Vec<i64>) -> Self {
        Self {
            shared: true,
            ..Self::new(tenant, costs)
        }
    }
}

/// Returns the number of a job.
fn number(call: &Call) -> usize {
    let number = call.job.rsplit('-').next();
    number.and_then(|text| text.parse().ok()).expect("a number")
}

/// Runs the loads with `limits` at an API with the profile `name` until all jobs are done. Some
/// jobs of another tenant come first, so that connections are open. `answer` records the calls.
async fn run(
    name: &str,
    limits: &str,
    loads: &[Load],
    answer: impl Fn(&Call, &mut Seen) -> Reply + Send + Sync + 'static,
) -> Observed {
    let api = Api::start().await;
    let bed = Bed::shared();
    let yaml = bed.yaml(limits, &api.url(), &format!(", api: {name}"));
    let seen: Arc<Mutex<HashMap<String, Seen>>> = Arc::default();
    let recorded = Arc::clone(&seen);
    api.answers(move |call| {
        let mut seen = recorded.lock().expect("no panic");
        answer(call, seen.entry(call.tenant.clone()).or_default())
    });
    let worker = PROGRAM.start(&yaml);
    let job_of = |tenant: &str, number: usize, cost: i64| {
        let job = job(tenant, format_args!("{tenant}-{number}"));
        job.with_headers(&[("x-cost", HeaderValue::Int(cost))], &[])
    };
    bed.publish(&yaml, (0..20).map(|number| job_of("warm", number, 1)))
        .await;
    until("open connections", || worker.metric(DONE) == Some(20.0)).await;
    // Calls that are in flight at a refusal are refused as well, so one call comes first.
    let refused = |tenant: &str| {
        let seen = seen.lock().expect("no panic");
        seen.get(tenant).map_or(0, |seen| seen.refused)
    };
    let shared = || loads.iter().filter(|load| load.shared);
    bed.publish(
        &yaml,
        shared().map(|load| job_of(load.tenant, 0, load.costs[0])),
    )
    .await;
    until("refusals", || {
        shared().all(|load| refused(load.tenant) == 1)
    })
    .await;
    for load in loads {
        let jobs = load.costs.iter().enumerate().skip(load.shared.into());
        bed.publish(
            &yaml,
            jobs.map(|(number, cost)| job_of(load.tenant, number, *cost)),
        )
        .await;
    }
    let all = 20 + loads.iter().map(|load| load.costs.len()).sum::<usize>();
    until("all jobs", || worker.metric(DONE) == Some(all as f64)).await;
    let expired = worker.metric("sluicegate_expired_permits_total");
    worker.stop();
    Observed {
        tenants: std::mem::take(&mut *seen.lock().expect("no panic")),
        paused: api.longest_pause(),
        expired: expired.expect("a count"),
    }
}

/// Checks that only first calls of shared tenants were refused. After a pause of this machine that
/// is longer than the guard, calls come together that were made apart.
fn check_refusals(observed: &Observed, loads: &[Load], guard: Duration) {
    let Observed {
        tenants,
        paused,
        expired,
    } = observed;
    println!("the longest pause was {paused:?}, {expired} permits expired");
    for Load { tenant, shared, .. } in loads {
        let refused = tenants[*tenant].refused;
        println!("{tenant}: {refused} refused");
        assert!(refused >= usize::from(*shared));
        assert!(
            refused <= 1 || *paused >= guard,
            "{tenant}: {refused} refused"
        );
    }
}

/// Shopify's GraphQL API takes the requested cost at first, and gives back what the query did not
/// need.
#[tokio::test(flavor = "multi_thread")]
async fn points_of_shopify_are_used_up_without_refusals() {
    // It costs a fifth of what flows in, which is 3 % of what the API has given when its bucket is
    // empty for the first time.
    const GUARD: Duration = Duration::from_millis(250);
    let profile = ApiProfile::find("shopify-graphql").expect("it is known");
    let plan = profile.plan(Some("standard")).expect("a plan");
    let limits = format!("guard: 250ms, limits: [{}]", plan.limits.join(", "));
    let yaml = format!("rate-limiter: {{{limits}}}");
    let config = Config::parse("c.yaml", &yaml, std::iter::empty()).expect("valid");
    let full = Bucket::of(&config.rate_limiter.policy.default_limits()[0]);
    let costs =
        |count: usize| -> Vec<i64> { (0..count).map(|number| [20, 50, 80][number % 3]).collect() };
    // The quota of about 15 s.
    let loads = [
        Load::new("points", costs(70)),
        Load::new("refunds", costs(87)),
    ];
    let buckets: Mutex<HashMap<String, (Bucket, Instant)>> = Mutex::default();
    let observed = run("shopify-graphql", &limits, &loads, move |call, seen| {
        let mut buckets = buckets.lock().expect("no panic");
        let (bucket, at) = buckets
            .entry(call.tenant.clone())
            .or_insert_with(|| (full, call.at));
        bucket.flow(call.at.saturating_duration_since(*at));
        *at = call.at.max(*at);
        let requested = match call.tenant.as_str() {
            "warm" => 1.0,
            _ => [20.0, 50.0, 80.0][number(call) % 3],
        };
        let actual = if call.tenant == "refunds" {
            requested * 0.8
        } else {
            requested
        };
        let is_taken = bucket.left >= requested;
        let (errors, cost) = match is_taken {
            true => {
                bucket.left -= actual;
                seen.taken.push((call.at, actual));
                let used: f64 = seen.taken.iter().map(|(_, units)| units).sum();
                seen.shares.push(used / (used + bucket.left));
                (String::new(), actual.to_string())
            }
            false => {
                seen.refused += 1;
                let error =
                    r#""errors": [{"message": "Throttled", "extensions": {"code": "THROTTLED"}}],"#;
                (error.to_owned(), "null".to_owned())
            }
        };
        Reply::ok()
            .header("content-type", "application/json")
            .body(format!(
                r#"{{{errors} "extensions": {{"cost": {{"requestedQueryCost": {requested},
            "actualQueryCost": {cost}, "throttleStatus": {{"maximumAvailable": {},
            "currentlyAvailable": {:.0}, "restoreRate": {}}}}}}}}}"#,
                bucket.size,
                bucket.left.floor(),
                bucket.per_second,
            ))
    })
    .await;
    check_refusals(&observed, &loads, GUARD);
    // The best of the last calls counts, since a call that this machine delays says nothing about
    // the others.
    let share = |tenant: &str| {
        let shares = &observed.tenants[tenant].shares;
        let last = shares[shares.len() * 2 / 3..].iter();
        last.copied().fold(0.0, f64::max)
    };
    let [points, refunds] = ["points", "refunds"].map(share);
    // A bucket that was full takes nothing back for one to two minutes.
    println!("{points:.3} of the points used, {refunds:.3} with refunds");
    // A permit that expires loses at most its units, which are 50 on average.
    let lost = observed.expired * 50.0 / costs(70).iter().sum::<i64>() as f64;
    assert!(points >= MIN_SHARE - lost, "{points:.3} used");
}

/// GitHub's limits with shorter windows: an hour is 12 s with 200 calls, a minute is 6 s with 150
/// points.
struct GitHub {
    /// Whole seconds of the wall clock at which the hour ends.
    resets: u64,
    calls: u64,
}

impl GitHub {
    const HOUR: u64 = 12;
    const CALLS: u64 = 200;
    const MINUTE: Duration = Duration::from_secs(6);
    const POINTS: f64 = 150.0;

    /// Answers a call with this many points. An hour begins in the second of its first call.
    fn answer(&mut self, call: &Call, points: f64, seen: &mut Seen) -> Reply {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970");
        // The clock at the arrival of the call.
        let now = (now - call.at.elapsed()).as_secs();
        if now >= self.resets {
            (self.resets, self.calls) = (now + Self::HOUR, 0);
        }
        let is_counted = |(at, _): &&(Instant, f64)| call.at < *at + Self::MINUTE;
        let used: f64 = seen
            .taken
            .iter()
            .rev()
            .take_while(is_counted)
            .map(|(_, it)| it)
            .sum();
        let is_first = seen.taken.is_empty() && seen.refused == 0;
        let reply = if self.calls >= Self::CALLS {
            seen.refused += 1;
            Reply::status(403).body(r#"{"message": "API rate limit exceeded for user ID 1."}"#)
        } else if used + points > Self::POINTS || (is_first && call.tenant == "secondary") {
            seen.refused += 1;
            let body = r#"{"message": "You have exceeded a secondary rate limit."}"#;
            Reply::status(403).header("retry-after", "2").body(body)
        } else {
            self.calls += 1;
            seen.taken.push((call.at, points));
            Reply::ok().body("{}")
        };
        let left = Self::CALLS - self.calls;
        reply
            .header("content-type", "application/json")
            .header("x-ratelimit-limit", &Self::CALLS.to_string())
            .header("x-ratelimit-remaining", &left.to_string())
            .header("x-ratelimit-reset", &self.resets.to_string())
    }
}

/// Reads cost a point and use up the hour's calls, writes cost five and use up the minute's points.
#[tokio::test(flavor = "multi_thread")]
async fn calls_and_points_of_github_are_used_up_without_refusals() {
    const GUARD: Duration = Duration::from_millis(60);
    let profile = ApiProfile::find("github").expect("it is known");
    let plan = profile.plan(Some("user")).expect("a plan");
    let mut limits = format!("guard: 60ms, limits: [{}]", plan.limits.join(", "));
    for (long, short) in [
        (
            "max-requests: 5000, window-size: 1h",
            "max-requests: 200, window-size: 12s",
        ),
        (
            "max-requests: 900, window-size: 1m",
            "max-requests: 150, window-size: 6s",
        ),
    ] {
        assert!(limits.contains(long), "{limits}");
        limits = limits.replace(long, short);
    }
    let loads = [
        Load::new("reads", vec![1; 430]),
        Load::new("writes", vec![5; 130]),
        Load::shared("primary", vec![1; 20]),
        Load::shared("secondary", vec![1; 20]),
    ];
    let hours: Mutex<HashMap<String, GitHub>> = Mutex::default();
    let observed = run("github", &limits, &loads, move |call, seen| {
        let mut hours = hours.lock().expect("no panic");
        let hour = hours.entry(call.tenant.clone()).or_insert_with(|| {
            let now = UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
            match call.tenant.as_str() {
                "primary" => GitHub {
                    resets: now + 3,
                    calls: GitHub::CALLS,
                },
                _ => GitHub {
                    resets: 0,
                    calls: 0,
                },
            }
        });
        let points = if call.tenant == "writes" { 5.0 } else { 1.0 };
        hour.answer(call, points, seen)
    })
    .await;
    check_refusals(&observed, &loads, GUARD);
    // A machine whose delays cost each job a permit leaves too little time for the calls.
    let jobs: usize = loads.iter().map(|load| load.costs.len()).sum();
    let is_slow = observed.expired > jobs as f64;
    let min_share = if is_slow { 0.7 } else { MIN_SHARE };
    // Two hours of reads and four minutes of writes: the next call comes when they are over.
    for (tenant, calls) in [("reads", 400), ("writes", 120)] {
        let taken = &observed.tenants[tenant].taken;
        let took = (taken[calls].0 - taken[0].0).saturating_sub(observed.paused);
        let share = 2.0 * GitHub::HOUR as f64 / took.as_secs_f64();
        println!("{tenant}: {share:.3} used");
        assert!(share >= min_share, "{tenant}: {share:.3} used");
    }
}
