//! The configuration, checked: a value of these types is usable as it is.
//!
//! A section is a file: what is declared of its keys, what they become, and how they are read and shown. Loading, the
//! environment, `check`, a reload, the reference page and the JSON schema read the declarations.

mod admin;
mod amqp;
mod amqp_servers;
mod breaker;
mod delay;
mod dispatch;
mod env;
mod error;
mod features;
mod file;
mod form;
mod header;
mod http;
mod http_answers;
mod http_headers;
mod http_method;
mod http_oauth2;
mod http_secrets;
mod input;
mod job;
mod key;
mod keys;
mod limit_keys;
mod limits;
mod load;
mod log;
mod part;
mod placeholders;
mod priorities;
mod rate_limiter;
mod redis;
mod redis_servers;
mod results;
mod retry;
mod schema;
mod secret;
mod shape;
mod shown;
mod suggest;
mod tls;
mod tls_keys;
mod urls;
mod warn;
mod watch;
mod yaml;

pub use admin::Admin;
pub use amqp::{Amqp, QueueType};
pub use amqp_servers::AmqpServers;
pub use breaker::Breaker;
pub use delay::Delay;
pub use dispatch::Dispatch;
pub use error::{ConfigErrors, Origin, Problem};
pub use form::{parse_duration, show as show_duration};
pub use http::{Http, OF_TENANTS, SIGNATURE_HEADERS};
pub use http_method::Method;
pub use http_oauth2::{ClientAuth, OAuth2};
pub use http_secrets::{SecretFiles, Sign, signing_keys};
pub use key::{Applied, Key, env_name};
pub use keys::KEYS;
pub use load::{Config, DEFAULT_FILE};
pub use log::{Log, LogFormat};
pub use rate_limiter::RateLimiter;
pub use redis::Redis;
pub use redis_servers::{RedisServers, RedisTopology};
pub use results::{Results, ResultsTo};
pub use retry::Retry;
pub use schema::json_schema;
pub use secret::{Secret, SecretUrl};
pub use suggest::closest;
pub use tls::{Identity, Pems, Tls, TlsError};
pub use watch::Source;

pub use crate::rules::job::{Fields, TenantField, ValueField};
