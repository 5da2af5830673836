//! Whole workers with a long backlog and no faults: how often a job is delivered, and how exactly
//! it starts at its turn. `LONG_BACKLOGS=1 cargo test --test simulation backlog -- --nocapture`
//! prints the figures of docs/decisions/delay-queues.md.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::{Broker, Message, Outgoing};
use bytes::Bytes;
use engine::Stop;
use engine::scheduler::Scheduler;
use handler::{Handler, Outcome, Permit};
use kit::gate::named_limit;
use kit::{SECOND, settings};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use rules::delays::DelayLevels;
use rules::job::Job;
use rules::limit::Algorithm;
use simulator::environment::{self, Environment, in_simulated_time};
use telemetry::metrics::Metrics;
use tokio::time::{Instant, sleep};

use super::plan::ms;

const WORKERS: u64 = 2;
const PREFETCH: u16 = 500;
const CONCURRENCY: usize = 64;
const MAX_DELAY: Duration = Duration::from_secs(300);
/// A whole second, in microseconds since the Unix epoch.
const EPOCH_US: u64 = 1_700_000_000_000_000;
/// Maximum deliveries per job on average. The second applies to backlogs that last more than three
/// times `MAX_DELAY`.
const MAX_DELIVERIES: f64 = 3.1;
const MAX_OF_LONG_WAITS: f64 = 3.5;

/// Jobs that are all published at the beginning.
struct Backlog {
    name: &'static str,
    jobs: usize,
    tenants: usize,
    /// Whether the tenants' jobs are published one tenant after the other. Then long waits are in
    /// front of short ones in a delay queue.
    one_by_one: bool,
    /// Limit of each tenant.
    per_second: u64,
}

/// Number of jobs that are drained in a usual test run.
const FEW: usize = 4_000;

const BACKLOGS: [Backlog; 8] = [
    Backlog {
        name: "2,000 jobs of a tenant, 20/s",
        jobs: 2_000,
        tenants: 1,
        one_by_one: false,
        per_second: 20,
    },
    Backlog {
        name: "4,000 jobs of 20 tenants one by one, 1/s each",
        jobs: 4_000,
        tenants: 20,
        one_by_one: true,
        per_second: 1,
    },
    Backlog {
        name: "4,000 jobs of 4 tenants in turn, 1/s each",
        jobs: 4_000,
        tenants: 4,
        one_by_one: false,
        per_second: 1,
    },
    Backlog {
        name: "15,000 jobs of a tenant, 50/s",
        jobs: 15_000,
        tenants: 1,
        one_by_one: false,
        per_second: 50,
    },
    Backlog {
        name: "30,000 jobs of a tenant, 50/s",
        jobs: 30_000,
        tenants: 1,
        one_by_one: false,
        per_second: 50,
    },
    Backlog {
        name: "10,000 jobs of 50 tenants in turn, 1/s each",
        jobs: 10_000,
        tenants: 50,
        one_by_one: false,
        per_second: 1,
    },
    Backlog {
        name: "10,000 jobs of 50 tenants one by one, 1/s each",
        jobs: 10_000,
        tenants: 50,
        one_by_one: true,
        per_second: 1,
    },
    Backlog {
        name: "100,000 jobs of 50 tenants in turn, 2/s each",
        jobs: 100_000,
        tenants: 50,
        one_by_one: false,
        per_second: 2,
    },
];

/// Measurements of one run.
struct Figures {
    deliveries: f64,
    publishes: f64,
    questions: f64,
    /// Start delay after the job's turn, in milliseconds: median, 99th percentile and maximum.
    late_ms: [u64; 3],
    /// Makespan divided by the ideal one.
    makespan: f64,
    /// Fraction of jobs that were told their turn, and fraction of these that started within 100 ms
    /// or 2 % of their wait.
    promised: f64,
    on_time: f64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.2} {:.2} {:.2}; {:?} ms; {:.4}; {} of {} kept",
            self.deliveries,
            self.publishes,
            self.questions,
            self.late_ms,
            self.makespan,
            self.on_time,
            self.promised
        )
    }
}

impl Figures {
    /// Checks that jobs start at the first turn announced to them.
    fn keep_promises(&self, name: &str) {
        assert!(self.promised > 0.0, "{name}: {self}");
        assert!(self.on_time >= self.promised, "{name}: {self}");
    }
}

impl Backlog {
    /// Checks the promised bounds.
    fn demand(&self, figures: &Figures) {
        let seconds = (self.jobs / self.tenants) as f64 / self.per_second as f64;
        let max = match seconds > 3.0 * MAX_DELAY.as_secs_f64() {
            true => MAX_OF_LONG_WAITS,
            false => MAX_DELIVERIES,
        };
        let name = self.name;
        assert!(figures.deliveries <= max, "{name}: {figures}");
        assert!(figures.makespan <= 1.01, "{name}: {figures}");
        figures.keep_promises(name);
    }
}

/// Start times of each tenant's jobs, in milliseconds since the beginning.
type Starts = Arc<Mutex<Vec<Vec<u64>>>>;

struct Notes {
    began: Instant,
    starts: Starts,
}

