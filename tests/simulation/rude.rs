//! Adaptive limits with APIs that allow less than the configured limit: the real scheduler and
//! engine, the gate's model, simulated time.
//!
//! Two workers serve one tenant that always has more jobs than may start. Only the simulation knows
//! what the API allows.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use broker::memory::MemoryBroker;
use broker::{Broker, Outgoing};
use engine::Stop;
use engine::action::{EngineSettings, LiveSettings};
use engine::scheduler::Scheduler;
use gate::Gate;
use handler::{Attempt, Fate, Handler, Outcome, Permit};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rules::answers::{LimitInfo, Pushback, Quotas, ThrottleScope};
use rules::delays::DelayLevels;
use rules::failures::retry::RetryPolicy;
use rules::job::{Fields, Job};
use rules::limit::{Algorithm, Limit};
use rules::policy::Policy;
use rules::scope::Labels;
use rules::tenant::Tenant;
use simulator::environment::{self, Environment, in_simulated_time};
use telemetry::metrics::Metrics;
use tokio::time::{Instant, sleep};

use super::plan::ms;
use super::world::micros;

const WINDOW: Duration = Duration::from_secs(10);
const WINDOW_MS: u64 = 10_000;
const GUARD: Duration = Duration::from_millis(50);
const EPOCH_US: u64 = 1_700_000_000_000_123;

/// Behavior of an API.
struct Rude {
    name: &'static str,
    /// Configured limit, and the lowest percentage that it may sink to; `None` if it is not
    /// adaptive.
    max: u64,
    band: Option<u8>,
    algorithm: Algorithm,
    /// `None` is the algorithm's default.
    burst: Option<u64>,
    /// Duration of the run, in windows.
    windows: u64,
    /// Units that the API accepts per window from all clients, by time in windows.
    takes: fn(f64) -> f64,
    /// Units that other clients send per window, by time in windows.
    others: fn(f64) -> f64,
    /// Whether its windows are aligned to the Unix epoch.
    aligned: bool,
    /// Whether each answer advertises its limit.
    advertises: bool,
    /// Fraction of answers that are 429 for no reason.
    at_random: f64,
    /// Minimum fraction of the available quota that must be used.
    used: f64,
}

const HIDDEN: Rude = Rude {
    name: "hidden limit, 80 of our 100",
    max: 100,
    band: Some(50),
    algorithm: Algorithm::SlidingWindow,
    burst: None,
    windows: 300,
    takes: |_| 80.0,
    others: |_| 0.0,
    aligned: false,
    advertises: false,
    at_random: 0.0,
    used: 0.95,
};

/// Moves between four levels.
fn steps(window: f64) -> f64 {
    [10.0, 35.0, 20.0, 40.0][(window / 75.0) as usize % 4]
}

