//! `sluicegate demo`: the main job on a live workload. It has a strict API, tenants that publish,
//! workers that limit their calls, a live view, and at the end the figures of the promises, counted
//! by the API's clock.

mod answers;
mod check;
mod children;
mod downstream;
mod ledger;
mod pipelines;
mod queues;
mod report;
mod scenario;
mod table;
mod view;
mod watch;
mod workload;

use std::fmt::Display;
use std::process::ExitCode;

use config::{Config, RedisTopology, Tls};
use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use trial::core_waits::CoreWatch;
use trial::pauses::PauseWatch;

use children::{DemoWorker, WorkerCounts, WorkerSettings};
use downstream::DemoApi;
use pipelines::PipelineRole;
use queues::DemoQueues;
use report::{CombinedFigures, DemoFigures, DemoObservations};
use scenario::Scenario;
use watch::publish_and_watch;
pub use workload::DemoArgs;
use workload::Workload;

/// The reason why the demo ended without figures, as a sentence for the user.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DemoError(String);

/// Runs the demo on the servers of `config`, with its own limit, queue and API. Queues are named
/// after this run and deleted at the end. Keys in Redis have their own prefix and expire. The exit
/// status is 0 if all promises held, 1 if one did not, and 2 if the arguments are invalid.
///
/// # Errors
/// The demo could not be completed. Workers and queues are gone in that case, too.
pub async fn run(args: DemoArgs, config: Config) -> Result<ExitCode, DemoError> {
    let plan = match check_servers(&config).and_then(|()| Workload::new(&args)) {
        Ok(plan) => plan,
        Err(message) => {
            eprintln!("error: {message}");
            return Ok(ExitCode::from(2));
        }
    };
    let mut signals = Signals::watch()?;
    let name = format!(
        "sluicegate-demo-{}",
        ulid::Ulid::new().to_string().to_lowercase()
    );
    let parts = tokio::select! {
        parts = parts(&plan, &config, &name) => parts?,
        () = signals.next() => return Err(DemoError("interrupted".to_owned())),
    };
    let plans: Vec<Workload> = parts.iter().map(|part| part.plan.clone()).collect();
    let observed = tokio::select! {
        observed = observe(&args, &plan, &config, &parts, &name) => observed,
        () = signals.next() => Err(DemoError("interrupted".to_owned())),
    };
    // The queues are deleted in any case. The messages left in them are a figure.
    let deleting =
        futures_util::future::try_join_all(parts.iter().map(|part| part.queues.delete()));
    let deleted = tokio::select! {
        deleted = deleting => deleted,
        () = signals.next() => Err(DemoError(format!("interrupted again: the queues {name}* are \
            not deleted"))),
    };
    let (mut observed, left) = (observed?, deleted?);
    for (observed, left) in observed.iter_mut().zip(left) {
        observed.left = left;
    }
    let holds = if plan.scenario == Scenario::Pipelines {
        let figures = CombinedFigures::new(&plans, &observed);
        print(&args, &figures)?;
        figures.holds
    } else {
        let figures = DemoFigures::new(&plan, &observed[0]);
        print(&args, &figures)?;
        figures.holds
    };
    Ok(if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Checks that the demo can use the servers of `config`: it has clients of its own.
fn check_servers(config: &Config) -> Result<(), String> {
    let redis = &config.redis.url;
    let key = match redis.topology {
        RedisTopology::Cluster => "redis.cluster",
        RedisTopology::Sentinel(_) => "redis.sentinels",
        RedisTopology::Single if redis.tls != Tls::default() => "redis.ca-file or redis.cert-file",
        RedisTopology::Single if config.amqp.tls != Tls::default() => {
            "amqp.ca-file or amqp.cert-file"
        }
        RedisTopology::Single => return Ok(()),
    };
    Err(format!(
        "the demo can't use {key}: use a --config with one RabbitMQ and one Redis, or run \
        scripts/demo, which starts them"
    ))
}

fn print(args: &DemoArgs, figures: &(impl Serialize + Display)) -> Result<(), DemoError> {
    if args.json {
        let json = serde_json::to_string_pretty(figures);
        println!("{}", json.map_err(|error| DemoError(error.to_string()))?);
    } else {
        println!("\n{}", figures.to_string().trim_end());
    }
    Ok(())
}

/// The workload, queues and API of one pipeline.
pub struct PipelineSetup {
    plan: Workload,
    queues: DemoQueues,
    downstream: DemoApi,
}

/// Returns the parts of `plan`. A single part's queue is called `name`.
async fn parts(
    plan: &Workload,
    config: &Config,
    name: &str,
) -> Result<Vec<PipelineSetup>, DemoError> {
    let start = std::time::Instant::now();
    let mut parts = Vec::new();
    for plan in plan.parts() {
        let queue = match plan.pipeline {
            Some(pipeline) => format!("{name}-{}", pipeline.name()),
            None => name.to_owned(),
        };
        let downstream = DemoApi::start(&plan, start)
            .map_err(|error| DemoError(format!("the API can't be started: {error}")))?;
        parts.push(PipelineSetup {
            queues: DemoQueues::connect(&config.amqp.url.urls[0], &queue).await?,
            downstream,
            plan,
        });
    }
    Ok(parts)
}

/// Ctrl-C and SIGTERM.
struct Signals(Signal, Signal);

impl Signals {
    fn watch() -> Result<Self, DemoError> {
        let watch = |kind| {
            signal(kind).map_err(|error| DemoError(format!("can't listen for signals: {error}")))
        };
        Ok(Self(
            watch(SignalKind::interrupt())?,
            watch(SignalKind::terminate())?,
        ))
    }

    /// Waits for the next signal.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.0.recv() => {}
            _ = self.1.recv() => {}
        }
    }
}

