//! The simulation compared with reality: the same load on real servers gives the same figures
//! within 3 % or 100 ms. Each test run plays two workloads and requires that nothing is faster
//! live, since delays also depend on the machine. `SIMULATED_AND_LIVE=all` runs all workloads,
//! `SIMULATED_AND_LIVE=exact cargo test --test it simulate::live:: -- --nocapture` also requires that
//! nothing is slower live, and prints the figures of docs/SIMULATE.md.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config::Config;
use kit::api::{Api, Reply};
use kit::{Bed, SECOND, job, until};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use simulator::api::ApiModel as Simulated;
use simulator::environment::micros;
use simulator::figures::Figures;
use simulator::forms::{ApiLimit, ArrivalRate, CostDistribution, Latency, Skew};
use simulator::history::{RecordedCall, RunHistory};
use simulator::jobs::SimulatedJob;
use simulator::load::LoadProfile;
use simulator::run::{RunSetup, simulate};
use tokio::time::{Instant, sleep_until};

use crate::PROGRAM;

/// Allowed relative difference of a figure.
const PART: f64 = 0.03;
/// Allowed absolute difference in seconds.
const SECONDS: f64 = 0.1;
/// Fixed windows begin with the load. Other windows begin at any time.
const ALIGNED: Duration = Duration::from_secs(5);

struct Workload {
    name: &'static str,
    limits: &'static str,
    /// Jobs that exist at the beginning, and jobs that arrive at a rate.
    burst: usize,
    rate: Option<&'static str>,
    tenants: usize,
    cost: &'static str,
    latency: &'static str,
    api_limit: Option<&'static str>,
    workers: usize,
    /// Whether it runs each time.
    always: bool,
}

const USUAL: Workload = Workload {
    name: "",
    limits: "",
    burst: 0,
    rate: None,
    tenants: 1,
    cost: "1",
    latency: "20ms",
    api_limit: None,
    workers: 1,
    always: false,
};

const WORKLOADS: [Workload; 10] = [
    Workload {
        name: "sliding window, 20 a second",
        limits: "max-requests: 20, window-size: 1s",
        burst: 200,
        always: true,
        ..USUAL
    },
    Workload {
        name: "five calls in flight",
        limits: "limits: [{name: running, max-concurrent: 5}]",
        burst: 250,
        latency: "200ms",
        always: true,
        ..USUAL
    },
    Workload {
        name: "fixed window, 50 in 5 s",
        limits: "use-algo: fixed-window-algo, max-requests: 50, window-size: 5s",
        burst: 200,
        ..USUAL
    },
    Workload {
        name: "token bucket, 20 a second, costs 1 to 5",
        limits: "use-algo: token-bucket-algo, max-requests: 20, burst: 40, window-size: 1s, unit: cost",
        burst: 120,
        cost: "uniform:1-5",
        ..USUAL
    },
    Workload {
        name: "leaky bucket, 20 a second",
        limits: "use-algo: leaky-bucket-algo, max-requests: 20, burst: 1, window-size: 1s",
        burst: 300,
        ..USUAL
    },
    Workload {
        name: "segments, 50 in 5 s",
        limits: "use-algo: sliding-segments-algo, max-requests: 50, window-size: 5s",
        burst: 200,
        ..USUAL
    },
    Workload {
        name: "a second and ten seconds, two workers",
        limits: "limits: [{name: second, max-requests: 20, window-size: 1s}, {name: ten, max-requests: 100, window-size: 10s}]",
        burst: 300,
        workers: 2,
        ..USUAL
    },
    Workload {
        name: "one limit of five tenants",
        limits: "limits: [{name: api, max-requests: 30, window-size: 1s, scope: global}]",
        burst: 450,
        tenants: 5,
        workers: 2,
        ..USUAL
    },
    Workload {
        name: "30 a second at random, five tenants",
        limits: "max-requests: 8, window-size: 1s",
        rate: Some("poisson:30/s"),
        tenants: 5,
        latency: "lognormal:30ms,0.5",
        ..USUAL
    },
    Workload {
        name: "an API that allows half of it (429)",
        limits: "max-requests: 20, window-size: 2s",
        burst: 100,
        api_limit: Some("10/2s"),
        ..USUAL
    },
];

