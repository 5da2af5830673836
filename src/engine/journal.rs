//! Logs the scheduler's facts. Events that can happen to every job get a few lines per kind, and
//! one more that sums up the rest (`line_limiter`).

mod line_limiter;

use std::time::Duration;

use tracing::field::{DisplayValue, display};
use tracing::{debug, error, info, warn};

use self::line_limiter::{LineKind, LineLimiter, Summary};
use crate::engine::facts::{ClosedBy, Fact, JobFields, NoDecision, ResultOutcome};
use crate::engine::scheduler::millis;
use crate::gate::BreakerScope;
use rules::scope::Labels;
use rules::steering::Hold;
use rules::trace::Context;

/// Logs a line at `info` if `$few` is true, otherwise at `debug`.
macro_rules! info_if {
    ($few:expr, $($line:tt)*) => {
        if $few { info!($($line)*) } else { debug!($($line)*) }
    };
}

/// The log of the scheduler's facts.
#[derive(Default)]
pub(super) struct Journal(LineLimiter);

impl Journal {
    /// Logs `fact` if it has a line.
    pub(super) fn log(&mut self, now: Duration, fact: &Fact) {
        log(&mut self.0, now, fact);
    }

    /// Sums up the events that got no line, if it is time.
    pub(super) fn log_summaries(&mut self, now: Duration) {
        if self.next().is_some_and(|at| at <= now) {
            self.0.sum_up(now, false).iter().for_each(log_summary);
        }
    }

    /// Returns when the next summary is due.
    pub(super) fn next(&self) -> Option<Duration> {
        self.0.next()
    }

    /// Sums up all remaining events.
    pub(super) fn close(&mut self, now: Duration) {
        self.0.sum_up(now, true).iter().for_each(log_summary);
    }
}

