//! `torture` runs workers, a strict downstream and publishers against RabbitMQ and Redis, breaks
//! them in every way that a seed decides, and then checks the history of the run. `scripts/torture`
//! builds and runs it.
#![forbid(unsafe_code)]

mod amqp;
mod backlog;
mod bed;
mod checker;
mod clocks;
mod clusters;
mod dispatch;
mod downstream;
mod drain;
mod faults;
mod history;
mod job_attributes;
mod moments;
mod operator;
mod publishers;
mod report;
mod results;
mod run_plan;
mod schedule;
mod third_party;
mod workers;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};

use bed::{Bed, WorkerSlot};
use clocks::{Clocks, ProcessClock};
use clusters::{Network, RabbitMq, Rabbits, Redises, ServerKinds};
use dispatch::DispatchMode;
use downstream::Downstream;
use faults::FaultKind;
use history::{EventKind, History, HistoryEvent};
use operator::Operator;
use publishers::TenantPublisher;
use results::Listener;
use run_plan::{Args, MAX, RunPlan};
use schedule::FaultSchedule;
use third_party::ThirdParty;
use workers::{Common, RunningWorker};

/// Maximum time from the start of the workers until all consume.
const READY: Duration = Duration::from_secs(120);

/// The reason why a run ended before its verdict, as a sentence for the user.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RunFailure(String);

impl RunFailure {
    pub fn new(text: String) -> Self {
        Self(text)
    }
}

macro_rules! failure_from {
    ($($error:ty),*) => {$(
        impl From<$error> for RunFailure {
            fn from(error: $error) -> Self {
                Self(error.to_string())
            }
        }
    )*};
}
failure_from!(
    std::io::Error,
    lapin::Error,
    url::ParseError,
    tokio::task::JoinError,
    tokio::time::error::Elapsed
);

fn main() -> ExitCode {
    let args = Args::parse();
    let plan = match RunPlan::new(&args) {
        Ok(plan) => plan,
        Err(message) => {
            eprintln!("error: {message}");
            return ExitCode::from(2);
        }
    };
    app::install_tls_provider();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(until_signal(&args, &plan)),
        Err(error) => Err(RunFailure(format!("no threads to run on: {error}"))),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("Again: {}", plan.command());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}\nAgain: {}", plan.command());
            ExitCode::FAILURE
        }
    }
}

/// Runs until Ctrl-C or SIGTERM, which also ends everything that the run started.
async fn until_signal(args: &Args, plan: &RunPlan) -> Result<bool, RunFailure> {
    let mut int = signal(SignalKind::interrupt())?;
    let mut term = signal(SignalKind::terminate())?;
    tokio::select! {
        result = torture(args, plan) => result,
        _ = int.recv() => Err(RunFailure("interrupted".to_owned())),
        _ = term.recv() => Err(RunFailure("interrupted".to_owned())),
    }
}

