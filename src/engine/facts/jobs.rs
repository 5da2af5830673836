//! Events of single jobs: their times, calls, failures and ends.

use std::time::Duration;

use strum::IntoStaticStr;
use tracing::{debug, warn};

use super::{JobFields, info_if, shown, span_id, trace_id};
use crate::line_limiter::{LineBudget, LineKind};
use handler::Outcome;
use rules::limit::{Limits, floor_ms};
use rules::scope::Labels;
use rules::timing::promise::PromiseGap;
use telemetry::metrics::Metrics;

/// Reason why a job became a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Death {
    /// The handler rejected it.
    Rejected,
    /// All of its attempts failed.
    Attempts,
    /// It expired.
    Expired,
    /// It failed, or was throttled, for too long.
    GivenUp,
    /// Its calls crashed their workers.
    Crashed,
    /// Its delayed start can't be used.
    #[strum(serialize = "bad-message")]
    Invalid,
    /// An operator canceled it.
    Canceled,
}

/// The place where a job waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum WaitPlace {
    /// This worker's memory.
    #[strum(serialize = "memory")]
    InMemory,
    /// A delay queue, for the whole wait.
    #[strum(serialize = "delay-queue")]
    Queue,
    /// The longest delay queue within `max-delay`, for a part of the wait.
    LongestDelayQueue,
}

/// An event of one job.
#[derive(Debug)]
pub enum JobFact {
    /// A denied job has to wait.
    MustWait {
        /// The job.
        job: JobFields,
        /// The labels of the job.
        labels: Labels,
        /// The limits of the job.
        limits: Limits,
        /// Index of the limit that it waits for.
        limit: usize,
        /// The count of that limit.
        count: u64,
        /// The wait, in milliseconds.
        wait_ms: u64,
        /// The number of its ticket.
        ticket: u64,
    },
    /// A job begins to wait.
    Delayed(WaitPlace),
    /// An invalid message becomes a dead letter.
    InvalidMessage {
        /// The message's ID.
        id: String,
        /// The reason why it is invalid.
        reason: String,
    },
    /// A duplicate was dropped. For this many milliseconds, other jobs with its dedupe key are
    /// dropped, too.
    Duplicate(JobFields, u64),
    /// The publisher of a job delays its start by this many milliseconds from now.
    DelayedStart(JobFields, u64),
    /// A job starts this long after it was due. Its fields are included if that is late.
    Started(Duration, Option<JobFields>),
    /// A job with a promise starts, and missed its promised turn by this much.
    Promised(PromiseGap),
    /// A new job has been in the work queue for this long, according to its publisher's timestamp.
    Queued(Duration),
    /// A call of the handler ended after this time, or was not made (`None`).
    Called(Outcome, Option<Duration>),
    /// A failed job is tried again.
    Retried {
        /// The job.
        job: JobFields,
        /// The attempt that failed.
        attempt: u32,
        /// The wait before the next attempt.
        wait: Duration,
        /// Why it failed.
        reason: String,
    },
    /// A job failed while a breaker is open, which uses no attempt.
    FailedWhileOpen(JobFields, String),
    /// A job became a dead letter.
    DeadLetter(JobFields, Death, String),
    /// This many calls of a job crashed their workers. It runs alone: no other such job runs with
    /// it.
    SuspectRunsAlone(JobFields, u32),
    /// A suspect waits for this many milliseconds, because another call of it may be in flight.
    SuspectWaits(JobFields, u64),
    /// A job of a diverted tenant goes to another queue.
    Diverted,
}

