//! What an operator asks and does, for whoever shows it: the commands and `/api/v1` are two doors to this.

pub mod advertised;
pub mod audit;
pub mod dead;
pub mod divert;
pub mod explain;
pub mod fleet;
pub mod fullness;
pub mod hold;
pub mod inspect;
pub mod job;
pub mod labels;
pub mod letters;
pub mod limits;
pub mod others;
pub mod overview;
pub mod pace;
pub mod recovery;
pub mod steer;
pub mod tally;
pub mod tenant;
pub mod times;
pub mod trials;
pub mod wake;
pub mod words;

use crate::broker::BrokerError;
use crate::gate::GateError;

/// Why something was not done, or not found out.
#[derive(Debug, thiserror::Error)]
pub enum NotDone {
    /// What is asked for makes no sense.
    #[error("{0}")]
    Wrong(String),
    /// What is meant is not there.
    #[error("{0}")]
    Missing(String),
    /// It was tried and did not work.
    #[error("{0}")]
    Failed(String),
    /// Redis.
    #[error("{0}{hint}", hint = redis_hint(.0))]
    Redis(#[from] GateError),
    /// RabbitMQ.
    #[error(transparent)]
    RabbitMq(#[from] BrokerError),
}

/// What to do where Redis can't be reached.
fn redis_hint(error: &GateError) -> &'static str {
    match error {
        GateError::Unreachable(_) => "; see that it runs and that redis.url is right",
        _ => "",
    }
}
