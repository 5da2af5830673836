//! Runs a load against a configuration.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use app::scheduler_settings;
use broker::{Broker as _, BrokerEvent, DeliverySource, Outgoing};
use config::{Config, TenantField, ValueField};
use engine::action::EngineSettings;
use engine::scheduler::Scheduler;
use engine::{EngineEnd, Stop};
use gate::Gate as _;
use rules::delays::DelayLevels;
use rules::headers;
use rules::job::{Field, labels};
use rules::tenant::Tenant;
use telemetry::metrics::Metrics;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, sleep_until};

use crate::api::{ApiHandler, ApiModel, RecordedApi};
use crate::environment::{self, Environment, in_simulated_time};
use crate::gate::{GateConnection, WaitRecorder};
use crate::history::{EarlyEnd, RunHistory};
use crate::jobs::{SimulatedJob, TENANT};
use crate::stop_rule::{RunState, StopRule};

/// Beginning of simulated time, in microseconds since the Unix epoch. It is midnight (UTC), when
/// every window that divides a day begins.
pub const EPOCH_US: u64 = 1_699_920_000_000_000;
/// Maximum number of jobs that are published together.
const BATCH: usize = 1_000;
/// Maximum number of quotas whose learned limits are read at the end.
const MAX_LEARNED_QUOTAS: usize = 1_000;
/// Maximum number of workers.
pub const MAX_WORKERS: usize = 1_000;

/// The conditions of a run.
#[derive(Debug, Clone)]
pub struct RunSetup<'a> {
    /// The workers' configuration.
    pub config: &'a Config,
    /// Number of workers.
    pub workers: usize,
    /// The API that they call.
    pub api: ApiModel,
    /// Round-trip time to Redis.
    pub redis: Duration,
    /// Seed of all random values.
    pub seed: u64,
    /// Maximum duration of the run. Jobs that are not done by then are left.
    pub max: Duration,
    /// Maximum number of calls and deliveries ([`crate::stop_rule::work_of`]). Jobs that are not
    /// done by then are left.
    pub work: u64,
}

/// The progress of a run, for an observer.
#[derive(Debug, Default)]
pub struct RunProgress {
    done: AtomicUsize,
    at_s: AtomicU64,
}

impl RunProgress {
    /// Returns the number of acked and dead-lettered jobs.
    pub fn done(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    /// Returns the seconds of simulated time that have passed.
    pub fn at_s(&self) -> u64 {
        self.at_s.load(Ordering::Relaxed)
    }

    fn send_state(&self, state: RunState) {
        self.done.fetch_max(state.ended, Ordering::Relaxed);
        self.at_s.store(state.at.as_secs(), Ordering::Relaxed);
    }
}

/// Runs `jobs`, which must be sorted by time.
pub fn simulate(
    setup: &RunSetup<'_>,
    jobs: &Arc<Vec<SimulatedJob>>,
    watched: &RunProgress,
) -> RunHistory {
    in_simulated_time(play(setup, jobs, watched))
}

/// Returns the scheduler settings that `config` gives for jobs built by [`SimulatedJob::message`].
fn settings(config: &Config) -> EngineSettings {
    let mut settings = scheduler_settings(config);
    settings.fields.tenant = TenantField::Header(TENANT.to_owned());
    settings.fields.cost = ValueField::Header(headers::COST.to_owned());
    // No publisher reads results.
    settings.results = None;
    settings
}

async fn play(
    setup: &RunSetup<'_>,
    jobs: &Arc<Vec<SimulatedJob>>,
    watched: &RunProgress,
) -> RunHistory {
    let settings = settings(setup.config);
    let run = ActiveRun::begin(setup, jobs, &settings.levels).await;
    let stop = Stop::default();
    let workers = run.start_workers(&settings, &stop);
    let (published, left) = run.publish_and_watch(watched).await;
    let unpublished = jobs.len() - published;
    let unfinished = (run.stage.left() + unpublished).min(jobs.len());
    stop.soft.cancel();
    if unfinished > 0 {
        stop.hard.cancel();
    }
    for worker in workers {
        // A worker that panicked has printed that to standard error, and its jobs are left.
        let _ = worker.await;
    }
    let ActiveRun {
        stage, api, waits, ..
    } = &run;
    RunHistory {
        epoch_us: EPOCH_US,
        calls: api.take_calls(),
        waits: waits.take(left.map(|left| stage.began + Duration::from_micros(left.at_us))),
        deliveries: stage.server.deliveries(),
        dead: dead_letters(stage),
        duplicates: waits.take_duplicates(stage.began),
        unfinished,
        left,
        shadows: waits.take_shadows(),
        learned: learned(stage, jobs, setup.config).await,
    }
}

/// A run whose simulated time has begun.
struct ActiveRun<'a> {
    setup: &'a RunSetup<'a>,
    jobs: &'a Arc<Vec<SimulatedJob>>,
    stage: Environment,
    api: Arc<RecordedApi>,
    waits: Arc<WaitRecorder>,
}

