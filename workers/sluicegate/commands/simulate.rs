//! `sluicegate simulate`: the effect of configurations on a load, before they are live.

mod notes;
mod svg;

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use simulator::api::ApiModel;
use simulator::figures::Figures;
use simulator::forms::{
    ApiLimit, ArrivalRate, Burst, CostDistribution, Latency, MAX_DURATION, MAX_ROUND_TRIP, Percent,
    Skew,
};
use simulator::jobs::{self, SimulatedJob};
use simulator::load::LoadProfile;
use simulator::run::{MAX_WORKERS, RunProgress, RunSetup, simulate};
use simulator::stop_rule::work_of;
use simulator::{chart, table};
use sluicegate::config::{Config, DEFAULT_FILE, Pipelines, parse_duration};
use tokio::time::sleep;

use super::Failure;
use super::progress::Progress;

/// Interval at which progress is shown.
const TOLD: Duration = Duration::from_millis(200);
/// The name of the configuration if there is no file.
const NO_FILE: &str = "no configuration";
/// Maximum number of configurations side by side.
const MAX_CONFIGURATIONS: usize = 16;

/// See what a configuration does to a load, in simulated time: without servers, and before it is live
///
/// Whole workers run over a broker and a gate in memory, against an API as it is described. Several configurations get the same
/// jobs, and are shown side by side. The same --seed gives the same result.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate simulate --rate poisson:20/s --tenants 50 --for 10m
  sluicegate simulate --config old.yaml --config new.yaml --burst 5000 --tenants 20 --skew zipf
  sluicegate simulate --jobs jobs.jsonl --api-latency lognormal:80ms,0.5 --api-limit 100/60s --svg run.svg

A line of a file for --jobs: {\"at\": 1.5, \"tenant\": \"acme\", \"cost\": 3}
It may also have priority, plan, routing_key and header ({\"x-endpoint\": \"/v1\"}).

A run ends when all jobs are done or dead. It also ends when none has ended for so long that nothing will change (an API that
fails each call), and it says so then: with the number of jobs that were not done, and why.")]
pub struct SimulateArgs {
    /// A configuration; several are shown side by side
    #[arg(
        id = "config",
        long = "config",
        value_name = "FILE",
        env = "SLUICEGATE_CONFIG"
    )]
    configs: Vec<PathBuf>,
    /// Jobs and their times: a JSON object in each line, such as `run --record` writes (`-`: standard input)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "burst", "count", "lasts", "tenants", "cost", "skew"])]
    jobs: Option<PathBuf>,
    /// New jobs come at this rate: poisson:20/s (at random), uniform:20/s (evenly); also /m and /h
    #[arg(long, value_name = "RATE")]
    rate: Option<ArrivalRate>,
    /// So many jobs come at once: 500@30s; may be repeated
    #[arg(long, value_name = "JOBS@TIME")]
    burst: Vec<Burst>,
    /// For so long the rate lasts; without it and --count: 10m
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    lasts: Option<Duration>,
    /// So many jobs of the rate
    #[arg(long, value_name = "JOBS")]
    count: Option<usize>,
    /// So many tenants publish
    #[arg(long, value_name = "N", default_value_t = 1)]
    tenants: usize,
    /// How unequally: even, zipf, or zipf:1.2
    #[arg(long, value_name = "SKEW", default_value = "even")]
    skew: Skew,
    /// What a job costs: 3, uniform:1-5, or lognormal:800,0.7 (median and deviation)
    #[arg(long, value_name = "COST", default_value = "1")]
    cost: CostDistribution,
    /// How long a call takes: 80ms, uniform:50ms-200ms, or lognormal:80ms,0.5; up to 1h
    #[arg(long, value_name = "TIME", default_value = "50ms")]
    api_latency: Latency,
    /// So many calls fail (500)
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    api_errors: Percent,
    /// So many calls are answered 429, with Retry-After: 1
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    api_throttles: Percent,
    /// What the API itself allows, all tenants together: 100/60s (of each tenant: 100/60s:tenant); what is more is answered 429. A
    /// limiter may follow: 100/60s:tenant:nginx
    #[arg(long, value_name = "CALLS/TIME[:tenant][:LIMITER]")]
    api_limit: Option<ApiLimit>,
    /// So many workers run, each with the concurrency and the prefetch of its configuration
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: usize,
    /// How long a question to Redis takes, there and back; up to 1900ms
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = question)]
    redis_latency: Duration,
    /// What is drawn at random follows from this number
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// What is not done after so much simulated time is left; without it also what is not done after 1,000 calls and deliveries for
    /// each job, and 10,000 more [default: 30d]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    within: Option<Duration>,
    /// Prints one line of JSON; times are in seconds
    #[arg(long)]
    json: bool,
    /// Draws used quota and backlog over time into this file; what is there is overwritten if it is an SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Overwrites any file with the picture, but none that the simulation reads
    #[arg(long, requires = "svg")]
    force: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text)
        .filter(|duration| *duration <= MAX_DURATION)
        .ok_or_else(|| {
            "it must be a whole number with a unit, such as 500ms, 30s, 10m or 2h, up to 30d"
                .to_owned()
        })
}

