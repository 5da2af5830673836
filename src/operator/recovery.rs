//! The recovery wait: after Redis may have lost data, workers admit nothing until what was lost counts no more.

use crate::gate::GateError;
use crate::gate::epoch::outlook::Outlook;
use crate::gate::redis::Look;
use serde_json::{Value, json};

use super::times::when;
use super::words::plain;

/// What is known of it at one Redis, or one primary of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovery {
    /// Jobs are admitted.
    Over,
    /// No job is admitted before.
    Waits {
        /// Redis's clock, in milliseconds since 1970.
        now_ms: u64,
        /// The latest end; workers may find sooner that nothing was lost.
        until_ms: u64,
        /// What happened to Redis.
        why: String,
    },
    /// Redis is new or was emptied, and no worker has looked since.
    NoWorker,
    /// It could not be read.
    Unread(String),
}

impl From<Result<Look, GateError>> for Recovery {
    fn from(look: Result<Look, GateError>) -> Self {
        match look {
            Err(why) => Self::Unread(plain(&why.to_string(), 200)),
            Ok(Look {
                outlook, now_ms, ..
            }) => match outlook {
                Outlook::Open => Self::Over,
                Outlook::Unknown => Self::NoWorker,
                Outlook::Waits { until_ms, why } => Self::Waits {
                    now_ms,
                    until_ms,
                    why: plain(&why, 300),
                },
            },
        }
    }
}

impl Recovery {
    /// How long no job is admitted at most, in milliseconds; 0: it is over, or not known.
    pub fn in_ms(&self) -> u64 {
        match self {
            Self::Waits {
                now_ms, until_ms, ..
            } => until_ms.saturating_sub(*now_ms),
            _ => 0,
        }
    }

    /// `in 42.0s (Tue, …) at most`, while no job is admitted.
    pub fn end(&self) -> Option<String> {
        match self {
            Self::Waits { now_ms, .. } => Some(format!("{} at most", when(*now_ms, self.in_ms()))),
            _ => None,
        }
    }

    /// The sentence that says it; `None`: there is nothing to say.
    pub fn in_words(&self) -> Option<String> {
        match self {
            Self::Over => None,
            Self::Waits { why, .. } => {
                let end = self.end().unwrap_or_default();
                Some(format!("ends {end}: Redis may have lost data: {why}"))
            }
            Self::NoWorker => Some(
                "is not known: Redis is new or was emptied, and the next worker that looks decides"
                    .to_owned(),
            ),
            Self::Unread(why) => Some(format!("is not known: {why}")),
        }
    }

    /// Until when no job is admitted, in Unix ms (0: jobs are, null: not known), and why.
    pub fn as_json(&self) -> (Value, Value) {
        match self {
            Self::Over => (json!(0), Value::Null),
            Self::Waits { until_ms, why, .. } => (json!(until_ms), json!(why)),
            Self::NoWorker | Self::Unread(_) => (Value::Null, json!(self.in_words())),
        }
    }
}
