//! The connection to one server. It is opened on first use, and again whenever it is lost or leads
//! to a server that can't serve it. Each connection resolves the name of the server again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::redis::aio::{ConnectionManager, ConnectionManagerConfig};
use ::redis::{Client, ConnectionInfo, Pipeline, RedisResult, Value};

use crate::GateError;
use crate::fault::Fault;
use crate::refusal;
use rules::timing::latency::LatencyEstimator;

/// How long Redis may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long Redis may take to accept a connection. TCP, TLS and login are several round trips of up
/// to half a second each.
const TIMEOUT_TO_CONNECT: Duration = Duration::from_secs(3);
/// How long a server may take for connection and answer together.
pub const TIMEOUT_IN_ALL: Duration = Duration::from_secs(4);
/// Maximum pause between two attempts to connect.
const RECONNECT: Duration = Duration::from_secs(1);

/// A connection to one server, shared by all callers.
pub struct Node {
    client: Client,
    /// The server's name in errors. It contains no secret.
    name: String,
    current: Mutex<CurrentConnection>,
    /// Round-trip times, by the time since `made`.
    latency: Mutex<LatencyEstimator>,
    made: Instant,
    round_trips: Arc<AtomicU64>,
}

/// The current connection.
#[derive(Default)]
struct CurrentConnection {
    manager: Option<ConnectionManager>,
    /// The connection's number. A task that saw a connection fail drops that connection, and not
    /// its successor.
    number: u64,
    /// When the server last timed out, if it has not answered since.
    silent: Option<Instant>,
}

impl Node {
    /// Creates a node that does not connect yet. `round_trips` counts its round trips.
    pub fn new(client: Client, name: String, round_trips: Arc<AtomicU64>) -> Self {
        Self {
            client,
            name,
            current: Mutex::default(),
            latency: Mutex::default(),
            made: Instant::now(),
            round_trips,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the node's address and login.
    pub fn info(&self) -> &ConnectionInfo {
        self.client.get_connection_info()
    }

    /// Returns the time since the server timed out, or `None` if it has answered since.
    pub fn silent(&self) -> Option<Duration> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.silent.map(|since| since.elapsed())
    }

    /// Returns the minimum round-trip time, or `None` if it is not known yet.
    pub fn base(&self) -> Option<Duration> {
        let latency = self.latency.lock().unwrap_or_else(PoisonError::into_inner);
        latency.is_known().then(|| latency.base())
    }

    /// Makes one round trip. Returns one value per command of the pipeline.
    pub async fn send(&self, pipeline: &Pipeline) -> Result<Vec<Value>, GateError> {
        let count = pipeline.len();
        let (mut manager, number) = self
            .manager()
            .map_err(|why| refusal::broken(&why, &self.name, "redis.url"))?;
        self.round_trips.fetch_add(1, Ordering::Relaxed);
        let started = Instant::now();
        let sent = tokio::time::timeout(
            TIMEOUT_IN_ALL,
            manager.send_packed_commands(pipeline, 0, count),
        );
        let (error, silent) = match sent.await {
            Ok(Ok(answers)) if answers.len() == count => {
                self.ended(number, None, Fault::among(&answers).wants_connection());
                let mut latency = self.latency.lock().unwrap_or_else(PoisonError::into_inner);
                latency.learn(self.made.elapsed(), started.elapsed());
                return Ok(answers);
            }
            Ok(Ok(_)) => {
                let words = format!("{}: an answer is missing", self.name);
                (GateError::Unreachable(words), false)
            }
            Ok(Err(error)) => (
                refusal::broken(&error, &self.name, "redis.url"),
                error.is_timeout(),
            ),
            Err(_) => {
                let words = format!("{}: no answer in time", self.name);
                (GateError::Unreachable(words), true)
            }
        };
        self.ended(number, silent.then(Instant::now), true);
        Err(error)
    }

    /// Records the end of a round trip over the connection `number`: when the server timed out, if
    /// it did, and whether the connection is `lost`.
    fn ended(&self, number: u64, silent: Option<Instant>, lost: bool) {
        // A manager reconnects by itself after some errors, but not after a failed login, a silent
        // peer, or a demotion of the primary. A new manager connects after every error.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.silent = silent;
        if lost && current.number == number {
            current.manager = None;
        }
    }

    /// Returns the current connection and its number.
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Answers each command of a connection: the setup commands with `+OK`, and the others with
    /// `line`.
    async fn serve(mut stream: TcpStream, line: &'static str) -> Option<()> {
        let mut buffer = [0; 4096];
        loop {
            let length = stream.read(&mut buffer).await.ok().filter(|n| *n > 0)?;
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            let setup = text.matches("SETINFO").count();
            let commands = text.lines().filter(|line| line.starts_with('*')).count();
            let answers = "+OK\r\n".repeat(setup) + &line.repeat(commands - setup);
            stream.write_all(answers.as_bytes()).await.ok()?;
        }
    }

    /// Returns true if the call after the answer `line` uses a new connection.
    async fn reconnects_after(line: &'static str) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move {
            for line in [line, "+second\r\n"] {
                let (stream, _) = listener.accept().await.expect("a connection");
                tokio::spawn(serve(stream, line));
            }
        });
        let client = Client::open(format!("redis://{address}")).expect("a url");
        let node = Node::new(client, address.to_string(), Arc::default());
        let mut pipeline = Pipeline::new();
        pipeline.cmd("PING").cmd("PING");
        for _ in 0..2 {
            node.send(&pipeline).await.expect("answers");
        }
        let answers = node.send(&pipeline).await.expect("answers");
        answers[0] == Value::SimpleString("second".to_owned())
    }

    #[tokio::test]
    async fn an_error_by_which_the_primary_may_be_elsewhere_ends_the_connection() {
        for (line, reconnects) in [
            ("+PONG\r\n", false),
            ("-ERR an argument is wrong\r\n", false),
            ("-NOSCRIPT No matching script\r\n", false),
            ("-OOM command not allowed\r\n", false),
            (
                "-READONLY You can't write against a read only replica.\r\n",
                true,
            ),
            ("-LOADING Redis is loading the dataset in memory\r\n", true),
            ("-MASTERDOWN Link with MASTER is down\r\n", true),
            ("-BUSY Redis is busy running a script.\r\n", true),
            ("-NOREPLICAS Not enough good replicas to write.\r\n", true),
            ("-NOAUTH Authentication required.\r\n", true),
            ("-ERR max number of clients reached\r\n", true),
        ] {
            assert_eq!(reconnects_after(line).await, reconnects, "{line}");
        }
    }
}
