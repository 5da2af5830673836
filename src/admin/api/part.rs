//! The pipelines, and what of each a request needs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::input::Input;
use super::problem::Problem;
use crate::admin::Board;
use crate::broker::amqp::Client;
use crate::config::{Config, closest};
use crate::gate::redis::RedisGate;
use crate::operator::NotDone;
use crate::rules::delays::DelayLevels;

/// So many requests have a connection to RabbitMQ at once.
const MOST_CLIENTS: usize = 2;

/// One pipeline, while a request asks it.
#[derive(Clone)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Its configuration in force.
    pub config: Arc<Config>,
    /// A gate of the API's own: what it asks never waits for jobs, nor they for it.
    pub gate: Arc<RedisGate>,
}

/// A gate, with the configuration by which it was made.
type Made = (Arc<Config>, Arc<RedisGate>);

/// All of them.
pub struct PartsOfAll {
    board: Arc<Board>,
    /// By the pipeline's name.
    gates: Mutex<BTreeMap<String, Made>>,
    clients: Semaphore,
}

impl PartsOfAll {
    /// Of what `board` shows.
    pub fn new(board: Arc<Board>) -> Self {
        Self {
            board,
            gates: Mutex::default(),
            clients: Semaphore::new(MOST_CLIENTS),
        }
    }

    /// The pipeline that `input` names, or the only one.
    ///
    /// # Errors
    /// There is none of this name, or none is named and there are several.
    pub fn one(&self, input: &Input) -> Result<Part, Problem> {
        let mut all = self.all(input)?;
        match (all.pop(), all.len()) {
            (Some(only), 0) => Ok(only),
            (_, more) => {
                let all = self.board.pipelines();
                let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
                Err(Problem::wrong(format!(
                    "there are {} pipelines: {}; say which with ?pipeline=NAME",
                    more + 1,
                    names.join(", ")
                )))
            }
        }
    }

    /// The pipeline that `input` names, or all.
    ///
    /// # Errors
    /// There is none of this name, or it has not begun.
    pub fn all(&self, input: &Input) -> Result<Vec<Part>, Problem> {
        let mut all = self.board.pipelines();
        self.forget_others(
            &all.iter()
                .map(|(name, _)| name.as_str())
                .collect::<Vec<_>>(),
        );
        if let Some(wanted) = input.text("pipeline") {
            let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
            if !names.contains(&wanted) {
                let hint = closest(wanted, names.iter().copied());
                let hint = hint.map(|meant| format!("; did you mean {meant}?"));
                let (there, hint) = (names.join(", "), hint.unwrap_or_default());
                return Err(Problem::from(NotDone::Missing(format!(
                    "there is no pipeline {wanted:?}; there are: {there}{hint}"
                ))));
            }
            all.retain(|(name, _)| name == wanted);
        }
        let parts = all.into_iter().map(|(name, seen)| {
            let config = seen.config.get().ok_or_else(|| {
                NotDone::Failed(format!("the pipeline {name} has not begun: try it again"))
            })?;
            let gate = self.gate(&name, &config)?;
            Ok(Part { name, config, gate })
        });
        let parts: Vec<Part> = parts.collect::<Result<_, NotDone>>()?;
        match parts.is_empty() {
            true => Err(NotDone::Failed("no pipeline runs".to_owned()).into()),
            false => Ok(parts),
        }
    }

    /// The gate of the pipeline `name`; it is kept until its servers or prefix are others.
    fn gate(&self, name: &str, config: &Arc<Config>) -> Result<Arc<RedisGate>, NotDone> {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, gate)) = gates.get(name)
            && of.redis == config.redis
        {
            return Ok(Arc::clone(gate));
        }
        let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix)?;
        let gate = Arc::new(gate);
        gates.insert(name.to_owned(), (Arc::clone(config), Arc::clone(&gate)));
        Ok(gate)
    }

    fn forget_others(&self, names: &[&str]) {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates.retain(|name, _| names.contains(&name.as_str()));
    }

    /// A turn to have a connection to RabbitMQ.
    ///
    /// # Errors
    /// Too many have one.
    pub fn turn(&self) -> Result<SemaphorePermit<'_>, Problem> {
        self.clients.try_acquire().map_err(|_| Problem::busy())
    }
}

impl Part {
    /// A connection to its RabbitMQ.
    ///
    /// # Errors
    /// [`NotDone::RabbitMq`]
    pub async fn client(&self) -> Result<Client, NotDone> {
        let levels = DelayLevels::new(self.config.delay.max_delay);
        Ok(Client::connect_existing(&self.config.amqp, &levels).await?)
    }
}
