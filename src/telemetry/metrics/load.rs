//! Metrics of the load, for dashboards, alerts and autoscalers: how many jobs wait, for how long,
//! and how much of the worker is in use.

use std::time::Duration;

use super::{Metrics, set};
use broker::QueueBacklog;
use rules::report::load::{Census, MissingResource};
use rules::timing::promise;

/// Maximum number of characters of a job ID in an exemplar, which OpenMetrics limits to 128 in all.
const MAX_ID_CHARS: usize = 64;

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
            self.backlog_jobs.of(state).set(number);
        }
    }

    /// Sets the gauges of the jobs in memory.
    pub fn set_census(&self, census: &Census) {
        set(&self.tenants.of("waiting"), census.waiting);
        set(&self.tenants.of("suspended"), census.suspended);
        for ((_, lacks), jobs) in MissingResource::NAMES.into_iter().zip(census.idle) {
            set(&self.quota_idle.of(lacks), jobs);
        }
        (self.oldest_ready_seconds).set(census.oldest.as_secs_f64());
    }

    /// Records how long after its time a job started, for a start that is not late.
    pub fn started(&self, late: Duration) {
        (self.start_delay_seconds).observe(late.as_secs_f64(), None, None);
    }

    /// Records a late start and counts it. The exemplar names the job's ID.
    pub fn started_late(&self, late: Duration, id: Option<&str>) {
        let of_job = id.map(|id| [("job_id", id.chars().take(MAX_ID_CHARS).collect())]);
        (self.start_delay_seconds).observe(late.as_secs_f64(), of_job, None);
        self.late_starts.inc();
    }

    /// Records by how much a job missed its promise: the turn that it was given when it was denied.
    pub fn promised(&self, off: promise::PromiseGap) {
        let sign = if off.is_late { "late" } else { "early" };
        let error = Duration::from_millis(off.ms).as_secs_f64();
        self.forecast_error_seconds.of(sign).observe(error);
        if off.is_met {
            self.forecasts_kept.inc();
        }
    }

    /// Adds the worker slots in use, of all slots, over the time `lasted`.
    pub fn used_slots(&self, (taken, all): (usize, usize), lasted: Duration) {
        set(&self.worker_slots, all);
        let taken = u32::try_from(taken).unwrap_or(u32::MAX);
        (self.slot_seconds).inc_by(f64::from(taken) * lasted.as_secs_f64());
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
        metrics.saturation.set(0.375);
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
