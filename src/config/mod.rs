//! The configuration, checked: a value of these types is usable as it is.

mod amqp;
mod env;
mod error;
mod file;
mod form;
mod keys;
mod limits;
mod load;
mod load_answers;
mod load_headers;
mod load_redis;
mod load_tls;
mod part;
mod redis;
mod secret;
mod show;
mod tls;
mod value;
mod values;
mod warn;
mod watch;
mod yaml;

use std::net::SocketAddr;
use std::time::Duration;

use hyper::header::HeaderMap;

pub use amqp::AmqpServers;
pub use error::{ConfigErrors, Origin, Problem};
pub use form::{parse_duration, show as show_duration};
pub use keys::{KEYS, Key, closest, env_name};
pub use redis::{RedisServers, RedisTopology};
pub use secret::{Secret, SecretUrl};
pub use tls::{Identity, Pems, Tls, TlsError};
pub use watch::Source;

use crate::rules::answers::Answers;
pub use crate::rules::job::{Fields, TenantField, ValueField};
use crate::rules::policy::Policy;
use crate::rules::pushback::ThrottleScope;

/// The file that is read when none is named.
pub const DEFAULT_FILE: &str = "sluicegate.yaml";

/// Everything a worker needs to know.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// RabbitMQ.
    pub amqp: Amqp,
    /// Redis.
    pub redis: Redis,
    /// Where a job's fields stand.
    pub job: Fields,
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

/// `amqp`
#[derive(Debug, Clone, PartialEq)]
pub struct Amqp {
    /// `amqp.url`
    pub url: AmqpServers,
    /// `amqp.ca-file`, `amqp.cert-file` and `amqp.key-file`; the files are read at each connect.
    pub tls: Tls,
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

impl QueueType {
    /// The value in the configuration, and in RabbitMQ's `x-queue-type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

/// `redis`
#[derive(Debug, Clone, PartialEq)]
pub struct Redis {
    /// `redis.url`, and what belongs to it.
    pub url: RedisServers,
    /// `redis.prefix`: what every key begins with.
    pub prefix: String,
}

/// `rate-limiter`
#[derive(Debug, Clone, PartialEq)]
pub struct RateLimiter {
    /// What each tenant may do.
    pub policy: Policy,
    /// `rate-limiter.max-penalty`: the longest that a downstream's answer can close a tenant.
    pub max_penalty: Duration,
    /// `rate-limiter.guard-budget`: the part of a window, in percent, that each call may cost, on average, to correct what only
    /// answers tell of calls that came late.
    pub guard_budget: f64,
    /// `rate-limiter.throttle-scope`: whom it closes.
    pub throttle_scope: ThrottleScope,
}

/// `dispatch`
#[derive(Debug, Clone, PartialEq)]
pub struct Dispatch {
    /// `dispatch.concurrency`: jobs that run at once.
    pub concurrency: usize,
    /// `dispatch.shutdown-timeout`: how long running jobs may take after SIGTERM.
    pub shutdown_timeout: Duration,
    /// `dispatch.breaker`; `None` where it is not `enabled`.
    pub breaker: Option<Breaker>,
    /// `dispatch.http`; a worker with a handler of its own needs none.
    pub http: Option<Http>,
}

/// `dispatch.breaker`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Breaker {
    /// `dispatch.breaker.failures`: so many in a row stop calls.
    pub failures: u32,
    /// `dispatch.breaker.initial-interval`: the wait before the first probe.
    pub initial_interval: Duration,
    /// `dispatch.breaker.max-interval`: the longest wait between two probes.
    pub max_interval: Duration,
}

/// `dispatch.http`
#[derive(Debug, Clone, PartialEq)]
pub struct Http {
    /// `dispatch.http.url`
    pub url: SecretUrl,
    /// `dispatch.http.ca-file`, `dispatch.http.cert-file` and `dispatch.http.key-file`
    pub tls: Tls,
    /// `dispatch.http.headers` and `dispatch.http.headers-file`: what each call carries; sensitive values.
    pub headers: HeaderMap,
    /// `dispatch.http.answers`: what an answer means.
    pub answers: Answers,
    /// `dispatch.http.http2`: HTTP/2 where a server with TLS offers it.
    pub http2: bool,
    /// `dispatch.http.timeout`: for the whole call, connection set-up included.
    pub timeout: Duration,
    /// `dispatch.http.abandoned`: how long a call without an answer in time counts as under way.
    pub abandoned: Duration,
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
    /// `retry.give-up-after`: what still fails or is refused so long after its first call becomes a dead letter.
    pub give_up_after: Duration,
    /// `retry.max-crashes`: a job whose calls end their workers so often becomes a dead letter; 0: never.
    pub max_crashes: u32,
}

/// `admin`
#[derive(Debug, Clone, PartialEq)]
pub struct Admin {
    /// `admin.listen`
    pub listen: SocketAddr,
    /// `admin.token`: who shows it may see everything; `None`: everybody may.
    pub token: Option<Secret>,
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

impl LogFormat {
    /// The value in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}