fn all() -> Vec<Rude> {
    vec![
        HIDDEN,
        Rude {
            name: "the same without adaptive",
            band: None,
            ..HIDDEN
        },
        Rude {
            name: "hidden limit in aligned windows",
            aligned: true,
            ..HIDDEN
        },
        Rude {
            name: "hidden limit, our fixed-window-algo",
            algorithm: Algorithm::FixedWindow,
            aligned: true,
            ..HIDDEN
        },
        Rude {
            name: "hidden limit, our token-bucket-algo",
            algorithm: Algorithm::TokenBucket,
            burst: Some(25),
            ..HIDDEN
        },
        Rude {
            name: "hidden limit, the same with its usual burst",
            algorithm: Algorithm::TokenBucket,
            ..HIDDEN
        },
        Rude {
            name: "hidden limit, our leaky-bucket-algo",
            algorithm: Algorithm::LeakyBucket,
            ..HIDDEN
        },
        Rude {
            name: "hidden limit, our sliding-segments-algo",
            algorithm: Algorithm::SlidingSegments,
            ..HIDDEN
        },
        Rude {
            name: "hidden limit, our sliding-counter-algo",
            algorithm: Algorithm::SlidingCounter,
            ..HIDDEN
        },
        Rude {
            name: "hidden limit, 3 of our 5",
            max: 5,
            takes: |_| 3.0,
            windows: 2_000,
            ..HIDDEN
        },
        Rude {
            name: "hidden limit, 800 of our 1000",
            max: 1_000,
            takes: |_| 800.0,
            windows: 60,
            ..HIDDEN
        },
        Rude {
            name: "hidden limit that is lifted after a third",
            takes: |window| if window < 200.0 { 80.0 } else { 1_000.0 },
            windows: 600,
            ..HIDDEN
        },
        Rude {
            name: "drifting limit, 65 to 95 and back in 50 min",
            takes: |window| 80.0 + 15.0 * (window * std::f64::consts::TAU / 300.0).sin(),
            windows: 600,
            ..HIDDEN
        },
        Rude {
            name: "100 shared with others, who take 10 to 40",
            takes: |_| 100.0,
            others: steps,
            windows: 600,
            ..HIDDEN
        },
        Rude {
            name: "advertised limit, 80 of our 100",
            advertises: true,
            ..HIDDEN
        },
        Rude {
            name: "no lower limit, and a stray 429 in 2,000",
            takes: |_| 1_000.0,
            at_random: 0.000_5,
            ..HIDDEN
        },
    ]
}

/// The API, and the calls it received.
struct Api {
    rude: Rude,
    began: Instant,
    random: SmallRng,
    /// Arrival times of accepted calls, of ours and of other clients.
    taken: VecDeque<u64>,
    /// Arrival times of our calls, accepted or not, while they matter.
    ours: VecDeque<u64>,
    others_due: f64,
    looked: f64,
    calls: u64,
    refused: u64,
    others_taken: u64,
    fullest: usize,
}

impl Api {
    fn new(rude: Rude) -> Self {
        Self {
            rude,
            began: Instant::now(),
            random: SmallRng::seed_from_u64(7),
            taken: VecDeque::new(),
            ours: VecDeque::new(),
            others_due: 0.0,
            looked: 0.0,
            calls: 0,
            refused: 0,
            others_taken: 0,
            fullest: 0,
        }
    }

    /// Removes calls that its window no longer counts.
    fn forget(&mut self, now_us: u64) {
        let window = WINDOW_MS * 1_000;
        let from = match self.rude.aligned {
            true => now_us / window * window,
            false => now_us.saturating_sub(window - 1),
        };
        while self.taken.front().is_some_and(|at| *at < from) {
            self.taken.pop_front();
        }
    }

    fn takes(&self, window: f64) -> f64 {
        (self.rude.takes)(window).floor()
    }

    fn take(&mut self, now_us: u64, window: f64) -> bool {
        self.forget(now_us);
        let takes = (self.taken.len() as f64) < self.takes(window);
        if takes {
            self.taken.push_back(now_us);
        }
        takes
    }

    /// Records the arrival of one of our calls. The error is the time in Retry-After.
    fn arrive(&mut self) -> Result<(), Duration> {
        let now_us = EPOCH_US + micros(self.began.elapsed());
        let window = self.window();
        // Other clients' calls are spread evenly over the time since the last arrival.
        self.others_due += (self.rude.others)(window) * (window - self.looked);
        self.looked = window;
        while self.others_due >= 1.0 {
            self.others_due -= 1.0;
            self.others_taken += u64::from(self.take(now_us, window));
        }
        self.calls += 1;
        self.ours.push_back(now_us);
        let from = now_us - (WINDOW_MS * 1_000 - 1);
        while self.ours.front().is_some_and(|at| *at < from) {
            self.ours.pop_front();
        }
        self.fullest = self.fullest.max(self.ours.len());
        let stray = self.rude.at_random > 0.0 && self.random.random_bool(self.rude.at_random);
        if !stray && self.take(now_us, window) {
            return Ok(());
        }
        self.refused += 1;
        let frees_us = match (stray, self.taken.front(), self.rude.aligned) {
            (true, ..) | (_, None, _) => 0,
            (_, _, true) => WINDOW_MS * 1_000 - now_us % (WINDOW_MS * 1_000),
            (_, Some(first), false) => (first + WINDOW_MS * 1_000).saturating_sub(now_us),
        };
        // Retry-After has whole seconds.
        Err(Duration::from_secs(frees_us.div_ceil(1_000_000).max(1)))
    }

