//! What a worker counts, for Prometheus. No label names a tenant: with 100,000 of them each metric would be
//! 100,000 series. `sluicegate inspect TENANT` answers for one tenant.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::broker::{PublishError, Source};
use crate::gate::{Answer, Primaries};
use crate::handler::Outcome;
use crate::rules::lateness::Heard;

/// One label with a few fixed values; its name depends on the metric.
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
label!(Ended, outcome);
label!(How, how);
label!(Reason, reason);
label!(Kind, kind);
label!(Server, server);
label!(Reloaded, result);
label!(Told, told_by);
label!(Whose, whose);
label!(InState, state);

/// All metrics of a worker; cheap to count in, from any thread.
pub struct Metrics {
    registry: Registry,
    deliveries: Family<Queue, Counter>,
    decisions: Family<Decision, Counter>,
    gate_round_trips: Counter,
    gate_failures: Counter,
    gate_seconds: Histogram,
    gate_base: Gauge<f64, AtomicU64>,
    late_admissions: Counter,
    late_calls: Family<Told, Counter>,
    late_seconds: Counter<f64, AtomicU64>,
    late_not_counted: Counter,
    way_base: Gauge<f64, AtomicU64>,
    dispatches: Family<Ended, Counter>,
    dispatch_seconds: Histogram,
    waits: Family<How, Counter>,
    wait_seconds: Histogram,
    dead: Family<Reason, Counter>,
    publish_failures: Family<Kind, Counter>,
    disconnects: Family<Server, Counter>,
    up: Family<Server, Gauge>,
    gate_cold: Gauge,
    primaries: Family<InState, Gauge>,
    agreed: Gauge,
    rests: Counter,
    breaker_open: Gauge,
    breaker_opened: Family<Whose, Counter>,
    config_reloads: Family<Reloaded, Counter>,
    policies: Gauge,
    running: Gauge,
    held: Gauge,
    in_memory: Gauge,
    abandoned: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("sluicegate");
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The worker's version", version);
        let r = &mut registry;
        let seconds = || exponential_buckets(0.000_5, 2.0, 16);
        let metrics = Self {
            deliveries: register(
                r,
                "deliveries",
                "Deliveries taken, by queue",
                Family::default(),
            ),
            decisions: register(
                r,
                "decisions",
                "The gate's answers to jobs",
                Family::default(),
            ),
            gate_round_trips: register(
                r,
                "gate_round_trips",
                "Round trips to Redis for decisions",
                Counter::default(),
            ),
            gate_failures: register(
                r,
                "gate_failures",
                "Round trips without an answer",
                Counter::default(),
            ),
            gate_seconds: register_seconds(
                r,
                "gate",
                "Time of a round trip to Redis",
                Histogram::new(seconds()),
            ),
            gate_base: register_base(r),
            late_admissions: register(
                r,
                "late_admissions",
                "Jobs that were admitted but could not be sent within half a guard, and asked again",
                Counter::default(),
            ),
            late_calls: register(
                r,
                "late_calls",
                "Calls that came later than the guard covers and count from when the worker heard of it, by what told",
                Family::default(),
            ),
            late_seconds: register(
                r,
                "late_calls_seconds",
                "By how much they count longer",
                Counter::default(),
            ),
            late_not_counted: register(
                r,
                "late_calls_not_counted",
                "Answers that came later than guard and guard-budget cover: the calls may have, too",
                Counter::default(),
            ),
            way_base: register(
                r,
                "way_base_seconds",
                "The shortest way from a question to Redis to the acknowledged call",
                Gauge::default(),
            ),
            dispatches: register(
                r,
                "dispatches",
                "Calls of the handler, by outcome",
                Family::default(),
            ),
            dispatch_seconds: register_seconds(
                r,
                "dispatch",
                "Time of a call of the handler",
                Histogram::new(seconds()),
            ),
            waits: register(
                r,
                "waits",
                "Waits begun: held in memory, or in a lane",
                Family::default(),
            ),
            wait_seconds: register_seconds(
                r,
                "wait",
                "How long jobs were told to wait, at each refusal",
                Histogram::new(exponential_buckets(0.001, 4.0, 12)),
            ),
            dead: register(
                r,
                "dead",
                "Dead letters, by kind of reason",
                Family::default(),
            ),
            publish_failures: register(
                r,
                "publish_failures",
                "Publishes that were not confirmed and were tried again",
                Family::default(),
            ),
            disconnects: register(r, "disconnects", "Connections lost", Family::default()),
            up: register(r, "up", "Whether a server answers", Family::default()),
            agreed: register(
                r,
                "agreed",
                "1 while the limits in force are agreed on with the other workers; at 0 no job starts",
                Gauge::default(),
            ),
            rests: register(
                r,
                "rests",
                "How often all deliveries were given back since no job might start",
                Counter::default(),
            ),
            gate_cold: register(
                r,
                "gate_cold",
                "1 while Redis (in a cluster, at least one primary) may not know all that has started: nothing starts there",
                Gauge::default(),
            ),
            primaries: register(
                r,
                "redis_primaries",
                "Primaries of Redis, by state; 1 without a cluster",
                Family::default(),
            ),
            breaker_open: register(
                r,
                "breaker_open",
                "Whether this worker calls nobody because calls of the API failed in a row",
                Gauge::default(),
            ),
            breaker_opened: register(
                r,
                "breaker_opened",
                "Breakers that failures reported by this worker opened",
                Family::default(),
            ),
            config_reloads: register(
                r,
                "config_reloads",
                "Configurations that were read again, by what became of them",
                Family::default(),
            ),
            policies: register(
                r,
                "policies",
                "Configurations of workers whose limits are in force together",
                Gauge::default(),
            ),
            running: register(r, "running", "Jobs that run", Gauge::default()),
            held: register(
                r,
                "held",
                "Jobs held in memory until their time",
                Gauge::default(),
            ),
            in_memory: register(r, "in_memory", "Unacked jobs in memory", Gauge::default()),
            abandoned: register(
                r,
                "abandoned_calls",
                "Calls that got no answer in time and may still be under way: strict windows and max-concurrent count them",
                Gauge::default(),
            ),
            registry,
        };
        metrics.show_all_series();
        metrics
    }

    /// A rate over a series that appears later misses its first count: all exist from the start.
    fn show_all_series(&self) {
        for queue in ["fresh", "due", "recheck", "lane"] {
            drop(self.deliveries.get_or_create(&Queue { queue }));
        }
        for answer in ["start", "wait", "capacity"] {
            drop(self.decisions.get_or_create(&Decision { answer }));
        }
        for told_by in ["acknowledgement", "answer", "nothing"] {
            drop(self.late_calls.get_or_create(&Told { told_by }));
        }
        for outcome in ["done", "retry", "snooze", "throttled", "late", "reject"] {
            drop(self.dispatches.get_or_create(&Ended { outcome }));
        }
        for how in ["hold", "lane", "recheck"] {
            drop(self.waits.get_or_create(&How { how }));
        }
        let reasons = [
            "bad-message",
            "rejected",
            "attempts",
            "expired",
            "given-up",
            "crashed",
        ];
        for reason in reasons {
            drop(self.dead.get_or_create(&Reason { reason }));
        }
        for whose in ["api", "tenant"] {
            drop(self.breaker_opened.get_or_create(&Whose { whose }));
        }
        for kind in ["returned", "nacked", "down"] {
            drop(self.publish_failures.get_or_create(&Kind { kind }));
        }
        self.set_primaries(Primaries::default());
        for result in ["applied", "refused"] {
            drop(self.config_reloads.get_or_create(&Reloaded { result }));
        }
        for server in ["rabbitmq", "redis"] {
            drop(self.up.get_or_create(&Server { server }));
            drop(self.disconnects.get_or_create(&Server { server }));
        }
    }

    /// A delivery arrived.
    pub fn delivered(&self, source: Source) {
        let queue = match source {
            Source::Fresh => "fresh",
            Source::Due => "due",
            Source::Recheck => "recheck",
            Source::Lane(_) => "lane",
        };
        self.deliveries.get_or_create(&Queue { queue }).inc();
    }

    /// A round trip of the gate ended.
    pub fn gate_answered(&self, took: Duration, ok: bool) {
        self.gate_round_trips.inc();
        self.gate_seconds.observe(took.as_secs_f64());
        if !ok {
            self.gate_failures.inc();
        }
    }

    /// A question to the gate and its answer take so long at least.
    pub fn set_gate_base(&self, base: Duration) {
        self.gate_base.set(base.as_secs_f64());
    }

    /// The gate answered for one job.
    pub fn decided(&self, answer: &Answer) {
        let answer = match answer {
            Answer::Start { .. } => "start",
            Answer::Wait { .. } => "wait",
            Answer::Capacity { .. } => "capacity",
        };
        self.decisions.get_or_create(&Decision { answer }).inc();
    }

    /// A job was admitted, but could not be sent in time.
    pub fn late_admission(&self) {
        self.late_admissions.inc();
    }

    /// A call came later than the guard covers, and counts from now.
    pub fn late_call(&self, heard: Heard, late: Duration) {
        let told_by = match heard {
            Heard::Acked { .. } => "acknowledgement",
            Heard::Answered => "answer",
            Heard::Nothing => "nothing",
        };
        self.late_calls.get_or_create(&Told { told_by }).inc();
        self.late_seconds.inc_by(late.as_secs_f64());
    }

    /// An answer was too late for what may be counted.
    pub fn late_call_not_counted(&self) {
        self.late_not_counted.inc();
    }

    /// What the way to the API takes at least.
    pub fn set_way_base(&self, base: Duration) {
        self.way_base.set(base.as_secs_f64());
    }

    /// A job was told to wait for `wait`.
    pub fn waited(&self, wait: Duration) {
        self.wait_seconds.observe(wait.as_secs_f64());
    }

    /// A wait begins: `hold`, `lane` or `recheck`.
    pub fn sent_round(&self, how: &'static str) {
        self.waits.get_or_create(&How { how }).inc();
    }

    /// The handler's verdict.
    pub fn dispatched(&self, outcome: &Outcome) {
        let outcome = match outcome {
            Outcome::Done => "done",
            Outcome::Retry { .. } => "retry",
            Outcome::Snooze { .. } => "snooze",
            Outcome::Throttled { .. } => "throttled",
            Outcome::Late => "late",
            Outcome::Reject { .. } => "reject",
        };
        self.dispatches.get_or_create(&Ended { outcome }).inc();
    }

    /// A call of the handler took so long.
    pub fn ran(&self, took: Duration) {
        self.dispatch_seconds.observe(took.as_secs_f64());
    }

    /// A job became a dead letter: `bad-message`, `rejected`, `attempts` or `expired`.
    pub fn dead(&self, reason: &'static str) {
        self.dead.get_or_create(&Reason { reason }).inc();
    }

    /// A publish was not confirmed.
    pub fn publish_failed(&self, why: &PublishError) {
        let kind = match why {
            PublishError::Returned => "returned",
            PublishError::Nacked => "nacked",
            PublishError::Down(_) => "down",
        };
        self.publish_failures.get_or_create(&Kind { kind }).inc();
    }

    /// `rabbitmq` or `redis` answers, or does not.
    pub fn set_up(&self, server: &'static str, up: bool) {
        let was = self.up.get_or_create(&Server { server }).set(i64::from(up));
        if was == 1 && !up {
            self.disconnects.get_or_create(&Server { server }).inc();
        }
    }

    /// The workers agree on the limits in force, or this one does not with the others.
    pub fn set_agreed(&self, agreed: bool) {
        self.agreed.set(i64::from(agreed));
    }

    /// All deliveries are given back, since no job may start.
    pub fn rest(&self) {
        self.rests.inc();
    }

    /// So many primaries are in each state.
    pub fn set_primaries(&self, now: Primaries) {
        for (state, number) in [
            ("admitting", now.admitting),
            ("recovering", now.recovering),
            ("away", now.away),
        ] {
            let number = i64::try_from(number).unwrap_or(i64::MAX);
            self.primaries.get_or_create(&InState { state }).set(number);
        }
    }

    /// Redis, or a primary of a cluster, may not know all that has started; or all know it.
    pub fn set_gate_cold(&self, cold: bool) {
        self.gate_cold.set(i64::from(cold));
    }

    /// This worker calls nobody but probes, or it does.
    pub fn set_breaker_open(&self, open: bool) {
        self.breaker_open.set(i64::from(open));
    }

    /// A failure that this worker reported opened the breaker of a `tenant`, or of the `api`.
    pub fn breaker_opened(&self, whose: &'static str) {
        self.breaker_opened.get_or_create(&Whose { whose }).inc();
    }

    /// A configuration was read again, and applied or refused.
    pub fn reloaded(&self, applied: bool) {
        let result = if applied { "applied" } else { "refused" };
        self.config_reloads
            .get_or_create(&Reloaded { result })
            .inc();
    }

    /// So many policies are in force together.
    pub fn set_policies(&self, number: usize) {
        self.policies.set(i64::try_from(number).unwrap_or(i64::MAX));
    }

    /// What is in memory now.
    pub fn show(&self, running: usize, held: usize, in_memory: usize) {
        let gauge = |gauge: &Gauge, n: usize| gauge.set(i64::try_from(n).unwrap_or(i64::MAX));
        gauge(&self.running, running);
        gauge(&self.held, held);
        gauge(&self.in_memory, in_memory);
    }

    /// Calls that were given up and hold their places.
    pub fn show_abandoned(&self, calls: usize) {
        (self.abandoned).set(i64::try_from(calls).unwrap_or(i64::MAX));
    }

    /// Everything, in the OpenMetrics text format.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a String can't fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

