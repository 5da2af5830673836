//! The sections of the configuration: the keys of each, their values, and how these are shown.

pub(super) mod admin;
pub(super) mod amqp;
pub(super) mod breaker;
pub(super) mod delay;
pub(super) mod dispatch;
pub(super) mod exec;
pub(super) mod forward;
pub(super) mod http;
pub(super) mod job;
pub(super) mod log;
pub(super) mod placeholders;
pub(super) mod rate_limiter;
pub(super) mod redis;
pub(super) mod results;
pub(super) mod retry;
pub(super) mod section;
pub(super) mod tls_keys;
