//! Keeps a running worker up to date: agrees with the other workers on the limits to enforce, and
//! applies a changed configuration.

mod read;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::{debug, error, info, warn};

pub use self::read::{ConfigReader, ConfigReading};
use crate::settings::live_settings;
use admin::InForce;
use config::{Config, ConfigErrors, Pipelines};
use engine::action::Update;
use engine::outage::Outage;
use gate::GateError;
use gate::fleet::registry::{NamedPolicy, Registry, RegistryAgreement};
use gate::fleet::{EasedTenants, EnforcedPolicies};
use operator::wake::wake_eased;
use rules::steering::Steering;
use telemetry::metrics::Metrics;

/// Interval at which the registry is read.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long the engine may take to apply an update before it is sent again. The engine may be
/// waiting for a round trip; agreements last 5 s.
const APPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval at which it is logged that Redis does not know a changed policy yet.
const DELAY_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// How a worker learns that its configuration has changed.
pub enum Reload {
    /// Never.
    Off,
    /// It reads its configuration itself.
    Read(ConfigReader),
    /// Another task reads the configuration, and sends it while this start of the pipeline is
    /// wanted.
    // Only programs with the HTTP handler run several pipelines.
    #[cfg_attr(not(feature = "http"), expect(dead_code))]
    Updates(watch::Receiver<WantedPipeline>, u64),
}

/// The state that a pipeline is supposed to have.
#[derive(Debug, Clone)]
pub struct WantedPipeline {
    /// The configuration to run with.
    pub config: Config,
    /// Number of the start. A different number restarts the pipeline.
    pub start: u64,
    /// Whether the pipeline is to end.
    pub end: bool,
}

/// An event for the steward.
enum StewardEvent {
    Nothing,
    Config(Box<Config>),
    Reading(Box<ConfigReading>),
}

impl Reload {
    /// Reads the configuration while the worker waits for its servers and nothing can be applied
    /// yet: reports mistakes and keys that require a restart, and keeps the last valid
    /// configuration for the steward. For a worker that runs with `running`.
    pub async fn keep(&mut self, running: &Config, metrics: &Metrics) -> Infallible {
        let Self::Read(reader) = self else {
            return std::future::pending().await;
        };
        loop {
            let ConfigReading { read, asked } = reader.next().await;
            let Some(pipelines) = accepted(read, metrics) else {
                continue;
            };
            for config in pipelines.each().values() {
                warn_of_restart(&running.restart_keys(config));
            }
            let read = Ok(pipelines);
            reader.kept = Some(Box::new(ConfigReading { read, asked }));
        }
    }

    /// Waits for a change.
    async fn next_event(&mut self) -> StewardEvent {
        match self {
            Self::Off => std::future::pending().await,
            Self::Read(read) => StewardEvent::Reading(match read.kept.take() {
                Some(kept) => kept,
                None => Box::new(read.next().await),
            }),
            Self::Updates(wanted, start) => {
                // The sender outlives this pipeline.
                if wanted.changed().await.is_err() {
                    return std::future::pending().await;
                }
                let now = wanted.borrow_and_update();
                match now.start == *start && !now.end {
                    true => StewardEvent::Config(Box::new(now.config.clone())),
                    false => StewardEvent::Nothing,
                }
            }
        }
    }
}

/// Keeps a running worker up to date.
pub struct Steward {
    /// The effective configuration, with the values of the start for keys that take a restart.
    running: Config,
    registry: Registry,
    /// A policy that Redis does not know yet.
    next: Option<NamedPolicy>,
    /// When it was last logged that `next` is not in force yet.
    delay_logged: Option<Instant>,
    last: Option<EnforcedPolicies>,
    /// The operators' instructions that the engine follows, or `None` before the first ones.
    steering: Option<Arc<Steering>>,
    /// Whether the engine is known to enforce `last`.
    applied: bool,
    /// Tenants whose limits were eased and whose waiting jobs are still to be woken.
    eased: EasedTenants,
    /// Whether jobs may already have been waiting when this worker started.
    jobs_wait: bool,
    agreed_until: Instant,
    outage: Outage,
    started: Instant,
    updates: mpsc::Sender<Update>,
    metrics: Arc<Metrics>,
    in_force: Arc<InForce>,
}

impl Steward {
    /// Creates the steward of a worker that was started with `running`.
    pub fn new(
        running: Config,
        registry: Registry,
        updates: mpsc::Sender<Update>,
        (metrics, in_force): (Arc<Metrics>, Arc<InForce>),
    ) -> Self {
        let started = Instant::now();
        Self {
            running,
            registry,
            next: None,
            delay_logged: None,
            last: None,
            steering: None,
            applied: true,
            eased: EasedTenants::default(),
            jobs_wait: false,
            agreed_until: started,
            outage: Outage::new("Redis"),
            started,
            updates,
            metrics,
            in_force,
        }
    }

