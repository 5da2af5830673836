//! Metrics of the load, for dashboards, alerts and autoscalers: how many jobs wait, for how long,
//! and how much of the worker is in use.

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::series::{register, register_seconds};
use super::{InState, Metrics};
use crate::broker::QueueBacklog;
use crate::engine::facts::{Census, MissingResource};
use crate::rules::promise;

/// Maximum number of limits with their own series.
pub(super) const MAX_LIMITS: usize = 64;
/// Label of the series shared by all other limits.
pub(super) const OTHER_LIMITS: &str = "other";
/// Maximum number of characters of a job ID in an exemplar, which OpenMetrics limits to 128 in all.
const MAX_ID_CHARS: usize = 64;
/// Upper bounds of the histograms' buckets, in seconds. A start is late from one second on.
const BUCKETS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct LackLabel {
    pub(super) lacks: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct LimitLabel {
    pub(super) limit: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OffLabel {
    off: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobLabel {
    job_id: String,
}

/// The metrics of the load.
pub(super) struct LoadMetrics {
    backlog: Family<InState, Gauge<f64, AtomicU64>>,
    tenants: Family<InState, Gauge>,
    pub(super) quota_idle: Family<LackLabel, Gauge>,
    oldest: Gauge<f64, AtomicU64>,
    start_delay: HistogramWithExemplars<JobLabel>,
    late_starts: Counter,
    forecast_error: [Histogram; 2],
    forecasts_kept: Counter,
    queued: Histogram,
    denials: Family<LimitLabel, Counter>,
    /// Counters of the limits that have a series, so that a lookup allocates nothing.
    limits: Mutex<Vec<(String, Counter)>>,
    pub(super) worker_slots: Gauge,
    slot_seconds: Counter<f64, AtomicU64>,
    pub(super) saturation: Gauge<f64, AtomicU64>,
}

impl LoadMetrics {
    pub(super) fn register(r: &mut Registry) -> Self {
        let start_delay = HistogramWithExemplars::new(BUCKETS.into_iter());
        let help = "Delay of starts after the job's arrival or the end of its last wait";
        r.register_with_unit("start_delay", help, Unit::Seconds, start_delay.clone());
        let forecast_error =
            Family::<OffLabel, Histogram>::new_with_constructor(|| Histogram::new(BUCKETS));
        let help = "Difference between a job's start and the first turn that it was promised";
        r.register_with_unit(
            "forecast_error",
            help,
            Unit::Seconds,
            forecast_error.clone(),
        );
        let [early, late] =
            ["early", "late"].map(|off| forecast_error.get_or_create(&OffLabel { off }).clone());
        Self {
            start_delay,
            forecast_error: [early, late],
            forecasts_kept: register(
                r,
                "forecasts_kept",
                "Jobs that started within 2 % of their wait or 100 ms of the first turn that they \
                were promised",
                Counter::default(),
            ),
            backlog: register(
                r,
                "backlog_jobs",
                "Jobs in RabbitMQ's queues, excluding jobs in workers' memory; NaN: unknown",
                Family::default(),
            ),
            tenants: register(
                r,
                "tenants",
                "Tenants with a job waiting in this worker's memory, and suspended tenants",
                Family::default(),
            ),
            quota_idle: register(
                r,
                "quota_idle",
                "Jobs in memory that have been due for over a second, by what they lack; should \
                be 0",
                Family::default(),
            ),
            oldest: register(
                r,
                "oldest_ready_seconds",
                "Time that the oldest due job in memory has waited for its start",
                Gauge::default(),
            ),
            late_starts: register(
                r,
                "late_starts",
                "Jobs that started over a second late",
                Counter::default(),
            ),
            queued: register_seconds(
                r,
                "queued",
                "Ages of new jobs when taken, by their publisher's timestamp",
                Histogram::new(BUCKETS),
            ),
            denials: register(
                r,
                "denials",
                "Denied jobs, by the limit with the longest wait",
                Family::default(),
            ),
            limits: Mutex::default(),
            worker_slots: register(
                r,
                "worker_slots",
                "Maximum number of calls in flight of this worker",
                Gauge::default(),
            ),
            slot_seconds: register(
                r,
                "slot_seconds",
                "Total time for which worker slots were taken",
                Counter::default(),
            ),
            saturation: register(
                r,
                "saturation",
                "Share of worker slots taken in the last seconds, from 0 to 1",
                Gauge::default(),
            ),
        }
    }

    pub(super) fn show_all_series(&self) {
        for state in ["ready", "waiting", "dead"] {
            self.backlog.get_or_create(&InState { state }).set(f64::NAN);
        }
        for state in ["waiting", "suspended"] {
            drop(self.tenants.get_or_create(&InState { state }));
        }
        for (_, lacks) in MissingResource::NAMES {
            drop(self.quota_idle.get_or_create(&LackLabel { lacks }));
        }
        let limit = OTHER_LIMITS.to_owned();
        drop(self.denials.get_or_create(&LimitLabel { limit }));
    }
}

impl Metrics {
    /// Sets the number of jobs in the queues; `None` if it is unknown.
    pub fn set_backlog(&self, backlog: Option<QueueBacklog>) {
        let known = |number: fn(&QueueBacklog) -> u64| match &backlog {
            // Numbers above 2^53 are rounded.
            #[expect(clippy::cast_precision_loss)]
            Some(backlog) => number(backlog) as f64,
            None => f64::NAN,
        };
        for (state, number) in [
            ("ready", known(|it| it.ready)),
            ("waiting", known(|it| it.waiting)),
            ("dead", known(|it| it.dead)),
        ] {
            let gauge = self.load.backlog.get_or_create(&InState { state });
            gauge.set(number);
        }
    }

    /// Sets the gauges of the jobs in memory.
    pub fn set_census(&self, census: &Census) {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let load = &self.load;
        for (state, tenants) in [("waiting", census.waiting), ("suspended", census.suspended)] {
            let gauge = load.tenants.get_or_create(&InState { state });
            gauge.set(number(tenants));
        }
        for ((_, lacks), jobs) in MissingResource::NAMES.into_iter().zip(census.idle) {
            let gauge = load.quota_idle.get_or_create(&LackLabel { lacks });
            gauge.set(number(jobs));
        }
        load.oldest.set(census.oldest.as_secs_f64());
    }

    /// Records how long after its time a job started, for a start that is not late.
    pub fn started(&self, late: Duration) {
        self.load
            .start_delay
            .observe(late.as_secs_f64(), None, None);
    }

    /// Records a late start and counts it. The exemplar names the job's ID.
    pub fn started_late(&self, late: Duration, id: Option<&str>) {
        let of_job = id.map(|id| JobLabel {
            job_id: id.chars().take(MAX_ID_CHARS).collect(),
        });
        (self.load.start_delay).observe(late.as_secs_f64(), of_job, None);
        self.load.late_starts.inc();
    }

    /// Records by how much a job missed its promise: the turn that it was given when it was denied.
    pub fn promised(&self, off: promise::PromiseGap) {
        let of_sign = &self.load.forecast_error[usize::from(off.is_late)];
        of_sign.observe(Duration::from_millis(off.ms).as_secs_f64());
        if off.is_met {
            self.load.forecasts_kept.inc();
        }
    }

    /// Records the time that a new job spent in the work queue.
    pub fn queued(&self, age: Duration) {
        self.load.queued.observe(age.as_secs_f64());
    }

    /// Counts a denied job for the limit that it waits for.
    pub fn denied_by(&self, limit: &str) {
        let mut limits = (self.load.limits.lock()).unwrap_or_else(PoisonError::into_inner);
        if let Some((_, counter)) = limits.iter().find(|(name, _)| name == limit) {
            counter.inc();
            return;
        }
        let is_full = limits.len() >= MAX_LIMITS;
        let name = if is_full { OTHER_LIMITS } else { limit }.to_owned();
        let label = LimitLabel {
            limit: name.clone(),
        };
        let counter = self.load.denials.get_or_create(&label).clone();
        counter.inc();
        if !is_full {
            limits.push((name, counter));
        }
    }

    /// Adds the worker slots in use, of all slots, over the time `lasted`.
    pub fn used_slots(&self, (taken, all): (usize, usize), lasted: Duration) {
        (self.load.worker_slots).set(i64::try_from(all).unwrap_or(i64::MAX));
        let taken = u32::try_from(taken).unwrap_or(u32::MAX);
        (self.load.slot_seconds).inc_by(f64::from(taken) * lasted.as_secs_f64());
    }

    /// Sets the share of worker slots that was in use lately.
    pub fn set_saturation(&self, share: f64) {
        self.load.saturation.set(share);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shows(metrics: &Metrics, lines: &[&str]) {
        let text = metrics.encode();
        for line in lines {
            let found = text.lines().any(|l| l == *line);
            assert!(found, "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn unknown_values_are_not_zero() {
        let metrics = Metrics::new();
        shows(&metrics, &["sluicegate_backlog_jobs{state=\"dead\"} NaN"]);
        metrics.set_backlog(Some(QueueBacklog {
            ready: 7,
            waiting: 8,
            dead: 0,
        }));
        shows(
            &metrics,
            &[
                "sluicegate_backlog_jobs{state=\"ready\"} 7.0",
                "sluicegate_backlog_jobs{state=\"waiting\"} 8.0",
                "sluicegate_backlog_jobs{state=\"dead\"} 0.0",
            ],
        );
        metrics.set_backlog(None);
        shows(&metrics, &["sluicegate_backlog_jobs{state=\"ready\"} NaN"]);
    }

    #[test]
    fn a_late_start_names_its_job_in_an_exemplar_and_no_other_does() {
        let metrics = Metrics::new();
        metrics.started(Duration::from_millis(20));
        assert!(!metrics.encode().contains("job_id"));
        let id = format!("a\"b\\{}", "x".repeat(100));
        metrics.started_late(Duration::from_secs(2), Some(&id));
        metrics.started_late(Duration::from_secs(20), None);
        let job = format!("a\\\"b\\\\{}", "x".repeat(MAX_ID_CHARS - 4));
        let bucket = "sluicegate_start_delay_seconds_bucket{le=\"2.5\"} 2";
        let line = format!("{bucket} # {{job_id=\"{job}\"}} 2.0");
        shows(
            &metrics,
            &[
                &line,
                "sluicegate_start_delay_seconds_bucket{le=\"1.0\"} 1",
                "sluicegate_start_delay_seconds_count 3",
                "sluicegate_late_starts_total 2",
            ],
        );
    }

    #[test]
    fn a_missed_promise_counts_as_early_or_late() {
        let metrics = Metrics::new();
        let promise = promise::Promise {
            at_ms: 10_000,
            wait_ms: 5_000,
        };
        metrics.promised(promise.off(9_960));
        metrics.promised(promise.off(10_000));
        metrics.promised(promise.off(12_000));
        shows(
            &metrics,
            &[
                "sluicegate_forecast_error_seconds_sum{off=\"early\"} 0.04",
                "sluicegate_forecast_error_seconds_count{off=\"early\"} 2",
                "sluicegate_forecast_error_seconds_sum{off=\"late\"} 2.0",
                "sluicegate_forecast_error_seconds_count{off=\"late\"} 1",
                "sluicegate_forecasts_kept_total 2",
            ],
        );
    }

    #[test]
    fn limits_have_a_bounded_number_of_series() {
        let metrics = Metrics::new();
        for _ in 0..2 {
            for number in 0..MAX_LIMITS + 3 {
                metrics.denied_by(&format!("limit-{number}"));
            }
        }
        shows(
            &metrics,
            &[
                "sluicegate_denials_total{limit=\"limit-63\"} 2",
                "sluicegate_denials_total{limit=\"other\"} 6",
            ],
        );
        let text = metrics.encode();
        let series = text.matches("sluicegate_denials_total{").count();
        assert_eq!(series, MAX_LIMITS + 1);
    }

    #[test]
    fn a_census_is_shown_by_state_and_missing_resource() {
        let metrics = Metrics::new();
        let mut census = Census {
            waiting: 3,
            suspended: 1,
            oldest: Duration::from_millis(1_500),
            ..Census::default()
        };
        census.idle[MissingResource::Redis as usize] = 4;
        metrics.set_census(&census);
        metrics.used_slots((3, 8), Duration::from_millis(500));
        metrics.set_saturation(0.375);
        shows(
            &metrics,
            &[
                "sluicegate_tenants{state=\"waiting\"} 3",
                "sluicegate_tenants{state=\"suspended\"} 1",
                "sluicegate_quota_idle{lacks=\"redis\"} 4",
                "sluicegate_quota_idle{lacks=\"worker\"} 0",
                "sluicegate_oldest_ready_seconds 1.5",
                "sluicegate_worker_slots 8",
                "sluicegate_slot_seconds_total 1.5",
                "sluicegate_saturation 0.375",
            ],
        );
    }
}
