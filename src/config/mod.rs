//! The configuration, checked: a value of these types is usable as it is.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

pub use crate::rules::job::TenantField;
use crate::rules::limit::Limit;

/// Everything a worker needs to know.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// RabbitMQ.
    pub amqp: Amqp,
    /// Redis.
    pub redis: Redis,
    /// Where a job's fields stand.
    pub job: JobFields,
    /// The limit.
    pub rate_limiter: RateLimiter,
    /// How jobs run.
    pub dispatch: Dispatch,
    /// How jobs wait.
    pub delay: Delay,
    /// How failed jobs are tried again.
    pub retry: Retry,
    /// Metrics and health.
    pub admin: Admin,
    /// Logs.
    pub log: Log,
}

/// A text that may hold a password. `Debug` and `Display` show it redacted.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl(String);

impl SecretUrl {
    /// Keeps `url`, which may hold a user and a password.
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }
    /// The url with its password: for connecting, never for printing.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match url::Url::parse(&self.0) {
            Ok(mut url) => {
                if url.password().is_some() && url.set_password(Some("***")).is_err() {
                    return f.write_str("<url>");
                }
                url.set_query(None);
                f.write_str(url.as_str())
            }
            Err(_) => f.write_str("<unreadable url>"),
        }
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `amqp`
#[derive(Debug, Clone, PartialEq)]
pub struct Amqp {
    /// `amqp.url`
    pub url: SecretUrl,
    /// `amqp.queue`: the work queue; the others are named after it.
    pub queue: String,
    /// `amqp.queue-type`
    pub queue_type: QueueType,
    /// `amqp.prefetch`: unacked deliveries of each of the two main consumers.
    pub prefetch: u16,
}

/// `amqp.queue-type`: the type of the work queues (lanes are always quorum queues).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueType {
    /// `quorum`
    Quorum,
    /// `classic`
    Classic,
}

/// `redis`
#[derive(Debug, Clone, PartialEq)]
pub struct Redis {
    /// `redis.url`
    pub url: SecretUrl,
    /// `redis.prefix`: what every key begins with.
    pub prefix: String,
}

/// `job`
#[derive(Debug, Clone, PartialEq)]
pub struct JobFields {
    /// `job.tenant`
    pub tenant: TenantField,
}

/// `rate-limiter`
#[derive(Debug, Clone, PartialEq)]
pub struct RateLimiter {
    /// What every tenant may do.
    pub limit: Limit,
    /// `rate-limiter.max-penalty`: the longest that a downstream's answer can close a tenant.
    pub max_penalty: Duration,
}

/// `dispatch`
#[derive(Debug, Clone, PartialEq)]
pub struct Dispatch {
    /// `dispatch.concurrency`: jobs that run at once.
    pub concurrency: usize,
    /// `dispatch.shutdown-timeout`: how long running jobs may take after SIGTERM.
    pub shutdown_timeout: Duration,
    /// `dispatch.http`; a worker with a handler of its own needs none.
    pub http: Option<Http>,
}

/// `dispatch.http`
#[derive(Debug, Clone, PartialEq)]
pub struct Http {
    /// `dispatch.http.url`
    pub url: SecretUrl,
    /// `dispatch.http.timeout`: for the whole call, connection set-up included.
    pub timeout: Duration,
}

/// `delay`
#[derive(Debug, Clone, PartialEq)]
pub struct Delay {
    /// `delay.hold`: waits up to this are spent in the worker's memory.
    pub hold: Duration,
    /// `delay.max-delay`: one trip through a lane takes at most this.
    pub max_delay: Duration,
}

/// `retry`
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    /// `retry.max-attempts`
    pub max_attempts: u32,
    /// `retry.initial-interval`
    pub initial_interval: Duration,
    /// `retry.max-interval`
    pub max_interval: Duration,
}

/// `admin`
#[derive(Debug, Clone, PartialEq)]
pub struct Admin {
    /// `admin.listen`
    pub listen: SocketAddr,
}

/// `log`
#[derive(Debug, Clone, PartialEq)]
pub struct Log {
    /// `log.format`
    pub format: LogFormat,
    /// `log.level`: a `tracing-subscriber` filter, such as `info` or `sluicegate=debug`.
    pub level: String,
}

/// `log.format`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}
