//! Wires a worker together. This module alone names the concrete servers.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test may have many cases")
)]
#![deny(missing_docs)]

#[cfg(feature = "http")]
mod any_handler;
mod earlier_starts;
#[cfg(feature = "http")]
mod handlers;
#[cfg(feature = "http")]
mod pipelines;
mod record;
mod redis;
mod reload;
mod report;
mod service_manager;
mod settings;
mod signals;

use std::future::ready;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{error, info, warn};

use crate::earlier_starts::earlier_starts;
pub use crate::record::{Recording, RecordingOptions};
use crate::redis::{StartPhase, watch_redis};
use crate::reload::{ConfigReader, Reload, Steward};
use crate::report::Reporter;
use crate::service_manager::ServiceManager;
pub use crate::settings::settings as scheduler_settings;
use crate::settings::{log_policy, settings};
use admin::{self, AdminServer, PipelineState, PipelineStates};
use broker::BrokerError;
use broker::amqp::AmqpBroker;
use config::{Config, ConfigSource};
use engine::scheduler::Scheduler;
use engine::{Engine, EngineEnd, Stop};
use gate::fleet::registry::{NamedPolicy, Registry};
use gate::link::Links;
use gate::redis::RedisGate;
use gate::{EarlierStarts, GateError};
use handler::PreparingHandler;
#[cfg(feature = "http")]
pub use handlers::run;
use rules::delays::{self, DelayLevels};
use runtime::tasks::{TaskEnd, Tasks, WatchedTask};
use telemetry::metrics::Metrics;
use telemetry::traces;

