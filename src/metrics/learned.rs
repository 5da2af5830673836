//! Metrics of limits that the API's answers lowered.

use std::sync::{Mutex, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Metrics;
use super::load::{LimitLabel, MAX_LIMITS, OTHER_LIMITS};
use super::series::register;

/// The metrics of lowered limits.
pub(super) struct LearnedLimits {
    decreases: Family<LimitLabel, Counter>,
    lowered: Family<LimitLabel, Gauge>,
    /// Names of the limits that have their own series.
    limits: Mutex<Vec<String>>,
}

impl LearnedLimits {
    pub(super) fn register(r: &mut Registry) -> Self {
        Self {
            decreases: register(
                r,
                "limit_decreases",
                "Times that an answer to this worker lowered a limit, by limit",
                Family::default(),
            ),
            lowered: register(
                r,
                "limits_lowered",
                "Tenants whose limit was lowered by answers to this worker and is not yet \
                restored, by limit",
                Family::default(),
            ),
            limits: Mutex::default(),
        }
    }

    pub(super) fn show_all_series(&self) {
        let other = other();
        drop(self.decreases.get_or_create(&other));
        drop(self.lowered.get_or_create(&other));
    }

    /// Returns the label of `limit`, or `None` if it has no series of its own because there are too
    /// many.
    fn label(&self, limit: &str) -> Option<LimitLabel> {
        let mut limits = (self.limits.lock()).unwrap_or_else(PoisonError::into_inner);
        if !limits.iter().any(|name| name == limit) {
            if limits.len() >= MAX_LIMITS {
                return None;
            }
            limits.push(limit.to_owned());
        }
        Some(LimitLabel {
            limit: limit.to_owned(),
        })
    }
}

/// Returns the label shared by limits without their own series.
fn other() -> LimitLabel {
    LimitLabel {
        limit: OTHER_LIMITS.to_owned(),
    }
}

impl Metrics {
    /// Counts that `limit` was lowered. `lowered` is the number of tenants for which it is lowered
    /// now.
    pub fn limit_lowered(&self, limit: &str, lowered: usize) {
        let label = self.learned.label(limit).unwrap_or_else(other);
        self.learned.decreases.get_or_create(&label).inc();
        self.limit_whole(limit, lowered);
    }

    /// Records that `limit` is whole again for a tenant. `lowered` is the number of tenants for
    /// which it is still lowered.
    pub fn limit_whole(&self, limit: &str, lowered: usize) {
        if let Some(label) = self.learned.label(limit) {
            let lowered = i64::try_from(lowered).unwrap_or(i64::MAX);
            self.learned.lowered.get_or_create(&label).set(lowered);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lowered_limit_has_series_and_their_number_is_bounded() {
        let metrics = Metrics::new();
        let shown = metrics.encode();
        assert_eq!(shown.matches("sluicegate_limits_lowered{").count(), 1);
        metrics.limit_lowered("minute", 1);
        metrics.limit_lowered("minute", 2);
        metrics.limit_whole("minute", 1);
        for number in 0..2 * MAX_LIMITS {
            metrics.limit_lowered(&format!("limit-{number}"), 1);
        }
        let text = metrics.encode();
        for line in [
            "sluicegate_limit_decreases_total{limit=\"minute\"} 2",
            "sluicegate_limits_lowered{limit=\"minute\"} 1",
            "sluicegate_limit_decreases_total{limit=\"other\"} 65",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let series = text.matches("sluicegate_limits_lowered{").count();
        assert_eq!(series, MAX_LIMITS + 1);
    }
}