/// Performs the run, checks it and prints the report. Returns true if every promise held.
async fn torture(args: &Args, plan: &RunPlan) -> Result<bool, RunFailure> {
    let began = Instant::now();
    let say = |text: &dyn Display| println!("{:7.1} s  {text}", began.elapsed().as_secs_f64());
    say(&plan.command());
    let temporary = tempfile::Builder::new().prefix("torture-").tempdir()?;
    let folder = match &args.keep {
        Some(folder) => {
            std::fs::create_dir_all(folder)?;
            folder
        }
        None => temporary.path(),
    };
    let queue = kit::servers::unique("torture");
    let bed = set_up(args, plan, folder, &queue).await?;
    say(&"servers and workers are ready");
    let listener = Listener {
        urls: bed.rabbit.urls(),
        work: queue.clone(),
        history: Arc::clone(&bed.history),
    };
    listener.declare().await?;
    let mut listening = JoinSet::new();
    listening.spawn(listener.run());
    if plan.dispatch == DispatchMode::Forward {
        let others = ThirdParty {
            urls: bed.rabbit.urls(),
            work: queue.clone(),
            downstream: Arc::clone(&bed.downstream),
        };
        others.declare().await?;
        listening.spawn(others.run());
    }
    let (left, strangers) = match run_to_rest(&bed, plan, listening, &say).await {
        Ok(rest) => rest,
        Err(error) => {
            keep_history(args, plan, &bed.history.events())?;
            return Err(error);
        }
    };
    let events = bed.history.events();
    let mut verdict = checker::check(&events, plan.rules());
    if left > 0 {
        let messages = left;
        verdict
            .findings
            .push(checker::Violation::LeftInQueues { messages });
    }
    if strangers > 0 {
        let count = strangers;
        verdict
            .findings
            .push(checker::Violation::UnknownDeadLetters { count });
    }
    say(&"the verdict");
    let pace = report::pace::Run::new(&events, plan);
    print!("\n{}", report::table(&verdict, &pace, left));
    let holds = verdict.holds();
    println!("{}", if holds { "PASS" } else { "FAIL" });
    if !holds || args.history.is_some() {
        keep_history(args, plan, &events)?;
    }
    if !holds {
        for (number, slot) in bed.slots.iter().enumerate() {
            let tail = slot.worker.lock().await.process.tail();
            eprintln!("The end of worker {number}'s log:\n{tail}");
        }
    }
    Ok(holds)
}

/// Runs until all work has ended, and ends the workers and the listeners. Returns the number of
/// messages that are still in queues, and the number of dead letters with unknown ids.
async fn run_to_rest(
    bed: &Bed,
    plan: &RunPlan,
    listening: JoinSet<()>,
    say: &dyn Fn(&dyn Display),
) -> Result<(u64, usize), RunFailure> {
    tokio::select! {
        outcome = run(bed, plan, say) => outcome,
        died = bed.watch() => died,
    }?;
    let left = drain::come_to_rest(bed).await?;
    bed.end().await?;
    drop(listening);
    Ok((left, drain::read_the_dead(bed).await?))
}

fn keep_history(args: &Args, plan: &RunPlan, events: &[HistoryEvent]) -> Result<(), RunFailure> {
    let default = || PathBuf::from(format!("target/torture-{}.jsonl", plan.seed));
    let path = args.history.clone().unwrap_or_else(default);
    if args.history.is_none() {
        std::fs::create_dir_all("target")?;
    }
    history::write(&path, events).map_err(|error| {
        RunFailure(format!(
            "the history can't be written to {}: {error}",
            path.display()
        ))
    })?;
    println!("The history is in {}", path.display());
    Ok(())
}

/// Starts everything but the publishers.
async fn set_up(
    args: &Args,
    plan: &RunPlan,
    folder: &Path,
    queue: &str,
) -> Result<Bed, RunFailure> {
    let ServerKinds { rabbitmq, redis } = plan.servers;
    let network = match rabbitmq {
        RabbitMq::Single => None,
        RabbitMq::Cluster => Some(Network::start().await?),
    };
    let rabbit = spawn_blocking(move || Rabbits::start(network));
    let clocks_of = |kind| {
        let needed = plan.kinds.contains(&kind);
        needed.then(Clocks::find).transpose()
    };
    let clock = match clocks_of(FaultKind::RedisClock)? {
        Some(clocks) => Some(ProcessClock::new(clocks, folder.join("redis.clock"))?),
        None => None,
    };
    let evicts = plan.kinds.contains(&FaultKind::RedisEvict);
    let redis = spawn_blocking(move || Redises::start(redis, clock, evicts));
    let (rabbit, redis) = (Arc::new(rabbit.await?), Arc::new(redis.await?));
    let urls = rabbit.urls().into_iter().map(|url| url.parse());
    let history = Arc::new(History::new());
    let downstream = Arc::new(Downstream::start(plan.seed, Arc::clone(&history))?);
    let common = Arc::new(Common {
        plan: plan.clone(),
        program: program(args)?,
        folder: folder.to_owned(),
        queue: queue.to_owned(),
        clocks: clocks_of(FaultKind::WorkerClock)?,
        rabbit: urls.collect::<Result<_, _>>()?,
        redis: redis.url().parse()?,
        found_by: redis.found_by(),
        downstream: downstream.address(),
    });
    let mut slots = Vec::with_capacity(plan.workers);
    for number in 0..plan.workers {
        let worker = RunningWorker::start(Arc::clone(&common), number, MAX).await?;
        slots.push(WorkerSlot {
            to_rabbit: worker.to_rabbit(),
            to_redis: worker.to_redis(),
            to_downstream: worker.to_downstream(),
            worker: Mutex::new(worker),
        });
    }
    for (number, slot) in slots.iter().enumerate() {
        let mut worker = slot.worker.lock().await;
        if !worker.process.ready("/readyz", READY).await? {
            let tail = worker.process.tail();
            return Err(RunFailure(format!(
                "worker {number} was not ready within {READY:?}\nThe end of its log:\n{tail}"
            )));
        }
    }
    history.add(EventKind::Limit { max: MAX });
    let config = common.operators_config()?;
    Ok(Bed {
        operator: (common.program.clone(), config),
        history,
        downstream,
        rabbit,
        redis,
        slots,
        names: plan.queues(queue),
        silence: Arc::default(),
        behind: Arc::default(),
    })
}

