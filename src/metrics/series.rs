//! Names and help texts of all series. They exist from the start.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

use super::learned::LearnedLimits;
use super::load::LoadMetrics;
use super::shadows::Shadows;
use super::{
    BreakerOwner, Decision, EndReport, Kind, Metrics, OutcomeLabel, Queue, Reason, Reloaded,
    Server, Where,
};
use crate::gate::Primaries;

impl Metrics {
    /// Creates all metrics at zero.
    pub fn new() -> Self {
        Self::of(None)
    }

    /// Creates all metrics at zero. If `pipeline` is given, each series has the label `pipeline`.
    pub fn of(pipeline: Option<&str>) -> Self {
        let label = pipeline.map(|name| ("pipeline".into(), name.to_owned().into()));
        let labels = label.into_iter();
        let mut registry = Registry::with_prefix_and_labels("sluicegate", labels);
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
                "Decisions of the gate, by answer",
                Family::default(),
            ),
            gate_round_trips: register(
                r,
                "gate_round_trips",
                "Requests to Redis for decisions",
                Counter::default(),
            ),
            gate_failures: register(
                r,
                "gate_failures",
                "Requests to Redis without an answer",
                Counter::default(),
            ),
            gate_seconds: register_seconds(
                r,
                "gate",
                "Round trips to Redis for decisions",
                Histogram::new(seconds()),
            ),
            gate_base: register_base(r),
            expired_permits: register(
                r,
                "expired_permits",
                "Permits whose deadline passed before the call was sent",
                Counter::default(),
            ),
            late_calls: register(
                r,
                "late_calls",
                "Calls that came later than the guard covers and count from their detection, by \
                how they were detected",
                Family::default(),
            ),
            late_seconds: register(
                r,
                "late_calls_seconds",
                "Additional time for which late calls count",
                Counter::default(),
            ),
            late_not_counted: register(
                r,
                "late_calls_not_counted",
                "Late answers for which guard-budget was exhausted",
                Counter::default(),
            ),
            latency_base: register(
                r,
                "way_base_seconds",
                "Shortest time from a request to Redis to the acknowledged call",
                Gauge::default(),
            ),
            dispatches: register(r, "dispatches", "Calls, by outcome", Family::default()),
            dispatch_seconds: register_seconds(
                r,
                "dispatch",
                "Durations of calls",
                Histogram::new(seconds()),
            ),
            delays: register(
                r,
                "delays",
                "Delays started, by place: in memory or in a delay queue",
                Family::default(),
            ),
            duplicates: register(
                r,
                "duplicates",
                "Dropped jobs whose dedupe key was seen before",
                Counter::default(),
            ),
            spans_lost: register(
                r,
                "spans_lost",
                "Trace spans that were not sent: too many waited, or the collector did not accept \
                them",
                Counter::default(),
            ),
            delayed_starts: register(
                r,
                "delayed_starts",
                "Jobs whose publisher delayed their start",
                Counter::default(),
            ),
            wait_seconds: register_seconds(
                r,
                "wait",
                "Waits of denied jobs",
                Histogram::new(exponential_buckets(0.001, 4.0, 12)),
            ),
            dead_letters: register(
                r,
                "dead_letters",
                "Dead letters, by kind of reason",
                Family::default(),
            ),
            results: register(
                r,
                "results",
                "Results of jobs, by outcome",
                Family::default(),
            ),
            publish_failures: register(
                r,
                "publish_failures",
                "Unconfirmed publishes, which were retried",
                Family::default(),
            ),
            moves_given_back: register(
                r,
                "moves_given_back",
                "Jobs returned to their queues because RabbitMQ stored no copy of them",
                Counter::default(),
            ),
            stuck: register(
                r,
                "stuck_messages",
                "Messages that wait because RabbitMQ accepts none for their queue or exchange",
                Family::default(),
            ),
            disconnects: register(r, "disconnects", "Connections lost", Family::default()),
            up: register(r, "up", "1 while the server answers", Family::default()),
            agreed: register(
                r,
                "agreed",
                "1 while the workers agree on the effective limits; at 0 no job is admitted",
                Gauge::default(),
            ),
            rests: register(
                r,
                "rests",
                "Times that the worker returned all deliveries because it could admit or call nothing",
                Counter::default(),
            ),
            paused: register(
                r,
                "paused",
                "1 while an operator has paused all workers (sluicegate pause --all)",
                Gauge::default(),
            ),
            draining: register(
                r,
                "draining",
                "1 while an operator drains all workers (sluicegate drain)",
                Gauge::default(),
            ),
            diverted: register(
                r,
                "diverted_jobs",
                "Jobs moved to another queue because their tenant is diverted",
                Counter::default(),
            ),
            gate_recovering: register(
                r,
                "gate_recovering",
                "1 during a recovery wait: Redis (in a cluster, at least one primary) may have \
                lost data and admits no job",
                Gauge::default(),
            ),
            primaries: register(
                r,
                "redis_primaries",
                "Primaries of Redis, by state; one without a cluster",
                Family::default(),
            ),
            breaker_open: register(
                r,
                "breaker_open",
                "1 while this worker makes only probes because calls of the API failed in a row",
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
                "Configurations read again, by result",
                Family::default(),
            ),
            restarts: register(
                r,
                "pipeline_restarts",
                "Restarts of the pipeline after an error",
                Counter::default(),
            ),
            exec_restarts: register(
                r,
                "exec_restarts",
                "Programs of dispatch.exec that ended or failed and were replaced",
                Counter::default(),
            ),
            active_policies: register(
                r,
                "active_policies",
                "Policies enforced together",
                Gauge::default(),
            ),
            calls_in_flight: register(r, "calls_in_flight", "Calls in flight", Gauge::default()),
            delayed_in_memory: register(
                r,
                "delayed_in_memory",
                "Jobs in an in-memory delay, or in the delivery window of a delay queue",
                Gauge::default(),
            ),
            in_memory: register(
                r,
                "in_memory",
                "Unacked jobs in the worker",
                Gauge::default(),
            ),
            abandoned: register(
                r,
                "abandoned_calls",
                "Calls that timed out and may still reach the API: guard: strict and max-concurrent count them",
                Gauge::default(),
            ),
            load: LoadMetrics::register(r),
            learned: LearnedLimits::register(r),
            shadows: Shadows::new(r),
            tenants: std::sync::Mutex::default(),
            registry,
        };
        metrics.show_all_series();
        metrics
    }

    /// Creates all series at zero: a rate over a series that appears later misses its first count.
    fn show_all_series(&self) {
        self.load.show_all_series();
        self.learned.show_all_series();
        self.shadows.show_all_series();
        for queue in ["fresh", "due", "recheck", "lane"] {
            drop(self.deliveries.get_or_create(&Queue { queue }));
        }
        for answer in ["start", "wait", "capacity"] {
            drop(self.decisions.get_or_create(&Decision { answer }));
        }
        for told_by in ["acknowledgement", "answer", "nothing"] {
            drop(self.late_calls.get_or_create(&EndReport { told_by }));
        }
        for outcome in ["done", "retry", "snooze", "throttled", "late", "reject"] {
            drop(self.dispatches.get_or_create(&OutcomeLabel { outcome }));
        }
        for r#where in ["memory", "delay-queue", "recheck"] {
            drop(self.delays.get_or_create(&Where { r#where }));
        }
        let reasons = [
            "bad-message",
            "rejected",
            "attempts",
            "expired",
            "given-up",
            "crashed",
            "cancelled",
        ];
        for reason in reasons {
            drop(self.dead_letters.get_or_create(&Reason { reason }));
        }
        for outcome in ["published", "unroutable", "refused"] {
            drop(self.results.get_or_create(&OutcomeLabel { outcome }));
        }
        for whose in ["api", "tenant"] {
            drop(self.breaker_opened.get_or_create(&BreakerOwner { whose }));
        }
        for kind in ["returned", "nacked", "refused", "unconfirmed", "down"] {
            drop(self.publish_failures.get_or_create(&Kind { kind }));
        }
        self.set_stuck([0; 3]);
        self.set_primaries(Primaries::default());
        for result in ["applied", "refused"] {
            drop(self.config_reloads.get_or_create(&Reloaded { result }));
        }
        for server in ["rabbitmq", "redis"] {
            drop(self.up.get_or_create(&Server { server }));
            drop(self.disconnects.get_or_create(&Server { server }));
        }
    }
}

pub(super) fn register<M: Clone + Metric>(
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
    let help = "Shortest round trip to Redis of the last minutes";
    registry.register_with_unit("gate_base", help, Unit::Seconds, Gauge::clone(&gauge));
    gauge
}

pub(super) fn register_seconds(
    registry: &mut Registry,
    name: &str,
    help: &str,
    metric: Histogram,
) -> Histogram {
    registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}
