//! Line 1: an https API far away. What takes long is done before a permit is asked for, so no permit is used up by it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sluicegate::app;
use sluicegate::config::Config;
use sluicegate::engine::Stop;
use sluicegate::handler::{Attempt, Outcome, Permit, PreparingHandler};
use sluicegate::rules::job::Job;
use tokio::time::Instant;

use super::kit::api::{Api, Manner};
use super::kit::proxy::{Proxy, Ways};
use super::kit::{Bed, MS, SECOND, counts, jobs, until};
use crate::papers::Papers;
use crate::process::Process;
use crate::servers::{shared_rabbit, shared_redis};

/// What a test tries.
struct Case {
    /// To the API and back. TLS needs at least one before anything can be sent.
    round_trip: Duration,
    guard: Duration,
    max: usize,
    window: Duration,
    /// Jobs that come at once, and the pauses between them.
    bursts: &'static [usize],
    pause: Duration,
    /// The API closes connections that are idle for so long.
    idle: Option<Duration>,
    protocols: &'static [&'static str],
}

/// Permits that were too old to be used, as the worker counts them.
const LATE: &str = "sluicegate_late_admissions_total";

/// Runs all bursts; how many permits were late, and how long each burst took longer than it had to.
async fn run(case: &Case) -> (usize, Vec<f64>) {
    let papers = Papers::new();
    let mut manner = Manner::https(&papers, case.protocols);
    manner.idle = case.idle;
    let api = Api::with(manner).await;
    let proxy = Proxy::start(api.door.address, Ways::round_trip(case.round_trip), 1).await;
    let bed = Bed::on(shared_rabbit().url(), shared_redis().url());
    let trust = papers.keys(Some("ca.pem"), None);
    let limits = format!(
        "max-requests: {}, window-size: {}ms, guard: {}ms",
        case.max,
        case.window.as_millis(),
        case.guard.as_millis()
    );
    let yaml = bed.yaml(&limits, &api.url_at(proxy.door.address), &trust);
    let worker = Process::start(&yaml);
    worker.says(&["RabbitMQ: consuming"]).await;
    let (mut sent, mut used) = (0, Vec::new());
    for (number, burst) in case.bursts.iter().enumerate() {
        if number > 0 {
            tokio::time::sleep(case.pause).await;
        }
        let first = sent;
        sent += burst;
        bed.publish(&yaml, jobs(&format!("burst{number}"), *burst))
            .await;
        until("the burst", || api.count() == sent).await;
        let calls = api.calls();
        let took = calls[sent - 1].at - calls[first].at;
        let windows = u32::try_from((burst - 1) / case.max).expect("a few");
        let ideal = (case.window + case.guard) * windows;
        used.push(ideal.as_secs_f64() / took.max(ideal).as_secs_f64().max(0.001));
        let times = counts::times(&calls, &format!("burst{number}"));
        let (fullest, early) = counts::windows(&times, case.max, case.window);
        println!("burst {number}: {took:?}, ideal {ideal:?}; fullest {fullest}, {early} too early");
    }
    let late = worker.metric(LATE).expect("a metric") as usize;
    let calls = api.calls();
    let ids: BTreeSet<_> = calls.iter().map(|call| &call.job).collect();
    assert_eq!(ids.len(), sent, "each job is called");
    let versions: BTreeSet<_> = calls
        .iter()
        .map(|call| format!("{:?}", call.version))
        .collect();
    println!(
        "{late} of {sent} permits were late; used {used:.2?}; {} connections, {versions:?}",
        proxy.door.opened()
    );
    worker.stop();
    (late, used)
}

/// A wide guard, so that no machine is too slow for half of it, and a way that is longer still: where a permit came first, each
/// one that needed a connection was late.
const WIDE: Case = Case {
    round_trip: Duration::from_millis(1000),
    guard: Duration::from_millis(1600),
    max: 8,
    window: Duration::from_millis(3000),
    bursts: &[24, 8],
    // The worker's own connections are closed after 4 s.
    pause: Duration::from_secs(6),
    idle: None,
    protocols: &["http/1.1"],
};

#[tokio::test(flavor = "multi_thread")]
async fn bursts_after_idle_minutes_use_their_permits() {
    let (late, used) = run(&WIDE).await;
    assert!(late * 4 < 32, "{late}");
    assert!(used[0] > 0.5, "{used:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_closes_idle_connections_costs_no_permits() {
    let case = Case {
        idle: Some(Duration::from_millis(3500)),
        bursts: &[24],
        ..WIDE
    };
    let (late, used) = run(&case).await;
    assert!(late * 4 < 24, "{late}");
    assert!(used[0] > 0.5, "{used:?}");
}

/// Fetches a token for each job, which takes longer than a permit is good for.
struct Tokens(Arc<std::sync::Mutex<Vec<(Instant, String)>>>);

impl PreparingHandler for Tokens {
    type Ready = String;

    fn at_once(&self) -> Option<String> {
        None
    }

    async fn prepare(&self, job: &Job) -> Result<String, Outcome> {
        tokio::time::sleep(600 * MS).await;
        Ok(format!("token of {}", job.id))
    }

    fn is_ready(&self, _: &mut String) -> bool {
        true
    }

    async fn send(&self, job: &Job, token: String, permit: Permit) -> Attempt {
        if !permit.is_good() {
            return Outcome::Late.into();
        }
        assert_eq!(token, format!("token of {}", job.id), "each has its own");
        self.0
            .lock()
            .expect("nobody panics")
            .push((Instant::now(), token));
        Outcome::Done.into()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_prepares_something_slow_uses_its_permits() {
    let bed = Bed::on(shared_rabbit().url(), shared_redis().url());
    let yaml = bed.yaml(
        "max-requests: 5, window-size: 1s, guard: 1s",
        "http://nobody/",
        "",
    );
    let config = Config::parse("world.yaml", &yaml, std::iter::empty()).expect("valid");
    let called = Arc::default();
    let worker = app::Worker::new(config, Tokens(Arc::clone(&called))).expect("usable");
    let metrics = worker.metrics();
    let stop = Stop::default();
    let run = tokio::spawn(worker.run(stop.clone()));
    bed.publish(&yaml, jobs("acme", 20)).await;
    until("all jobs", || {
        called.lock().expect("nobody panics").len() == 20
    })
    .await;
    stop.soft.cancel();
    run.await.expect("no panic").expect("it ends in order");
    let times: Vec<_> = called
        .lock()
        .expect("nobody panics")
        .iter()
        .map(|(at, _)| *at)
        .collect();
    assert_eq!(counts::windows(&times, 5, SECOND).1, 0);
    let late = metrics.encode();
    let late = late
        .lines()
        .find_map(|line| line.strip_prefix(LATE)?.trim().parse::<u32>().ok());
    assert!(late.is_some_and(|late| late * 4 < 20), "{late:?}");
}
