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
use config::{Config, DEFAULT_FILE, Pipelines, parse_duration};
use serde::Serialize;
use simulator::api::ApiModel;
use simulator::figures::Figures;
use simulator::forms::{
    ApiLimit, ArrivalRate, Burst, CostDistribution, Latency, MAX_DURATION, MAX_ROUND_TRIP, Percent,
    Skew,
};
use simulator::jobs::{self, SimulatedJob};
use simulator::load::LoadProfile;
use simulator::profile::PlayedLimits;
use simulator::run::{MAX_WORKERS, RunProgress, RunSetup, simulate};
use simulator::stop_rule::work_of;
use simulator::{chart, table};
use tokio::time::sleep;

use super::Failure;
use super::progress::Progress;

/// Interval at which progress is shown.
const TOLD: Duration = Duration::from_millis(200);
/// The name of the configuration if there is no file.
const NO_FILE: &str = "no configuration";
/// Maximum number of configurations side by side.
const MAX_CONFIGURATIONS: usize = 16;

/// Simulate a load with a configuration, without servers and in simulated time
///
/// Runs complete workers with a broker and a gate in memory, against an API that the options
/// describe. Several configurations get the same jobs and are shown side by side. The same --seed
/// gives the same result.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate simulate --rate poisson:20/s --tenants 50 --for 10m
  sluicegate simulate --config old.yaml --config new.yaml --burst 5000 --tenants 20 --skew zipf
  sluicegate simulate --burst 500 --api-limiter shopify
  sluicegate simulate --jobs jobs.jsonl --api-latency lognormal:80ms,0.5 --api-limit 100/60s --svg run.svg

A line of a file for --jobs: {\"at\": 1.5, \"tenant\": \"acme\", \"cost\": 3}
It can also have priority, plan, routing_key and header ({\"x-endpoint\": \"/v1\"}).

A run ends when all jobs are done or dead letters. It also ends if no job can end any more, such as when the API
fails every call, and then prints how many jobs were not done, and why.")]
pub struct SimulateArgs {
    /// Configuration file (repeatable: several are shown side by side)
    #[arg(
        id = "config",
        long = "config",
        value_name = "FILE",
        env = "SLUICEGATE_CONFIG"
    )]
    configs: Vec<PathBuf>,
    /// File with jobs and their times, one JSON object per line, as written by `run --record` (`-`:
    /// standard input)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "burst", "count", "lasts", "tenants", "cost", "skew"])]
    jobs: Option<PathBuf>,
    /// Publish jobs at this rate: poisson:20/s (at random) or uniform:20/s (evenly); also /m and /h
    #[arg(long, value_name = "RATE")]
    rate: Option<ArrivalRate>,
    /// Publish JOBS at once at TIME, for example 500@30s (repeatable)
    #[arg(long, value_name = "JOBS@TIME")]
    burst: Vec<Burst>,
    /// How long to publish at --rate [default: 10m, unless --count is given]
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    lasts: Option<Duration>,
    /// Number of jobs to publish at --rate
    #[arg(long, value_name = "JOBS")]
    count: Option<usize>,
    /// Number of tenants that publish
    #[arg(long, value_name = "N", default_value_t = 1)]
    tenants: usize,
    /// How jobs are distributed over tenants: even, zipf, or zipf:1.2
    #[arg(long, value_name = "SKEW", default_value = "even")]
    skew: Skew,
    /// Cost of a job: 3, uniform:1-5, or lognormal:800,0.7 (median and sigma) [default: 1]
    #[arg(long, value_name = "COST")]
    cost: Option<CostDistribution>,
    /// Duration of a call: 80ms, uniform:50ms-200ms, or lognormal:80ms,0.5; up to 1h
    #[arg(long, value_name = "TIME", default_value = "50ms")]
    api_latency: Latency,
    /// Share of calls that fail with 500, such as 2%
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    api_errors: Percent,
    /// Share of calls that are answered with 429 and Retry-After: 1, such as 2%
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    api_throttles: Percent,
    /// The API's own limit for all tenants together: 100/60s (per tenant: 100/60s:tenant); it
    /// answers calls above the limit with 429. A limiter can follow: 100/60s:tenant:nginx
    #[arg(long, value_name = "CALLS/TIME[:tenant][:LIMITER]")]
    api_limit: Option<ApiLimit>,
    /// The limits of an API that Sluicegate knows (`init --api` lists the APIs). A plan follows
    /// after a colon, as in shopify-graphql:plus; without it, the first plan applies. The API
    /// answers calls above the limits with 429
    #[arg(long, value_name = "API[:PLAN]", conflicts_with = "api_limit")]
    api_limiter: Option<PlayedLimits>,
    /// Number of workers, each with the concurrency and the prefetch of its configuration
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: usize,
    /// Round-trip time to Redis; up to 1900ms
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = question)]
    redis_latency: Duration,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// End the run after this much simulated time; without it, also after 10,000 calls and
    /// deliveries plus 1,000 per job [default: 30d]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    within: Option<Duration>,
    /// Print one line of JSON; times are in seconds
    #[arg(long)]
    json: bool,
    /// Write a chart of used quota and backlog over time to this SVG file; overwrites an existing
    /// SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Let --svg overwrite any file except the simulation's own input
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
        "it must be a whole number with a unit, such as 2ms or 1s, up to 1900ms: a worker's \
        requests time out after 2s"
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
    if args.cost.is_none() && args.jobs.is_none() {
        let notes = configs
            .iter()
            .filter_map(|(_, config)| notes::of_costs(config));
        notes.take(1).for_each(|note| eprintln!("note: {note}"));
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
            "{} configurations were given; the maximum is {MAX_CONFIGURATIONS}",
            files.len()
        );
        return Err(Failure::Usage(words));
    }
    let load = |file: Option<&Path>| {
        let pipelines = Pipelines::from_env(file)?;
        let (_, config) = pipelines.select(pipeline).map_err(Failure::Usage)?;
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
        return Err("--for and --count require a rate: give --rate, such as poisson:20/s");
    }
    if args.lasts.is_some_and(|lasts| lasts.is_zero()) {
        return Err("--for is 0, so no job would be published; give a duration, such as 10m");
    }
    match args.count {
        Some(0) => Err("--count is 0, so no job would be published; give a number, such as 5000"),
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
            cost: args.cost.unwrap_or(CostDistribution::ONE),
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
        limits: match &args.api_limiter {
            Some(PlayedLimits(limits)) => limits.clone(),
            None => args.api_limit.into_iter().collect(),
        },
    };
    let (workers, redis, seed) = (args.workers, args.redis_latency, args.seed);
    let max = args.within.unwrap_or(MAX_DURATION);
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
            let (jobs, api) = (Arc::clone(jobs), api.clone());
            let thread = thread::spawn(move || {
                let setup = RunSetup {
                    config: &config,
                    workers,
                    api,
                    redis,
                    seed,
                    max,
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
                    "the simulation of {name} crashed; please report it"
                ))
            })?;
            over.push((name, figures));
            continue;
        }
        let so_far: usize = watched.iter().map(|run| run.done()).sum();
        // The time is that of the next configuration to be printed.
        let at_s = watched.get(over.len()).map_or(0, |run| run.at_s());
        progress.show(format!(
            "simulating: {} of {} jobs are done; {} of simulated time",
            table::number(so_far as u64),
            table::number(all_jobs as u64),
            table::time(at_s as f64)
        ));
        sleep(TOLD).await;
    }
}
