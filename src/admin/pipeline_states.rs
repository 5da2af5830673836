//! The state of all pipelines of a process, for the admin server.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use config::{Config, PipelineName};
use telemetry::Health;
use telemetry::metrics::{Metrics, merge};

/// The configuration that a pipeline has in force; none before its first start.
#[derive(Debug, Default)]
pub struct InForce(RwLock<Option<Arc<Config>>>);

impl InForce {
    /// Sets the configuration in force.
    pub fn set(&self, config: &Config) {
        let config = Some(Arc::new(config.clone()));
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// Returns the configuration in force.
    pub fn get(&self) -> Option<Arc<Config>> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// A pipeline's metrics, health and configuration. They survive restarts of the pipeline.
#[derive(Clone, Default)]
pub struct PipelineState {
    /// Metrics, for `/metrics`.
    pub metrics: Arc<Metrics>,
    /// Health, for `/readyz`.
    pub health: Arc<Health>,
    /// Configuration, for `/api/v1`.
    pub config: Arc<InForce>,
    /// Name of the pipeline, if it has one.
    pub name: Option<PipelineName>,
}

impl PipelineState {
    /// Creates the state of a named pipeline. Its metrics carry the name as a label.
    pub fn of(name: &PipelineName) -> Self {
        Self {
            metrics: Arc::new(Metrics::of(Some(name.as_str()))),
            health: Arc::default(),
            config: Arc::default(),
            name: Some(name.clone()),
        }
    }
}

/// All named pipelines, or the only unnamed one under its default name.
pub struct PipelineStates {
    all: RwLock<BTreeMap<PipelineName, PipelineState>>,
    are_named: bool,
}

/// Whether a pipeline is ready, and the reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    /// Whether jobs are being taken.
    pub is_ready: bool,
    /// Conditions that are missing. If the pipeline is ready, its remaining problems, such as
    /// unavailable primaries.
    pub lines: Vec<String>,
}

impl From<&PipelineState> for Readiness {
    fn from(state: &PipelineState) -> Self {
        let missing = state.health.missing();
        let is_ready = missing.is_empty();
        let lines = match is_ready {
            true => state.metrics.partly(),
            false => missing,
        };
        Self { is_ready, lines }
    }
}

impl PipelineStates {
    /// Creates the state of a single, unnamed pipeline.
    pub fn only(state: PipelineState) -> Self {
        Self {
            all: RwLock::new(BTreeMap::from([(PipelineName::default_one(), state)])),
            are_named: false,
        }
    }

    /// Creates an empty set of named pipelines.
    pub fn named() -> Self {
        Self {
            all: RwLock::default(),
            are_named: true,
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<PipelineName, PipelineState>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the pipeline `name`, or replaces it.
    pub fn put(&self, name: PipelineName, state: PipelineState) {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(name, state);
    }

    /// Removes the pipeline `name`.
    pub fn remove(&self, name: &PipelineName) {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        all.remove(name);
    }

    /// Returns the metrics of all pipelines in the OpenMetrics text format.
    pub fn metrics(&self) -> String {
        let texts = self
            .read()
            .values()
            .map(|state| state.metrics.encode())
            .collect::<Vec<_>>();
        merge(&texts)
    }

    /// Returns the readiness of the process. One ready pipeline is enough, since a load balancer or
    /// supervisor that acts on the answer acts on all pipelines.
    pub fn readiness(&self) -> Readiness {
        let mut whole = Readiness {
            is_ready: false,
            lines: Vec::new(),
        };
        for (name, state) in self.read().iter() {
            let own = Readiness::from(state);
            if !self.are_named {
                return own;
            }
            whole.is_ready |= own.is_ready;
            let lines = own.lines.iter().map(|line| format!("{name}: {line}"));
            whole.lines.extend(lines);
        }
        whole
    }

    /// Returns how many turns each running engine has made.
    pub fn turns(&self) -> BTreeMap<String, u64> {
        let all = self.read();
        let turns = all
            .iter()
            .map(|(name, state)| (name.to_string(), state.health.turns()));
        turns.filter(|(_, turns)| *turns > 0).collect()
    }

    /// Wakes every engine for one turn, even if it has nothing to do.
    pub fn request_turn(&self) {
        self.read()
            .values()
            .for_each(|state| state.health.request_turn());
    }

    /// Returns all pipelines with their names.
    pub fn pipelines(&self) -> Vec<(String, PipelineState)> {
        let all = self.read();
        all.iter()
            .map(|(name, state)| (name.to_string(), state.clone()))
            .collect()
    }

    /// Returns the readiness of the named pipeline `name`, or `None` if there is no such pipeline.
    pub fn readiness_of(&self, name: &str) -> Option<Readiness> {
        let all = self.read();
        let mut all = all.iter().filter(|_| self.are_named);
        let (_, state) = all.find(|(known, _)| known.as_str() == name)?;
        Some(Readiness::from(state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Pipelines as Configs;

    fn ready(health: &Health) {
        health.set_rabbitmq(true);
        health.set_redis(true);
        health.set_consuming(true);
    }

    #[test]
    fn a_process_is_ready_while_one_of_its_pipelines_is() {
        let text = "pipelines: {mail: , orders: }";
        let configs = Configs::parse("c.yaml", text, std::iter::empty()).expect("valid");
        let states = PipelineStates::named();
        let all: Vec<PipelineState> = (configs.each().keys())
            .map(|name| {
                let state = PipelineState::of(name);
                states.put(name.clone(), state.clone());
                state
            })
            .collect();
        let whole = states.readiness();
        assert!(!whole.is_ready && whole.lines.len() == 6, "{whole:?}");

        ready(&all[1].health);
        let whole = states.readiness();
        assert!(whole.is_ready);
        assert_eq!(whole.lines[0], "mail: RabbitMQ does not answer");
        let of = |name| states.readiness_of(name).map(|own| own.is_ready);
        assert_eq!(
            ["mail", "orders", "x"].map(of),
            [Some(false), Some(true), None]
        );

        let turns = |engines: &[(&str, u64)]| {
            let engines = engines
                .iter()
                .map(|(name, turns)| ((*name).to_owned(), *turns));
            engines.collect::<BTreeMap<_, _>>()
        };
        assert_eq!(states.turns(), turns(&[]), "no engine has begun");
        all.iter().for_each(|state| state.health.turned());
        all[0].health.turned();
        assert_eq!(states.turns(), turns(&[("mail", 2), ("orders", 1)]));

        all[1].health.set_stopped();
        assert_eq!(of("orders"), Some(false));
        assert_eq!(states.turns(), turns(&[("mail", 2)]));
        let metrics = states.metrics();
        let lines =
            ["mail", "orders"].map(|name| format!("sluicegate_agreed{{pipeline=\"{name}\"}} 0\n"));
        assert!(metrics.contains(&lines.concat()), "{metrics}");
        for name in configs.each().keys() {
            states.remove(name);
        }
        assert_eq!(states.metrics(), "# EOF\n");
        assert_eq!(of("orders"), None);
    }

    #[test]
    fn a_pipeline_without_a_name_is_the_whole_process() {
        let state = PipelineState::default();
        let states = PipelineStates::only(state.clone());
        assert!(!states.readiness().is_ready);
        ready(&state.health);
        assert_eq!(states.readiness().lines, [""; 0]);
        assert!(states.readiness().is_ready);
        assert_eq!(states.readiness_of("default"), None);
        assert_eq!(states.metrics(), state.metrics.encode());
    }
}
