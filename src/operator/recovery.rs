//! The recovery wait: after Redis may have lost data, workers admit no job until the lost usage no
//! longer counts.

use gate::GateError;
use gate::epoch::NOTICED_WITHIN;
use gate::epoch::outlook::Outlook;
use gate::redis::PrimaryOutlook;

use super::text::plain;
use super::times::when;
use rules::limit::floor_ms;

/// State of the recovery wait at one Redis, or one primary of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovery {
    /// Jobs are admitted.
    Over,
    /// No job is admitted before `until_ms`.
    Waits {
        /// Time by Redis's clock, in milliseconds since 1970.
        now_ms: u64,
        /// Latest end. Workers may find out earlier that nothing was lost, and notice the end
        /// within [`NOTICED_WITHIN`].
        until_ms: u64,
        /// The event at Redis.
        why: String,
    },
    /// Redis is new or was emptied, and no worker has looked since.
    NoWorker,
    /// No job is admitted, because Redis refuses writes; the text says why.
    Refused(String),
    /// The state could not be read.
    Unread(String),
}

impl From<Result<PrimaryOutlook, GateError>> for Recovery {
    fn from(look: Result<PrimaryOutlook, GateError>) -> Self {
        match look {
            Err(why) => Self::Unread(plain(&why.to_string(), 200)),
            Ok(PrimaryOutlook {
                outlook, now_ms, ..
            }) => match outlook {
                Outlook::Open => Self::Over,
                Outlook::Unknown => Self::NoWorker,
                Outlook::Refuses(why) => Self::Refused(plain(&why, 300)),
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
    /// Returns the longest time until jobs are admitted, in milliseconds; 0 if the wait is over or
    /// unknown.
    pub fn in_ms(&self) -> u64 {
        match self {
            Self::Waits {
                now_ms, until_ms, ..
            } => until_ms.saturating_sub(*now_ms),
            _ => 0,
        }
    }

    /// Returns why Redis refuses writes, if it does.
    pub fn refused(&self) -> Option<&str> {
        match self {
            Self::Refused(why) => Some(why),
            _ => None,
        }
    }

    /// Returns when a job with its turn in `turn_ms` is admitted, in milliseconds from now, or `None`
    /// if that is unknown because Redis refuses writes.
    pub fn admits_in_ms(&self, turn_ms: u64) -> Option<u64> {
        match self {
            Self::Refused(_) => None,
            _ => Some(turn_ms.max(self.in_ms())),
        }
    }

    /// Returns the longest time until all workers have noticed the end, in milliseconds; 0 if the
    /// wait is over or unknown.
    pub fn noticed_in_ms(&self) -> u64 {
        match self.in_ms() {
            0 => 0,
            in_ms => in_ms.saturating_add(floor_ms(NOTICED_WITHIN)),
        }
    }

    /// Returns when all workers have noticed the latest end, while no job is admitted:
    /// `in 44.0s (Tue, …) at the latest`.
    pub fn end(&self) -> Option<String> {
        match self {
            Self::Waits { now_ms, .. } => {
                let end = when(*now_ms, self.noticed_in_ms());
                Some(format!("{end} at the latest"))
            }
            _ => None,
        }
    }

    /// Describes the wait in a sentence, or returns `None` if there is none.
    pub fn describe(&self) -> Option<String> {
        match self {
            Self::Over => None,
            Self::Waits { why, .. } => {
                let end = self.end().unwrap_or_default();
                Some(format!("ends {end}: Redis may have lost data: {why}"))
            }
            Self::NoWorker => Some(
                "unknown: Redis is new or was emptied, and the next worker that checks it decides"
                    .to_owned(),
            ),
            Self::Refused(_) => Some("unknown: Redis refuses writes".to_owned()),
            Self::Unread(why) => Some(format!("unknown: {why}")),
        }
    }

    /// Returns the end of the wait in Unix milliseconds (0 if there is none, `None` if unknown) and
    /// its reason.
    pub fn known(&self) -> (Option<u64>, Option<String>) {
        match self {
            Self::Over => (Some(0), None),
            Self::Waits { until_ms, why, .. } => (Some(*until_ms), Some(why.clone())),
            Self::NoWorker | Self::Refused(_) | Self::Unread(_) => (None, self.describe()),
        }
    }
}
