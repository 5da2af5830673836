//! A load, played against a configuration.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sluicegate::app::scheduler_settings;
use sluicegate::broker::{Broker as _, Event, Outgoing, Source};
use sluicegate::config::{Config, TenantField, ValueField};
use sluicegate::engine::Stop;
use sluicegate::engine::action::Settings;
use sluicegate::engine::scheduler::Scheduler;
use sluicegate::metrics::Metrics;
use sluicegate::rules::headers;
use sluicegate::rules::job::Field;
use tokio::sync::mpsc;
use tokio::time::{sleep, sleep_until};

use crate::api::{Api, Called, Caller};
use crate::gate::{Waits, Way};
use crate::history::History;
use crate::jobs::{Job, TENANT};
use crate::stage::{self, Stage, in_simulated_time};

/// When simulated time begins: at midnight (UTC), when a window of any whole part of a day begins. In microseconds since the epoch.
pub const EPOCH_US: u64 = 1_699_920_000_000_000;
/// So many jobs are published together at most.
const BATCH: usize = 1_000;
/// How often it is looked whether all is done.
const LOOK: Duration = Duration::from_millis(500);
/// The most workers.
pub const MOST_WORKERS: usize = 1_000;

/// Against what.
#[derive(Debug, Clone)]
pub struct Setup<'a> {
    /// What workers are told.
    pub config: &'a Config,
    /// How many workers there are.
    pub workers: usize,
    /// What they call.
    pub api: Api,
    /// How long a question to Redis takes, there and back.
    pub redis: Duration,
    /// What is drawn at random follows from this.
    pub seed: u64,
    /// What is not done by then is left.
    pub most: Duration,
}

/// Plays `jobs`, which are in the order of their times. `done` counts those that are acked or dead, for whoever watches.
pub fn simulate(setup: &Setup<'_>, jobs: &Arc<Vec<Job>>, done: &AtomicUsize) -> History {
    in_simulated_time(play(setup, jobs, done))
}

/// What `config` means for a scheduler whose jobs come from [`Job::message`].
fn settings(config: &Config) -> Settings {
    let mut settings = scheduler_settings(config);
    settings.fields.tenant = TenantField::Header(TENANT.to_owned());
    settings.fields.cost = ValueField::Header(headers::COST.to_owned());
    // Nobody takes results.
    settings.results = None;
    settings
}

async fn play(setup: &Setup<'_>, jobs: &Arc<Vec<Job>>, done: &AtomicUsize) -> History {
    let config = setup.config;
    let settings = settings(config);
    let (stage, mut news) = Stage::begin(EPOCH_US, &settings.levels).await;
    tokio::spawn(async move { while news.recv().await.is_some() {} });
    let called = Arc::new(Called::new(setup.api, setup.seed, (stage.began, EPOCH_US)));
    let waits = Arc::new(Waits::default());
    let (stop, metrics) = (Stop::default(), Arc::new(Metrics::new()));
    let has_keys = jobs.iter().any(|job| job.routing_key.is_some());
    let mut workers = Vec::new();
    for number in 0..setup.workers {
        let (client, mut events) = stage.join(config.amqp.prefetch, settings.live.concurrency);
        if has_keys {
            let (sender, receiver) = mpsc::channel(1);
            tokio::spawn(route(Arc::clone(jobs), events, sender));
            events = receiver;
        }
        let settings = stage::settings(settings.clone(), &client);
        let way = Way {
            gate: Arc::clone(&stage.gate),
            waits: Arc::clone(&waits),
            takes: setup.redis,
        };
        let caller = Caller::new(&called, config);
        let patience = config.dispatch.shutdown_timeout;
        let engine = stage::engine((client, Arc::new(way), caller), &metrics, patience);
        let scheduler = Scheduler::new(settings, setup.seed.wrapping_add(number as u64));
        workers.push(tokio::spawn(engine.run(scheduler, events, stop.clone())));
    }
    publish(&stage, jobs, config).await;
    loop {
        let left = stage.left();
        done.store(jobs.len().saturating_sub(left), Ordering::Relaxed);
        if left == 0 || stage.began.elapsed() >= setup.most {
            break;
        }
        sleep(LOOK).await;
    }
    let unfinished = stage.left();
    stop.soft.cancel();
    if unfinished > 0 {
        stop.hard.cancel();
    }
    for worker in workers {
        // A worker that panicked has said so on standard error, and left its jobs.
        let _ = worker.await;
    }
    let dead = stage.server.messages(&stage.server.names().dead);
    let dead = dead.iter().map(|message| {
        let id = message.id().and_then(|id| id.parse().ok());
        let reason = match message.header(headers::REASON) {
            Field::Text(reason) => reason.to_owned(),
            _ => String::new(),
        };
        (id.unwrap_or_default(), reason)
    });
    History {
        epoch_us: EPOCH_US,
        calls: called.take_calls(),
        waits: waits.take(),
        deliveries: stage.server.deliveries(),
        dead: dead.collect(),
        unfinished,
    }
}

/// Publishes each job when its time has come.
async fn publish(stage: &Stage, jobs: &[Job], config: &Config) {
    let plan_header = config.rate_limiter.policy.plan_header();
    let fresh = stage.server.names().fresh;
    let mut next = 0;
    while let Some(job) = jobs.get(next) {
        sleep_until(stage.began + Duration::from_micros(job.at_us())).await;
        let now = stage::micros(stage.began.elapsed());
        let due = jobs[next..].iter().take(BATCH);
        let due = due.take_while(|job| job.at_us() <= now).count().max(1);
        let batch = (next..next + due).map(|id| Outgoing {
            queue: Arc::clone(&fresh),
            message: jobs[id].message(id, plan_header),
        });
        // This broker is never away, and its queue is there.
        let _ = stage.server.publish(batch.collect()).await;
        next += due;
    }
}

/// The broker in memory has no exchanges: a fresh job gets the routing key that would have brought it to its queue.
async fn route(jobs: Arc<Vec<Job>>, mut from: mpsc::Receiver<Event>, to: mpsc::Sender<Event>) {
    while let Some(mut event) = from.recv().await {
        if let Event::Deliveries(deliveries) = &mut event {
            let fresh = deliveries
                .iter_mut()
                .filter(|one| one.source == Source::Fresh);
            for delivery in fresh {
                let id = delivery.message.id().and_then(|id| id.parse().ok());
                let job = id.and_then(|id: usize| jobs.get(id));
                if let Some(key) = job.and_then(|job| job.routing_key.as_ref()) {
                    key.clone_into(&mut delivery.message.routing_key);
                }
            }
        }
        if to.send(event).await.is_err() {
            return;
        }
    }
}
