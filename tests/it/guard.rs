//! The promises of `guard: strict` and `guard: 50ms` for arrivals at an API, however long its calls
//! take: a real RabbitMQ and Redis, two workers, and an API whose network delays requests and
//! answers by up to 2 s.
//!
//! `cargo test --test it guard:: -- --nocapture` prints the observations.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use config::{Config, Http};
use engine::Stop;
use handler::http::HttpHandler;
use handler::{Attempt, Permit, PreparingHandler};
use kit::Bed;
use kit::MS;
use kit::api::{Api, Call};
use kit::counts;
use kit::proxy::{Proxy, Range, Transfer, Transfers};
use kit::settings;
use rules::job::Job;
use tokio::time::Instant;

/// A deadline that ends a hanging test. No step takes this long.
const PATIENCE: Duration = Duration::from_secs(300);
const TENANTS: [&str; 2] = ["a", "b"];
const WORKERS: usize = 2;

/// A limit, and the network in front of the API.
#[derive(Debug, Clone, Copy)]
struct Case {
    max: usize,
    window: Duration,
    /// The guard as in the configuration.
    guard: &'static str,
    /// The delays of a request and of an answer.
    there: Range,
    back: Range,
    /// Number of jobs per tenant.
    jobs: usize,
    seed: u64,
}

/// A call by the API's clock.
#[derive(Debug, Clone)]
struct Arrival {
    job: String,
    tenant: String,
    at: Instant,
}

/// When the handler was called for a job, and whether its permit was still valid after that moment.
type CallTimes = (Instant, bool);

/// The worker's own handler, which records when it was called for each job.
#[derive(Clone)]
struct TimingHandler {
    http: Arc<HttpHandler>,
    called: Arc<Mutex<BTreeMap<String, CallTimes>>>,
}

impl PreparingHandler for TimingHandler {
    type Ready = <HttpHandler as PreparingHandler>::Ready;

    fn at_once(&self) -> Option<Self::Ready> {
        self.http.at_once()
    }

    async fn prepare(&self, job: &Job) -> Result<Self::Ready, Attempt> {
        self.http.prepare(job).await
    }

    fn is_ready(&self, ready: &mut Self::Ready) -> bool {
        self.http.is_ready(ready)
    }

    async fn send(&self, job: &Job, ready: Self::Ready, permit: Permit) -> Attempt {
        let now = Instant::now();
        // A job with an expired permit is called again, and the last call sends it.
        let called = (now, permit.is_good());
        (self.called.lock().expect("no panic")).insert(job.id.clone(), called);
        self.http.send(job, ready, permit).await
    }
}

/// The observations of a run.
struct Observations {
    arrivals: Vec<Arrival>,
    called: BTreeMap<String, CallTimes>,
}

impl Observations {
    /// Returns how many arrivals came when the window that ends with them was already full, and the
    /// maximum in any window: all half-open windows, to the nanosecond.
    fn violations(&self, case: &Case) -> (usize, usize) {
        let (mut violations, mut fullest) = (0, 0);
        for tenant in TENANTS {
            let own = self.arrivals.iter().filter(|call| call.tenant == tenant);
            let times: Vec<_> = own.map(|call| call.at).collect();
            let (max, early) = counts::windows(&times, case.max, case.window);
            violations += early;
            fullest = fullest.max(max);
        }
        (violations, fullest)
    }

    /// Returns the time from the handler's call to the arrival.
    fn way(&self, call: &Arrival) -> Duration {
        call.at - self.called[&call.job].0
    }

    /// Returns how much this time varied.
    fn variation(&self) -> Duration {
        let ways = || self.arrivals.iter().map(|call| self.way(call));
        let longest = ways().max().expect("there are arrivals");
        longest - ways().min().expect("there are arrivals")
    }

