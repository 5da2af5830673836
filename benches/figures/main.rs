//! Produces the figures of docs/EVIDENCE.md on a private RabbitMQ and Redis: `cargo bench
//! --bench figures [NAME]...` and `... flood [bodies] [names] [tenants] [jobs]`. Each figure is a
//! ratio to a bare loop on the same queues in the same run, or a count. A low speed does not fail
//! the bench; a job that is lost or called twice does.

mod api;
mod bare;
mod bed;
mod counts;
mod flood;
mod http;
mod idle;
mod loops;
mod many;
mod noisy;
mod pulse;
mod queues;
mod report;
mod steps;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use kit::process::Program;
use kit::servers::{shared_rabbit, shared_redis, unique};

use api::Api;
use bare::{BareConnection, now_ns};
use bed::account;
use http::Load;
use report::Report;
use worker::{Running, config};

/// The program that cargo built for this bench.
const PROGRAM: Program = Program(env!("CARGO_BIN_EXE_sluicegate"));
/// Jobs without a denial.
const FLOW: usize = 40_000;
/// Jobs of one tenant with a limit of 50 per second.
const BACKLOG: usize = 20_000;
/// The beginning of the IDs of a quiet tenant's jobs meanwhile.
const CALM: &str = "calm-";
/// Waiting jobs while the worker's memory is read.
const WAITING: usize = 100_000;
/// How long the parked backlog is watched.
const WATCH: Duration = Duration::from_secs(60);

/// Figures against bare loops, in turns in one run
#[derive(Debug, Parser)]
#[command(
    name = "figures",
    after_help = "Examples:
  cargo bench --bench figures
  cargo bench --bench figures -- http --rounds 3 --json http.json
  cargo bench --profile dev --bench figures -- --short"
)]
struct Args {
    /// What to measure: http, turns, many, noisy, idle, flow, park, memory, pulse; all of them by
    /// default. Only when it is named: queues, and flood [bodies] [names] [tenants] [jobs], which
    /// take long
    names: Vec<String>,
    /// How often each is measured
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Few jobs and one round: whether all is counted right, and no figure. Only http, turns,
    /// many, noisy and idle
    #[arg(long)]
    short: bool,
    /// Where the figures go, with all samples; flow, park, memory, pulse and flood only print theirs
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Cargo says so
    #[arg(long, hide = true)]
    bench: bool,
}

/// The names of the figures with a short form.
const SHORT: [&str; 5] = ["http", "turns", "many", "noisy", "idle"];
/// The names of the other figures. `flood` is followed by names of its own.
const WHOLE: [&str; 6] = ["flow", "park", "memory", "pulse", "queues", "flood"];

/// The size of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    Whole,
    Short,
}

impl Size {
    fn of(self, whole: usize, short: usize) -> usize {
        match self {
            Self::Whole => whole,
            Self::Short => short,
        }
    }
}

/// The selected figures.
struct Selection {
    figures: Vec<String>,
    floods: Vec<String>,
}

impl Selection {
    /// Selects the figures with these names, and the floods whose names come after `flood`.
    ///
    /// # Errors
    /// A name selects nothing.
    fn new(mut names: Vec<String>, size: Size) -> Result<Self, String> {
        let flood = names.iter().position(|name| name == "flood");
        let floods = flood.map_or_else(Vec::new, |at| names.split_off(at + 1));
        let all: &[&str] = &[&SHORT[..], &WHOLE].concat();
        for (names, known) in [(&names, all), (&floods, &flood::NAMES[..])] {
            if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
                return Err(format!("there is no {name}: one of {}", known.join(", ")));
            }
        }
        let has_size = |name: &&str| size == Size::Whole || SHORT.contains(name);
        let mut sizes = names.iter().map(String::as_str);
        match sizes.find(|name| !has_size(name)) {
            Some(name) => Err(format!("{name} has no short form")),
            None => Ok(Self {
                figures: names,
                floods,
            }),
        }
    }

    /// Returns true if this figure is named, or none is.
    fn has(&self, figure: &str) -> bool {
        self.figures.is_empty() || self.names(figure)
    }

    fn names(&self, figure: &str) -> bool {
        self.figures.iter().any(|name| name == figure)
    }

    fn has_flood(&self, flood: &str) -> bool {
        self.floods.is_empty() || self.floods.iter().any(|name| name == flood)
    }
}

