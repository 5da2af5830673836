//! The state of all pipelines of a process, for the admin server.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::Health;
use crate::config::{Config, PipelineName};
use crate::metrics::{Metrics, merge};

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
pub struct Seen {
    /// Metrics, for `/metrics`.
    pub metrics: Arc<Metrics>,
    /// Health, for `/readyz`.
    pub health: Arc<Health>,
    /// Configuration, for `/api/v1`.
    pub config: Arc<InForce>,
    /// Name of the pipeline, if it has one.
    pub name: Option<PipelineName>,
}

impl Seen {
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

/// All named pipelines, or the only unnamed one.
pub struct Board(Pipelines);

enum Pipelines {
    Only(Seen),
    Named(RwLock<BTreeMap<PipelineName, Seen>>),
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

impl From<&Health> for Readiness {
    fn from(health: &Health) -> Self {
        let missing = health.missing();
        let is_ready = missing.is_empty();
        let lines = match is_ready {
            true => health.partly(),
            false => missing,
        };
        Self { is_ready, lines }
    }
}

impl Board {
    /// Creates the board of a single, unnamed pipeline.
    pub fn only(seen: Seen) -> Self {
        Self(Pipelines::Only(seen))
    }

    /// Creates an empty board for named pipelines.
    pub fn named() -> Self {
        Self(Pipelines::Named(RwLock::default()))
    }

    /// Adds the pipeline `name`, or replaces it.
    pub fn put(&self, name: PipelineName, seen: Seen) {
        if let Pipelines::Named(all) = &self.0 {
            let mut all = all.write().unwrap_or_else(PoisonError::into_inner);
            all.insert(name, seen);
        }
    }

    /// Removes the pipeline `name`.
    pub fn remove(&self, name: &PipelineName) {
        if let Pipelines::Named(all) = &self.0 {
            let mut all = all.write().unwrap_or_else(PoisonError::into_inner);
            all.remove(name);
        }
    }

    /// Returns the metrics of all pipelines in the OpenMetrics text format.
    pub fn metrics(&self) -> String {
        match &self.0 {
            Pipelines::Only(seen) => seen.metrics.encode(),
            Pipelines::Named(all) => {
                let all = all.read().unwrap_or_else(PoisonError::into_inner);
                let texts: Vec<String> = all.values().map(|seen| seen.metrics.encode()).collect();
                merge(&texts)
            }
        }
    }

    /// Returns the readiness of the process. One ready pipeline is enough, since a load balancer or
    /// supervisor that acts on the answer acts on all pipelines.
    pub fn readiness(&self) -> Readiness {
        let all = match &self.0 {
            Pipelines::Only(seen) => return Readiness::from(&*seen.health),
            Pipelines::Named(all) => all.read().unwrap_or_else(PoisonError::into_inner),
        };
        let mut whole = Readiness {
            is_ready: false,
            lines: Vec::new(),
        };
        for (name, seen) in all.iter() {
            let own = Readiness::from(&*seen.health);
            whole.is_ready |= own.is_ready;
            let lines = own.lines.iter().map(|line| format!("{name}: {line}"));
            whole.lines.extend(lines);
        }
        whole
    }

    /// Returns how many turns each running engine has made.
    pub fn turns(&self) -> BTreeMap<String, u64> {
        let mut turns = BTreeMap::new();
        self.each(|name, seen| _ = turns.insert(name.to_owned(), seen.health.turns()));
        turns.retain(|_, turns| *turns > 0);
        turns
    }

    /// Wakes every engine for one turn, even if it has nothing to do.
    pub fn ask_for_a_turn(&self) {
        self.each(|_, seen| seen.health.ask_for_a_turn());
    }

    /// Returns all pipelines with their names.
    pub fn pipelines(&self) -> Vec<(String, Seen)> {
        let mut all = Vec::new();
        self.each(|name, seen| all.push((name.to_owned(), seen.clone())));
        if let (Pipelines::Only(_), [(name, _)]) = (&self.0, all.as_mut_slice()) {
            *name = PipelineName::default_one().to_string();
        }
        all
    }

    fn each(&self, mut look: impl FnMut(&str, &Seen)) {
        match &self.0 {
            Pipelines::Only(seen) => look("", seen),
            Pipelines::Named(all) => {
                let all = all.read().unwrap_or_else(PoisonError::into_inner);
                all.iter()
                    .for_each(|(name, seen)| look(name.as_str(), seen));
            }
        }
    }

    /// Returns the readiness of the pipeline `name`, or `None` if there is no such pipeline.
    pub fn readiness_of(&self, name: &str) -> Option<Readiness> {
        let Pipelines::Named(all) = &self.0 else {
            return None;
        };
        let all = all.read().unwrap_or_else(PoisonError::into_inner);
        let mut all = all.iter();
        let (_, seen) = all.find(|(known, _)| known.as_str() == name)?;
        Some(Readiness::from(&*seen.health))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Pipelines as Configs;

    fn ready(health: &Health) {
        health.set_rabbitmq(true);
        health.set_redis(true);
        health.set_consuming(true);
    }

    #[test]
    fn a_process_is_ready_while_one_of_its_pipelines_is() {
        let text = "pipelines: {mail: , orders: }";
        let configs = Configs::parse("c.yaml", text, std::iter::empty()).expect("valid");
        let board = Board::named();
        let all: Vec<Seen> = (configs.each().keys())
            .map(|name| {
                let seen = Seen::of(name);
                board.put(name.clone(), seen.clone());
                seen
            })
            .collect();
        let whole = board.readiness();
        assert!(!whole.is_ready && whole.lines.len() == 6, "{whole:?}");

        ready(&all[1].health);
        let whole = board.readiness();
        assert!(whole.is_ready);
        assert_eq!(whole.lines[0], "mail: RabbitMQ does not answer");
        let of = |name| board.readiness_of(name).map(|own| own.is_ready);
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
        assert_eq!(board.turns(), turns(&[]), "no engine has begun");
        all.iter().for_each(|seen| seen.health.turned());
        all[0].health.turned();
        assert_eq!(board.turns(), turns(&[("mail", 2), ("orders", 1)]));

        all[1].health.set_gone();
        assert_eq!(of("orders"), Some(false));
        assert_eq!(board.turns(), turns(&[("mail", 2)]));
        let metrics = board.metrics();
        let lines =
            ["mail", "orders"].map(|name| format!("sluicegate_agreed{{pipeline=\"{name}\"}} 0\n"));
        assert!(metrics.contains(&lines.concat()), "{metrics}");
        for name in configs.each().keys() {
            board.remove(name);
        }
        assert_eq!(board.metrics(), "# EOF\n");
        assert_eq!(of("orders"), None);
    }

    #[test]
    fn a_pipeline_without_a_name_is_the_whole_process() {
        let seen = Seen::default();
        let board = Board::only(seen.clone());
        assert!(!board.readiness().is_ready);
        ready(&seen.health);
        assert_eq!(board.readiness().lines, [""; 0]);
        assert!(board.readiness().is_ready);
        assert_eq!(board.readiness_of("default"), None);
        assert_eq!(board.metrics(), seen.metrics.encode());
    }
}
