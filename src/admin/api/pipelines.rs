//! The pipelines, and the connections that a request to one of them needs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::input::RequestInput;
use super::problem::ApiProblem;
use crate::PipelineStates;
use broker::amqp::Client;
use config::{Config, closest};
use gate::redis::RedisGate;
use operator::NotDone;
use operator::rabbitmq::open;

/// Maximum number of reads, and of actions, with a connection to RabbitMQ at the same time.
const MAX_CLIENTS: usize = 2;

/// A pipeline, during one request.
#[derive(Clone)]
pub struct PipelineContext {
    /// Name of the pipeline.
    pub name: String,
    /// Configuration in force.
    pub config: Arc<Config>,
    /// Gate for the API only: requests and jobs never wait for each other.
    pub gate: Arc<RedisGate>,
}

/// A gate, with the configuration from which it was made.
type CachedGate = (Arc<Config>, Arc<RedisGate>);

/// All pipelines.
pub struct PipelineContexts {
    states: Arc<PipelineStates>,
    /// Gates by the pipeline's name.
    gates: Mutex<BTreeMap<String, CachedGate>>,
    reads: Semaphore,
    actions: Semaphore,
}

impl PipelineContexts {
    /// Creates the pipelines that `states` shows.
    pub fn new(states: Arc<PipelineStates>) -> Self {
        Self {
            states,
            gates: Mutex::default(),
            reads: Semaphore::new(MAX_CLIENTS),
            actions: Semaphore::new(MAX_CLIENTS),
        }
    }

    /// Returns the pipeline that `input` names, or the only one.
    ///
    /// # Errors
    /// There is no pipeline of this name, or there are several and `input` names none.
    pub fn one(&self, input: &RequestInput) -> Result<PipelineContext, ApiProblem> {
        let mut all = self.all(input)?;
        match (all.pop(), all.len()) {
            (Some(only), 0) => Ok(only),
            (_, more) => {
                let all = self.states.pipelines();
                let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
                Err(ApiProblem::wrong(format!(
                    "there are {} pipelines: {}; select one with ?pipeline=NAME",
                    more + 1,
                    names.join(", ")
                )))
            }
        }
    }

    /// Returns the pipeline that `input` names, or all.
    ///
    /// # Errors
    /// There is no pipeline of this name, or it has not started.
    pub fn all(&self, input: &RequestInput) -> Result<Vec<PipelineContext>, ApiProblem> {
        let mut all = self.states.pipelines();
        self.forget_others(
            &all.iter()
                .map(|(name, _)| name.as_str())
                .collect::<Vec<_>>(),
        );
        if let Some(selected) = input.text("pipeline") {
            let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
            if !names.contains(&selected) {
                let hint = closest(selected, names.iter().copied());
                let hint = hint.map(|meant| format!("; did you mean {meant}?"));
                let (there, hint) = (names.join(", "), hint.unwrap_or_default());
                return Err(ApiProblem::from(NotDone::Missing(format!(
                    "there is no pipeline {selected:?}; there are: {there}{hint}"
                ))));
            }
            all.retain(|(name, _)| name == selected);
        }
        let contexts = all.into_iter().map(|(name, state)| {
            let config = state.config.get().ok_or_else(|| {
                NotDone::Failed(format!(
                    "the pipeline {name} has not started yet: try again"
                ))
            })?;
            let gate = self.gate(&name, &config)?;
            Ok(PipelineContext { name, config, gate })
        });
        let contexts: Vec<PipelineContext> = contexts.collect::<Result<_, NotDone>>()?;
        match contexts.is_empty() {
            true => Err(NotDone::Failed("no pipeline is running".to_owned()).into()),
            false => Ok(contexts),
        }
    }

    /// Returns the gate of the pipeline `name`. It is reused until the `redis` section changes.
    fn gate(&self, name: &str, config: &Arc<Config>) -> Result<Arc<RedisGate>, NotDone> {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, gate)) = gates.get(name)
            && of.redis == config.redis
        {
            return Ok(Arc::clone(gate));
        }
        let gate = RedisGate::new(&config.redis.url, &config.redis.prefix)?;
        let gate = Arc::new(gate);
        gates.insert(name.to_owned(), (Arc::clone(config), Arc::clone(&gate)));
        Ok(gate)
    }

    fn forget_others(&self, names: &[&str]) {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates.retain(|name, _| names.contains(&name.as_str()));
    }

    /// Takes a permit for a read's connection to RabbitMQ.
    ///
    /// # Errors
    /// Too many reads have one.
    pub fn turn_to_read(&self) -> Result<SemaphorePermit<'_>, ApiProblem> {
        self.reads.try_acquire().map_err(|_| ApiProblem::busy())
    }

    /// Takes a permit for an action's connection to RabbitMQ.
    ///
    /// # Errors
    /// Too many actions have one.
    pub fn turn_to_act(&self) -> Result<SemaphorePermit<'_>, ApiProblem> {
        self.actions.try_acquire().map_err(|_| ApiProblem::busy())
    }
}

impl PipelineContext {
    /// Connects to the pipeline's RabbitMQ.
    ///
    /// # Errors
    /// [`NotDone::RabbitMq`]
    pub async fn client(&self) -> Result<Client, NotDone> {
        open(&self.config).await
    }
}
