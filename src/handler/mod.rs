//! What is done with a job that may start.

pub mod http;

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

pub use crate::rules::breaker::Trouble;
use crate::rules::job::Job;
use crate::rules::pushback::Seen;

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
    /// The permit ran out before anything was sent: the job asks for a new one. No attempt is used.
    Late,
    /// Never: the job becomes a dead letter.
    Reject {
        /// Why, for `x-sluicegate-reason`.
        reason: String,
    },
}

/// The right to call the downstream once, now. The gate counted the call when it was asked; a call that is
/// sent much later would fall into a window in which it was not counted.
#[derive(Debug, Clone, Copy)]
pub struct Permit {
    send_by: Instant,
}

impl Permit {
    /// A permit for a call that is sent until `send_by`.
    pub fn until(send_by: Instant) -> Self {
        Self { send_by }
    }

    /// Whether the call may still be sent. A handler that must prepare first (open a connection, say) looks
    /// right before it sends, and answers [`Outcome::Late`] if not.
    pub fn is_good(&self) -> bool {
        Instant::now() <= self.send_by
    }
}

/// A verdict, and what the downstream's answer said of limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// What becomes of the job.
    pub outcome: Outcome,
    /// What was said; [`Seen::default`] where nothing was. Its `actual_cost` corrects what the job was charged.
    pub seen: Seen,
    /// What a failure says of the API's health, for its [breaker](crate::rules::breaker); `None`: the API is sound.
    pub trouble: Option<Trouble>,
}

impl From<Outcome> for Attempt {
    /// A verdict of a downstream that said nothing of limits; [`Outcome::Retry`] says that it is failing.
    fn from(outcome: Outcome) -> Self {
        let failed = matches!(outcome, Outcome::Retry { .. });
        Self {
            outcome,
            seen: Seen::default(),
            trouble: failed.then_some(Trouble::Failing),
        }
    }
}

/// Does the work of one job. A panic counts as [`Outcome::Retry`].
pub trait Handler: Send + Sync + 'static {
    /// Works on `job`: one call of the downstream at most, which `permit` allows.
    fn handle(&self, job: &Job, permit: Permit) -> impl Future<Output = Outcome> + Send;

    /// As [`Handler::handle`], for a handler that learns what a job really cost, or what is left of the downstream's
    /// own limit. This is what the worker calls.
    fn attempt(&self, job: &Job, permit: Permit) -> impl Future<Output = Attempt> + Send {
        async move { self.handle(job, permit).await.into() }
    }
}