impl Handler for Notes {
    async fn handle(&self, job: &Job, _: Permit) -> Outcome {
        let tenant: usize = job.tenant.as_str()[1..].parse().expect("a number");
        let at = u64::try_from(self.began.elapsed().as_millis()).expect("no ages");
        self.starts.lock().expect("no panic")[tenant].push(at);
        sleep(ms(10)).await;
        Outcome::Done
    }
}

fn message(backlog: &Backlog, number: usize) -> Message {
    let tenant = match backlog.one_by_one {
        true => number / (backlog.jobs / backlog.tenants),
        false => number % backlog.tenants,
    };
    let mut headers = FieldTable::default();
    let name = AMQPValue::LongString(format!("t{tenant}").into());
    headers.insert("x-tenant".into(), name);
    Message {
        routing_key: "jobs".into(),
        properties: BasicProperties::default()
            .with_message_id(number.to_string().into())
            .with_headers(headers),
        body: Bytes::from_static(b"{}"),
    }
}

async fn drain(backlog: &Backlog, algorithm: Algorithm) -> Figures {
    let levels = DelayLevels::new(MAX_DELAY);
    let (stage, _events) = Environment::begin(EPOCH_US, &levels).await;
    let server = &stage.server;
    let fresh = server.names().fresh;
    let all = (0..backlog.jobs).map(|number| Outgoing {
        queue: Arc::clone(&fresh),
        message: message(backlog, number),
    });
    for published in server.publish(all.collect()).await {
        published.expect("published");
    }
    let before = server.publishes();

    let began = stage.began;
    let starts = Starts::new(Mutex::new(vec![Vec::new(); backlog.tenants]));
    let limit = named_limit("default", algorithm, backlog.per_second, SECOND);
    let (stop, mut workers) = (Stop::default(), Vec::new());
    let metrics = Arc::new(Metrics::new());
    for seed in 0..WORKERS {
        let (client, events) = stage.join(PREFETCH, CONCURRENCY);
        let mut settings = settings::open(CONCURRENCY);
        settings.policy = limit.clone().into();
        settings.prefetch = usize::from(PREFETCH);
        settings.levels = levels.clone();
        let settings = environment::settings(settings, &client);
        let notes = Notes {
            began,
            starts: Arc::clone(&starts),
        };
        let engine =
            environment::engine((client, Arc::clone(&stage.gate), notes), &metrics, SECOND);
        let scheduler = Scheduler::new(settings, seed);
        workers.push(tokio::spawn(engine.run(scheduler, events, stop.clone())));
    }
    while stage.left() > 0 {
        sleep(ms(100)).await;
        assert!(began.elapsed() < Duration::from_secs(86_400), "no end");
    }
    stop.soft.cancel();
    for worker in workers {
        worker.await.expect("it ends");
    }

    let deliveries = server.deliveries();
    let publishes = server.publishes() - before;
    let shown = metrics.encode();
    let sum = |series: &str| -> f64 {
        let lines = shown.lines().filter(|line| line.starts_with(series));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum()
    };
    let each = |count: f64| count / backlog.jobs as f64;
    let rate = backlog.per_second;
    let mut late = Vec::new();
    let mut last = 0;
    for tenant in &*starts.lock().expect("no panic") {
        assert_eq!(tenant.len(), backlog.jobs / backlog.tenants);
        // A window's worth of jobs starts at once.
        let turn = |place: usize| place as u64 / rate * 1_000;
        late.extend((tenant.iter().enumerate()).map(|(place, at)| at.saturating_sub(turn(place))));
        last = last.max(*tenant.last().expect("some"));
    }
    late.sort_unstable();
    let at = |part: usize| late[(late.len() - 1) * part / 100];
    let ideal = (backlog.jobs / backlog.tenants) as u64 / rate * 1_000;
    Figures {
        deliveries: each(deliveries as f64),
        publishes: each(publishes as f64),
        questions: each(sum("sluicegate_decisions_total{")),
        promised: sum("sluicegate_forecast_error_seconds_count{"),
        on_time: sum("sluicegate_forecasts_kept_total "),
        late_ms: [at(50), at(99), at(100)],
        makespan: last as f64 / ideal as f64,
    }
}

#[test]
fn a_long_backlog_is_delivered_few_times_and_starts_in_time() {
    // The long backlogs take minutes in a build without optimization.
    let max = std::env::var_os("LONG_BACKLOGS").map_or(FEW, |_| usize::MAX);
    println!("deliveries, publishes, questions a job; late p50, p99, at most; makespan; promises");
    for backlog in BACKLOGS.iter().filter(|backlog| backlog.jobs <= max) {
        let figures = in_simulated_time(drain(backlog, Algorithm::SlidingWindow));
        println!("{:48} {figures}", backlog.name);
        backlog.demand(&figures);
    }
}

/// Under every algorithm and without faults, jobs start when they were first told, whether they
/// wait in memory or in delay queues.
#[test]
fn promises_are_kept_by_every_algorithm() {
    for algorithm in Algorithm::ALL {
        let backlog = Backlog {
            name: algorithm.name(),
            jobs: 1_000,
            tenants: 5,
            one_by_one: false,
            per_second: 2,
        };
        let figures = in_simulated_time(drain(&backlog, algorithm));
        println!("{:48} {figures}", backlog.name);
        figures.keep_promises(backlog.name);
    }
}