/// Capacity of the channel for updates to the engine.
const UPDATE_CAPACITY: usize = 4;
/// How long to wait for the task that cut off the engine to report its reason.
const REASON_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a stopping worker tries to sign off in Redis.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a worker could not start or go on. A running worker survives outages of its servers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppError {
    /// The configuration names no destination for jobs, and there is no handler.
    #[error(
        "jobs have no destination: set dispatch.http.url (an API, such as \
        http://127.0.0.1:8080/), dispatch.exec.command (a program) or dispatch.forward (a queue \
        of other workers)"
    )]
    NoHandler,
    /// The HTTP client can't be built.
    #[error("dispatch.http: {0}")]
    Http(#[doc(hidden)] String),
    /// The admin port can't be opened.
    #[error(transparent)]
    Admin(
        #[doc(hidden)]
        #[from]
        admin::AdminError,
    ),
    /// The Redis client can't be built.
    #[error("redis.url: {0}")]
    Redis(#[doc(hidden)] GateError),
    /// There are too many limits to agree on with other workers.
    #[error(transparent)]
    Limits(#[doc(hidden)] GateError),
    /// The AMQP client can't be built.
    #[error(transparent)]
    Amqp(
        #[doc(hidden)]
        #[from]
        BrokerError,
    ),
    /// The signal handlers can't be installed.
    #[error("can't listen for signals: {0}")]
    Signals(#[doc(hidden)] std::io::Error),
    /// A task that the worker can't do without has ended.
    #[error("the worker can't continue: {0}")]
    Ended(#[doc(hidden)] TaskEnd),
}

/// Runs a worker that gives each job to `handler`, until SIGTERM or SIGINT. The first signal stops
/// it gracefully: it takes no more jobs, and running calls may finish within
/// `dispatch.shutdown-timeout`. The second signal stops it at once.
///
/// # Errors
/// [`AppError`] if it can't start or can't go on.
pub async fn run_with<H: PreparingHandler>(config: Config, handler: H) -> Result<(), AppError> {
    let stop = Stop::default();
    let signals = signals::listen(&stop).map_err(AppError::Signals)?;
    let mut worker = Worker::new(config)?;
    worker.signals = Some(signals);
    worker.run(handler, stop).await
}

/// Runs like [`run_with`], but stopped by `stop` instead of signals.
///
/// # Errors
/// [`AppError`] if it can't start or can't go on.
pub async fn run_until<H: PreparingHandler>(
    config: Config,
    handler: H,
    stop: Stop,
) -> Result<(), AppError> {
    Worker::new(config)?.run(handler, stop).await
}

/// The state that a pipeline shares with other pipelines, or keeps across its restarts.
#[derive(Clone, Default)]
struct SharedState {
    seen: PipelineState,
    links: Arc<Links>,
    recording: Option<Recording>,
}

/// A worker that is assembled but not started, without its handler.
pub struct Worker {
    config: Config,
    seen: PipelineState,
    gate: Arc<RedisGate>,
    own: NamedPolicy,
    fresh: bool,
    source: Option<ConfigSource>,
    /// The recording of new jobs, or `None`.
    recording: Option<Recording>,
    /// The task that listens for signals, or `None` if the caller stops the worker.
    signals: Option<WatchedTask>,
}

impl Worker {
    /// Assembles a worker. Contacts no server yet.
    ///
    /// # Errors
    /// [`AppError`] if the configuration can't be used.
    pub fn new(config: Config) -> Result<Self, AppError> {
        install_tls_provider();
        Self::with(config, &SharedState::default())
    }

    fn with(config: Config, shared_state: &SharedState) -> Result<Self, AppError> {
        let gate = RedisGate::sharing(&shared_state.links, &config.redis.url, &config.redis.prefix)
            .map_err(AppError::Redis)?
            .watching(config.rate_limiter.policy.memory());
        let own = NamedPolicy::new(config.rate_limiter.policy.clone()).map_err(AppError::Limits)?;
        shared_state.seen.config.set(&config);
        Ok(Self {
            config,
            seen: shared_state.seen.clone(),
            gate: Arc::new(gate),
            own,
            fresh: false,
            source: None,
            recording: shared_state.recording.clone(),
            signals: None,
        })
    }

    /// Reads the configuration again when `file` changes, and on SIGHUP. `file` is the path that
    /// [`Config::load`] took, in addition to the environment. Keys that can change at run time are
    /// applied; for the others, the log says that they take a restart. An invalid configuration is
    /// refused, and the old one stays effective.
    pub fn reloading(mut self, file: Option<PathBuf>) -> Self {
        self.source = Some(ConfigSource::new(file));
        self
    }

    /// Asserts that no job was started within the longest window, so that jobs start at once even
    /// though Redis does not know of earlier starts. Use it for one start of the worker, after you
    /// emptied Redis on purpose. A running worker that knows of starts overrules it.
    pub fn fresh(mut self) -> Self {
        self.fresh = true;
        self
    }

    /// Returns the worker's metrics.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.seen.metrics)
    }

    /// Gives each job to `handler` until `stop`. Waits for servers that are unavailable.
    ///
    /// # Errors
    /// [`AppError`] if it can't start or can't go on.
    pub async fn run<H: PreparingHandler>(
        mut self,
        handler: H,
        stop: Stop,
    ) -> Result<(), AppError> {
        let (source, signals) = (self.source.take(), self.signals.take());
        let work = self.work(|_, _| Ok((handler, ready(()))));
        work.alone(source, signals, stop).await
    }

    /// Erases the type of the handler. `make` returns the handler and a future that closes it. It is
    /// called when the pipeline's jobs begin to move.
    fn work<H: PreparingHandler, End: Future<Output = ()> + Send + 'static>(
        self,
        make: impl FnOnce(&Config, Arc<Metrics>) -> Result<(H, End), AppError> + Send + 'static,
    ) -> Work {
        let (config, seen) = (self.config.clone(), self.seen.clone());
        let moves = |tasks, reload, stop| -> PipelineFuture {
            Box::pin(async move {
                let (handler, closing) = make(&self.config, self.metrics())?;
                let ended = self.move_jobs(handler, tasks, reload, stop).await;
                closing.await;
                ended
            })
        };
        Work {
            config,
            seen,
            moves: Box::new(moves),
        }
    }

    /// Moves the jobs of its pipeline until `stop`. Returns an error if one of `tasks` ends.
    async fn move_jobs<H: PreparingHandler>(
        self,
        handler: H,
        mut tasks: Tasks,
        mut reload: Reload,
        stop: Stop,
    ) -> Result<(), AppError> {
        let mut settings = settings(&self.config);
        settings.holding = settings.holding.with_detection();
        let Some(start) =
            (self.find_start(&settings.levels, (&mut tasks, &mut reload), &stop)).await?
        else {
            return Ok(());
        };
        tokio::select! {
            () = self.begin_epoch(start) => {}
            () = stop.soft.cancelled() => return Ok(()),
            () = stop.hard.cancelled() => return Ok(()),
        }
        let Self {
            config,
            seen,
            gate,
            own,
            recording,
            ..
        } = self;
        let window = delays::delivery_window(settings.prefetch, settings.live.concurrency);
        let (broker, events) = AmqpBroker::start(&config.amqp, &settings.levels, window)?;
        let events = match &recording {
            Some(recording) => recording.tap(events, Arc::clone(&seen.config)),
            None => events,
        };
        let scheduler = Scheduler::new(settings, rand::random()).must_agree();
        let scheduler = scheduler.tracing(traces::sampler());
        let (news, updates) = mpsc::channel(UPDATE_CAPACITY);
        let shutdown_timeout = config.dispatch.shutdown_timeout;
        let registry = Registry::new(Arc::clone(&gate), own);
        let reporter = Reporter {
            name: registry.name().to_owned(),
            seen: seen.clone(),
            gate: Arc::clone(&gate),
        };
        let shown = (Arc::clone(&seen.metrics), Arc::clone(&seen.config));
        let steward = Steward::new(config, registry, news, shown);
        let steward = steward.after_others(start != EarlierStarts::Idle);
        let broker = Arc::new(broker);
        tasks.spawn(
            "the task that agrees on limits with other workers",
            steward.run(reload),
        );
        tasks.spawn("the task that writes reports", reporter.clone().run());
        watch_servers(&mut tasks, &broker, &gate, &seen);
        let engine = Engine {
            broker,
            gate: Arc::clone(&gate),
            handler: Arc::new(handler),
            metrics: seen.metrics,
            health: seen.health,
            shutdown_timeout,
        };
        let running = engine.run_updated(scheduler, events, updates, stop.clone());
        let moving = moved(running, stop.clone());
        let ended = tasks.run("the engine", moving, &stop.soft).await;
        drop(tasks);
        sign_off(&gate, &reporter).await;
        if let Some(recording) = recording {
            recording.flush().await;
        }
        ended.map_err(AppError::Ended)
    }

    /// Finds out whether jobs were started before this worker. Returns `None` if the worker was
    /// stopped meanwhile, and an error if one of `tasks` has ended.
    async fn find_start(
        &self,
        levels: &DelayLevels,
        (tasks, reload): (&mut Tasks, &mut Reload),
        stop: &Stop,
    ) -> Result<Option<EarlierStarts>, AppError> {
        if self.fresh {
            return Ok(Some(EarlierStarts::Fresh));
        }
        let PipelineState {
            metrics, health, ..
        } = &self.seen;
        tokio::select! {
            start = earlier_starts(&self.config, levels, health, stop) => Ok(start),
            never = watch_redis(&self.gate, health, metrics, StartPhase::Waits) => match never {},
            never = reload.keep(&self.config, metrics) => match never {},
            ended = tasks.first_end() => Err(AppError::Ended(ended)),
        }
    }

    /// Begins the epoch in Redis, and measures the latency.
    async fn begin_epoch(&self, start: EarlierStarts) {
        // The epoch begins before the queues are declared, so that a second worker that finds the
        // queues finds the epoch, too. If this fails, the next ping or batch tries again. The gate
        // reports a recovery wait itself, and the steward reports an unavailable Redis.
        if let Err(why @ GateError::Refused(_)) = self.gate.begin(start).await {
            error!(reason = %why, "no job is admitted; retrying");
        }
        // If Redis is unavailable, the latency is measured when it is back.
        let _ = self.gate.measure().await;
    }
}

/// Starts the tasks that watch Redis and RabbitMQ.
fn watch_servers(
    tasks: &mut Tasks,
    broker: &Arc<AmqpBroker>,
    gate: &Arc<RedisGate>,
    seen: &PipelineState,
) {
    let (metrics, health) = (&seen.metrics, &seen.health);
    tasks.spawn("the task that watches Redis", {
        let (gate, health, metrics) = (gate.clone(), health.clone(), metrics.clone());
        async move { watch_redis(&gate, &health, &metrics, StartPhase::Runs).await }
    });
    tasks.spawn("the RabbitMQ task", {
        let broker = Arc::clone(broker);
        async move { broker.failed().await }
    });
    tasks.spawn("the task that measures the backlog", {
        let (broker, health, metrics) = (Arc::clone(broker), health.clone(), metrics.clone());
        async move {
            let mut backlog = broker.backlog();
            while backlog.changed().await.is_ok() {
                let jobs = *backlog.borrow_and_update();
                metrics.set_backlog(jobs);
                if jobs.is_some() && broker.is_resting() {
                    health.set_rabbitmq(true);
                    metrics.set_up("rabbitmq", true);
                }
            }
            // The broker is closed, so the worker ends soon.
            std::future::pending::<String>().await
        }
    });
}

/// Signs off in Redis. If Redis misses this, other workers may wait one window after a restart of
/// Redis. Nothing else depends on it.
async fn sign_off(gate: &RedisGate, reporter: &Reporter) {
    let leaves = async { tokio::join!(gate.leave(), reporter.stopped()) };
    let _ = timeout(LEAVE_TIMEOUT, leaves).await;
}

/// A future that ends when the pipeline's work has ended.
type PipelineFuture = BoxFuture<'static, Result<(), AppError>>;

/// The work of a pipeline, without the type of its handler.
struct Work {
    config: Config,
    seen: PipelineState,
    moves: Box<dyn FnOnce(Tasks, Reload, Stop) -> PipelineFuture + Send>,
}

impl Work {
    /// Moves the jobs until `stop`. Returns an error if one of `tasks` ends.
    async fn run(self, tasks: Tasks, reload: Reload, stop: Stop) -> Result<(), AppError> {
        let config = &self.config;
        log_policy(&config.rate_limiter.policy);
        info!(
            queue = config.amqp.queue,
            rabbitmq = %config.amqp.url,
            redis = %config.redis.url,
            "starting",
        );
        (self.moves)(tasks, reload, stop).await
    }

    /// Runs this as the only pipeline of the process, with its own admin port.
    async fn alone(
        self,
        source: Option<ConfigSource>,
        signals: Option<WatchedTask>,
        stop: Stop,
    ) -> Result<(), AppError> {
        let reload = match source {
            Some(source) => Reload::Read(ConfigReader::new(source).map_err(AppError::Signals)?),
            None => Reload::Off,
        };
        for warning in self.config.warnings() {
            warn!("configuration: {warning}");
        }
        let board = Arc::new(PipelineStates::only(self.seen.clone()));
        let admin = admin::serve(&self.config.admin, Arc::clone(&board)).await?;
        let tasks = process_tasks(&admin, &board, signals.as_ref(), &stop);
        traces::begin();
        let ended = self.run(tasks, reload, stop).await;
        traces::flush().await;
        admin.stop().await;
        info!("stopped");
        ended
    }
}

/// Returns the tasks that a process runs once, however many pipelines it has.
fn process_tasks(
    admin: &AdminServer,
    board: &Arc<PipelineStates>,
    signals: Option<&WatchedTask>,
    stop: &Stop,
) -> Tasks {
    let mut tasks = Tasks::default();
    tasks.watch("the admin server", &admin.task);
    if let Some(signals) = signals {
        tasks.watch("the signal handler", signals);
    }
    if let Some(manager) = ServiceManager::from_environment() {
        let telling = manager.run(Arc::clone(board), stop.soft.clone());
        tasks.spawn("the task that notifies the service manager", telling);
    }
    tasks
}

/// Waits for the engine to end. Only a requested stop is `Ok`.
async fn moved(engine: impl Future<Output = EngineEnd>, stop: Stop) -> Result<(), String> {
    match engine.await {
        EngineEnd::Stopped => Ok(()),
        EngineEnd::Panicked(why) => Err(why),
        EngineEnd::BrokerLost => {
            // The task that cut the engine off may report its reason in a moment. Its report stops
            // the worker.
            let _ = timeout(REASON_TIMEOUT, stop.soft.cancelled()).await;
            Err("RabbitMQ sends no more deliveries".to_owned())
        }
    }
}

/// Installs the TLS implementation for AMQP, Redis and HTTP.
pub fn install_tls_provider() {
    // An error means that a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use handler::{Handler, Outcome, Permit};
    use rules::job::Job;

    /// Gets no jobs.
    pub(crate) struct IdleHandler;

    impl Handler for IdleHandler {
        async fn handle(&self, _: &Job, _: Permit) -> Outcome {
            Outcome::Done
        }
    }

    #[tokio::test]
    async fn a_worker_stops_while_redis_hangs_at_its_start() {
        // It accepts connections and never answers.
        let redis = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = redis.local_addr().expect("it is bound");
        let yaml = format!(
            "amqp: {{url: 'amqp://127.0.0.1:1'}}\nredis: {{url: 'redis://{addr}'}}\n\
             admin: {{listen: '127.0.0.1:0'}}\n"
        );
        let config = Config::parse("c.yaml", &yaml, std::iter::empty()).expect("valid");
        let worker = Worker::new(config).expect("usable").fresh();
        let stop = Stop::default();
        let running = tokio::spawn(worker.run(IdleHandler, stop.clone()));
        tokio::time::sleep(Duration::from_millis(200)).await;
        stop.soft.cancel();
        let ended = timeout(Duration::from_secs(3), running).await;
        let ended = ended.expect("it stops soon").expect("no panic");
        ended.expect("it was stopped");
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_ends_on_its_own_is_an_error() {
        for (over, part) in [
            (
                EngineEnd::Panicked("it panicked: x".to_owned()),
                Some("panicked: x"),
            ),
            (EngineEnd::BrokerLost, Some("no more deliveries")),
            (EngineEnd::Stopped, None),
        ] {
            let (mut tasks, stop) = (Tasks::default(), Stop::default());
            let moving = moved(async { over }, stop.clone());
            let ended = tasks.run("the engine", moving, &stop.soft).await;
            let why = ended.err().map(|why| AppError::Ended(why).to_string());
            assert_eq!(why.is_some(), part.is_some());
            assert!(part.is_none_or(|part| why.is_some_and(|why| why.contains(part))));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_is_cut_off_reports_the_cause() {
        let (mut tasks, stop) = (Tasks::default(), Stop::default());
        tasks.spawn("the RabbitMQ task", async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            "it was told to"
        });
        let moving = moved(async { EngineEnd::BrokerLost }, stop.clone());
        let ended = tasks.run("the engine", moving, &stop.soft).await;
        let why = ended.expect_err("it can't go on").to_string();
        assert_eq!(why, "the RabbitMQ task ended: it was told to");
    }
}