impl<'a> ActiveRun<'a> {
    async fn begin(
        setup: &'a RunSetup<'a>,
        jobs: &'a Arc<Vec<SimulatedJob>>,
        levels: &DelayLevels,
    ) -> Self {
        let (stage, mut news) = Environment::begin(EPOCH_US, levels).await;
        tokio::spawn(async move { while news.recv().await.is_some() {} });
        let began = (stage.began, EPOCH_US);
        Self {
            setup,
            jobs,
            api: Arc::new(RecordedApi::new(setup.api.clone(), setup.seed, began)),
            waits: Arc::new(WaitRecorder::default()),
            stage,
        }
    }

    /// Starts all workers. They run until `stop`.
    fn start_workers(&self, settings: &EngineSettings, stop: &Stop) -> Vec<JoinHandle<EngineEnd>> {
        let config = self.setup.config;
        let metrics = Arc::new(Metrics::new());
        let has_keys = self.jobs.iter().any(|job| job.routing_key.is_some());
        let mut workers = Vec::new();
        for number in 0..self.setup.workers {
            let prefetch = config.amqp.prefetch;
            let (client, mut events) = self.stage.join(prefetch, settings.live.concurrency);
            if has_keys {
                let (sender, receiver) = mpsc::channel(1);
                tokio::spawn(route(Arc::clone(self.jobs), events, sender));
                events = receiver;
            }
            let settings = environment::settings(settings.clone(), &client);
            let gate = GateConnection {
                gate: Arc::clone(&self.stage.gate),
                waits: Arc::clone(&self.waits),
                takes: self.setup.redis,
            };
            let caller = ApiHandler::new(&self.api, config);
            let patience = config.dispatch.shutdown_timeout;
            let engine = environment::engine((client, Arc::new(gate), caller), &metrics, patience);
            let scheduler = Scheduler::new(settings, self.setup.seed.wrapping_add(number as u64));
            workers.push(tokio::spawn(engine.run(scheduler, events, stop.clone())));
        }
        workers
    }

    /// Publishes the jobs and waits until all are done, or until the stop rule ends the run.
    /// Returns the number of published jobs, and the early end, if any.
    async fn publish_and_watch(&self, watched: &RunProgress) -> (usize, Option<EarlyEnd>) {
        let Self { stage, jobs, .. } = self;
        let published = Cell::new(0);
        let mut stop_rule = StopRule::new(self.setup, jobs);
        let publishing = publish(stage, jobs, self.setup.config, &published);
        tokio::pin!(publishing);
        loop {
            let state = self.state(published.get());
            watched.send_state(state);
            let is_published = published.get() == jobs.len();
            if state.waiting == 0 && is_published {
                return (published.get(), None);
            }
            let over = stop_rule.over(state);
            if over.is_some() {
                return (published.get(), over);
            }
            tokio::select! {
                biased;
                () = &mut publishing, if !is_published => {}
                () = sleep(stop_rule.pause(state.at)) => {}
            }
        }
    }