    /// Sets whether other workers ran before this one. Jobs may still wait for turns that they got
    /// from those workers.
    pub fn after_others(mut self, others: bool) -> Self {
        self.jobs_wait = others;
        self
    }

    /// Runs until it is aborted.
    pub async fn run(mut self, mut reload: Reload) -> Infallible {
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let news = tokio::select! {
                // A change that came before the first exchange must precede it.
                biased;
                news = reload.next_event() => news,
                _ = ticks.tick() => StewardEvent::Nothing,
            };
            match news {
                StewardEvent::Nothing => {}
                StewardEvent::Config(config) => {
                    self.apply(*config, false).await;
                }
                StewardEvent::Reading(reading) => self.read(*reading).await,
            }
            self.agree_and_follow().await;
        }
    }

    /// Applies a configuration that was read, if it is valid.
    async fn read(&mut self, ConfigReading { read, asked }: ConfigReading) {
        let Some(pipelines) = accepted(read, &self.metrics) else {
            return;
        };
        for config in pipelines.each().values() {
            if self.apply(config.clone(), asked).await {
                for warning in config.warnings() {
                    warn!("configuration: {warning}");
                }
            }
        }
    }

    /// Applies the keys that can change at run time. Returns true if anything has changed. `asked`
    /// logs that nothing has changed, for an operator who waits for an answer.
    async fn apply(&mut self, new: Config, asked: bool) -> bool {
        let restart = self.running.restart_keys(&new);
        let applied = self.running.with_live(&new);
        if applied == self.running && restart.is_empty() {
            if asked {
                self.metrics.reloaded(true);
                info!("configuration read again: no changes");
            }
            return false;
        }
        // The new file is consistent in itself, but keys that require a restart keep their values.
        if let Some(why) = applied.conflict() {
            self.metrics.reloaded(false);
            error!(reason = %why, "configuration refused: the old one stays in force; a restart \
                is required");
            return false;
        }
        let next = match NamedPolicy::new(applied.rate_limiter.policy.clone()) {
            Ok(next) => next,
            Err(why) => {
                self.metrics.reloaded(false);
                error!(reason = %why, "configuration refused: the old one stays in force");
                return false;
            }
        };
        self.metrics.reloaded(true);
        warn_of_restart(&restart);
        if live_settings(&applied) != live_settings(&self.running) {
            info!(
                "configuration applied: new values of dispatch, delay, retry, max-throttle or guard-budget"
            );
            self.send(Update::Settings(live_settings(&applied))).await;
        }
        self.in_force.set(&applied);
        self.running = applied;
        self.next = (next.id != self.registry.own().id).then_some(next);
        self.delay_logged = None;
        true
    }

    /// Exchanges with the other workers. Exchanges again if an operator asks for something new, so
    /// that a waiting command sees it followed, or if the limits have changed, so that the other
    /// workers learn that the old limits are no longer in force here.
    async fn agree_and_follow(&mut self) {
        let (before, policy) = (self.steering.clone(), self.registry.own().id.clone());
        self.agree().await;
        let follows = before.is_some() && self.steering != before;
        if follows || self.registry.own().id != policy {
            self.agree().await;
        }
        self.wake().await;
    }

    /// Wakes jobs whose limits were eased. The new limits are enforced here by now, and by each
    /// worker that follows the instruction.
    async fn wake(&mut self) {
        if self.eased.is_empty() || !self.applied {
            return;
        }
        let name = self.registry.name();
        // Boxed: inlined, this future would nest too deeply for the compiler.
        match wake_eased(self.registry.gate(), name, &self.eased)
            .boxed()
            .await
        {
            Ok(()) => {
                self.eased = EasedTenants::default();
                self.agree().await;
            }
            Err(why) => debug!(reason = %why, "waiting jobs could not be woken: retrying"),
        }
    }

    /// Makes one exchange with the other workers, with a changed policy if there is one.
    async fn agree(&mut self) {
        let [running, in_memory, deliveries] = self.metrics.loads();
        (self.registry).set_report(format!("{running} {in_memory} {deliveries}"));
        let agreed = match self.next.take() {
            Some(next) => match self.registry.switch_to(next.clone()).await {
                Ok(agreed) => {
                    info!(
                        policy = next.id,
                        "configuration applied: new limits; stricter old ones may count for one \
                        longest window",
                    );
                    Ok(agreed)
                }
                Err(why) => {
                    let logged = self
                        .delay_logged
                        .filter(|at| at.elapsed() < DELAY_LOG_INTERVAL);
                    if logged.is_none() {
                        warn!(reason = %why, "the new limits are not in force yet: retrying");
                        self.delay_logged = Some(Instant::now());
                    }
                    self.next = Some(next);
                    self.registry.exchange().await
                }
            },
            None => self.registry.exchange().await,
        };
        match agreed {
            Ok(agreed) => self.agreed(agreed).await,
            Err(why) => self.not_agreed(&why),
        }
    }

    async fn agreed(&mut self, agreed: RegistryAgreement) {
        // The limits come first: a job that an operator's instruction wakes must ask under them.
        self.enforce(&agreed).await;
        // This comes before any job may start under this agreement.
        if !self.followed(&agreed).await {
            return;
        }
        self.agreed_until = agreed.until;
        self.outage.over(self.started.elapsed());
        if self.applied {
            self.registry.open(&agreed);
        }
        let update = Update::Agreed {
            fleet: None,
            until: self.agreed_until,
            clock: agreed.clock,
            applied: None,
        };
        self.send(update).await;
    }

    /// Makes the engine enforce the agreed policies if they have changed. The new deadline is sent
    /// later.
    async fn enforce(&mut self, agreed: &RegistryAgreement) {
        let fleet = &agreed.fleet;
        let same = self.last.as_ref().is_some_and(|last| last.is_like(fleet));
        if same && self.applied {
            return;
        }
        let before = self.last.as_ref().map_or(1, EnforcedPolicies::policies);
        if fleet.policies() != before {
            info!(policies = fleet.policies(), "policies enforced together");
        }
        self.metrics.set_policies(fleet.policies());
        let eased = match &self.last {
            Some(last) => fleet.eases(last),
            // Waiting jobs got their turns under limits that are no longer known.
            None if self.jobs_wait && agreed.is_new && fleet.is_settled() => EasedTenants::All,
            None => EasedTenants::default(),
        };
        self.eased = std::mem::take(&mut self.eased).and(eased);
        // The engine does not ask the gate before its first agreement.
        let is_first = self.last.replace(fleet.clone()).is_none();
        let (applied_sender, done) = oneshot::channel();
        let update = Update::Agreed {
            fleet: Some(fleet.clone()),
            until: self.agreed_until,
            clock: agreed.clock,
            applied: Some(applied_sender),
        };
        self.send(update).await;
        self.applied = is_first || matches!(timeout(APPLY_TIMEOUT, done).await, Ok(Ok(())));
    }

    /// Makes the engine follow the operators' instructions. Returns true if it does.
    async fn followed(&mut self, agreed: &RegistryAgreement) -> bool {
        let known = self.steering.as_deref();
        if known != Some(&agreed.steering) {
            let steering = Arc::new(agreed.steering.clone());
            let (applied_sender, done) = oneshot::channel();
            let update = Update::Steer {
                steering: Arc::clone(&steering),
                applied: applied_sender,
            };
            self.send(update).await;
            if !matches!(timeout(APPLY_TIMEOUT, done).await, Ok(Ok(()))) {
                return false;
            }
            self.steering = Some(steering);
        }
        self.registry.follows(agreed);
        true
    }

    fn not_agreed(&mut self, why: &GateError) {
        // Jobs still start until the agreement expires.
        if Instant::now() >= self.agreed_until {
            self.outage.failed(self.started.elapsed(), why);
        }
    }

    async fn send(&self, update: Update) {
        // An engine that has ended needs no updates.
        let _ = self.updates.send(update).await;
    }
}

