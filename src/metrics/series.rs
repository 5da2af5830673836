//! The names and help texts of all series; they exist from the start.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

use super::{Decision, Ended, How, Kind, Metrics, Queue, Reason, Reloaded, Server, Told, Whose};
use crate::gate::Primaries;

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
}

fn register<M: Clone + Metric>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
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
