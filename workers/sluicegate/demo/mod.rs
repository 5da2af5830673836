//! `sluicegate demo`: the main job on a live workload. A strict downstream, tenants that publish, workers
//! that throttle, a live view, and at the end the figures of the promises, counted by the downstream's clock.

mod answers;
mod check;
mod children;
mod downstream;
mod ledger;
mod plan;
mod queues;
mod report;
mod scenario;
mod table;
mod view;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sluicegate::config::Config;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};

use children::{Folder, Settings, Worker};
use downstream::Downstream;
pub use plan::DemoArgs;
use plan::{Job, Plan};
use queues::Queues;
use report::{Figures, Observed};
use scenario::Scenario;
use view::View;

/// Between two looks at the dead-letter queue.
const DEAD_POLL: Duration = Duration::from_millis(500);

/// What ended the demo before it had figures; a sentence for the user.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DemoError(String);

/// Runs the demo on the servers of `config`; its limit, queue and downstream are the demo's own. Queues are
/// named for this run and deleted at the end, keys in Redis have a prefix of their own and expire.
/// Exit code 0: every promise held; 1: one did not; 2: the arguments make no demo.
///
/// # Errors
/// The demo could not be run to its end; workers and queues are gone all the same.
pub async fn run(args: DemoArgs, config: Config) -> Result<ExitCode, DemoError> {
    let plan = match Plan::new(&args) {
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
    let queues = Queues::connect(&config.amqp.url.urls[0], &name).await?;
    let observed = tokio::select! {
        observed = observe(&args, &plan, &config, &queues, &name) => observed,
        () = signals.next() => Err(DemoError("interrupted".to_owned())),
    };
    // Whatever happened, the queues go; what was left in them is a figure.
    let deleted = tokio::select! {
        deleted = queues.delete() => deleted,
        () = signals.next() => Err(DemoError(format!("interrupted again; the queues {name}* are left"))),
    };
    let (mut observed, left) = (observed?, deleted?);
    observed.left = left;
    let figures = Figures::new(&plan, &observed);
    if args.json {
        let json = serde_json::to_string_pretty(&figures);
        println!("{}", json.map_err(|error| DemoError(error.to_string()))?);
    } else {
        print!("\n{figures}");
    }
    Ok(if figures.holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Ctrl-C and SIGTERM.
struct Signals(Signal, Signal);

impl Signals {
    fn watch() -> Result<Self, DemoError> {
        let watch = |kind| {
            signal(kind).map_err(|error| DemoError(format!("signals can't be watched: {error}")))
        };
        Ok(Self(
            watch(SignalKind::interrupt())?,
            watch(SignalKind::terminate())?,
        ))
    }

    /// Waits for the next one.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.0.recv() => {}
            _ = self.1.recv() => {}
        }
    }
}

/// Starts everything, publishes, waits for the end, and gathers what happened. Dropped half-way it takes
/// workers, downstream and folder with it.
async fn observe(
    args: &DemoArgs,
    plan: &Plan,
    config: &Config,
    queues: &Queues,
    name: &str,
) -> Result<Observed, DemoError> {
    let say = |text: String| {
        if args.json {
            eprintln!("{text}")
        } else {
            println!("{text}")
        }
    };
    let downstream = Downstream::start(plan)
        .map_err(|error| DemoError(format!("the API can't be started: {error}")))?;
    say(format!(
        "{} tenants x {} jobs; the API at {} takes {} from each ({}){}; {} workers.",
        plan.tenants,
        plan.jobs,
        downstream.url(),
        plan.limits_in_words(),
        plan.limit().algorithm().name(),
        plan.scenario.in_words(plan.limit().max()),
        plan.workers,
    ));
    let wants_results = plan.scenario == Scenario::Results;
    if wants_results {
        queues.declare_results().await?;
    }
    let folder = Folder::new(name)?;
    let url = downstream.url();
    let prefix = name.replace('-', ":");
    let settings = Settings {
        config,
        plan,
        queue: name,
        prefix: &prefix,
        url: &url,
    };
    let mut workers = Vec::with_capacity(plan.workers);
    for number in 1..=plan.workers {
        workers.push(Worker::start(&folder, number, &settings)?);
    }
    for worker in &mut workers {
        worker.ready().await?;
    }
    say("The workers are ready; the tenants publish.".to_owned());
    let confirmed = watch(args, plan, queues, &downstream, &mut workers).await?;
    let mut deliveries = 0;
    for worker in &workers {
        deliveries += worker.deliveries().await?;
    }
    let dead = queues.take_dead(plan.total()).await?;
    let mut stopping: JoinSet<_> = workers.into_iter().map(Worker::stop).collect();
    while let Some(stopped) = stopping.join_next().await {
        stopped.map_err(|error| DemoError(error.to_string()))??;
    }
    // What the workers published last is there, since they have ended in order.
    let results = match wants_results {
        true => queues.take_results(plan.total() * 2).await?,
        false => Vec::new(),
    };
    let (arrivals, strangers) = downstream.arrivals();
    Ok(Observed {
        confirmed,
        arrivals,
        strangers,
        dead,
        results,
        left: 0,
        deliveries,
    })
}

/// Publishes, shows, and returns the confirmed jobs when all have ended or the deadline has passed.
async fn watch(
    args: &DemoArgs,
    plan: &Plan,
    queues: &Queues,
    downstream: &Downstream,
    workers: &mut [Worker],
) -> Result<Vec<Job>, DemoError> {
    let counts: Arc<[AtomicUsize]> = (0..plan.tenants).map(|_| AtomicUsize::new(0)).collect();
    let publishing = futures_util::future::try_join_all(
        (0..plan.tenants).map(|tenant| queues.publish(plan, tenant, &counts[tenant])),
    );
    tokio::pin!(publishing);
    let mut confirmed: Option<Vec<Job>> = None;
    let mut view = View::new(plan, args.json);
    let mut tick = interval(view::INTERVAL);
    let mut dead = 0;
    let mut dead_seen = Instant::now();
    let deadline = Instant::now() + plan.deadline();
    loop {
        tokio::select! {
            jobs = &mut publishing, if confirmed.is_none() => confirmed = Some(jobs?.concat()),
            _ = tick.tick() => {}
        }
        let progress = downstream.progress();
        let counts: Vec<usize> = counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect();
        view.show(&progress, &counts);
        for worker in workers.iter_mut() {
            worker.alive()?;
        }
        if dead_seen.elapsed() >= DEAD_POLL {
            dead = queues.dead_count().await?;
            dead_seen = Instant::now();
        }
        // Every tenant's last job is rejected: it is settled at the downstream, and then a dead letter.
        let settled: usize = progress.iter().map(|tenant| tenant.settled).sum();
        let ended = settled >= plan.total() && dead >= plan.tenants;
        if let Some(jobs) = confirmed.take_if(|_| ended || Instant::now() > deadline) {
            return Ok(jobs);
        }
        if Instant::now() > deadline {
            return Err(DemoError(
                "the jobs were not even published within the deadline".to_owned(),
            ));
        }
    }
}