/// Returns the configuration that a worker with one pipeline has read, or `None` after refusing it.
fn accepted(read: Result<Pipelines, ConfigErrors>, metrics: &Metrics) -> Option<Pipelines> {
    match read {
        Ok(pipelines) if !pipelines.are_named() => {
            metrics.config_refused.set(0);
            return Some(pipelines);
        }
        Ok(_) => {
            metrics.reloaded(false);
            let why = "the file now has `pipelines`, which requires a restart";
            error!(
                reason = why,
                "configuration refused: the old one stays in force"
            );
        }
        Err(errors) => refuse(&errors, [metrics]),
    }
    None
}

/// Logs the changed keys that require a restart, if there are some.
fn warn_of_restart(keys: &[&str]) {
    if !keys.is_empty() {
        warn!(
            keys = keys.join(", "),
            "configuration changed: these keys require a restart"
        );
    }
}

/// Logs why a configuration is refused, and counts the refusal in `metrics`.
pub fn refuse<'a>(errors: &ConfigErrors, metrics: impl IntoIterator<Item = &'a Metrics>) {
    metrics
        .into_iter()
        .for_each(|metrics| metrics.reloaded(false));
    for line in errors.to_string().lines() {
        error!("configuration refused: the old one stays in force: {line}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ::redis::{Pipeline, Value};
    use futures_util::future::{BoxFuture, ready};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;
    use gate::redis::RedisGate;
    use gate::store::Store;
    use kit::gate::{fake_gate, limit};
    use rules::limit::Algorithm;

    /// Never answers.
    struct Away;

    impl Store for Away {
        fn run<'a>(&'a self, _: &'a Pipeline) -> BoxFuture<'a, Result<Vec<Value>, GateError>> {
            ready(Err(GateError::Unreachable("it is away".to_owned()))).boxed()
        }
    }

    /// Counts the warnings of this module.
    #[derive(Clone, Default)]
    struct WarningCounter(Arc<AtomicUsize>);

    impl Subscriber for WarningCounter {
        fn enabled(&self, of: &Metadata<'_>) -> bool {
            *of.level() == Level::WARN && module_path!().starts_with(of.target())
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[tokio::test(start_paused = true)]
    async fn limits_that_are_not_in_force_yet_are_logged_once_a_minute() {
        let named = |limiter| NamedPolicy::new(parse("", limiter).rate_limiter.policy);
        let gate = Arc::new(RedisGate::on(Arc::new(Away), "p"));
        let registry = Registry::new(gate, named("max-requests: 5").expect("small"));
        let (updates, _engine) = mpsc::channel(8);
        let running = parse("", "max-requests: 5");
        let mut steward =
            Steward::new(running, registry, updates, (Arc::default(), Arc::default()));
        let warnings = WarningCounter::default();
        let _logging = tracing::subscriber::set_default(warnings.clone());
        steward.apply(parse("", "max-requests: 6"), false).await;
        for _ in 0..150 {
            steward.agree().await;
            tokio::time::advance(CHECK_INTERVAL).await;
        }
        assert_eq!(warnings.0.load(Ordering::Relaxed), 3);
    }

    /// Otherwise all workers would enforce the policy of the start, under which no job ran, for a
    /// longest window.
    #[tokio::test(start_paused = true)]
    async fn limits_that_change_before_the_first_exchange_never_are_in_force() {
        let [old, new] = ["max-requests: 5", "max-requests: 6"].map(|it| parse("", it));
        let named = |config: &Config| NamedPolicy::new(config.rate_limiter.policy.clone());
        let wanted = |config: &Config| WantedPipeline {
            config: config.clone(),
            start: 1,
            end: false,
        };
        // The order of events must not depend on luck.
        for _ in 0..20 {
            let gate = fake_gate(limit(Algorithm::SlidingWindow, 1, 1_000)).gate;
            let registry = Registry::new(Arc::new(gate), named(&old).expect("small"));
            let (updates, mut engine) = mpsc::channel(8);
            let shown = (Arc::default(), Arc::default());
            let steward = Steward::new(old.clone(), registry, updates, shown);
            let (sender, changes) = watch::channel(wanted(&old));
            sender.send_replace(wanted(&new));
            let update = tokio::select! {
                never = steward.run(Reload::Updates(changes, 1)) => match never {},
                update = engine.recv() => update,
            };
            let Some(Update::Agreed {
                fleet: Some(fleet), ..
            }) = update
            else {
                panic!("an agreement comes first");
            };
            assert_eq!(**fleet.own(), new.rate_limiter.policy);
            assert_eq!(fleet.policies(), 1);
        }
    }

    fn parse(redis: &str, limiter: &str) -> Config {
        let text = format!(
            "redis: {{url: 'redis://127.0.0.1:1', cluster: true{redis}}}\nrate-limiter: {{{limiter}}}\n"
        );
        Config::parse("c.yaml", &text, std::iter::empty()).expect("valid")
    }

    #[tokio::test]
    async fn a_global_limit_is_refused_until_its_prefix_is_in_force() {
        let running = parse("", "max-requests: 5");
        let gate = RedisGate::new(&running.redis.url, &running.redis.prefix);
        let own = NamedPolicy::new(running.rate_limiter.policy.clone()).expect("small");
        let registry = Registry::new(Arc::new(gate.expect("no server is asked")), own);
        let metrics = Arc::new(Metrics::new());
        let (updates, _engine) = mpsc::channel(8);
        let mut steward = Steward::new(
            running.clone(),
            registry,
            updates,
            (Arc::clone(&metrics), Arc::default()),
        );
        steward
            .apply(parse(", prefix: '{x}:y'", "scope: global"), true)
            .await;
        assert_eq!(steward.running, running);
        assert!(steward.next.is_none());
        let refused = "sluicegate_config_reloads_total{result=\"refused\"} 1";
        assert!(metrics.encode().contains(refused), "{}", metrics.encode());

        steward
            .apply(parse(", prefix: '{x}:y'", "max-requests: 6"), true)
            .await;
        assert!(steward.next.is_some());
    }
}