impl JobFact {
    /// Counts the event, if it has a metric.
    pub(super) fn count(&self, metrics: &Metrics) {
        match self {
            Self::InvalidMessage { .. } => metrics.dead_letters.count(Death::Invalid.into()),
            Self::MustWait {
                limits,
                limit,
                wait_ms,
                ..
            } => {
                let wait = Duration::from_millis(*wait_ms);
                metrics.wait_seconds.observe(wait.as_secs_f64());
                metrics.denials.of(limits[*limit].name()).inc();
            }
            Self::Started(late, None) => metrics.started(*late),
            Self::Started(late, Some(JobFields { id, .. })) => {
                metrics.started_late(*late, id.as_deref())
            }
            Self::Promised(off) => metrics.promised(*off),
            Self::Queued(age) => metrics.queued_seconds.observe(age.as_secs_f64()),
            Self::Delayed(delay) => metrics.delays.count(delay.into()),
            Self::DelayedStart(..) => _ = metrics.delayed_starts.inc(),
            Self::Called(outcome, took) => {
                metrics.dispatches.count(outcome.name());
                if let Some(took) = took {
                    metrics.dispatch_seconds.observe(took.as_secs_f64());
                }
            }
            Self::Duplicate(..) => _ = metrics.duplicates.inc(),
            Self::DeadLetter(_, death, _) => metrics.dead_letters.count(death.into()),
            Self::Diverted => _ = metrics.diverted_jobs.inc(),
            // These are logged.
            Self::Retried { .. }
            | Self::FailedWhileOpen(..)
            | Self::SuspectRunsAlone(..)
            | Self::SuspectWaits(..) => {}
        }
    }

    /// Logs the event, if it has a line.
    pub(super) fn log(&self, lines: &mut LineBudget<'_>) {
        match self {
            Self::InvalidMessage { id, reason } => {
                if lines.may_log(LineKind::Invalid) {
                    warn!(
                        job.id = id,
                        reason, "invalid message: it becomes a dead letter"
                    );
                } else {
                    debug!(job.id = id, reason, "invalid message");
                }
            }
            Self::MustWait {
                job: JobFields { id, tenant, trace },
                labels,
                limits,
                limit,
                count,
                wait_ms,
                ticket,
            } => {
                debug!(
                    job.id = id, trace_id = trace.map(trace_id), span_id = trace.map(span_id), %tenant,
                    labels = shown(labels),
                    limit = limits[*limit].name(),
                    count,
                    ttl_ms = wait_ms,
                    place = ticket,
                    "denied: the job waits for its turn",
                );
            }
            Self::DelayedStart(JobFields { id, tenant, trace }, ms) => {
                debug!(job.id = id, trace_id = trace.map(trace_id), span_id = trace.map(span_id), %tenant, ms, "start \
                    delayed by the publisher");
            }
            Self::Retried {
                job: JobFields { id, tenant, trace },
                attempt,
                wait,
                reason,
            } => {
                let (at_info, wait_ms) = (lines.may_log(LineKind::Failed), floor_ms(*wait));
                info_if!(at_info, job.id = id, trace_id = trace.map(trace_id), span_id = trace.map(span_id), %tenant, attempt, wait_ms, reason, "job \
                    failed: it will be retried");
            }
            Self::FailedWhileOpen(JobFields { id, tenant, trace }, reason) => {
                let at_info = lines.may_log(LineKind::Failed);
                info_if!(at_info, job.id = id, trace_id = trace.map(trace_id), span_id = trace.map(span_id), %tenant, reason, "job \
                    failed while a breaker was open: no attempt is used");
            }
            Self::Duplicate(JobFields { id, tenant, trace }, left_ms) => {
                debug!(job.id = id, trace_id = trace.map(trace_id), span_id = trace.map(span_id), %tenant, left_ms, "duplicate: \
                    another job with the same dedupe key was seen before");
            }
            Self::DeadLetter(JobFields { id, tenant, trace }, _, reason) => {
                if lines.may_log(LineKind::Dead) {
                    warn!(job.id = id, trace_id = trace.map(trace_id), span_id = trace.map(span_id), %tenant, reason, "dead letter");
                } else {
                    debug!(job.id = id, trace_id = trace.map(trace_id), span_id = trace.map(span_id), %tenant, reason, "dead letter");
                }
            }
            Self::SuspectRunsAlone(JobFields { id, tenant, trace }, crashes) => {
                let at_info = lines.may_log(LineKind::Alone);
                info_if!(at_info, job.id = id, trace_id = trace.map(trace_id), span_id = trace.map(span_id), %tenant, crashes, "calls \
                    of this job crashed their workers: no other such job is called at the same time");
            }
            Self::SuspectWaits(JobFields { id, tenant, trace }, ms) => {
                debug!(job.id = id, trace_id = trace.map(trace_id), span_id = trace.map(span_id), %tenant, ms, "another \
                    call of this job may be in flight: the job waits");
            }
            // These are counted.
            Self::Delayed(..)
            | Self::Started(..)
            | Self::Promised(..)
            | Self::Queued(..)
            | Self::Called(..)
            | Self::Diverted => {}
        }
    }
}
