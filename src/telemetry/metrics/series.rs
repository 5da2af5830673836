//! The declarations of all metrics. Each is one row of the table below.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

use super::labels::{ByLabel, ByLimit, by};
use broker::MessageKind;
use rules::report::load::{MissingResource, TenantLoads};

type FloatCounter = Counter<f64, AtomicU64>;
type FloatGauge = Gauge<f64, AtomicU64>;
/// The label `job_id` of an exemplar.
type JobId = [(&'static str, String); 1];

/// The queues that jobs are delivered from, as `deliveries` names them.
pub(super) const QUEUES: [&str; 4] = ["new", "due", "recheck", "delay"];
/// Upper bounds of the buckets of waits before a start, in seconds. A start is late from one second
/// on.
const STARTS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0,
];

/// Defines [`Metrics`]: for each row the field, its registration and its documentation.
///
/// A row is `NAME: TYPE = START, HELP;`. The field has the name that Prometheus shows, without
/// `sluicegate_` and a counter's `_total`. Without `= START`, the metric starts as its type's
/// default. `NAME in UNIT` tells Prometheus the unit, in which `NAME` ends.
macro_rules! metrics {
    (@start) => { Default::default() };
    (@start $start:expr) => { $start };
    ($($name:ident $(in $unit:ident)?: $type:ty $(= $start:expr)?, $help:literal;)+) => {
        /// All metrics of a worker. Counting is cheap and works from any thread.
        // Programs and pipelines, which some of them count, need the feature `http`.
        #[cfg_attr(not(feature = "http"), allow(dead_code))]
        pub struct Metrics {
            pub(super) registry: Registry,
            /// Current tenant counts, for the fleet report.
            pub(super) tenant_loads: Mutex<Arc<TenantLoads>>,
            $(#[doc = $help] pub $name: $type,)+
        }

        impl Metrics {
            /// Creates all metrics in `registry`, with all series.
            fn register(mut registry: Registry) -> Self {
                $(
                    let $name: $type = metrics!(@start $($start)?);
                    let unit = None $(.or(Some(Unit::$unit)))?;
                    add(&mut registry, stringify!($name), unit, $help, $name.clone());
                )+
                Self { registry, tenant_loads: Mutex::default(), $($name),+ }
            }
        }
    };
}

metrics! {
    deliveries: ByLabel<Counter> = by("queue", QUEUES),
        "Deliveries taken, by queue";
    decisions: ByLabel<Counter> = by("answer", ["start", "wait", "capacity"]),
        "Decisions of the gate, by answer";
    gate_round_trips: Counter,
        "Requests to Redis for decisions";
    gate_failures: Counter,
        "Requests to Redis without an answer";
    gate_seconds in Seconds: Histogram = call_times(),
        "Round trips to Redis for decisions";
    gate_base_seconds in Seconds: FloatGauge,
        "Shortest round trip to Redis of the last minutes";
    expired_permits: Counter,
        "Permits whose deadline passed before the call was sent";
    late_calls: ByLabel<Counter> = by("detected_by", ["acknowledgement", "answer", "nothing"]),
        "Calls that came later than the guard covers and count from their detection, by how they \
        were detected";
    late_calls_seconds: FloatCounter,
        "Additional time for which late calls count";
    late_calls_not_counted: Counter,
        "Late answers for which guard-budget was exhausted";
    latency_base_seconds: FloatGauge,
        "Shortest time from a request to Redis to the acknowledged call";
    dispatches: ByLabel<Counter>
        = by("outcome", ["done", "retry", "snooze", "throttled", "late", "reject"]),
        "Calls, by outcome";
    dispatch_seconds in Seconds: Histogram = call_times(),
        "Durations of calls";
    delays: ByLabel<Counter> = by("where", ["memory", "delay-queue", "longest-delay-queue"]),
        "Delays started, by place: in memory or in a delay queue";
    duplicates: Counter,
        "Dropped jobs whose dedupe key was seen before";
    spans_lost: Counter,
        "Trace spans that were not sent: too many waited, or the collector did not accept them";
    delayed_starts: Counter,
        "Jobs whose publisher delayed their start";
    wait_seconds in Seconds: Histogram = Histogram::new(exponential_buckets(0.001, 4.0, 12)),
        "Waits of denied jobs";
    dead_letters: ByLabel<Counter> = by("reason", [
            "bad-message", "rejected", "attempts", "expired", "given-up", "crashed", "canceled",
        ]),
        "Dead letters, by kind of reason";
    results: ByLabel<Counter> = by("outcome", ["published", "unroutable", "refused"]),
        "Results of jobs, by outcome";
    publish_failures: ByLabel<Counter>
        = by("kind", ["returned", "nacked", "refused", "unconfirmed", "down"]),
        "Unconfirmed publishes, which were retried";
    moves_given_back: Counter,
        "Jobs returned to their queues because RabbitMQ stored no copy of them";
    stuck_messages: ByLabel<Gauge> = by("kind", MessageKind::NAMES.map(|(_, name)| name)),
        "Messages that wait because RabbitMQ accepts none for their queue or exchange";
    disconnects: ByLabel<Counter> = by("server", ["rabbitmq", "redis"]),
        "Connections lost";
    up: ByLabel<Gauge> = by("server", ["rabbitmq", "redis"]),
        "1 while the server answers";
    agreed: Gauge,
        "1 while the workers agree on the effective limits; at 0 no job is admitted";
    rests: Counter,
        "Times that the worker returned all deliveries because it could admit or call nothing";
    paused: Gauge,
        "1 while an operator has paused all workers (sluicegate pause --all)";
    draining: Gauge,
        "1 while an operator drains all workers (sluicegate drain)";
    diverted_jobs: Counter,
        "Jobs moved to another queue because their tenant is diverted";
    gate_recovering: Gauge,
        "1 during a recovery wait: Redis (in a cluster, at least one primary) may have lost data \
        and admits no job";
    redis_primaries: ByLabel<Gauge> = by("state", ["admitting", "recovering", "away"]),
        "Primaries of Redis, by state; one without a cluster";
    breaker_open: Gauge,
        "1 while this worker makes only probes because calls of the API failed in a row";
    breaker_opened: ByLabel<Counter> = by("whose", ["api", "tenant"]),
        "Breakers that failures reported by this worker opened";
    config_reloads: ByLabel<Counter> = by("result", ["applied", "refused"]),
        "Configurations read again, by result";
    config_refused: Gauge,
        "1 while the configuration, as last read, is refused";
    pipeline_restarts: Counter,
        "Restarts of the pipeline after an error";
    exec_restarts: Counter,
        "Programs of dispatch.exec that ended or failed and were replaced";
    active_policies: Gauge,
        "Policies enforced together";
    calls_in_flight: Gauge,
        "Calls in flight";
    delayed_in_memory: Gauge,
        "Jobs in an in-memory delay, or in the delivery window of a delay queue";
    in_memory: Gauge,
        "Unacked jobs in the worker";
    abandoned_calls: Gauge,
        "Calls that timed out and may still reach the API: guard: strict and max-concurrent count \
        them";
    start_delay_seconds in Seconds: HistogramWithExemplars<JobId>
        = HistogramWithExemplars::new(STARTS.into_iter()),
        "Delay of starts after the job's arrival or the end of its last wait";
    forecast_error_seconds in Seconds: ByLabel<Histogram>
        = ByLabel::new("off", ["early", "late"], || Histogram::new(STARTS)),
        "Difference between a job's start and the first turn that it was promised";
    forecasts_kept: Counter,
        "Jobs that started within 2 % of their wait or 100 ms of the first turn that they were \
        promised";
    backlog_jobs: ByLabel<FloatGauge> = by("state", ["ready", "waiting", "dead"]),
        "Jobs in RabbitMQ's queues, excluding jobs in workers' memory; NaN: unknown";
    tenants: ByLabel<Gauge> = by("state", ["waiting", "suspended"]),
        "Tenants with a job waiting in this worker's memory, and suspended tenants";
    quota_idle: ByLabel<Gauge> = by("lacks", MissingResource::NAMES.map(|(_, name)| name)),
        "Jobs in memory that have been due for over a second, by what they lack; should be 0";
    oldest_ready_seconds: FloatGauge,
        "Time that the oldest due job in memory has waited for its start";
    late_starts: Counter,
        "Jobs that started over a second late";
    queued_seconds in Seconds: Histogram = Histogram::new(STARTS),
        "Ages of new jobs when taken, by their publisher's timestamp";
    denials: ByLimit<Counter>,
        "Denied jobs, by the limit with the longest wait";
    worker_slots: Gauge,
        "Maximum number of calls in flight of this worker";
    slot_seconds: FloatCounter,
        "Total time for which worker slots were taken";
    saturation: FloatGauge,
        "Share of worker slots taken in the last seconds, from 0 to 1";
    limit_decreases: ByLimit<Counter>,
        "Times that an answer to this worker lowered a limit, by limit";
    limits_lowered: ByLimit<Gauge>,
        "Tenants whose limit was lowered by answers to this worker and is not yet restored, by \
        limit";
    shadow_starts: ByLimit<Counter>,
        "Jobs that started under a shadow limit";
    shadow_waits: ByLimit<Counter>,
        "Started jobs that the shadow limit would have made wait";
    shadow_never: ByLimit<Counter>,
        "Jobs of sluicegate_shadow_waits_total that would have waited for more than a day or cost \
        more than the whole limit";
    shadow_longest_wait_seconds: ByLimit<FloatGauge>,
        "Longest wait that the shadow limit would have caused since the worker started";
}

impl Metrics {
    /// Creates all metrics at zero.
    pub fn new() -> Self {
        Self::of(None)
    }

    /// Creates all metrics at zero. If `pipeline` is given, each series has the label `pipeline`.
    pub fn of(pipeline: Option<&str>) -> Self {
        let label = pipeline.map(|name| ("pipeline".into(), name.to_owned().into()));
        let mut registry = Registry::with_prefix_and_labels("sluicegate", label.into_iter());
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The worker's version", version);
        let metrics = Self::register(registry);
        metrics.set_backlog(None);
        metrics
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns a histogram of the durations of calls.
fn call_times() -> Histogram {
    Histogram::new(exponential_buckets(0.000_5, 2.0, 16))
}

fn add(registry: &mut Registry, name: &str, unit: Option<Unit>, help: &str, metric: impl Metric) {
    let Some(unit) = unit else {
        return registry.register(name, help, metric);
    };
    // The registry appends the unit.
    let end = format!("_{}", unit.as_str());
    let name = name.strip_suffix(&end).unwrap_or(name);
    registry.register_with_unit(name, help, unit, metric);
}
