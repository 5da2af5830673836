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
mod workload;

use std::fmt::Display;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::Serialize;
use sluicegate::config::Config;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};
use trial::pauses::PauseWatch;

use children::{DemoWorker, WorkerCounts, WorkerSettings};
use downstream::DemoApi;
use ledger::TenantProgress;
use pipelines::{PipelineRole, ScenarioStage};
use queues::DemoQueues;
use report::{ApiOutage, CombinedFigures, DemoFigures, DemoObservations};
use scenario::Scenario;
use view::ProgressView;
pub use workload::DemoArgs;
use workload::{DemoJob, Workload};

/// Interval at which the dead-letter queue is polled.
const DEAD_POLL: Duration = Duration::from_millis(500);

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
    let plan = match Workload::new(&args) {
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
    let parts = parts(&plan, &config, &name).await?;
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

fn print(args: &DemoArgs, figures: &(impl Serialize + Display)) -> Result<(), DemoError> {
    if args.json {
        let json = serde_json::to_string_pretty(figures);
        println!("{}", json.map_err(|error| DemoError(error.to_string()))?);
    } else {
        print!("\n{figures}");
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
    let pauses = PauseWatch::start();
    let (confirmed, outage) = watch(args, plan, parts, &mut workers).await?;
    let pauses = pauses.pauses();
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
            pauses,
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

/// Publishes the jobs, shows progress, and makes an API go away and come back if the scenario
/// requires it. Returns the confirmed jobs of each part when all have ended or the deadline has
/// passed.
async fn watch(
    args: &DemoArgs,
    plan: &Workload,
    parts: &[PipelineSetup],
    workers: &mut [DemoWorker],
) -> Result<(Vec<Vec<DemoJob>>, Option<ApiOutage>), DemoError> {
    let plans: Vec<Workload> = parts.iter().map(|part| part.plan.clone()).collect();
    let (queues, downstreams): (Vec<_>, Vec<_>) = (parts.iter())
        .map(|part| (&part.queues, &part.downstream))
        .unzip();
    let counts: Vec<Arc<[AtomicUsize]>> = (plans.iter())
        .map(|plan| (0..plan.tenants).map(|_| AtomicUsize::new(0)).collect())
        .collect();
    let (begin, started) = watch::channel(false);
    let publish = |at: usize| {
        let (plan, queues, counts, started) = (&plans[at], queues[at], &counts[at], &started);
        let of_tenant =
            move |tenant: usize| queues.publish(plan, tenant, &counts[tenant], started.clone());
        futures_util::future::try_join_all((0..plan.tenants).map(of_tenant))
    };
    let publishing = futures_util::future::try_join_all((0..plans.len()).map(publish));
    tokio::pin!(publishing);
    let mut confirmed: Option<Vec<Vec<DemoJob>>> = None;
    let mut view = ProgressView::new(&plans, args.json);
    let mut tick = interval(view::INTERVAL);
    let mut dead = vec![0; plans.len()];
    let mut dead_seen = Instant::now();
    let mut stage = ScenarioStage::Flooding;
    let mut outage: Option<ApiOutage> = None;
    let deadline = Instant::now() + plan.deadline();
    loop {
        tokio::select! {
            jobs = &mut publishing, if confirmed.is_none() => {
                confirmed = Some(jobs?.into_iter().map(|jobs| jobs.concat()).collect());
            }
            _ = tick.tick() => {}
        }
        let progress: Vec<Vec<TenantProgress>> = downstreams
            .iter()
            .map(|downstream| downstream.progress())
            .collect();
        let counts: Vec<Vec<usize>> = counts
            .iter()
            .map(|counts| {
                counts
                    .iter()
                    .map(|count| count.load(Ordering::Relaxed))
                    .collect()
            })
            .collect();
        view.show(&progress.concat(), &counts.concat());
        for worker in workers.iter_mut() {
            worker.alive()?;
        }
        if dead_seen.elapsed() >= DEAD_POLL {
            for (dead, queues) in dead.iter_mut().zip(&queues) {
                *dead = queues.dead_count().await?;
            }
            dead_seen = Instant::now();
        }
        let settled: Vec<usize> = (progress.iter())
            .map(|tenants| tenants.iter().map(|tenant| tenant.settled).sum())
            .collect();
        let published: Vec<usize> = counts.iter().map(|counts| counts.iter().sum()).collect();
        let next = stage.next(&plans, &settled, &published);
        if next != stage {
            let away = plans
                .iter()
                .position(|plan| plan.pipeline == Some(PipelineRole::Away));
            // Scenarios without an outage never get here.
            let Some(downstream) = away.map(|at| downstreams[at]) else {
                continue;
            };
            match &mut outage {
                None => {
                    outage = Some(ApiOutage {
                        from_ns: downstream.go_away().await,
                        to_ns: u64::MAX,
                    });
                    view.say("The API of away refuses connections; jobs of steady are published.");
                    begin.send_replace(true);
                }
                Some(outage) => {
                    let back = downstream.come_back();
                    let lost = |error| DemoError(format!("the API lost its port: {error}"));
                    outage.to_ns = back.map_err(lost)?;
                    view.say("The API of away accepts connections again.");
                }
            }
            stage = next;
        }
        // Every tenant's last job is rejected: it is settled at the API, and then becomes a dead
        // letter.
        let has_ended =
            |at: usize| settled[at] >= plans[at].total() && dead[at] >= plans[at].tenants;
        let ended = (0..plans.len()).all(has_ended);
        if let Some(jobs) = confirmed.take_if(|_| ended || Instant::now() > deadline) {
            return Ok((jobs, outage));
        }
        if Instant::now() > deadline {
            return Err(DemoError(
                "the jobs were not published before the deadline".to_owned(),
            ));
        }
    }
}
