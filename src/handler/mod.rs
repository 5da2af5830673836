//! What is done with a job that may start.

pub mod http;

use std::future::Future;
use std::time::Duration;

use crate::rules::job::Job;

/// A handler's verdict on one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Done: the job is acked.
    Done,
    /// Failed for now: it costs an attempt and is tried again after `after`, or by the retry schedule.
    Retry {
        /// When to try again; `None`: the configured backoff.
        after: Option<Duration>,
        /// For the log, and for the dead letter when no attempt is left.
        reason: String,
    },
    /// Not now: tried again after `after`, and no attempt is used.
    Snooze {
        /// When to try again.
        after: Duration,
    },
    /// The downstream asked this tenant to stop: the tenant is closed for all workers, and the job waits
    /// without using an attempt.
    Throttled {
        /// For how long; `None`: the downstream did not say.
        after: Option<Duration>,
        /// For the log and `inspect`.
        reason: String,
    },
    /// Never: the job becomes a dead letter.
    Reject {
        /// Why, for `x-sluicegate-reason`.
        reason: String,
    },
}

/// Does the work of one job. Each call has passed the gate once; a panic counts as [`Outcome::Retry`].
pub trait Handler: Send + Sync + 'static {
    /// Works on `job`. One call of the downstream at most: each call has cost one permit.
    fn handle(&self, job: &Job) -> impl Future<Output = Outcome> + Send;
}