    /// Returns the state of the run after `published` jobs were published.
    fn state(&self, published: usize) -> RunState {
        let waiting = self.stage.left();
        RunState {
            at: self.stage.began.elapsed(),
            ended: published.saturating_sub(waiting),
            waiting,
            work: self.api.count() as u64 + self.stage.server.deliveries(),
        }
    }
}

/// Returns the index and the reason of each dead letter.
fn dead_letters(stage: &Environment) -> Vec<(usize, String)> {
    let dead = stage.server.messages(&stage.server.names().dead);
    let dead = dead.iter().map(|message| {
        let id = message.id().and_then(|id| id.parse().ok());
        let reason = match message.header(headers::REASON) {
            Field::Text(reason) => reason.to_owned(),
            _ => String::new(),
        };
        (id.unwrap_or_default(), reason)
    });
    dead.collect()
}

/// Returns the learned values of adaptive limits at the end, by name: the lowest of all tenants.
async fn learned(
    stage: &Environment,
    jobs: &[SimulatedJob],
    config: &Config,
) -> BTreeMap<String, u64> {
    let policy = &config.rate_limiter.policy;
    let mut learned = BTreeMap::new();
    if !policy
        .all()
        .any(|limits| limits.iter().any(|limit| limit.band().is_some()))
    {
        return learned;
    }
    let mut asked = HashSet::new();
    for job in jobs {
        let Ok(tenant) = Tenant::parse(&job.tenant) else {
            continue;
        };
        let plan = job.plan_under(policy);
        let limits = policy.limits(&tenant, plan.as_deref());
        let labels = labels(&job.message(0, policy.plan_header()), limits.all());
        let whose = (&job.tenant, plan, labels.clone());
        if asked.contains(&whose) {
            continue;
        }
        if asked.len() == MAX_LEARNED_QUOTAS {
            break;
        }
        asked.insert(whose);
        // The in-memory gate never fails.
        let Ok(found) = stage.gate.inspect(&tenant, &labels, limits).await else {
            continue;
        };
        for (limit, usage) in limits.iter().zip(&found.limits) {
            if limit.band().is_some() {
                let lowest = learned.entry(limit.name().to_owned()).or_insert(usage.max);
                *lowest = usage.max.min(*lowest);
            }
        }
    }
    learned
}

/// Publishes each job at its time and counts the published jobs.
async fn publish(
    stage: &Environment,
    jobs: &[SimulatedJob],
    config: &Config,
    published: &Cell<usize>,
) {
    let plan_header = config.rate_limiter.policy.plan_header();
    let fresh = stage.server.names().fresh;
    let mut next = 0;
    while let Some(job) = jobs.get(next) {
        sleep_until(stage.began + Duration::from_micros(job.at_us())).await;
        let now = environment::micros(stage.began.elapsed());
        let due = jobs[next..].iter().take(BATCH);
        let due = due.take_while(|job| job.at_us() <= now).count().max(1);
        let batch = (next..next + due).map(|id| Outgoing {
            queue: Arc::clone(&fresh),
            message: jobs[id].message(id, plan_header),
        });
        // This broker never fails, and its queue exists.
        let _ = stage.server.publish(batch.collect()).await;
        next += due;
        published.set(next);
    }
}

/// Gives each new job the routing key that would have brought it to its queue, since the in-memory
/// broker has no exchanges.
async fn route(
    jobs: Arc<Vec<SimulatedJob>>,
    mut from: mpsc::Receiver<BrokerEvent>,
    to: mpsc::Sender<BrokerEvent>,
) {
    while let Some(mut event) = from.recv().await {
        if let BrokerEvent::Deliveries(deliveries) = &mut event {
            let fresh = deliveries
                .iter_mut()
                .filter(|one| one.source == DeliverySource::Fresh);
            for delivery in fresh {
                let id = delivery.message.id().and_then(|id| id.parse().ok());
                let job = id.and_then(|id: usize| jobs.get(id));
                if let Some(key) = job.and_then(|job| job.routing_key.as_ref()) {
                    key.clone_into(&mut Arc::make_mut(&mut delivery.message).routing_key);
                }
            }
        }
        if to.send(event).await.is_err() {
            return;
        }
    }
}
