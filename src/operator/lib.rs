//! An operator's queries and actions, without their presentation. The commands and `/api/v1` both
//! use them.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test may have many cases")
)]

// `answers!` names this package in attributes of serde, also in other packages.
extern crate self as operator;

pub mod advertised;
pub mod answer;
pub mod audit;
pub mod dead;
pub mod divert;
pub mod explain;
pub mod fleet;
pub mod fullness;
mod held_letters;
pub mod hold;
pub mod inspect;
pub mod job;
pub mod labels;
pub mod letters;
pub mod limits;
pub mod other_policies;
pub mod overview;
pub mod rabbitmq;
pub mod rate;
pub mod recovery;
pub mod steer;
pub mod tally;
pub mod tenant;
pub mod tenant_action;
pub mod text;
pub mod times;
pub mod trials;
pub mod wake;

use broker::BrokerError;
use gate::GateError;

/// The reason why an action or query failed.
#[derive(Debug, thiserror::Error)]
pub enum NotDone {
    /// The request is invalid.
    #[error("{0}")]
    Wrong(String),
    /// The requested object does not exist.
    #[error("{0}")]
    Missing(String),
    /// The action was tried and failed.
    #[error("{0}")]
    Failed(String),
    /// Redis failed.
    #[error("{0}{hint}", hint = redis_hint(.0))]
    Redis(#[from] GateError),
    /// RabbitMQ failed.
    #[error(transparent)]
    RabbitMq(#[from] BrokerError),
}

/// Returns advice if Redis can't be reached.
fn redis_hint(error: &GateError) -> &'static str {
    match error {
        // It has its own advice.
        GateError::Unreachable(why) if why.contains("redis.sentinels") => "",
        GateError::Unreachable(why) if why.contains("reset by peer") => {
            "; check that it is running and that redis.url is correct (rediss:// if its port speaks \
            TLS)"
        }
        GateError::Unreachable(_) => "; check that it is running and that redis.url is correct",
        _ => "",
    }
}
