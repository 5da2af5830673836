//! The outcome of one attempt of a job.

use std::time::Duration;

/// A handler's verdict on one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Done: the job is acked.
    Done,
    /// Failed for now: the attempt is used, and the job is tried again after `after` or by the
    /// retry schedule.
    Retry {
        /// Delay before the next attempt, or `None` for the configured backoff.
        after: Option<Duration>,
        /// Reason for the log, and for the dead letter when no attempt is left.
        reason: String,
    },
    /// Not now: the job is tried again after `after`, and no attempt is used.
    Snooze {
        /// Delay before the next attempt.
        after: Duration,
    },
    /// The API asked this tenant to stop: the tenant is throttled for all workers, and the job
    /// waits without using an attempt.
    Throttled {
        /// Duration of the throttle, or `None` if the API did not name one.
        after: Option<Duration>,
        /// Reason for the log and `inspect`.
        reason: String,
    },
    /// Nothing was sent, because the permit expired or the prepared resources turned out to be
    /// unusable. The job asks for a new permit and uses no attempt.
    Late,
    /// Never: the job becomes a dead letter.
    Reject {
        /// Reason for `x-sluicegate-reason`.
        reason: String,
    },
}

impl Outcome {
    /// Returns its name in metrics and traces.
    #[doc(hidden)]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Retry { .. } => "retry",
            Self::Snooze { .. } => "snooze",
            Self::Throttled { .. } => "throttled",
            Self::Late => "late",
            Self::Reject { .. } => "reject",
        }
    }
}
