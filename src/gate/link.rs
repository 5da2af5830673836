//! The connection to Redis: made when it is first needed, and again whenever it is lost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ::redis::aio::{ConnectionManager, ConnectionManagerConfig};
use ::redis::io::tcp::TcpSettings;
use ::redis::{Client, IntoConnectionInfo, Pipeline, RedisResult, Value};

use crate::config::SecretUrl;
use crate::gate::GateError;
use crate::gate::refusal;

/// How long Redis may take to answer, and to accept a connection.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The longest pause between two attempts to connect.
const RECONNECT: Duration = Duration::from_secs(1);

/// A connection to one Redis, shared by all callers.
pub struct Link {
    client: Client,
    url: SecretUrl,
    current: Mutex<Current>,
    round_trips: AtomicU64,
}

/// The connection in use.
#[derive(Default)]
struct Current {
    manager: Option<ConnectionManager>,
    /// How many there were: a task that saw one fail drops that one, not the one that replaced it.
    number: u64,
}

impl Link {
    /// It does not connect yet.
    pub fn new(url: &SecretUrl) -> Result<Self, GateError> {
        let client = url
            .expose()
            .into_connection_info()
            .and_then(|info| {
                Client::open(info.set_tcp_settings(TcpSettings::default().set_nodelay(true)))
            })
            .map_err(|_| {
                GateError::Refused(format!(
                    "{url} is no Redis url; it must look like redis://user:password@host:6379/0"
                ))
            })?;
        Ok(Self {
            client,
            url: url.clone(),
            current: Mutex::default(),
            round_trips: AtomicU64::new(0),
        })
    }

    pub fn url(&self) -> &SecretUrl {
        &self.url
    }

    pub fn round_trips(&self) -> u64 {
        self.round_trips.load(Ordering::Relaxed)
    }

    /// One round trip: one value for each of the pipeline's commands.
    pub async fn send(&self, pipeline: &Pipeline) -> Result<Vec<Value>, GateError> {
        let count = pipeline.len();
        let (mut manager, number) = self
            .manager()
            .map_err(|why| refusal::broken(&why, &self.url))?;
        self.round_trips.fetch_add(1, Ordering::Relaxed);
        let sent = tokio::time::timeout(
            TIMEOUT * 2,
            manager.send_packed_commands(pipeline, 0, count),
        );
        let error = match sent.await {
            Ok(Ok(answers)) if answers.len() == count => return Ok(answers),
            Ok(Ok(_)) => GateError::Unreachable(format!("{}: an answer is missing", self.url)),
            Ok(Err(error)) => refusal::broken(&error, &self.url),
            Err(_) => GateError::Unreachable(format!("{}: no answer in time", self.url)),
        };
        // A manager reconnects by itself after some errors, not after all (a login that failed, a peer that is
        // silent): a new one does after every error.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
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
            .set_connection_timeout(Some(TIMEOUT))
            .set_number_of_retries(1)
            .set_max_delay(RECONNECT);
        let manager = ConnectionManager::new_lazy_with_config(self.client.clone(), config)?;
        current.manager = Some(manager.clone());
        current.number += 1;
        Ok((manager, current.number))
    }
}