fn question(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).filter(|time| *time <= MAX_ROUND_TRIP);
    time.ok_or_else(|| {
        "it must be a whole number with a unit, such as 2ms or 1s, up to 1900ms: a worker gives a question up after 2s"
            .to_owned()
    })
}

/// Everything that is printed as JSON.
#[derive(Serialize)]
struct SimulationReport<'a> {
    seed: u64,
    workers: usize,
    configurations: Vec<NamedFigures<'a>>,
}

#[derive(Serialize)]
struct NamedFigures<'a> {
    config: &'a str,
    #[serde(flatten)]
    figures: &'a Figures,
}

/// Plays the load against each configuration, in its pipeline `pipeline`.
pub async fn run(args: SimulateArgs, pipeline: Option<&str>) -> Result<ExitCode, Failure> {
    if !(1..=MAX_WORKERS).contains(&args.workers) {
        let words = format!(
            "--workers is {}; it must be from 1 to {MAX_WORKERS}",
            args.workers
        );
        return Err(Failure::Usage(words));
    }
    let svg = || match &args.svg {
        Some(file) => svg::check(file, &inputs(&args), args.force).map(|()| Some(file)),
        None => Ok(None),
    };
    svg()?;
    let configs = configurations(&args.configs, pipeline)?;
    if let Some(note) = notes::of_distance(args.redis_latency) {
        eprintln!("note: {note}");
    }
    let jobs = Arc::new(load(&args)?);
    for (_, config) in &configs {
        let file = args.jobs.as_deref();
        if let Some(warning) = file.and_then(|file| notes::of_tenants(file, config, &jobs)) {
            eprintln!("warning: {warning}");
        }
    }
    let all = play(&args, configs, &jobs).await?;
    // The file may have been created in the meantime.
    if let Some(file) = svg()? {
        svg::write(file, &chart::svg(&all))?;
    }
    if args.json {
        let configurations = all
            .iter()
            .map(|(config, figures)| NamedFigures { config, figures });
        super::print_json(&SimulationReport {
            seed: args.seed,
            workers: args.workers,
            configurations: configurations.collect(),
        })?;
    } else {
        io::stdout()
            .lock()
            .write_all(table::table(&all).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the input files.
fn inputs(args: &SimulateArgs) -> Vec<&Path> {
    let usual = args.configs.is_empty().then_some(Path::new(DEFAULT_FILE));
    let configs = args.configs.iter().map(PathBuf::as_path);
    configs.chain(usual).chain(args.jobs.as_deref()).collect()
}

/// Returns the configurations with the names of their files.
fn configurations(
    files: &[PathBuf],
    pipeline: Option<&str>,
) -> Result<Vec<(String, Config)>, Failure> {
    if files.len() > MAX_CONFIGURATIONS {
        let words = format!(
            "these are {} configurations; {MAX_CONFIGURATIONS} at most can be side by side",
            files.len()
        );
        return Err(Failure::Usage(words));
    }
    let load = |file: Option<&Path>| {
        let pipelines = Pipelines::from_env(file)?;
        let (_, config) = pipelines.one(pipeline).map_err(Failure::Usage)?;
        let usual = Path::new(DEFAULT_FILE);
        let read = file.or(usual.exists().then_some(usual));
        if let Some(note) = notes::of_limits(read, config) {
            eprintln!("note: {note}");
        }
        let name = read.map_or(NO_FILE.to_owned(), |file| file.display().to_string());
        Ok((name, config.clone()))
    };
    match files {
        [] => Ok(vec![load(None)?]),
        files => files.iter().map(|file| load(Some(file))).collect(),
    }
}

/// Checks that the options of a rate come with a rate, and that there are jobs.
fn means_something(args: &SimulateArgs) -> Result<(), &'static str> {
    let of_rate = args.lasts.is_some() || args.count.is_some();
    if args.rate.is_none() && of_rate && !args.burst.is_empty() {
        return Err(
            "--for and --count are of a rate, and there is none: give --rate, such as poisson:20/s",
        );
    }
    if args.lasts.is_some_and(|lasts| lasts.is_zero()) {
        return Err("--for is 0: no job would come; say for how long, such as 10m");
    }
    match args.count {
        Some(0) => Err("--count is 0: no job would come; say how many, such as 5000"),
        _ => Ok(()),
    }
}

/// Returns the jobs of the file, or those that the options describe.
fn load(args: &SimulateArgs) -> Result<Vec<SimulatedJob>, Failure> {
    let Some(file) = &args.jobs else {
        means_something(args).map_err(|why| Failure::Usage(why.to_owned()))?;
        let load = LoadProfile {
            tenants: args.tenants,
            skew: args.skew,
            rate: args.rate,
            lasts: args.lasts,
            count: args.count,
            bursts: args.burst.clone(),
            cost: args.cost,
        };
        return load.jobs(args.seed).map_err(Failure::Usage);
    };
    let read = match file.as_os_str() == "-" {
        true => jobs::read(io::stdin().lock()),
        false => {
            let opened = File::open(file).map_err(|why| {
                Failure::Usage(format!("--jobs: {} can't be read: {why}", file.display()))
            })?;
            jobs::read(BufReader::new(opened))
        }
    };
    let name = match file.as_os_str() == "-" {
        true => "standard input".to_owned(),
        false => file.display().to_string(),
    };
    read.map_err(|why| Failure::Usage(format!("{name}: {why}")))
}

/// Plays `jobs` against all configurations, as many at once as there are processors.
async fn play(
    args: &SimulateArgs,
    configs: Vec<(String, Config)>,
    jobs: &Arc<Vec<SimulatedJob>>,
) -> Result<Vec<(String, Figures)>, Failure> {
    let api = ApiModel {
        latency: args.api_latency,
        errors: args.api_errors,
        throttles: args.api_throttles,
        limit: args.api_limit,
    };
    let (workers, redis, seed) = (args.workers, args.redis_latency, args.seed);
    let most = args.within.unwrap_or(MAX_DURATION);
    let work = match args.within {
        Some(_) => u64::MAX,
        None => work_of(jobs.len()),
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let all_jobs = jobs.len() * configs.len();
    let watched: Vec<Arc<RunProgress>> = configs.iter().map(|_| Arc::default()).collect();
    let progress = Progress::begin("simulating");
    let mut waiting = configs.into_iter().zip(watched.clone());
    let (mut running, mut over) = (Vec::new(), Vec::new());
    loop {
        while running.len() < processors
            && let Some(((name, config), watched)) = waiting.next()
        {
            let jobs = Arc::clone(jobs);
            let thread = thread::spawn(move || {
                let setup = RunSetup {
                    config: &config,
                    workers,
                    api,
                    redis,
                    seed,
                    most,
                    work,
                };
                let history = simulate(&setup, &jobs, &watched);
                Figures::of(&config.rate_limiter.policy, &jobs, &history)
            });
            running.push((name, thread));
        }
        if running.is_empty() {
            return Ok(over);
        }
        // Results are in the order of the command line.
        if running[0].1.is_finished() {
            let (name, thread) = running.remove(0);
            let figures = thread.join();
            let figures = figures.map_err(|_| {
                Failure::Failed(format!(
                    "the simulation of {name} broke off; please report it"
                ))
            })?;
            over.push((name, figures));
            continue;
        }
        let so_far: usize = watched.iter().map(|run| run.done()).sum();
        // The time is that of the next configuration to be printed.
        let at_s = watched.get(over.len()).map_or(0, |run| run.at_s());
        progress.says(format!(
            "simulating: {} of {} jobs are done; {} of simulated time",
            table::number(so_far as u64),
            table::number(all_jobs as u64),
            table::time(at_s as f64)
        ));
        sleep(TOLD).await;
    }
}