    fn window(&self) -> f64 {
        self.began.elapsed().as_secs_f64() / WINDOW.as_secs_f64()
    }

    /// Returns the units that the API would have accepted from us: at most our limit, and without
    /// those of other clients.
    fn gave(&self) -> f64 {
        let each = (0..self.rude.windows).map(|window| {
            let left = self.takes(window as f64 + 0.5) - (self.rude.others)(window as f64 + 0.5);
            left.min(self.rude.max as f64)
        });
        each.sum()
    }
}

struct ToApi {
    api: Arc<Mutex<Api>>,
    ended: tokio::sync::mpsc::UnboundedSender<()>,
}

impl ToApi {
    fn api(&self) -> MutexGuard<'_, Api> {
        self.api.lock().expect("no panic")
    }
}

impl Handler for ToApi {
    async fn handle(&self, job: &Job, permit: Permit) -> Outcome {
        self.attempt(job, permit).await.outcome
    }

    async fn attempt(&self, _: &Job, permit: Permit) -> Attempt {
        if !permit.is_good() {
            return Outcome::Late.into();
        }
        let way = self.api().random.random_range(5..20);
        sleep(ms(way)).await;
        let (answer, quotas) = {
            let mut api = self.api();
            let answer = api.arrive();
            let takes = api.takes(api.window());
            let quota = format!("{takes}/{}", WINDOW.as_secs());
            let quotas = match api.rude.advertises {
                true => Quotas::read(&quota),
                false => Quotas::default(),
            };
            (answer, quotas)
        };
        sleep(ms(30)).await;
        let (outcome, refused) = match answer {
            Ok(()) => {
                let _ = self.ended.send(());
                (Outcome::Done, None)
            }
            Err(after) => {
                let (after, reason) = (Some(after), "429".to_owned());
                let outcome = Outcome::Throttled { after, reason };
                (outcome, Some(Pushback { after }))
            }
        };
        Attempt {
            seen: LimitInfo {
                refused,
                quotas,
                ..LimitInfo::default()
            },
            fate: Fate::Answered,
            ..outcome.into()
        }
    }
}

fn settings(limit: &Limit) -> EngineSettings {
    let open = kit::settings::open(2_000);
    EngineSettings {
        policy: Policy::common(limit.clone().into()),
        fields: Fields {
            dedupe_for_ms: 0,
            ..open.fields
        },
        live: LiveSettings {
            max_in_memory: Duration::from_secs(60),
            retry: RetryPolicy {
                max_interval: ms(60_000),
                max_crashes: 0,
                ..open.live.retry
            },
            max_throttle: Duration::from_secs(3_600),
            ..open.live
        },
        prefetch: 2_000,
        levels: DelayLevels::new(Duration::from_secs(600)),
        throttle_scope: ThrottleScope::Auto,
        ..open
    }
}

