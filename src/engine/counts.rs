//! Counts the scheduler's facts in the metrics.

use std::time::Duration;

use crate::engine::facts::{Death, Decision, Fact, JobFields, ResultOutcome, WaitPlace};
use crate::gate::BreakerScope;
use crate::metrics::Metrics;

/// Counts `fact` if it has a metric.
pub(super) fn count(metrics: &Metrics, fact: &Fact) {
    match fact {
        Fact::Delivered(source) => metrics.delivered(*source),
        Fact::InvalidMessage { .. } => metrics.dead("bad-message"),
        Fact::GateAnswered(took, ok) => metrics.gate_answered(*took, *ok),
        Fact::Decided(decision) => metrics.decided(match decision {
            Decision::Admitted => "start",
            Decision::Denied => "wait",
            Decision::NoSlot => "capacity",
        }),
        Fact::Tried(limit, tally) => metrics.shadow_tally(limit, tally),
        Fact::MustWait {
            limits,
            limit,
            wait_ms,
            ..
        } => {
            metrics.waited(Duration::from_millis(*wait_ms));
            metrics.denied_by(limits[*limit].name());
        }
        Fact::Started(late, None) => metrics.started(*late),
        Fact::Started(late, Some(JobFields { id, .. })) => {
            metrics.started_late(*late, id.as_deref())
        }
        Fact::Promised(off) => metrics.promised(*off),
        Fact::Queued(age) => metrics.queued(*age),
        Fact::ExpiredPermit => metrics.permit_expired(),
        Fact::Delayed(delay) => metrics.delayed(match delay {
            WaitPlace::InMemory => "memory",
            WaitPlace::Queue => "delay-queue",
            WaitPlace::Recheck => "recheck",
        }),
        Fact::DelayedStart(..) => metrics.start_delayed(),
        Fact::Called(outcome, took) => {
            metrics.dispatched(outcome);
            if let Some(took) = took {
                metrics.record_call_duration(*took);
            }
        }
        Fact::LateCall(signal, late) => metrics.late_call(*signal, *late),
        Fact::LateCallNotCounted => metrics.late_call_not_counted(),
        Fact::Duplicate(..) => metrics.duplicate(),
        Fact::DeadLetter(_, death, _) => metrics.dead(match death {
            Death::Rejected => "rejected",
            Death::Attempts => "attempts",
            Death::Expired => "expired",
            Death::GivenUp => "given-up",
            Death::Crashed => "crashed",
            Death::Invalid => "bad-message",
            Death::Cancelled => "cancelled",
        }),
        Fact::PublishFailed(why, _) => metrics.publish_failed(why),
        Fact::MoveGivenBack { .. } => metrics.move_given_back(),
        Fact::ResultPublished => metrics.result(ResultOutcome::Published),
        Fact::ResultLost { sent, .. } => metrics.result(*sent),
        Fact::LimitLowered { limit, lowered, .. } => metrics.limit_lowered(limit, *lowered),
        Fact::LimitRestored { limit, lowered, .. } => metrics.limit_whole(limit, *lowered),
        Fact::Breaker(scope, true, _) => metrics.breaker_opened(match scope {
            BreakerScope::Tenant(_) => "tenant",
            BreakerScope::Api => "api",
        }),
        Fact::Diverted => metrics.diverted(),
        Fact::Held(hold) => metrics.set_held(*hold),
        Fact::DeliveriesReturned => metrics.deliveries_returned(),
        // These are logged or traced.
        Fact::AllStopped(..)
        | Fact::Breaker(_, false, _)
        | Fact::SuspectRunsAlone(..)
        | Fact::LowerLimitAdvertised(..)
        | Fact::FailedWhileOpen(..)
        | Fact::FailuresNotReported(_)
        | Fact::Fit
        | Fact::ResourceShortage(_)
        | Fact::Unfit(_)
        | Fact::LeftDelayQueueEarly(_)
        | Fact::LessonNotStored(_)
        | Fact::HeldJobsReleased(_)
        | Fact::ClockUnreadable(..)
        | Fact::NoYoungPermit { .. }
        | Fact::QuotaNotStored(_)
        | Fact::ShortTimeout { .. }
        | Fact::Span(_)
        | Fact::TargetsStuck { .. }
        | Fact::SuspectWaits(..)
        | Fact::TenantClosed { .. }
        | Fact::TenantOpened { .. }
        | Fact::Throttled { .. }
        | Fact::ThrottleNotStored { .. }
        | Fact::Retried { .. }
        | Fact::Undecided { .. }
        | Fact::UsageLost(..) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::Outcome;
    use crate::rules::tenant::Tenant;

    #[test]
    fn events_of_jobs_are_counted_by_kind() {
        let job = || JobFields {
            id: Some("job-7".to_owned()),
            tenant: Tenant::parse("a").expect("a tenant"),
            trace: None,
        };
        let metrics = Metrics::new();
        for fact in [
            Fact::Decided(Decision::Admitted),
            Fact::Called(Outcome::Done, Some(Duration::from_millis(5))),
            Fact::Called(Outcome::Done, None),
            Fact::Delayed(WaitPlace::Recheck),
            Fact::DeadLetter(job(), Death::Expired, String::new()),
            Fact::DeadLetter(job(), Death::Attempts, String::new()),
            Fact::DeadLetter(job(), Death::Attempts, String::new()),
        ] {
            count(&metrics, &fact);
        }
        let shown = metrics.encode();
        for line in [
            "sluicegate_decisions_total{answer=\"start\"} 1",
            "sluicegate_dispatches_total{outcome=\"done\"} 2",
            "sluicegate_dispatch_seconds_count 1",
            "sluicegate_delays_total{where=\"recheck\"} 1",
            "sluicegate_dead_letters_total{reason=\"expired\"} 1",
            "sluicegate_dead_letters_total{reason=\"attempts\"} 2",
        ] {
            assert!(shown.lines().any(|l| l == line), "{line} is missing");
        }
    }
}
