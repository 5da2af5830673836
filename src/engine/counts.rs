//! Counts the scheduler's facts in the metrics.

use std::time::Duration;

use crate::engine::facts::{Death, Fact, JobFields, ResultOutcome};
use crate::gate::BreakerScope;
use crate::metrics::Metrics;

/// Counts `fact` if it has a metric.
pub(super) fn count(metrics: &Metrics, fact: &Fact) {
    match fact {
        Fact::Delivered(source) => metrics.deliveries.count(source.into()),
        Fact::InvalidMessage { .. } => metrics.dead_letters.count(Death::Invalid.into()),
        Fact::GateAnswered(took, ok) => {
            metrics.gate_round_trips.inc();
            metrics.gate_seconds.observe(took.as_secs_f64());
            if !ok {
                metrics.gate_failures.inc();
            }
        }
        Fact::Decided(decision) => metrics.decisions.count(decision.into()),
        Fact::Tried(limit, tally) => metrics.shadow_tally(limit, tally),
        Fact::MustWait {
            limits,
            limit,
            wait_ms,
            ..
        } => {
            let wait = Duration::from_millis(*wait_ms);
            metrics.wait_seconds.observe(wait.as_secs_f64());
            metrics.denials.of(limits[*limit].name()).inc();
        }
        Fact::Started(late, None) => metrics.started(*late),
        Fact::Started(late, Some(JobFields { id, .. })) => {
            metrics.started_late(*late, id.as_deref())
        }
        Fact::Promised(off) => metrics.promised(*off),
        Fact::Queued(age) => metrics.queued_seconds.observe(age.as_secs_f64()),
        Fact::ExpiredPermit => _ = metrics.expired_permits.inc(),
        Fact::Delayed(delay) => metrics.delays.count(delay.into()),
        Fact::DelayedStart(..) => _ = metrics.delayed_starts.inc(),
        Fact::Called(outcome, took) => {
            metrics.dispatches.count(outcome.name());
            if let Some(took) = took {
                metrics.dispatch_seconds.observe(took.as_secs_f64());
            }
        }
        Fact::LateCall(signal, late) => {
            metrics.late_calls.count(signal.into());
            metrics.late_calls_seconds.inc_by(late.as_secs_f64());
        }
        Fact::LateCallNotCounted => _ = metrics.late_calls_not_counted.inc(),
        Fact::Duplicate(..) => _ = metrics.duplicates.inc(),
        Fact::DeadLetter(_, death, _) => metrics.dead_letters.count(death.into()),
        Fact::PublishFailed(why, _) => metrics.publish_failures.count(why.into()),
        Fact::MoveGivenBack { .. } => _ = metrics.moves_given_back.inc(),
        Fact::ResultPublished => metrics.results.count(ResultOutcome::Published.into()),
        Fact::ResultLost { sent, .. } => metrics.results.count(sent.into()),
        Fact::LimitLowered { limit, lowered, .. } => metrics.limit_lowered(limit, *lowered),
        Fact::LimitRestored { limit, lowered, .. } => metrics.limit_whole(limit, *lowered),
        Fact::Breaker(scope, true, _) => metrics.breaker_opened.count(match scope {
            BreakerScope::Tenant(_) => "tenant",
            BreakerScope::Api => "api",
        }),
        Fact::Diverted => _ = metrics.diverted_jobs.inc(),
        Fact::Held(hold) => metrics.set_held(*hold),
        Fact::DeliveriesReturned => _ = metrics.rests.inc(),
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
    use crate::engine::facts::{Decision, WaitPlace};
    use crate::handler::Outcome;
    use rules::tenant::Tenant;

    #[test]
    fn events_of_jobs_are_counted_by_kind() {
        let job = || JobFields {
            id: Some("job-7".to_owned()),
            tenant: Tenant::parse("a").expect("a tenant"),
            trace: None,
        };
        let metrics = Metrics::new();
        for fact in [
            Fact::GateAnswered(Duration::from_millis(2), false),
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
            "sluicegate_gate_round_trips_total 1",
            "sluicegate_gate_failures_total 1",
            "sluicegate_gate_seconds_count 1",
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