impl Workload {
    fn jobs(&self) -> Arc<Vec<SimulatedJob>> {
        let rate = self
            .rate
            .map(|rate| rate.parse::<ArrivalRate>().expect("a rate"));
        let burst = format!("{}@0s", self.burst);
        let load = LoadProfile {
            tenants: self.tenants,
            skew: Skew(0.0),
            rate,
            lasts: rate.is_some().then_some(15 * SECOND),
            count: None,
            bursts: burst.parse().into_iter().collect(),
            cost: self.cost.parse::<CostDistribution>().expect("costs"),
        };
        Arc::new(load.jobs(1).expect("a load"))
    }

    fn api(&self) -> Simulated {
        let limit = |text: &str| text.parse::<ApiLimit>().expect("a limit");
        Simulated {
            latency: self.latency.parse::<Latency>().expect("a latency"),
            limits: self.api_limit.map(limit).into_iter().collect(),
            ..Simulated::default()
        }
    }

    fn simulated(&self, config: &Config, jobs: &Arc<Vec<SimulatedJob>>) -> Figures {
        let setup = RunSetup {
            config,
            workers: self.workers,
            api: self.api(),
            redis: Duration::ZERO,
            seed: 1,
            max: Duration::from_secs(3_600),
            work: u64::MAX,
        };
        // A separate thread, since this one already has a runtime in real time.
        let play = || simulate(&setup, jobs, &Default::default());
        let history = std::thread::scope(|scope| scope.spawn(play).join().expect("no panic"));
        Figures::of(&config.rate_limiter.policy, jobs, &history)
    }

