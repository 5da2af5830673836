//! A worker's metrics, for Prometheus. No label names a tenant: with 100,000 tenants each metric
//! would have 100,000 series. `sluicegate inspect TENANT` reports on a single tenant.

mod fleet_report;
mod learned;
mod load;
mod merge;
mod series;
mod shadows;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

pub use self::merge::merge;
use crate::broker::{DeliverySource, MessageKind, PublishError};
use crate::engine::facts::{Census, ResultOutcome, TenantLoads};
use crate::gate::Primaries;
use crate::handler::Outcome;
use crate::rules::lateness::CallSignal;
use crate::rules::steering::Hold;

/// Defines the type of one label with a few fixed values. The label's name depends on the metric.
macro_rules! label {
    ($name:ident, $field:ident) => {
        #[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
        struct $name {
            $field: &'static str,
        }
    };
}
label!(Queue, queue);
label!(Decision, answer);
label!(OutcomeLabel, outcome);
label!(Where, r#where);
label!(Reason, reason);
label!(Kind, kind);
label!(Server, server);
label!(Reloaded, result);
label!(EndReport, told_by);
label!(BreakerOwner, whose);
label!(InState, state);

/// All metrics of a worker. Counting is cheap and works from any thread.
pub struct Metrics {
    registry: Registry,
    deliveries: Family<Queue, Counter>,
    decisions: Family<Decision, Counter>,
    gate_round_trips: Counter,
    gate_failures: Counter,
    gate_seconds: Histogram,
    gate_base: Gauge<f64, AtomicU64>,
    expired_permits: Counter,
    late_calls: Family<EndReport, Counter>,
    late_seconds: Counter<f64, AtomicU64>,
    late_not_counted: Counter,
    latency_base: Gauge<f64, AtomicU64>,
    dispatches: Family<OutcomeLabel, Counter>,
    dispatch_seconds: Histogram,
    delays: Family<Where, Counter>,
    delayed_starts: Counter,
    wait_seconds: Histogram,
    duplicates: Counter,
    spans_lost: Counter,
    dead_letters: Family<Reason, Counter>,
    results: Family<OutcomeLabel, Counter>,
    publish_failures: Family<Kind, Counter>,
    moves_given_back: Counter,
    stuck: Family<Kind, Gauge>,
    disconnects: Family<Server, Counter>,
    up: Family<Server, Gauge>,
    gate_recovering: Gauge,
    primaries: Family<InState, Gauge>,
    agreed: Gauge,
    rests: Counter,
    paused: Gauge,
    draining: Gauge,
    diverted: Counter,
    breaker_open: Gauge,
    breaker_opened: Family<BreakerOwner, Counter>,
    config_reloads: Family<Reloaded, Counter>,
    restarts: Counter,
    exec_restarts: Counter,
    active_policies: Gauge,
    calls_in_flight: Gauge,
    delayed_in_memory: Gauge,
    in_memory: Gauge,
    abandoned: Gauge,
    load: load::LoadMetrics,
    learned: learned::LearnedLimits,
    shadows: shadows::Shadows,
    /// Current tenant counts, for the fleet report.
    tenants: Mutex<Arc<TenantLoads>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Counts a delivery.
    pub fn delivered(&self, source: DeliverySource) {
        let queue = match source {
            DeliverySource::Fresh => "fresh",
            DeliverySource::Due => "due",
            DeliverySource::Recheck => "recheck",
            DeliverySource::Delay(_) => "lane",
        };
        self.deliveries.get_or_create(&Queue { queue }).inc();
    }

    /// Counts a round trip to the gate and its duration.
    pub fn gate_answered(&self, took: Duration, ok: bool) {
        self.gate_round_trips.inc();
        self.gate_seconds.observe(took.as_secs_f64());
        if !ok {
            self.gate_failures.inc();
        }
    }

    /// Sets the shortest round trip to the gate.
    pub fn set_gate_base(&self, base: Duration) {
        self.gate_base.set(base.as_secs_f64());
    }

    /// Counts the gate's decision on a job: `start`, `wait` or `capacity`.
    pub fn decided(&self, answer: &'static str) {
        self.decisions.get_or_create(&Decision { answer }).inc();
    }

    /// Counts a job whose publisher delays its start.
    pub fn start_delayed(&self) {
        self.delayed_starts.inc();
    }

    /// Adds `spans` to the number of lost spans.
    pub fn spans_lost(&self, spans: u64) {
        self.spans_lost.inc_by(spans);
    }

    /// Counts a dropped duplicate: another job with its dedupe key was seen before.
    pub fn duplicate(&self) {
        self.duplicates.inc();
    }

    /// Counts a permit whose deadline passed before its call was sent.
    pub fn permit_expired(&self) {
        self.expired_permits.inc();
    }

    /// Counts a call that arrived later than the guard covers and is therefore charged from its
    /// arrival. `signal` says how its arrival was learned.
    pub fn late_call(&self, signal: CallSignal, late: Duration) {
        let told_by = match signal {
            CallSignal::Acked { .. } => "acknowledgement",
            CallSignal::Answered => "answer",
            CallSignal::Nothing => "nothing",
        };
        self.late_calls.get_or_create(&EndReport { told_by }).inc();
        self.late_seconds.inc_by(late.as_secs_f64());
    }

    /// Counts a late call that is not charged again because `guard-budget` is used up.
    pub fn late_call_not_counted(&self) {
        self.late_not_counted.inc();
    }

    /// Sets the shortest latency to the API.
    pub fn set_latency_base(&self, base: Duration) {
        self.latency_base.set(base.as_secs_f64());
    }

    /// Records the wait that the gate gave a denied job.
    pub fn waited(&self, wait: Duration) {
        self.wait_seconds.observe(wait.as_secs_f64());
    }

    /// Counts the start of a delay: in `memory`, in a `delay-queue`, or in the delay queue of the
    /// longest wait to ask again afterwards (`recheck`).
    pub fn delayed(&self, r#where: &'static str) {
        self.delays.get_or_create(&Where { r#where }).inc();
    }

    /// Counts the handler's verdict on a job.
    pub fn dispatched(&self, outcome: &Outcome) {
        let outcome = match outcome {
            Outcome::Done => "done",
            Outcome::Retry { .. } => "retry",
            Outcome::Snooze { .. } => "snooze",
            Outcome::Throttled { .. } => "throttled",
            Outcome::Late => "late",
            Outcome::Reject { .. } => "reject",
        };
        self.dispatches
            .get_or_create(&OutcomeLabel { outcome })
            .inc();
    }

    /// Records the duration of a handler's call.
    pub fn record_call_duration(&self, took: Duration) {
        self.dispatch_seconds.observe(took.as_secs_f64());
    }

    /// Counts a dead letter by reason: `bad-message`, `rejected`, `attempts`, `expired`, `given-up`
    /// or `crashed`.
    pub fn dead(&self, reason: &'static str) {
        self.dead_letters.get_or_create(&Reason { reason }).inc();
    }

    /// Counts a job's result by what happened to it.
    pub fn result(&self, sent: ResultOutcome) {
        let outcome = match sent {
            ResultOutcome::Published => "published",
            ResultOutcome::Unroutable => "unroutable",
            ResultOutcome::Refused => "refused",
        };
        self.results.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// Counts a delivery that went back to its queue because no copy of it was stored.
    pub fn move_given_back(&self) {
        self.moves_given_back.inc();
    }

    /// Counts a publish that was not confirmed.
    pub fn publish_failed(&self, why: &PublishError) {
        let kind = match why {
            PublishError::Returned => "returned",
            PublishError::Nacked => "nacked",
            PublishError::Refused(_) => "refused",
            PublishError::Unconfirmed => "unconfirmed",
            PublishError::Down(_) => "down",
        };
        self.publish_failures.get_or_create(&Kind { kind }).inc();
    }

    /// Sets the number of messages of each kind that wait because their target takes none.
    pub fn set_stuck(&self, messages: [usize; MessageKind::NAMES.len()]) {
        for ((_, kind), messages) in MessageKind::NAMES.into_iter().zip(messages) {
            let gauge = self.stuck.get_or_create(&Kind { kind });
            gauge.set(i64::try_from(messages).unwrap_or(i64::MAX));
        }
    }

    /// Records whether the server `rabbitmq` or `redis` answers.
    pub fn set_up(&self, server: &'static str, up: bool) {
        let was = self.up.get_or_create(&Server { server }).set(i64::from(up));
        if was == 1 && !up {
            self.disconnects.get_or_create(&Server { server }).inc();
        }
    }

    /// Records whether this worker agrees with the others on the effective limits.
    pub fn set_agreed(&self, agreed: bool) {
        self.agreed.set(i64::from(agreed));
    }

    /// Counts that the worker returned all deliveries because no job can be admitted.
    pub fn deliveries_returned(&self) {
        self.rests.inc();
    }

    /// Sets the operator's instruction to all workers: paused, draining or neither.
    pub fn set_held(&self, hold: Option<Hold>) {
        self.paused.set(i64::from(hold == Some(Hold::Paused)));
        self.draining.set(i64::from(hold == Some(Hold::Draining)));
    }

    /// Counts a job of a diverted tenant that was moved to another queue.
    pub fn diverted(&self) {
        self.diverted.inc();
    }

    /// Returns the calls in flight, the jobs in memory and the total number of deliveries, for
    /// operators.
    pub fn loads(&self) -> [u64; 3] {
        let gauge = |gauge: &Gauge| u64::try_from(gauge.get()).unwrap_or(0);
        let queues = ["fresh", "due", "recheck", "lane"].map(|queue| Queue { queue });
        let deliveries = queues
            .iter()
            .map(|queue| self.deliveries.get_or_create(queue).get());
        [
            gauge(&self.calls_in_flight),
            gauge(&self.in_memory),
            deliveries.sum(),
        ]
    }

    /// Sets the number of primaries in each state.
    pub fn set_primaries(&self, now: Primaries) {
        for (state, number) in [
            ("admitting", now.admitting),
            ("recovering", now.recovering),
            ("away", now.unavailable),
        ] {
            let number = i64::try_from(number).unwrap_or(i64::MAX);
            self.primaries.get_or_create(&InState { state }).set(number);
        }
    }

    /// Records whether Redis, or a primary of a cluster, is in a recovery wait.
    pub fn set_gate_recovering(&self, recovering: bool) {
        self.gate_recovering.set(i64::from(recovering));
    }

    /// Records whether this worker makes only probes because a breaker is open.
    pub fn set_breaker_open(&self, open: bool) {
        self.breaker_open.set(i64::from(open));
    }

    /// Counts that a failure reported by this worker opened a breaker: the one of a `tenant` or of
    /// the `api`.
    pub fn breaker_opened(&self, whose: &'static str) {
        self.breaker_opened
            .get_or_create(&BreakerOwner { whose })
            .inc();
    }

    /// Counts a configuration reload, applied or refused.
    pub fn reloaded(&self, applied: bool) {
        let result = if applied { "applied" } else { "refused" };
        self.config_reloads
            .get_or_create(&Reloaded { result })
            .inc();
    }

    /// Counts a restart of the pipeline after an error.
    pub fn restarted(&self) {
        self.restarts.inc();
    }

    /// Counts the replacement of a `dispatch.exec` program that is no longer usable.
    pub fn program_replaced(&self) {
        self.exec_restarts.inc();
    }

    /// Resets the gauges of a pipeline that no longer runs: no server answers, no job is in memory.
    pub fn set_stopped(&self) {
        self.set_up("rabbitmq", false);
        self.set_up("redis", false);
        self.set_agreed(false);
        self.set_breaker_open(false);
        self.set_memory(0, 0, 0);
        self.set_abandoned(0);
        self.set_backlog(None);
        self.set_census(&Census::default());
        self.set_saturation(0.0);
        self.set_tenants(TenantLoads::default());
    }

    /// Sets the number of policies enforced together.
    pub fn set_policies(&self, number: usize) {
        self.active_policies
            .set(i64::try_from(number).unwrap_or(i64::MAX));
    }

    /// Sets the number of calls in flight, of jobs delayed in memory, and of all jobs in memory.
    pub fn set_memory(&self, in_flight: usize, delayed: usize, in_memory: usize) {
        let gauge = |gauge: &Gauge, n: usize| gauge.set(i64::try_from(n).unwrap_or(i64::MAX));
        gauge(&self.calls_in_flight, in_flight);
        gauge(&self.delayed_in_memory, delayed);
        gauge(&self.in_memory, in_memory);
    }

    /// Sets the number of calls that timed out and still hold their leases.
    pub fn set_abandoned(&self, calls: usize) {
        (self.abandoned).set(i64::try_from(calls).unwrap_or(i64::MAX));
    }

    /// Returns all metrics in the OpenMetrics text format.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a String can't fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_shown() {
        let metrics = Metrics::new();
        metrics.delivered(DeliverySource::Due);
        metrics.decided("start");
        metrics.gate_answered(Duration::from_millis(2), false);
        metrics.set_up("redis", true);
        metrics.set_up("redis", false);
        metrics.set_up("redis", false);
        metrics.set_memory(3, 2, 5);
        let text = metrics.encode();
        for line in [
            "sluicegate_deliveries_total{queue=\"due\"} 1",
            "sluicegate_deliveries_total{queue=\"fresh\"} 0",
            "sluicegate_decisions_total{answer=\"start\"} 1",
            "sluicegate_gate_round_trips_total 1",
            "sluicegate_gate_failures_total 1",
            "sluicegate_gate_seconds_count 1",
            "sluicegate_up{server=\"redis\"} 0",
            "sluicegate_disconnects_total{server=\"redis\"} 1",
            "sluicegate_calls_in_flight 3",
            "sluicegate_in_memory 5",
        ] {
            assert!(
                text.lines().any(|l| l == line),
                "{line} is missing in\n{text}"
            );
        }
    }

    #[test]
    fn every_series_exists_from_the_start() {
        let text = Metrics::new().encode();
        for line in [
            "sluicegate_deliveries_total{queue=\"recheck\"} 0",
            "sluicegate_decisions_total{answer=\"capacity\"} 0",
            "sluicegate_dispatches_total{outcome=\"throttled\"} 0",
            "sluicegate_delays_total{where=\"memory\"} 0",
            "sluicegate_dead_letters_total{reason=\"bad-message\"} 0",
            "sluicegate_publish_failures_total{kind=\"nacked\"} 0",
            "sluicegate_disconnects_total{server=\"rabbitmq\"} 0",
            "sluicegate_up{server=\"redis\"} 0",
            "sluicegate_expired_permits_total 0",
            "sluicegate_delayed_starts_total 0",
            "sluicegate_duplicates_total 0",
            "sluicegate_exec_restarts_total 0",
            "sluicegate_late_calls_total{told_by=\"nothing\"} 0",
            "sluicegate_late_calls_not_counted_total 0",
            "sluicegate_gate_base_seconds 0.0",
            concat!(
                "sluicegate_build_info{version=\"",
                env!("CARGO_PKG_VERSION"),
                "\"} 1"
            ),
        ] {
            assert!(
                text.lines().any(|l| l == line),
                "{line} is missing in\n{text}"
            );
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