/// Logs the line of `fact`, if it has one.
fn log(limiter: &mut LineLimiter, now: Duration, fact: &Fact) {
    match fact {
        Fact::InvalidMessage { id, reason } => {
            if limiter.may_log(now, LineKind::Invalid) {
                warn!(
                    job.id = id,
                    reason, "invalid message: it becomes a dead letter"
                );
            } else {
                debug!(job.id = id, reason, "invalid message");
            }
        }
        Fact::LeftDelayQueueEarly(queue) => {
            warn!(%queue, "jobs leave delay queues too early: a policy (message-ttl or \
                delivery-limit) matches these queues; remove it");
        }
        Fact::ClockUnreadable(tenant, jobs, why) => {
            warn!(%tenant, jobs, reason = %why, "Redis's clock can't be read: returning jobs wait \
                until it can");
        }
        Fact::MustWait {
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
        Fact::TenantClosed { tenant, by, wait } => {
            let (at_info, wait_ms) = (limiter.may_log(now, LineKind::Closed), millis(*wait));
            match by {
                ClosedBy::Limit(limits, at) => {
                    let limit = limits[*at].name();
                    info_if!(at_info, %tenant, limit, wait_ms, "tenant closed: its jobs wait for a limit");
                }
                ClosedBy::Suspension => {
                    info_if!(at_info, %tenant, wait_ms, "tenant closed: suspended");
                }
            }
        }
        Fact::TenantOpened {
            tenant,
            after,
            denied,
        } => {
            let (at_info, closed_s) = (limiter.may_log(now, LineKind::Opened), after.as_secs());
            info_if!(at_info, %tenant, closed_s, denied, "tenant open again");
        }
        Fact::ShortTimeout { timeout, fits } => {
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
        Fact::Undecided {
            tenant,
            labels,
            jobs,
            why,
            what,
        } => {
            let labels = shown(labels);
            match what {
                NoDecision::Refused(wait) => {
                    let wait_s = wait.as_secs();
                    error!(%tenant, labels, jobs, wait_s, reason = %why, "no decision for this \
                        tenant: its jobs wait, other tenants' jobs continue");
                }
                NoDecision::Unavailable => {
                    error!(%tenant, labels, jobs, reason = %why, "no decision for this tenant: \
                        its jobs wait, other tenants' jobs continue");
                }
                NoDecision::AlreadyReported => {
                    debug!(%tenant, labels, jobs, reason = %why, "no decision for this tenant");
                }
            }
        }
        Fact::NoYoungPermit {
            took,
            base,
            good_for,
        } => {
            let [took_ms, base_ms, good_for_ms] = [*took, *base, *good_for].map(millis);
            warn!(
                took_ms,
                base_ms,
                good_for_ms,
                "all permits expire: Redis's answers are late by more than half the guard, so no \
                job is called; raise guard, or move Redis closer"
            );
        }
        Fact::DelayedStart(JobFields { id, tenant, trace }, ms) => {
            debug!(job.id = id, trace_id = trace.map(trace_id), span_id = trace.map(span_id), %tenant, ms, "start \
                delayed by the publisher");
        }
        Fact::Throttled {
            tenant,
            scope,
            duration,
            reason,
        } => {
            let (scope, duration_ms) = (words(scope), millis(*duration));
            let at_info = limiter.may_log(now, LineKind::Throttled);
            match reason {
                Some(reason) => {
                    info_if!(at_info, %tenant, whose = scope, duration_ms, reason, "throttled by the API");
                }
                None => {
                    info_if!(at_info, %tenant, whose = scope, duration_ms, "the API reports an exhausted \
                        quota");
                }
            }
        }
        Fact::ThrottleNotStored {
            scope,
            by,
            left,
            will_retry,
            why,
        } => {
            let (scope, left_ms) = (words(scope), millis(*left));
            if *will_retry {
                warn!(whose = scope, by, left_ms, reason = %why, "a throttle could not be stored: \
                    retrying; workers may call until it is stored");
            } else {
                warn!(whose = scope, by, left_ms, reason = %why, "a throttle could not be stored: giving \
                    up; workers may call");
            }
        }
        Fact::Retried {
            job: JobFields { id, tenant, trace },
            attempt,
            wait,
            reason,
        } => {
            let (at_info, wait_ms) = (limiter.may_log(now, LineKind::Failed), millis(*wait));
            info_if!(at_info, job.id = id, trace_id = trace.map(trace_id), span_id = trace.map(span_id), %tenant, attempt, wait_ms, reason, "job \
                failed: it will be retried");
        }
        Fact::FailedWhileOpen(JobFields { id, tenant, trace }, reason) => {
            let at_info = limiter.may_log(now, LineKind::Failed);
            info_if!(at_info, job.id = id, trace_id = trace.map(trace_id), span_id = trace.map(span_id), %tenant, reason, "job \
                failed while a breaker was open: no attempt is used");
        }
        Fact::Duplicate(JobFields { id, tenant, trace }, left_ms) => {
            debug!(job.id = id, trace_id = trace.map(trace_id), span_id = trace.map(span_id), %tenant, left_ms, "duplicate: \
                another job with the same dedupe key was seen before");
        }
        Fact::DeadLetter(JobFields { id, tenant, trace }, _, reason) => {
            if limiter.may_log(now, LineKind::Dead) {
                warn!(job.id = id, trace_id = trace.map(trace_id), span_id = trace.map(span_id), %tenant, reason, "dead letter");
            } else {
                debug!(job.id = id, trace_id = trace.map(trace_id), span_id = trace.map(span_id), %tenant, reason, "dead letter");
            }
        }
        Fact::PublishFailed(why, is_first) => {
            if *is_first && limiter.may_log(now, LineKind::Unconfirmed) {
                warn!(reason = %why, "publish not confirmed: the job stays in its queue, and the \
                    publish is retried");
            }
        }
        Fact::MoveGivenBack {
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
        Fact::TargetsStuck {
            kind,
            messages,
            routing_key,
            since,
        } => {
            let (kind, since_s) = (kind.name(), since.as_secs());
            warn!(kind, messages, %routing_key, since_s, "stuck: RabbitMQ does not accept these \
                messages; other jobs continue");
        }
        Fact::ResultLost {
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
        Fact::UsageLost(calls, why) => {
            warn!(calls, reason = %why, "settlements could not be stored: some quota is wasted");
        }
        Fact::LowerLimitAdvertised(tenant, warning) => warn!(%tenant, "{warning}"),
        Fact::QuotaNotStored(why) => {
            debug!(reason = %why, "advertised limits could not be stored");
        }
        Fact::LessonNotStored(why) => {
            debug!(reason = %why, "changes of learned limits could not be stored");
        }
        Fact::LimitLowered {
            scope,
            limit,
            from,
            to,
            max,
            left,
            lowered: _,
        } => {
            let (at_info, whole_in_s) = (limiter.may_log(now, LineKind::Lowered), left.as_secs());
            let tenant = scope.as_ref().map(display);
            info_if!(
                at_info,
                tenant,
                limit,
                from,
                to,
                max,
                whole_in_s,
                "limit lowered: the API admits less than the limit"
            );
        }
        Fact::LimitRestored {
            scope,
            limit,
            after,
            lowered: _,
        } => {
            let (at_info, lowered_s) = (limiter.may_log(now, LineKind::Restored), after.as_secs());
            let tenant = scope.as_ref().map(display);
            info_if!(at_info, tenant, limit, lowered_s, "limit restored");
        }
        Fact::Unfit(reason) => {
            warn!(
                reason,
                "this worker can't make calls: it returns its jobs to their queues and tries some \
                from time to time"
            );
        }
        Fact::Fit => info!("this worker can make calls again"),
        Fact::ResourceShortage(reason) => {
            warn!(
                reason,
                "this worker lacks resources for calls: jobs wait and use no attempt"
            );
        }
        Fact::FailuresNotReported(why) => {
            warn!(reason = %why, "failed calls could not be reported to the breakers: they use no \
                attempts");
        }
        Fact::Breaker(scope, is_open, by) => breaker(limiter, now, scope, *is_open, by),
        Fact::AllStopped(left, by) => {
            let left_ms = millis(*left);
            info!(left_ms, by, "all tenants are suspended: their jobs wait");
        }
        Fact::SuspectRunsAlone(JobFields { id, tenant, trace }, crashes) => {
            let at_info = limiter.may_log(now, LineKind::Alone);
            info_if!(at_info, job.id = id, trace_id = trace.map(trace_id), span_id = trace.map(span_id), %tenant, crashes, "calls \
                of this job crashed their workers: no other such job is called at the same time");
        }
        Fact::SuspectWaits(JobFields { id, tenant, trace }, ms) => {
            debug!(job.id = id, trace_id = trace.map(trace_id), span_id = trace.map(span_id), %tenant, ms, "another \
                call of this job may be in flight: the job waits");
        }
        Fact::Held(Some(Hold::Paused)) => {
            warn!("an operator paused all workers: no job is called or taken");
        }
        Fact::Held(Some(Hold::Draining)) => {
            warn!("an operator is draining all workers: no new job is taken");
        }
        Fact::Held(None) => info!("an operator resumed all workers"),
        // These are counted or traced.
        Fact::Called(..)
        | Fact::Decided(_)
        | Fact::Delayed(_)
        | Fact::Delivered(_)
        | Fact::Diverted
        | Fact::ExpiredPermit
        | Fact::GateAnswered(..)
        | Fact::LateCall(..)
        | Fact::LateCallNotCounted
        | Fact::Promised(_)
        | Fact::Queued(_)
        | Fact::HeldJobsReleased(_)
        | Fact::DeliveriesReturned
        | Fact::ResultPublished
        | Fact::Span(_)
        | Fact::Started(..)
        | Fact::Tried(..) => {}
    }
}

/// Logs that a breaker opened or closed.
fn breaker(
    limiter: &mut LineLimiter,
    now: Duration,
    scope: &BreakerScope,
    is_open: bool,
    by: &str,
) {
    match (scope, is_open) {
        (BreakerScope::Tenant(tenant), true) => {
            if limiter.may_log(now, LineKind::BreakerOpened) {
                warn!(%tenant, by, "breaker of this tenant open: only one probe at a time is \
                    called; its jobs wait and use no attempt");
            } else {
                debug!(%tenant, by, "breaker of this tenant open");
            }
        }
        (BreakerScope::Tenant(tenant), false) => {
            let at_info = limiter.may_log(now, LineKind::BreakerClosed);
            info_if!(at_info, %tenant, "breaker of this tenant closed: calls succeed again");
        }
        (BreakerScope::Api, true) => {
            warn!(
                by,
                "breaker of the API open: only one probe at a time is called; jobs wait and use \
                no attempt"
            );
        }
        (BreakerScope::Api, false) => info!("breaker of the API closed: calls succeed again"),
    }
}

/// Sums up events that got no lines.
fn log_summary(rest: &Summary) {
    let Summary { kind, more, within } = rest;
    let within_s = within.as_secs();
    match kind {
        LineKind::Closed => info!(more, within_s, "more tenants closed"),
        LineKind::Opened => info!(more, within_s, "more tenants opened again"),
        LineKind::BreakerOpened => warn!(more, within_s, "breakers of more tenants opened"),
        LineKind::BreakerClosed => info!(more, within_s, "breakers of more tenants closed"),
        LineKind::Throttled => info!(more, within_s, "the API throttled more calls"),
        LineKind::Lowered => info!(more, within_s, "more limits lowered"),
        LineKind::Restored => info!(more, within_s, "more limits restored"),
        LineKind::Failed => info!(more, within_s, "more jobs failed"),
        LineKind::Dead => warn!(more, within_s, "more dead letters"),
        LineKind::Invalid => warn!(more, within_s, "more invalid messages"),
        LineKind::Alone => info!(
            more,
            within_s, "more jobs whose calls crashed their workers"
        ),
        LineKind::Unconfirmed => warn!(more, within_s, "more publishes not confirmed"),
    }
}

fn trace_id(trace: Context) -> String {
    format!("{:032x}", trace.trace)
}

fn span_id(trace: Context) -> String {
    format!("{:016x}", trace.span)
}

/// Formats labels. The field is omitted if there are none.
fn shown(labels: &Labels) -> Option<DisplayValue<&Labels>> {
    (!labels.is_empty()).then(|| display(labels))
}

fn words(scope: &BreakerScope) -> String {
    match scope {
        BreakerScope::Tenant(tenant) => format!("tenant {tenant}"),
        BreakerScope::Api => "all tenants".to_owned(),
    }
}

#[cfg(test)]
mod tests;
