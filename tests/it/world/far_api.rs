//! Slow preparation happens before the permit is requested, so it uses up no permit.

use std::sync::Arc;

use config::Config;
use engine::Stop;
use handler::{Attempt, Outcome, Permit, PreparingHandler};
use hyper::Version;
use kit::api::{Api, ApiBehavior};
use kit::certificates::TestCertificates;
use kit::proxy::{Proxy, Transfers};
use kit::{Bed, MS, SECOND, counts, jobs, until};
use rules::job::Job;
use tokio::time::Instant;

use crate::PROGRAM;

/// The worker's counter of permits that expired before their use.
const LATE: &str = "sluicegate_expired_permits_total";
/// The worker's counter of late calls that `guard-budget` could not pay for.
const UNPAID: &str = "sluicegate_late_calls_not_counted_total";

/// Issues a token for each job, which takes longer than a permit lasts.
struct Tokens(Arc<std::sync::Mutex<Vec<(Instant, String)>>>);

impl PreparingHandler for Tokens {
    type Ready = String;

    fn at_once(&self) -> Option<String> {
        None
    }

    async fn prepare(&self, job: &Job) -> Result<String, Attempt> {
        tokio::time::sleep(6 * SECOND).await;
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
            .expect("no panic")
            .push((Instant::now(), token));
        Outcome::Done.into()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_prepares_something_slow_uses_its_permits() {
    let bed = Bed::shared();
    let yaml = bed.yaml(
        "max-requests: 5, window-size: 21s, guard: 10s",
        "http://nobody/",
        "",
    );
    let config = Config::parse("world.yaml", &yaml, std::iter::empty()).expect("valid");
    let called = Arc::default();
    let worker = app::Worker::new(config).expect("usable");
    let metrics = worker.metrics();
    let stop = Stop::default();
    let run = tokio::spawn(worker.run(Tokens(Arc::clone(&called)), stop.clone()));
    bed.publish(&yaml, jobs("acme", 10)).await;
    until("all jobs", || called.lock().expect("no panic").len() == 10).await;
    stop.soft.cancel();
    run.await.expect("no panic").expect("it ends in order");
    let times: Vec<_> = called
        .lock()
        .expect("no panic")
        .iter()
        .map(|(at, _)| *at)
        .collect();
    assert_eq!(counts::windows(&times, 5, 21 * SECOND).1, 0);
    let late = metrics.encode();
    let late = late
        .lines()
        .find_map(|line| line.strip_prefix(LATE)?.trim().parse::<u32>().ok());
    // Otherwise each of the ten permits would expire at least once. A permit lasts 5 s.
    assert_eq!(late, Some(0));
}

/// Runs with the default guard and no open connection, and prints the used share of the quota,
/// which depends on the machine. The proxy acknowledges for the API and stands still when the
/// machine does. While the budget can pay for all calls that the answers show to be late, no call
/// comes too early.
async fn quota_used(protocols: &[&str], version: Version) {
    let started = Instant::now();
    loop {
        assert!(
            started.elapsed() < 300 * SECOND,
            "the purse was always empty"
        );
        let papers = TestCertificates::new();
        let api = Api::with(ApiBehavior::https(&papers, protocols)).await;
        let proxy = Proxy::start(api.door.address, Transfers::round_trip(60 * MS), 1).await;
        let bed = Bed::shared();
        let limits = "max-requests: 50, window-size: 5s";
        let trust = papers.keys(Some("ca.pem"), None);
        let yaml = bed.yaml(limits, &api.url_at(proxy.door.address), &trust);
        bed.publish(&yaml, jobs("acme", 200)).await;
        let worker = PROGRAM.start(&yaml);
        until("all jobs", || api.count() == 200).await;
        let (late, unpaid) = (worker.metric(LATE), worker.metric(UNPAID));
        worker.stop();
        let times = counts::times(&api.calls(), "acme");
        let early = counts::windows(&times, 50, 5 * SECOND).1;
        let took = times[times.len() - 1] - times[0];
        // Three windows with their guards of 50 ms each.
        let share = 15.15 / took.as_secs_f64();
        println!(
            "{version:?}: {:.1} % of the quota, {late:?} permits too late; {early} calls too early, {unpaid:?} not paid for",
            100.0 * share
        );
        if unpaid == Some(0.0) {
            return assert_eq!(early, 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quota_of_an_https_api_60_ms_away_is_used() {
    quota_used(&["http/1.1"], Version::HTTP_11).await;
    quota_used(&["h2"], Version::HTTP_2).await;
}

/// TCP and TLS handshakes take two round trips, longer than the 3.5 s that a permit lasts. The API
/// closes idle connections, and so does the worker between bursts. Returns the number of
/// connections in each burst.
async fn bursts(protocols: &[&str], version: Version) -> Vec<usize> {
    let papers = TestCertificates::new();
    let mut manner = ApiBehavior::https(&papers, protocols);
    manner.idle = Some(SECOND);
    let api = Api::with(manner).await;
    let proxy = Proxy::start(api.door.address, Transfers::round_trip(2 * SECOND), 1).await;
    let bed = Bed::shared();
    let limits = "max-requests: 10, window-size: 15s, guard: 7s";
    let trust = papers.keys(Some("ca.pem"), None);
    let yaml = bed.yaml(limits, &api.url_at(proxy.door.address), &trust);
    let worker = PROGRAM.start_consuming(&yaml).await;
    let mut opened = vec![0];
    let mut all = 0;
    // The last burst is larger than a window allows.
    for (burst, size) in [(1, 10), (2, 10), (3, 15)] {
        bed.publish(&yaml, jobs(&format!("acme-{burst}"), size))
            .await;
        all += size;
        until("all jobs", || api.count() == all).await;
        // The worker keeps idle connections for 4 s.
        tokio::time::sleep(5 * SECOND).await;
        opened.push(api.door.opened());
    }
    let late = worker.metric(LATE);
    worker.stop();
    for burst in 1..=3 {
        let times = counts::arrivals(&api.calls(), &format!("acme-{burst}"));
        assert_eq!(counts::windows(&times, 10, 15 * SECOND).1, 0);
    }
    assert!(api.calls().iter().all(|call| call.version == version));
    println!("{late:?} permits too late");
    // Otherwise each of the first ten permits of a burst would expire.
    assert!(late.is_some_and(|late| late < 10.0), "{late:?}");
    opened.windows(2).map(|both| both[1] - both[0]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_a_distant_https_api_open_before_permits_are_requested() {
    bursts(&["http/1.1"], Version::HTTP_11).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_a_distant_http_2_api_open_before_permits_are_requested() {
    let opened = bursts(&["h2", "http/1.1"], Version::HTTP_2).await;
    println!("connections in each burst: {opened:?}");
    // Later bursts share connections, once the worker knows that it can. A few extra connections
    // come from the API closing idle ones.
    let of_own = |opened: &usize| *opened >= 10;
    assert!(!opened[1..].iter().any(of_own), "{opened:?}");
}