    /// Runs the load on real servers with an equivalent API.
    async fn live(&self, jobs: &Arc<Vec<SimulatedJob>>) -> (Config, Figures) {
        let (api, described) = (Api::start().await, self.api());
        let bed = Bed::shared();
        let yaml = bed.yaml(self.limits, &api.url(), "");
        let config = Config::parse("live.yaml", &yaml, std::iter::empty()).expect("valid");
        let workers: Vec<_> = (0..self.workers).map(|_| PROGRAM.start(&yaml)).collect();
        // Each slot has made a call, so its connection is open. The calls are of another tenant,
        // and long enough before.
        let warm = (0..20).map(|number| job("warm-up", format!("warm-{number}")));
        bed.publish(&yaml, warm).await;
        until("all are warm", || api.count() >= 20).await;
        tokio::time::sleep(2 * SECOND).await;

        let calls: Arc<Mutex<Vec<(Instant, RecordedCall)>>> = Arc::default();
        let taken = Mutex::new(VecDeque::<Instant>::new());
        let random = Mutex::new(SmallRng::seed_from_u64(2));
        let noted = Arc::clone(&calls);
        api.answers(move |call| {
            let latency = described
                .latency
                .next(&mut random.lock().expect("no panic"));
            let mut taken = taken.lock().expect("no panic");
            let reply = match described.limits.first() {
                None => Reply::ok(),
                Some(limit) => {
                    while taken
                        .front()
                        .is_some_and(|first| *first + limit.window <= call.at)
                    {
                        taken.pop_front();
                    }
                    match taken.front() {
                        Some(first) if taken.len() >= limit.max => {
                            let left = (*first + limit.window).saturating_duration_since(call.at);
                            let seconds = left.as_secs_f64().ceil().max(1.0);
                            Reply::status(429).header("retry-after", &format!("{seconds:.0}"))
                        }
                        _ => {
                            taken.push_back(call.at);
                            Reply::ok()
                        }
                    }
                }
            };
            let one = RecordedCall {
                at_us: 0,
                until_us: micros(latency),
                ended_us: micros(latency),
                job: call.job.parse().expect("a number"),
                status: reply.status.as_u16(),
            };
            noted.lock().expect("no panic").push((call.at, one));
            reply.after(latency)
        });

        let client = kit::client(&yaml).await;
        let wall = || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .expect("after 1970")
        };
        let into = Duration::from_nanos((wall().as_nanos() % ALIGNED.as_nanos()) as u64);
        let begin = Instant::now() + (ALIGNED - into);
        let epoch = wall() + (ALIGNED - into);
        let mut next = 0;
        while let Some(job) = jobs.get(next) {
            sleep_until(begin + Duration::from_micros(job.at_us())).await;
            let now = micros(begin.elapsed());
            let due = jobs[next..]
                .iter()
                .take_while(|job| job.at_us() <= now)
                .count()
                .max(1);
            let batch = (next..next + due).map(|id| jobs[id].message(id, None));
            kit::publish(&client, &client.names().fresh, batch).await;
            next += due;
        }
        client.close().await;
        let done = || {
            let calls = calls.lock().expect("no panic");
            calls.iter().filter(|(_, call)| call.status == 200).count() >= jobs.len()
        };
        until("all calls", done).await;
        for worker in workers {
            worker.stop();
        }
        let mut calls = std::mem::take(&mut *calls.lock().expect("no panic"));
        calls.sort_by_key(|(at, _)| *at);
        let calls = calls.into_iter().map(|(at, call)| {
            let at_us = micros(at.saturating_duration_since(begin));
            RecordedCall {
                at_us,
                until_us: at_us + call.until_us,
                ended_us: at_us + call.ended_us,
                ..call
            }
        });
        let history = RunHistory {
            epoch_us: micros(epoch),
            calls: calls.collect(),
            ..RunHistory::default()
        };
        let figures = Figures::of(&config.rate_limiter.policy, jobs, &history);
        (config, figures)
    }

    /// Runs both. Returns a row of the table, and the differences. `may_be_late` allows live runs
    /// to take longer, since the machine has other load.
    async fn both(&self, may_be_late: bool) -> (String, Vec<String>) {
        let jobs = self.jobs();
        let (config, live) = self.live(&jobs).await;
        let simulated = self.simulated(&config, &jobs);
        let pairs = [
            ("makespan", simulated.makespan, live.makespan),
            ("wait p50", simulated.waits.p50, live.waits.p50),
            ("wait p99", simulated.waits.p99, live.waits.p99),
        ];
        let agree = |simulated: f64, live: f64| {
            let late = live - simulated;
            let may = SECONDS.max(PART * live);
            late >= -may && (may_be_late || late <= may)
        };
        let mut differ: Vec<String> = pairs
            .iter()
            .filter(|(_, one, two)| !agree(*one, *two))
            .map(|(what, one, two)| format!("{}: {what} {one} simulated, {two} live", self.name))
            .collect();
        let more = live.used - simulated.used;
        if more > PART || (!may_be_late && more < -PART) {
            differ.push(format!(
                "{}: used {} simulated, {} live",
                self.name, simulated.used, live.used
            ));
        }
        let cells = pairs.map(|(_, one, two)| format!("{one:.2} / {two:.2} s"));
        let used = format!("{:.1} / {:.1} %", simulated.used * 100.0, live.used * 100.0);
        let [makespan, p50, p99] = cells;
        let name = self.name;
        (
            format!("| {name} | {makespan} | {used} | {p50} | {p99} |"),
            differ,
        )
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_simulation_matches_real_workers() {
    let which = std::env::var("SIMULATED_AND_LIVE").unwrap_or_default();
    let is_exact = which == "exact";
    println!("| workload | makespan | used | wait p50 | wait p99 |\n|---|---|---|---|---|");
    let mut differ = Vec::new();
    let chosen = |workload: &&Workload| workload.always || is_exact || which == "all";
    for workload in WORKLOADS.iter().filter(chosen) {
        let (row, of_one) = workload.both(!is_exact).await;
        println!("{row}");
        differ.extend(of_one);
    }
    assert!(differ.is_empty(), "{differ:#?}");
}