fn register<M: Clone + prometheus_client::registry::Metric>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    metric: M,
) -> M {
    registry.register(name, help, metric.clone());
    metric
}

fn register_base(registry: &mut Registry) -> Gauge<f64, AtomicU64> {
    let gauge = Gauge::default();
    let help =
        "The shortest round trip to Redis of the last minutes, by which permits are not older";
    registry.register_with_unit("gate_base", help, Unit::Seconds, Gauge::clone(&gauge));
    gauge
}

fn register_seconds(
    registry: &mut Registry,
    name: &str,
    help: &str,
    metric: Histogram,
) -> Histogram {
    registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_shown() {
        let metrics = Metrics::new();
        metrics.delivered(Source::Due);
        metrics.decided(&Answer::Start {
            count: 1,
            sequences: crate::gate::Sequences::NONE,
        });
        metrics.gate_answered(Duration::from_millis(2), false);
        metrics.set_up("redis", true);
        metrics.set_up("redis", false);
        metrics.set_up("redis", false);
        metrics.show(3, 2, 5);
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
            "sluicegate_running 3",
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
            "sluicegate_waits_total{how=\"hold\"} 0",
            "sluicegate_dead_total{reason=\"bad-message\"} 0",
            "sluicegate_publish_failures_total{kind=\"nacked\"} 0",
            "sluicegate_disconnects_total{server=\"rabbitmq\"} 0",
            "sluicegate_up{server=\"redis\"} 0",
            "sluicegate_late_admissions_total 0",
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
