//! Events of RabbitMQ: deliveries, publishes and results.

use std::sync::Arc;
use std::time::Duration;

use strum::IntoStaticStr;
use tracing::{error, warn};

use crate::line_limiter::{LineBudget, LineKind};
use broker::{DeliverySource, MessageKind, PublishError};
use telemetry::metrics::Metrics;

/// Outcome of a job's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum ResultOutcome {
    /// It was confirmed.
    Published,
    /// Its target does not exist.
    Unroutable,
    /// The target refused it, or did not confirm it, for too long; or RabbitMQ closed the
    /// connection over it.
    Refused,
}

/// An event between the scheduler and RabbitMQ.
#[derive(Debug)]
pub enum BrokerFact {
    /// A delivery was taken from this source.
    Delivered(DeliverySource),
    /// A job reached this queue from a delay queue, which must not release jobs before their time.
    LeftDelayQueueEarly(Arc<str>),
    /// A publish was not confirmed, and is tried again. True for the first failure of its target.
    PublishFailed(PublishError, bool),
    /// RabbitMQ stored no copy of a job, a dead letter or a result, so its delivery went back to its
    /// queue.
    MoveGivenBack {
        /// The job's ID.
        job: String,
        /// RabbitMQ's reason for closing the channel over it, or `None` if RabbitMQ gave none until
        /// its timeout for unacked deliveries was near.
        refusal: Option<String>,
        /// Whether to log it: no other was logged lately.
        is_news: bool,
    },
    /// Queues or exchanges take no messages of one kind.
    TargetsStuck {
        /// The kind.
        kind: MessageKind,
        /// Number of waiting messages.
        messages: usize,
        /// Routing key of the target that has been stuck the longest.
        routing_key: Arc<str>,
        /// How long that target has been stuck.
        since: Duration,
    },
    /// A job's result was confirmed.
    ResultPublished,
    /// A job's result was given up, and the job goes on without it.
    ResultLost {
        /// The job's ID.
        job: String,
        /// The reason.
        sent: ResultOutcome,
        /// The exchange of its target.
        exchange: Arc<str>,
        /// The routing key of its target.
        routing_key: Arc<str>,
        /// Whether no lost result was reported lately.
        is_news: bool,
    },
    /// All deliveries are returned to their queues, for this reason.
    DeliveriesReturned(&'static str),
    /// Number of jobs that moved on to delay queues after being held unacked for as long as
    /// RabbitMQ may allow.
    HeldJobsReleased(usize),
    /// RabbitMQ's `consumer_timeout` is shorter than previously known.
    ShortTimeout {
        /// The timeout.
        timeout: Duration,
        /// Whether all calls end in time: the longest call and a wait before it fit into the
        /// timeout.
        fits: bool,
    },
}

impl BrokerFact {
    /// Counts the event, if it has a metric.
    pub(super) fn count(&self, metrics: &Metrics) {
        match self {
            Self::Delivered(source) => metrics.deliveries.count(source.into()),
            Self::PublishFailed(why, _) => metrics.publish_failures.count(why.into()),
            Self::MoveGivenBack { .. } => _ = metrics.moves_given_back.inc(),
            Self::ResultPublished => metrics.results.count(ResultOutcome::Published.into()),
            Self::ResultLost { sent, .. } => metrics.results.count(sent.into()),
            Self::DeliveriesReturned(_) => _ = metrics.rests.inc(),
            // These are logged.
            Self::LeftDelayQueueEarly(..)
            | Self::TargetsStuck { .. }
            | Self::HeldJobsReleased(..)
            | Self::ShortTimeout { .. } => {}
        }
    }

    /// Logs the event, if it has a line.
    pub(super) fn log(&self, lines: &mut LineBudget<'_>) {
        match self {
            Self::LeftDelayQueueEarly(queue) => {
                warn!(%queue, "jobs leave delay queues too early: a policy (message-ttl or \
                    delivery-limit) matches these queues; remove it");
            }
            Self::ShortTimeout { timeout, fits } => {
                let timeout_ms = timeout.as_millis();
                warn!(
                    timeout_ms,
                    "RabbitMQ's consumer_timeout is shorter than amqp.consumer-timeout: waiting jobs \
                    are returned earlier"
                );
                if !fits {
                    error!(
                        timeout_ms,
                        "RabbitMQ's consumer_timeout is shorter than the longest call: RabbitMQ takes \
                        back jobs during their calls"
                    );
                }
            }
            Self::PublishFailed(why, is_first) => {
                if *is_first && lines.may_log(LineKind::Unconfirmed) {
                    warn!(reason = %why, "publish not confirmed: the job stays in its queue, and the \
                        publish is retried");
                }
            }
            Self::MoveGivenBack {
                job,
                refusal,
                is_news,
            } => {
                if *is_news {
                    let reason = refusal
                        .as_deref()
                        .unwrap_or("no confirm before consumer_timeout");
                    warn!(
                        job.id = job,
                        reason,
                        "RabbitMQ stores no copy of a job: returned it to its \
                        queue, which delivers it again"
                    );
                }
            }
            Self::TargetsStuck {
                kind,
                messages,
                routing_key,
                since,
            } => {
                let (kind, since_s) = (kind.name(), since.as_secs());
                warn!(kind, messages, %routing_key, since_s, "stuck: RabbitMQ does not accept these \
                    messages; other jobs continue");
            }
            Self::ResultLost {
                job,
                sent,
                exchange,
                routing_key,
                is_news,
            } => {
                if *is_news {
                    let reason = match sent {
                        ResultOutcome::Refused => {
                            "the queue or RabbitMQ refuses the result or does not confirm it, or too \
                            many results wait"
                        }
                        _ => {
                            "the queue or exchange does not exist, or is one of the worker's own queues"
                        }
                    };
                    warn!(job.id = job, %exchange, %routing_key, reason, "result not delivered: its \
                        job ends without a result");
                }
            }
            Self::DeliveriesReturned(reason) => {
                warn!(reason, "returning all deliveries: taking none for now");
            }
            // These are counted.
            Self::Delivered(..) | Self::ResultPublished | Self::HeldJobsReleased(..) => {}
        }
    }
}