async fn publish(broker: &MemoryBroker, first: usize, number: usize) {
    let message = |number: usize| Outgoing {
        queue: broker.names().fresh,
        message: kit::job("acme", number),
    };
    let batch = (first..first + number).map(message).collect();
    let results = broker.publish(batch).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

/// Results of one run.
struct Played {
    name: &'static str,
    learns: bool,
    calls: u64,
    refused: f64,
    used: f64,
    fullest: usize,
    /// Most calls in any window, by the configured limit.
    max: u64,
    in_force: u64,
    times: u64,
}

async fn play(rude: Rude) -> Played {
    let Rude {
        name,
        max,
        band,
        algorithm,
        burst,
        windows,
        ..
    } = rude;
    let limit = Limit::new("minute", algorithm, max, WINDOW, GUARD).expect("in range");
    let limit = match burst {
        Some(burst) => limit.with_burst(burst).expect("in range"),
        None => limit,
    };
    let limit = band.map_or(limit.clone(), |band| limit.with_band(band));
    let levels = DelayLevels::new(Duration::from_secs(600));
    let (stage, mut nobody) = Environment::begin(EPOCH_US, &levels).await;
    tokio::spawn(async move { while nobody.recv().await.is_some() {} });
    let api = Arc::new(Mutex::new(Api::new(rude)));
    let (ended, mut ends) = tokio::sync::mpsc::unbounded_channel();
    let stop = Stop::default();
    let mut workers = Vec::new();
    for number in 0..2 {
        let (client, events) = stage.join(2_000, 2_000);
        let settings = environment::settings(settings(&limit), &client);
        let handler = ToApi {
            api: Arc::clone(&api),
            ended: ended.clone(),
        };
        let (metrics, second) = (Arc::new(Metrics::new()), Duration::from_secs(1));
        let parts = (client, Arc::clone(&stage.gate), handler);
        let engine = environment::engine(parts, &metrics, second);
        let scheduler = Scheduler::new(settings, number);
        workers.push(tokio::spawn(engine.run(scheduler, events, stop.clone())));
    }
    // Enough jobs to have some waiting or running at any time.
    let backlog = 2 * usize::try_from(max).expect("small") + 20;
    publish(&stage.server, 0, backlog).await;
    let feeding = tokio::spawn({
        let server = stage.server.clone();
        async move {
            let mut next = backlog;
            while ends.recv().await.is_some() {
                publish(&server, next, 1).await;
                next += 1;
            }
        }
    });
    sleep(WINDOW * u32::try_from(windows).expect("small")).await;
    let tenant = Tenant::parse("acme").expect("a tenant");
    let limits = limit.clone().into();
    let seen = stage
        .gate
        .inspect(&tenant, &Labels::default(), &limits)
        .await;
    let usage = seen.expect("it answers").limits[0];
    let played = {
        let api = api.lock().expect("no panic");
        Played {
            name,
            learns: band.is_some(),
            calls: api.calls,
            refused: api.refused as f64 / api.calls as f64,
            used: (api.calls - api.refused) as f64 / api.gave(),
            fullest: api.fullest,
            max: limit.worst_case(),
            in_force: usage.max,
            times: usage.learned.map_or(0, |learned| learned.times),
        }
    };
    stop.hard.cancel();
    feeding.abort();
    for worker in workers {
        worker.await.expect("it did not panic");
    }
    played
}

fn line(played: &Played) -> String {
    format!(
        "| {} | {} | {:.2} % | {:.1} % | {} of {} |\n",
        played.name,
        played.calls,
        100.0 * played.refused,
        100.0 * played.used,
        played.fullest,
        played.max,
    )
}

/// The configured limit is never exceeded, at most 1 % of the calls are refused, and at least 95 %
/// of the API's quota is used.
#[test]
fn adaptive_limits_protect_rude_apis() {
    let only = std::env::var("RUDE").unwrap_or_default();
    let (mut table, mut wrong) = (String::new(), String::new());
    for rude in all() {
        if !rude.name.contains(&only) {
            continue;
        }
        let used = rude.used;
        let played = in_simulated_time(play(rude));
        let line = line(&played);
        print!("{line}");
        println!("  in force {}, {} times", played.in_force, played.times);
        table += &line;
        let within = played.fullest as u64 <= played.max;
        let good = played.refused <= 0.01 && played.used >= used;
        if !within || good != played.learns {
            let _ = write!(wrong, "{line}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