/// Returns the program under test: `sluicegate`, built beside this one.
fn program(args: &Args) -> Result<PathBuf, RunFailure> {
    if let Some(program) = &args.program {
        return Ok(program.clone());
    }
    let own = std::env::current_exe()?;
    let beside = own.with_file_name("sluicegate");
    match beside.is_file() {
        true => Ok(beside),
        false => Err(RunFailure(
            "sluicegate is not built: cargo build --bin sluicegate".to_owned(),
        )),
    }
}

/// Publishes jobs and injects faults until the time is over and everything works again.
async fn run(bed: &Bed, plan: &RunPlan, say: &dyn Fn(&dyn Display)) -> Result<(), RunFailure> {
    let enough = Arc::new(AtomicBool::new(false));
    let mut publishers = JoinSet::new();
    for tenant in 0..plan.tenants {
        let publisher = TenantPublisher {
            tenant,
            urls: bed.rabbit.urls(),
            queue: bed.names.fresh.to_string(),
            seed: plan.seed,
            backlog: 5 * MAX as usize,
            batch: 2 * MAX as u32,
            history: Arc::clone(&bed.history),
            enough: Arc::clone(&enough),
            silence: Arc::clone(&bed.silence),
            behind: Arc::clone(&bed.behind),
        };
        publishers.spawn(publisher.run());
    }
    let operator = Operator {
        program: bed.operator.0.clone(),
        config: bed.operator.1.clone(),
        seed: plan.seed,
        history: Arc::clone(&bed.history),
        enough: Arc::clone(&enough),
    };
    let mut operating = JoinSet::new();
    operating.spawn(operator.run());
    let end = Instant::now() + plan.lasts;
    sleep(plan.calm()).await;
    let mut number = 0;
    for step in FaultSchedule::new(plan.seed, &plan.kinds, plan.pace()) {
        if timeout(
            end.saturating_duration_since(Instant::now()),
            sleep(step.pause),
        )
        .await
        .is_err()
        {
            break;
        }
        let mut both = Vec::with_capacity(step.faults.len());
        for fault in &step.faults {
            number += 1;
            let (ended, waiting) = (bed.history.ended(), bed.history.waiting_in_all());
            say(&format_args!(
                "fault {number}: {}; {ended} jobs have ended, {waiting} wait",
                fault.kind
            ));
            both.push(bed.perform(number, *fault));
        }
        futures_util::future::try_join_all(both).await?;
    }
    // The loop may have ended early: the schedule is empty if there are no faults.
    tokio::time::sleep_until(end).await;
    enough.store(true, Ordering::Relaxed);
    while let Some(ended) = publishers.join_next().await {
        ended?;
    }
    while let Some(ended) = operating.join_next().await {
        ended??;
    }
    bed.history.add(EventKind::Draining);
    say(&"all faults are mended; waiting for the remaining jobs");
    Ok(())
}
