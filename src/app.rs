//! The only wiring: reads like the list of what a worker is made of.

mod reload;

use std::convert::Infallible;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tracing::{error, info, warn};

use crate::admin::{self, Health};
use crate::app::reload::{Reload, Steward, changeable};
use crate::broker::BrokerError;
use crate::broker::amqp::{AmqpBroker, in_use};
use crate::config::{Config, Source};
use crate::engine::action::{Changeable, Settings};
use crate::engine::outage::Outage;
use crate::engine::scheduler::Scheduler;
use crate::engine::{Engine, Over, Stop};
use crate::gate::redis::RedisGate;
use crate::gate::registry::{Named, Registry};
use crate::gate::{Gate, GateError, Rule, Start};
use crate::handler::PreparingHandler;
use crate::handler::http::HttpHandler;
use crate::metrics::Metrics;
use crate::rules::lanes::{self, Ladder, QueueNames};
use crate::rules::limit::{Algorithm, ceil_ms};
use crate::rules::policy::Policy;
use crate::rules::retry::Reconnect;
use crate::tasks::{Ended, Tasks};

/// How often an idle worker looks whether Redis answers, for `/readyz`.
const PING_EVERY: Duration = Duration::from_secs(2);
/// A shorter round trip to Redis is nothing to speak of.
const FAR: Duration = Duration::from_millis(10);
/// News for the engine that may wait.
const UPDATES: usize = 4;
/// Why the engine has nothing to do any more is told within this, or not at all.
const TOLD_WITHIN: Duration = Duration::from_secs(1);
/// A worker that ends tells Redis so within this, or not at all.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// Why a worker could not start, or go on. Once it runs, it survives its servers.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// `run` without a handler.
    #[error(
        "dispatch.http.url is not set: name the API that jobs are sent to, such as http://127.0.0.1:8080/"
    )]
    NoHandler,
    /// The HTTP client can't be built.
    #[error("dispatch.http: {0}")]
    Http(String),
    /// The admin port can't be opened.
    #[error(transparent)]
    Admin(#[from] admin::AdminError),
    /// The Redis client can't be built.
    #[error("redis.url: {0}")]
    Redis(GateError),
    /// The limits are too many to be agreed on with other workers.
    #[error(transparent)]
    Limits(GateError),
    /// The AMQP client can't be built.
    #[error(transparent)]
    Amqp(#[from] BrokerError),
    /// The signal handlers can't be installed.
    #[error("can't listen for signals: {0}")]
    Signals(std::io::Error),
    /// A part without which the worker would stand still has ended.
    #[error("the worker can't go on: {0}")]
    Ended(Ended),
}

/// Runs a worker that sends each job to `dispatch.http.url`, until SIGTERM or SIGINT. With `fresh`, an operator says
/// that nothing was started within the longest window: see [`Worker::fresh`]. The configuration was read from `file`, and is
/// applied again when it changes: see [`Worker::reloading`].
///
/// # Errors
/// [`AppError`] when it can't start.
pub async fn run(config: Config, file: Option<PathBuf>, fresh: bool) -> Result<(), AppError> {
    install_tls_provider();
    let http = config.dispatch.http.as_ref().ok_or(AppError::NoHandler)?;
    let handler = HttpHandler::new(http, config.dispatch.concurrency)
        .map_err(|why| AppError::Http(why.to_string()))?;
    let stop = Stop::default();
    listen_for_signals(&stop).map_err(AppError::Signals)?;
    let worker = Worker::new(config, handler)?.reloading(file);
    let worker = if fresh { worker.fresh() } else { worker };
    worker.run(stop).await
}

/// Runs a worker that gives each job to `handler`, until SIGTERM or SIGINT: the first stops softly (no more
/// jobs, what runs may finish within `dispatch.shutdown-timeout`), the second at once.
///
/// # Errors
/// [`AppError`] when it can't start.
pub async fn run_with<H: PreparingHandler>(config: Config, handler: H) -> Result<(), AppError> {
    let stop = Stop::default();
    listen_for_signals(&stop).map_err(AppError::Signals)?;
    run_until(config, handler, stop).await
}

/// [`run_with`], but ended by `stop` instead of signals.
///
/// # Errors
/// [`AppError`] when it can't start.
pub async fn run_until<H: PreparingHandler>(
    config: Config,
    handler: H,
    stop: Stop,
) -> Result<(), AppError> {
    Worker::new(config, handler)?.run(stop).await
}

/// A worker that is put together, but not started.
pub struct Worker<H> {
    config: Config,
    handler: Arc<H>,
    metrics: Arc<Metrics>,
    gate: Arc<RedisGate>,
    fresh: bool,
    source: Option<Source>,
}

impl<H: PreparingHandler> Worker<H> {
    /// Puts a worker together; no server is contacted yet.
    ///
    /// # Errors
    /// [`AppError`] when the configuration can't be used.
    pub fn new(config: Config, handler: H) -> Result<Self, AppError> {
        install_tls_provider();
        let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix)
            .map_err(AppError::Redis)?
            .watching(config.rate_limiter.policy.memory());
        Ok(Self {
            config,
            handler: Arc::new(handler),
            metrics: Arc::new(Metrics::new()),
            gate: Arc::new(gate),
            fresh: false,
            source: None,
        })
    }

    /// The configuration came from `file` (as [`Config::load`] takes it) and the environment: when the file changes, or
    /// on SIGHUP, it is read again. What can change at run time is applied, of the rest is told that it takes a restart.
    /// A wrong one is refused, and the old one stays in force.
    pub fn reloading(mut self, file: Option<PathBuf>) -> Self {
        self.source = Some(Source::new(file));
        self
    }

    /// Nothing was started within the longest window: jobs start at once, even if Redis does not know what did. For
    /// one start, after Redis was emptied on purpose; workers that run and know better object.
    pub fn fresh(mut self) -> Self {
        self.fresh = true;
        self
    }

    /// What the worker counts.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }

    /// Runs until `stop`. Servers that are away are waited for.
    ///
    /// # Errors
    /// [`AppError`] when it can't start.
    pub async fn run(self, stop: Stop) -> Result<(), AppError> {
        let Self {
            config,
            handler,
            metrics,
            gate,
            fresh,
            source,
        } = self;
        let reload = match source {
            Some(source) => Some(Reload {
                source,
                hangups: signal(SignalKind::hangup()).map_err(AppError::Signals)?,
            }),
            None => None,
        };
        let own = Named::new(config.rate_limiter.policy.clone()).map_err(AppError::Limits)?;
        tell_policy(&config.rate_limiter.policy);
        for warning in config.warnings() {
            warn!("configuration: {warning}");
        }
        info!(
            queue = config.amqp.queue,
            rabbitmq = %config.amqp.url,
            redis = %config.redis.url,
            "starting",
        );
        let health = Arc::new(Health::default());
        let admin = admin::serve(&config.admin, Arc::clone(&metrics), Arc::clone(&health)).await?;
        let settings = settings(&config);
        let start = if fresh {
            Some(Start::Fresh)
        } else {
            tokio::select! {
                start = earlier_starts(&config, &settings.ladder, &stop) => start,
                never = watch_redis(&gate, &health, &metrics, Phase::Waits) => match never {},
            }
        };
        let Some(start) = start else {
            admin.stop().await;
            info!("stopped");
            return Ok(());
        };
        // Before the queues are made: a second worker that finds them finds the epoch, too. What fails here is done by the
        // next ping or batch. A gate that is cold says so itself, and a Redis that is away is said by the steward.
        if let Err(why @ GateError::Refused(_)) = gate.begin(start).await {
            error!(reason = %why, "no job starts; trying again");
        }
        // A Redis that is away is measured when it is back.
        let _ = gate.measure().await;
        let window = lanes::window(settings.prefetch, settings.concurrency);
        let (broker, events) = AmqpBroker::start(&config.amqp, &settings.ladder, window)?;
        let scheduler = Scheduler::new(settings, Arc::clone(&metrics), rand::random()).must_agree();
        let (news, updates) = mpsc::channel(UPDATES);
        let shutdown_timeout = config.dispatch.shutdown_timeout;
        let registry = Registry::new(Arc::clone(&gate), own);
        let steward = Steward::new(config, registry, news, Arc::clone(&metrics));
        let broker = Arc::new(broker);
        let mut tasks = Tasks::default();
        tasks.spawn("what agrees with the other workers", steward.run(reload));
        tasks.spawn("what keeps the pulse in Redis", {
            let (gate, health, metrics) = (gate.clone(), health.clone(), metrics.clone());
            async move { watch_redis(&gate, &health, &metrics, Phase::Runs).await }
        });
        tasks.spawn("what speaks to RabbitMQ", {
            let broker = Arc::clone(&broker);
            async move { broker.failed().await }
        });
        tasks.watch("what answers at admin.listen", &admin.task);
        let engine = Engine {
            broker,
            gate: Arc::clone(&gate),
            handler,
            metrics,
            health,
            shutdown_timeout,
        };
        let running = engine.run_updated(scheduler, events, updates, stop.clone());
        let ended = together(running, &mut tasks, &stop).await;
        drop(tasks);
        // Unsaid, it may cost other workers a window after a restart of Redis, and nothing else.
        let _ = timeout(LEAVE_WITHIN, gate.leave()).await;
        admin.stop().await;
        info!("stopped");
        ended
    }
}