    /// Checks the promise of `guard` on calls whose latency varied by less than half of it, since
    /// the permit takes the other half. It selects the largest set of such calls, whatever the
    /// machine did to the rest. Returns how many of these came too early, and how many were
    /// compared: those with a whole limit's worth of such calls before them and none but these in
    /// between.
    fn promised(&self, case: &Case, guard: Duration) -> (usize, usize) {
        let good = |call: &&Arrival| self.called[&call.job].1;
        let mut ways: Vec<Duration> = (self.arrivals.iter().filter(good))
            .map(|call| self.way(call))
            .collect();
        ways.sort_unstable();
        let like = |min: Duration| move |way: &Duration| (min..min + guard / 2).contains(way);
        let count = |min: &Duration| ways.iter().filter(|way| like(*min)(way)).count();
        let Some(min) = ways.iter().copied().max_by_key(count) else {
            return (0, 0);
        };
        let (mut early, mut compared) = (0, 0);
        for tenant in TENANTS {
            // Consecutive ones, and all.
            let (mut row, mut times) = (0, Vec::new());
            for call in self.arrivals.iter().filter(|call| call.tenant == tenant) {
                if !good(&call) || !like(min)(&self.way(call)) {
                    row = 0;
                    continue;
                }
                row += 1;
                compared += usize::from(row > case.max);
                let earlier = times.len().checked_sub(case.max).map(|at| times[at]);
                early += usize::from(earlier.is_some_and(|at| call.at - at < case.window));
                times.push(call.at);
            }
        }
        (early, compared)
    }
}

/// Runs all jobs through two workers.
async fn run(case: Case) -> Observations {
    let api = Api::start().await;
    api.takes(case.back, case.seed);
    let there = Transfer::between(case.there.0, case.there.1);
    let ways = Transfers {
        there,
        ..Transfers::OPEN
    };
    let proxy = Proxy::start(api.door.address, ways, case.seed).await;
    let url = api.url_at(proxy.door.address);
    let bed = Bed::shared();
    let limits = format!(
        "max-requests: {}, window-size: {}ms, guard: {}",
        case.max,
        case.window.as_millis(),
        case.guard
    );
    let yaml = bed.yaml(&limits, &url, ", timeout: 60s") + "delay: {max-delay: 1s}\n";
    let config = Config::parse("guard.yaml", &yaml, std::iter::empty()).expect("valid");
    let http = Http {
        timeout: Duration::from_secs(60),
        ..settings::http(&url)
    };
    let timed = TimingHandler {
        http: Arc::new(HttpHandler::new(&http, 64).expect("a usable url")),
        called: Arc::default(),
    };
    let stop = Stop::default();
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (config, handler) = (config.clone(), timed.clone());
            tokio::spawn(app::run_until(config, handler, stop.clone()))
        })
        .collect();
    let total = case.jobs * TENANTS.len();
    let job = |number: usize| kit::job(TENANTS[number % TENANTS.len()], number);
    bed.publish(&yaml, (0..total).map(job)).await;
    let started = Instant::now();
    while api.count() < total {
        assert!(started.elapsed() < PATIENCE, "the jobs do not arrive");
        tokio::time::sleep(20 * MS).await;
    }
    stop.soft.cancel();
    for worker in workers {
        worker.await.expect("no panic").expect("it ends in order");
    }
    let arrival = |call: Call| Arrival {
        job: call.job,
        tenant: call.tenant,
        at: call.at,
    };
    let called = timed.called.lock().expect("no panic").clone();
    let seen = Observations {
        arrivals: api.calls().into_iter().map(arrival).collect(),
        called,
    };
    assert_eq!(seen.arrivals.len(), total, "each job is called once");
    let (violations, fullest) = seen.violations(&case);
    println!(
        "guard {}, {} in {:?}, ways of {:?} to {:?}: of {total} calls {violations} came too early; the fullest window \
         had {fullest}; the ways varied by {:?}, all took {:?}",
        case.guard,
        case.max,
        case.window,
        case.there.0,
        case.there.1,
        seen.variation(),
        started.elapsed(),
    );
    seen
}

/// Returns the maximum number of arrivals in any window if latencies to the API vary by
/// `variation`: at most `max` starts per window plus guard, and a permit used within half a guard.
fn max_arrivals(case: &Case, guard: Duration, variation: Duration) -> usize {
    let apart = case.window + variation + guard / 2;
    let spans = apart.as_nanos().div_ceil((case.window + guard).as_nanos());
    case.max * usize::try_from(spans).expect("a few")
}

const SLOW: Range = Range(Duration::ZERO, Duration::from_secs(2));

