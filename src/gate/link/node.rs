//! The connection to one server: made when it is first needed, and again whenever it is lost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::redis::aio::{ConnectionManager, ConnectionManagerConfig};
use ::redis::{Client, ConnectionInfo, Pipeline, RedisResult, Value};

use crate::gate::GateError;
use crate::gate::refusal;
use crate::rules::way::Way;

/// How long Redis may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long it may take to accept a connection: TCP, TLS and login are several round trips, of up to half a second each.
const TIMEOUT_TO_CONNECT: Duration = Duration::from_secs(3);
/// How long a server may take for all of it.
pub const TIMEOUT_IN_ALL: Duration = Duration::from_secs(4);
/// The longest pause between two attempts to connect.
const RECONNECT: Duration = Duration::from_secs(1);

/// A connection to one server, shared by all callers.
pub struct Node {
    client: Client,
    /// What it is called in errors; no secret.
    name: String,
    current: Mutex<Current>,
    /// What round trips take, by the time since `made`.
    way: Mutex<Way>,
    made: Instant,
    round_trips: Arc<AtomicU64>,
}

/// The connection in use.
#[derive(Default)]
struct Current {
    manager: Option<ConnectionManager>,
    /// How many there were: a task that saw one fail drops that one, not the one that replaced it.
    number: u64,
    /// When it last let us wait in vain, if it has not answered since.
    silent: Option<Instant>,
}

impl Node {
    /// It does not connect yet. `round_trips` is where they are counted.
    pub fn new(client: Client, name: String, round_trips: Arc<AtomicU64>) -> Self {
        Self {
            client,
            name,
            current: Mutex::default(),
            way: Mutex::default(),
            made: Instant::now(),
            round_trips,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is.
    pub fn info(&self) -> &ConnectionInfo {
        self.client.get_connection_info()
    }

    /// How long it is since it let us wait in vain; `None`: it answered.
    pub fn silent(&self) -> Option<Duration> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.silent.map(|since| since.elapsed())
    }

    /// What a round trip takes at least; `None`: that is not known yet.
    pub fn base(&self) -> Option<Duration> {
        let way = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        way.is_known().then(|| way.base())
    }

    /// One round trip: one value for each of the pipeline's commands.
    pub async fn send(&self, pipeline: &Pipeline) -> Result<Vec<Value>, GateError> {
        let count = pipeline.len();
        let (mut manager, number) = self
            .manager()
            .map_err(|why| refusal::broken(&why, &self.name))?;
        self.round_trips.fetch_add(1, Ordering::Relaxed);
        let begun = Instant::now();
        let sent = tokio::time::timeout(
            TIMEOUT_IN_ALL,
            manager.send_packed_commands(pipeline, 0, count),
        );
        let (error, silent) = match sent.await {
            Ok(Ok(answers)) if answers.len() == count => {
                let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
                current.silent = None;
                drop(current);
                let mut way = self.way.lock().unwrap_or_else(PoisonError::into_inner);
                way.learn(self.made.elapsed(), begun.elapsed());
                return Ok(answers);
            }
            Ok(Ok(_)) => {
                let words = format!("{}: an answer is missing", self.name);
                (GateError::Unreachable(words), false)
            }
            Ok(Err(error)) => (refusal::broken(&error, &self.name), error.is_timeout()),
            Err(_) => {
                let words = format!("{}: no answer in time", self.name);
                (GateError::Unreachable(words), true)
            }
        };
        // A manager reconnects by itself after some errors, not after all (a login that failed, a peer that is
        // silent): a new one does after every error.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.silent = silent.then(Instant::now);
        if current.number == number {
            current.manager = None;
        }
        Err(error)
    }

    /// The connection in use and its number.
    fn manager(&self) -> RedisResult<(ConnectionManager, u64)> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(manager) = &current.manager {
            return Ok((manager.clone(), current.number));
        }
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(TIMEOUT))
            .set_connection_timeout(Some(TIMEOUT_TO_CONNECT))
            .set_number_of_retries(1)
            .set_max_delay(RECONNECT);
        let manager = ConnectionManager::new_lazy_with_config(self.client.clone(), config)?;
        current.manager = Some(manager.clone());
        current.number += 1;
        Ok((manager, current.number))
    }
}