/// Runs the engine. Where one of `tasks` ends first, it is as if the worker was asked to stop; then it ends with an error, as it
/// does where the engine ended by itself.
async fn together(
    engine: impl Future<Output = Over>,
    tasks: &mut Tasks,
    stop: &Stop,
) -> Result<(), AppError> {
    let mut engine = pin!(engine);
    let ended = tokio::select! {
        biased;
        over = &mut engine => match over {
            Over::Stopped => return Ok(()),
            Over::Panicked(why) => Ended { task: "what moves the jobs", why },
            // Whose end it was may be told in a moment.
            Over::Deaf => match timeout(TOLD_WITHIN, tasks.first_end()).await {
                Ok(ended) => ended,
                Err(_) => Ended {
                    task: "what speaks to RabbitMQ",
                    why: "it brings no deliveries any more".to_owned(),
                },
            },
        },
        ended = tasks.first_end() => {
            error!(reason = %ended, "stopping: the worker can't go on without it");
            stop.soft.cancel();
            engine.await;
            ended
        }
    };
    Err(AppError::Ended(ended))
}

fn settings(config: &Config) -> Settings {
    let ladder = Ladder::new(config.delay.max_delay);
    let Changeable {
        concurrency,
        hold,
        retry,
        max_penalty,
        guard_budget,
    } = changeable(config);
    Settings {
        policy: config.rate_limiter.policy.clone(),
        fields: config.job.clone(),
        concurrency,
        prefetch: usize::from(config.amqp.prefetch),
        hold,
        names: QueueNames::new(&config.amqp.queue, &ladder),
        ladder,
        retry,
        max_penalty,
        guard_budget,
        throttle_scope: config.rate_limiter.throttle_scope,
        breaker: config.dispatch.breaker.map(|breaker| Rule {
            // No job loses all of its attempts before it opens.
            failures: breaker.failures.min(config.retry.max_attempts),
            first_wait_ms: ceil_ms(breaker.initial_interval),
            longest_wait_ms: ceil_ms(breaker.max_interval),
            lease_ms: ceil_ms(probe_lease(config)),
        }),
    }
}