/// Starts everything, publishes, waits for the end, and collects the observations of each part.
/// Dropping the future stops the workers and deletes their folder.
async fn observe(
    args: &DemoArgs,
    plan: &Workload,
    config: &Config,
    parts: &[PipelineSetup],
    name: &str,
) -> Result<Vec<DemoObservations>, DemoError> {
    for part in parts {
        say(args, &describe(part));
        if part.plan.scenario == Scenario::Results {
            part.queues.declare_results().await?;
        }
    }
    // Only this user can read it, since configurations contain passwords.
    let folder = tempfile::Builder::new().prefix(name).tempdir();
    let folder = folder.map_err(|error| DemoError(format!("no temporary folder: {error}")))?;
    let prefix = name.replace('-', ":");
    let settings = WorkerSettings {
        config,
        prefix: &prefix,
        parts,
    };
    let mut workers = Vec::with_capacity(plan.workers);
    for number in 1..=plan.workers {
        workers.push(DemoWorker::start(folder.path(), number, &settings)?);
    }
    for worker in &mut workers {
        worker.ready(parts).await?;
    }
    say(args, "The workers are ready; tenants start publishing.");
    // All APIs share a clock.
    let origin = parts.first().map(|part| part.downstream.origin());
    let origin = origin.unwrap_or_else(std::time::Instant::now);
    let pauses = PauseWatch::start(origin);
    let of_workers = workers.iter().filter_map(DemoWorker::id);
    let core_waits = CoreWatch::start(origin, of_workers.chain([std::process::id()]).collect());
    let (confirmed, outage) = publish_and_watch(args, plan, parts, &mut workers).await?;
    let (pauses, core_waits) = (pauses.pauses(), core_waits.waits());
    let mut all = Vec::with_capacity(parts.len());
    for (part, confirmed) in parts.iter().zip(confirmed) {
        let mut counted = WorkerCounts::default();
        for worker in &workers {
            counted.add(worker.counted(part.plan.pipeline).await?);
        }
        let is_away = part.plan.pipeline == Some(PipelineRole::Away);
        all.push(DemoObservations {
            confirmed,
            dead: part.queues.take_dead(part.plan.total()).await?,
            counted,
            outage: outage.filter(|_| is_away),
            pauses: pauses.clone(),
            core_waits: core_waits.clone(),
            ..DemoObservations::default()
        });
    }
    let mut stopping: JoinSet<_> = workers.into_iter().map(DemoWorker::stop).collect();
    while let Some(stopped) = stopping.join_next().await {
        stopped.map_err(|error| DemoError(error.to_string()))??;
    }
    for (part, observed) in parts.iter().zip(&mut all) {
        // The workers have ended gracefully, so their last messages have arrived.
        if part.plan.scenario == Scenario::Results {
            observed.results = part.queues.take_results(part.plan.total() * 2).await?;
        }
        (observed.arrivals, observed.strangers) = part.downstream.arrivals();
    }
    if let Err(error) = folder.close() {
        eprintln!("the workers' folder was not removed: {error}");
    }
    Ok(all)
}

/// Prints progress. With `--json` it goes to standard error.
fn say(args: &DemoArgs, text: &str) {
    if args.json {
        eprintln!("{text}")
    } else {
        println!("{text}")
    }
}

/// Describes the workload of a part.
fn describe(part: &PipelineSetup) -> String {
    let PipelineSetup {
        plan, downstream, ..
    } = part;
    format!(
        "{}{} tenants x {} jobs; the API at {} takes {} from each ({}){}; {} workers.",
        plan.pipeline
            .map_or(String::new(), |pipeline| format!("{}: ", pipeline.name())),
        plan.tenants,
        plan.jobs,
        downstream.url(),
        plan.describe_limits(),
        plan.limit().algorithm().name(),
        match plan.pipeline {
            Some(pipeline) => pipeline.describe(),
            None => plan.scenario.describe(plan.limit().max()),
        },
        plan.workers,
    )
}