fn main() -> ExitCode {
    app::install_tls_provider();
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some(api::ROLE) => api::serve(),
        Some(loops::ROLE) => loops::run(&args[1..]),
        _ => {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            return runtime.block_on(measure(Args::parse()));
        }
    }
    ExitCode::SUCCESS
}

async fn measure(args: Args) -> ExitCode {
    let Args { names, json, .. } = args;
    let (size, rounds) = match args.short {
        true => (Size::Short, 1),
        false => (Size::Whole, args.rounds.max(1)),
    };
    let selection = match Selection::new(names, size) {
        Ok(selection) => selection,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::from(2);
        }
    };
    let mut report = Report::default();
    if selection.has("http") {
        Load::http(size).run(rounds, &mut report).await;
    }
    if selection.has("turns") {
        Load::turns(size).run(rounds, &mut report).await;
    }
    if selection.has("many") {
        many::many(size, rounds, &mut report).await;
    }
    if selection.has("noisy") {
        noisy::noisy(size, rounds, &mut report).await;
    }
    if selection.has("idle") {
        idle::idle(rounds, &mut report).await;
    }
    // These figures have no short form.
    if size == Size::Whole {
        if selection.has("flow") {
            flow(&mut report).await;
        }
        if selection.has("park") {
            park(&mut report).await;
        }
        if selection.has("memory") {
            memory(&mut report).await;
        }
        // Takes twelve minutes, so it runs only if named.
        if selection.names("queues") {
            queues::queues(&mut report).await;
        }
        // Takes minutes and gigabytes of disk, so it runs only if named.
        if selection.names("flood") {
            flood::flood(|name| selection.has_flood(name), &mut report).await;
        }
        if selection.has("pulse") {
            pulse::pulse(1).await;
            pulse::pulse(100).await;
        }
    }
    report.print();
    if let Some(file) = json
        && let Err(why) = report.save(&file)
    {
        eprintln!("{}: {why}", file.display());
        return ExitCode::FAILURE;
    }
    match report.is_right() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn rate(jobs: usize, took: Duration) -> f64 {
    jobs as f64 / took.as_secs_f64()
}

/// Returns a promised value of docs/EVIDENCE.md for people. A slow machine may miss it, so a miss
/// does not fail the bench.
fn promised(value: &str, is_kept: bool) -> String {
    let missed = if is_kept { "" } else { ", MISSED" };
    format!("(promised: {value}{missed})")
}

/// Returns the ratio of the worker's rate to the loop's for people.
fn to_loop(ours: f64, floor: f64) -> String {
    let ratio = ours / floor;
    format!("{ratio:.2} {}", promised("0.5", ratio >= 0.5))
}

/// Measures the throughput without denials, with a handler that does nothing.
async fn flow(report: &mut Report) {
    let queue = unique("flow");
    let bare = BareConnection::connect(shared_rabbit().url(), &queue).await;
    bare.publish(FLOW, |n| format!("tenant-{}", n % 10)).await;
    let floor = rate(FLOW, bare.ack_all(FLOW).await);
    bare.publish(FLOW, |n| format!("tenant-{}", n % 10)).await;
    let started = Instant::now();
    let worker = Running::start(&queue, 1_000_000, "1m");
    let done = "sluicegate_dispatches_total{outcome=\"done\"}";
    if !worker.until(done, FLOW as f64).await {
        report.mistake(format!("flow: of {FLOW} jobs not all are called"));
    }
    let ours = rate(FLOW, started.elapsed());
    let trips = worker.metric("sluicegate_gate_round_trips_total") / FLOW as f64;
    let jobs = worker.stop().await;
    let ids = jobs.iter().map(|job| &*job.id);
    account("flow", &bare, FLOW, ids, report).await;
    println!(
        "flow: a bare consumer that only acks {floor:.0}/s; a worker {ours:.0}/s, start included; ratio {}",
        to_loop(ours, floor)
    );
    println!("flow: {trips:.3} round trips to Redis per job");
}