#[tokio::test(flavor = "multi_thread")]
async fn a_strict_guard_shows_no_violation_at_any_latency() {
    let case = Case {
        max: 10,
        window: 1000 * MS,
        guard: "strict",
        there: SLOW,
        back: SLOW,
        jobs: 40,
        seed: 1,
    };
    let seen = run(case).await;
    assert_eq!(seen.violations(&case).0, 0);
}

/// Minimum number of compared calls. A permit is used within half a guard, so the promise holds for
/// calls whose latency varies by less than the other half. The machine adds latency to some calls
/// more than to others, so the latency of each call is measured, and runs are repeated until enough
/// were compared.
const COMPARED: usize = 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_shows_no_violation_while_latency_varies_by_less() {
    let fifty = Case {
        max: 10,
        window: 1000 * MS,
        guard: "50ms",
        there: Range(300 * MS, 310 * MS),
        back: SLOW,
        jobs: 60,
        seed: 2,
    };
    let wide = Case {
        window: 3000 * MS,
        guard: "1400ms",
        there: Range(100 * MS, 500 * MS),
        jobs: 30,
        ..fifty
    };
    for (case, guard) in [(fifty, 50 * MS), (wide, 1400 * MS)] {
        let (started, mut all, mut seed) = (Instant::now(), 0, case.seed);
        while all < COMPARED {
            assert!(started.elapsed() < PATIENCE, "{case:?}: {all} compared");
            let seen = run(Case { seed, ..case }).await;
            let (_, fullest) = seen.violations(&case);
            assert!(
                fullest <= max_arrivals(&case, guard, seen.variation()),
                "{case:?}"
            );
            let (early, compared) = seen.promised(&case, guard);
            println!("{compared} calls were compared");
            assert_eq!(early, 0, "{case:?}");
            all += compared;
            seed += 1;
        }
    }
}

/// Returns the observations of one tenant's calls, by the time of the handler's call and the
/// latency (ms).
fn ways(calls: &[(u64, u64)]) -> Observations {
    let started = Instant::now();
    let at = |ms| started + Duration::from_millis(ms);
    let arrival = |(job, (called, way)): (usize, &(u64, u64))| Arrival {
        job: job.to_string(),
        tenant: TENANTS[0].to_owned(),
        at: at(called + way),
    };
    let called = |(job, (called, _)): (usize, &(u64, u64))| (job.to_string(), (at(*called), true));
    let mut arrivals: Vec<Arrival> = calls.iter().enumerate().map(arrival).collect();
    arrivals.sort_by_key(|call| call.at);
    Observations {
        arrivals,
        called: calls.iter().enumerate().map(called).collect(),
    }
}

#[test]
fn only_calls_with_similar_latency_are_compared() {
    let case = Case {
        max: 2,
        window: 1000 * MS,
        guard: "50ms",
        there: SLOW,
        back: SLOW,
        jobs: 5,
        seed: 0,
    };
    let promised = |calls: &[(u64, u64)]| ways(calls).promised(&case, 50 * MS);
    assert_eq!(promised(&[(0, 9), (1, 9), (1050, 9), (1051, 9)]), (0, 2));
    // One too many, and one too early.
    assert_eq!(promised(&[(0, 9), (1, 9), (2, 9)]), (1, 1));
    assert_eq!(promised(&[(0, 33), (0, 9), (970, 33)]), (1, 1));
    // The machine delayed one of them.
    assert_eq!(promised(&[(0, 9), (1, 900), (990, 9), (2000, 9)]), (0, 0));
    assert_eq!(promised(&[]), (0, 0));
}

/// Beyond the guard the limit is not promised. This test prints the observations and checks that
/// the variation explains the excess.
#[tokio::test(flavor = "multi_thread")]
async fn violations_stay_within_the_bound_when_latency_varies_by_more() {
    let case = Case {
        max: 10,
        window: 1000 * MS,
        guard: "50ms",
        there: SLOW,
        back: SLOW,
        jobs: 60,
        seed: 3,
    };
    let seen = run(case).await;
    let (_, fullest) = seen.violations(&case);
    assert!(fullest <= max_arrivals(&case, 50 * MS, seen.variation()));
}