/// A probe that is not heard of for so long is given up.
fn probe_lease(config: &Config) -> Duration {
    let timeout = config.dispatch.http.as_ref().map(|http| http.timeout);
    let call = timeout.unwrap_or_default() + Duration::from_secs(10);
    call.max(Duration::from_secs(60))
}

/// One TLS implementation for AMQP, Redis and HTTP.
pub fn install_tls_provider() {
    // An error says that one is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Logs what is enforced: the common limits, and how many others there are.
fn tell_policy(policy: &Policy) {
    for limit in policy.default_limits().iter() {
        let algorithm = limit.algorithm();
        let strict = algorithm == Algorithm::Strict;
        let has_window = algorithm != Algorithm::Concurrency;
        // An empty value leaves its field out.
        info!(
            limit = limit.name(),
            algorithm = if strict {
                Algorithm::SlidingWindow
            } else {
                algorithm
            }
            .name(),
            max_requests = limit.max(),
            window_ms = has_window.then(|| limit.window_ms()),
            guard = strict.then_some("strict"),
            guard_ms = (has_window && !strict).then(|| limit.guard_ms()),
            burst = algorithm.has_burst().then(|| limit.burst()),
            unit = limit.unit().name(),
            scope = %limit.scope(),
            "enforcing",
        );
    }
    let (plans, tenants) = (policy.plans().len(), policy.tenants().len());
    if plans + tenants > 0 {
        info!(plans, tenants, "enforcing limits of plans and tenants too");
    }
}

/// What RabbitMQ says of starts before ours. Waits until it answers: before that there is nothing to start. `None`: the
/// worker was stopped meanwhile, and nothing may be said of its start.
async fn earlier_starts(config: &Config, ladder: &Ladder, stop: &Stop) -> Option<Start> {
    let answered = async {
        let began = Instant::now();
        let mut outage = Outage::new("RabbitMQ");
        let mut pauses = Reconnect::default();
        loop {
            match in_use(&config.amqp, ladder).await {
                Err(why @ BrokerError::Unreachable { .. }) => {
                    outage.failed(began.elapsed(), &why);
                    tokio::time::sleep(pauses.next(rand::random())).await;
                }
                // The session that follows says what is wrong.
                Err(_) => return Start::Unknown,
                Ok(used) => {
                    outage.over(began.elapsed());
                    return if used { Start::Unknown } else { Start::Idle };
                }
            }
        }
    };
    tokio::select! {
        start = answered => Some(start),
        () = stop.soft.cancelled() => None,
        () = stop.hard.cancelled() => None,
    }
}

/// How far a worker is.
#[derive(Clone, Copy)]
enum Phase {
    /// What was started before is not known yet, so the gate may not be told of this worker.
    Waits,
    /// The gate has begun.
    Runs,
}

/// Keeps `/readyz` true to Redis, and the pulse of a worker that runs going, while no job asks the gate.
async fn watch_redis(
    gate: &RedisGate,
    health: &Health,
    metrics: &Metrics,
    phase: Phase,
) -> Infallible {
    let mut way = WaySaid::default();
    loop {
        let answer = match phase {
            Phase::Waits => gate.answers().await,
            Phase::Runs => gate.ping().await,
        };
        let cold = matches!(answer, Err(GateError::Cold { .. }));
        health.set_redis(answer.is_ok() || cold);
        admin::tell_memory(health, metrics, cold, gate.primaries());
        if matches!(phase, Phase::Runs) && answer.is_ok() && gate.measure().await.is_ok() {
            way.say(gate.base());
        }
        tokio::time::sleep(PING_EVERY).await;
    }
}

/// What was last said of the way to Redis.
#[derive(Default)]
struct WaySaid(Duration);

impl WaySaid {
    /// Says it where it is long, and again when it has changed much.
    fn say(&mut self, base: Duration) {
        let far = |base: Duration| if base < FAR { Duration::ZERO } else { base };
        let (base, said) = (far(base), far(self.0));
        if base.abs_diff(said) <= said.max(FAR) / 2 {
            return;
        }
        self.0 = base;
        let round_trip_ms = u64::try_from(base.as_millis()).unwrap_or(u64::MAX);
        if base.is_zero() {
            info!("Redis is near again");
        } else {
            info!(
                round_trip_ms,
                "Redis is far away: each job has its permit that much later, and a slot of dispatch.concurrency meanwhile"
            );
        }
    }
}

fn listen_for_signals(stop: &Stop) -> std::io::Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let stop = stop.clone();
    tokio::spawn(async move {
        for token in [&stop.soft, &stop.hard] {
            let name = tokio::select! {
                _ = term.recv() => "SIGTERM",
                _ = int.recv() => "SIGINT",
            };
            warn!(signal = name, "asked to stop");
            token.cancel();
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    /// An engine that ends when it is asked to, as [`Engine::run`] does.
    async fn engine(stop: Stop) -> Over {
        stop.soft.cancelled().await;
        Over::Stopped
    }

    #[tokio::test]
    async fn a_task_that_ends_stops_the_worker_with_its_reason() {
        let stop = Stop::default();
        let mut tasks = Tasks::default();
        tasks.spawn("well", pending::<String>());
        tasks.spawn("ill", async { [0_u8; 0].first().expect("one").to_string() });
        let ended = together(engine(stop.clone()), &mut tasks, &stop).await;
        let why = ended.expect_err("it can't go on").to_string();
        assert_eq!(why, "the worker can't go on: ill ended: it panicked: one");
        assert!(stop.soft.is_cancelled());
    }

    #[tokio::test]
    async fn an_engine_that_ends_by_itself_is_no_orderly_end() {
        for (over, part) in [
            (
                Over::Panicked("it panicked: x".to_owned()),
                Some("panicked: x"),
            ),
            (Over::Deaf, Some("no deliveries any more")),
            (Over::Stopped, None),
        ] {
            let mut tasks = Tasks::default();
            let ended = together(async { over }, &mut tasks, &Stop::default()).await;
            let why = ended.err().map(|why| why.to_string());
            assert_eq!(why.is_some(), part.is_some());
            assert!(part.is_none_or(|part| why.is_some_and(|why| why.contains(part))));
        }
    }
}