/// Measures how a backlog is parked while another tenant stays below its limit.
async fn park(report: &mut Report) {
    // The baseline has its own queues: with jobs in its delay queues and an empty Redis, a worker
    // starts no job for a window.
    let bare = BareConnection::connect(shared_rabbit().url(), &unique("floor")).await;
    bare.publish(BACKLOG, |_| "noisy".to_owned()).await;
    let floor = rate(BACKLOG, bare.park_all(BACKLOG).await);
    let queue = unique("park");
    let bare = BareConnection::connect(shared_rabbit().url(), &queue).await;
    bare.publish(BACKLOG, |_| "noisy".to_owned()).await;
    let begun = Instant::now();
    let worker = Running::start(&queue, 50, "1s");
    if !worker.until_parked(BACKLOG).await {
        report.mistake(format!("park: of {BACKLOG} jobs not all are parked"));
    }
    let ours = rate(BACKLOG, begun.elapsed());
    println!(
        "park: a bare loop {floor:.0}/s; a worker {ours:.0}/s, start included; ratio {}",
        to_loop(ours, floor)
    );

    let begun = Instant::now();
    let mut sent = 0;
    while begun.elapsed() < WATCH {
        let job = |_| {
            let body = now_ns().to_be_bytes();
            (format!("{CALM}{sent}"), "calm".to_owned(), body)
        };
        bare.publish_jobs(1, job).await;
        sent += 1;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let deliveries = worker.deliveries() / (BACKLOG + sent) as f64;
    let started = worker.metric("sluicegate_dispatches_total{outcome=\"done\"}");
    println!("park: {deliveries:.2} deliveries per job in {WATCH:?}, {started:.0} jobs started");
    worker.until_handled(CALM, sent).await;
    let jobs = worker.stop().await;
    let calm = jobs.iter().filter(|job| job.id.starts_with(CALM));
    let mut took: Vec<Duration> = calm.map(|job| job.took).collect();
    took.sort();
    let at = |share: f64| {
        let index = (took.len() as f64 * share) as usize;
        took.get(index).or(took.last()).copied().unwrap_or_default()
    };
    let (median, p99) = (at(0.5), at(0.99));
    println!(
        "park: {sent} jobs of a calm tenant beside it, {} arrived; p50 {median:?}, p99 {p99:?} {}, from publish to arrival",
        took.len(),
        promised("100 ms", p99 <= Duration::from_millis(100))
    );
    if took.len() < sent {
        let arrived = took.len();
        report.mistake(format!("park: of {sent} calm jobs {arrived} arrived"));
    }
    let ids = jobs.iter().map(|job| &*job.id);
    account("park", &bare, BACKLOG + sent, ids, report).await;
}

/// Measures the resident memory of a worker process with many waiting jobs.
async fn memory(report: &mut Report) {
    let queue = unique("memory");
    let bare = BareConnection::connect(shared_rabbit().url(), &queue).await;
    bare.publish(WAITING, |n| format!("tenant-{}", n % 100))
        .await;
    let (amqp, redis) = (shared_rabbit().url(), shared_redis().url());
    // If no API answers, the breaker opens, and the jobs stay in the work queue.
    let api = Api::start().await;
    let text = config(amqp, redis, &queue, 1, "1m").replace("http://127.0.0.1:9/", &api.url());
    let process = PROGRAM.start(&text);
    if !bare.until_empty().await {
        report.mistake(format!("memory: of {WAITING} jobs not all were taken"));
    }
    let resident = process.resident_kb();
    println!(
        "memory: {resident} kB resident with {WAITING} jobs waiting {}",
        promised("64 MB", resident <= 64_000)
    );
    process.stop();
    let calls = api.calls().await;
    let ids = calls.iter().map(|call| &*call.job);
    account("memory", &bare, WAITING, ids, report).await;
}
