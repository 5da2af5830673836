//! The checked configuration: values of these types can be used without further checks.
//!
//! Each section is a file in `sections` with the declarations of its keys, its types, and how they
//! are read and shown. Loading, the environment, `check`, a reload, the reference page and the JSON
//! schema use the declarations.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test may have many cases")
)]
#![deny(missing_docs)]

mod clashes;
mod env;
mod features;
mod file;
mod keys;
mod load;
mod pipelines;
mod reading;
mod schema;
mod sections;
mod shape;
mod values;
mod warnings;
mod watch;

pub use keys::KEYS;
pub use load::{Config, DEFAULT_FILE};
pub use pipelines::Pipelines;
pub use reading::error::{ConfigErrors, ConfigProblem, Origin, Position};
pub use reading::key::{AppliesAt, ConfigKey, env_name};
pub use reading::parse::closest;
pub use schema::json_schema;
pub use sections::admin::Admin;
pub use sections::amqp::{Amqp, QueueType};
pub use sections::breaker::BreakerConfig;
pub use sections::delay::DelayConfig;
pub use sections::dispatch::Dispatch;
pub use sections::exec::Exec;
pub use sections::forward::{Forward, RoutingKey};
pub use sections::http::api_profiles::{ApiName, ApiPlan, ApiProfile};
pub use sections::http::method::Method;
pub use sections::http::oauth2::{ClientAuth, OAuth2, TENANT};
pub use sections::http::secrets::{OF_TENANTS, SecretFiles, Sign, signing_keys};
pub use sections::http::{Http, SIGNATURE_HEADERS};
pub use sections::log::{Log, LogFormat};
pub use sections::rate_limiter::RateLimiter;
pub use sections::redis::{Redis, RedisServers};
pub use sections::results::{Results, ResultsTo};
pub use values::amqp_servers::AmqpServers;
pub use values::pipeline_name::{DEFAULT_PIPELINE, PipelineName};
pub use values::redis_servers::{RedisTopology, ScriptCommand};
pub use values::secret::{Secret, SecretUrl};
pub use values::tls::{Identity, Pems, Tls, TlsError};
pub use watch::ConfigSource;

pub use rules::job::{Fields, TenantField, ValueField};
pub use rules::text::{parse_duration, show_duration};
