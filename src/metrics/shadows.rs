//! Metrics of shadow limits: starts and waits as they would have been.

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Metrics;
use super::load::{MAX_LIMITS, OTHER_LIMITS};
use super::series::register;
use crate::rules::decision::Tally;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ShadowLabel {
    limit: String,
}

/// The metrics of shadow limits, by the limit's name and never by tenant.
pub(super) struct Shadows {
    starts: Family<ShadowLabel, Counter>,
    waits: Family<ShadowLabel, Counter>,
    never: Family<ShadowLabel, Counter>,
    longest: Family<ShadowLabel, Gauge<f64, AtomicU64>>,
    /// Shadows with their own series, and the longest wait of each in milliseconds.
    known: Mutex<Vec<(String, u64)>>,
}

impl Shadows {
    pub(super) fn new(r: &mut Registry) -> Self {
        Self {
            starts: register(
                r,
                "shadow_starts",
                "Jobs that started under a shadow limit",
                Family::default(),
            ),
            waits: register(
                r,
                "shadow_waits",
                "Started jobs that the shadow limit would have made wait",
                Family::default(),
            ),
            never: register(
                r,
                "shadow_never",
                "Jobs of sluicegate_shadow_waits_total that would have waited for more than a day \
                or cost more than the whole limit",
                Family::default(),
            ),
            longest: register(
                r,
                "shadow_longest_wait_seconds",
                "Longest wait that the shadow limit would have caused since the worker started",
                Family::default(),
            ),
            known: Mutex::default(),
        }
    }

    pub(super) fn show_all_series(&self) {
        self.add(OTHER_LIMITS, &Tally::default(), 0);
    }

    fn add(&self, limit: &str, tally: &Tally, longest_ms: u64) {
        let label = ShadowLabel {
            limit: limit.to_owned(),
        };
        self.starts.get_or_create(&label).inc_by(tally.starts);
        self.waits.get_or_create(&label).inc_by(tally.waited);
        self.never.get_or_create(&label).inc_by(tally.never);
        let seconds = longest_ms as f64 / 1_000.0;
        self.longest.get_or_create(&label).set(seconds);
    }
}

impl Metrics {
    /// Adds `tally`, the starts and waits that the shadow `limit` would have caused.
    pub fn shadow_tally(&self, limit: &str, tally: &Tally) {
        let shadows = &self.shadows;
        let mut known = (shadows.known.lock()).unwrap_or_else(PoisonError::into_inner);
        let name = match known.iter().any(|(name, _)| name == limit) || known.len() < MAX_LIMITS {
            true => limit,
            false => OTHER_LIMITS,
        };
        let at = (known.iter().position(|(known, _)| known == name)).unwrap_or_else(|| {
            known.push((name.to_owned(), 0));
            known.len() - 1
        });
        let longest_ms = &mut known[at].1;
        *longest_ms = tally.worst_ms.max(*longest_ms);
        shadows.add(name, tally, *longest_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shadow_counts_have_a_bounded_number_of_names() {
        let metrics = Metrics::new();
        let tally = |waited, worst_ms| Tally {
            starts: 3,
            waited,
            never: 0,
            worst_ms,
        };
        metrics.shadow_tally("day", &tally(2, 41_500));
        metrics.shadow_tally("day", &tally(1, 7));
        for number in 0..MAX_LIMITS + 9 {
            metrics.shadow_tally(&format!("limit-{number}"), &tally(0, 0));
        }
        let text = metrics.encode();
        for line in [
            "sluicegate_shadow_starts_total{limit=\"day\"} 6",
            "sluicegate_shadow_waits_total{limit=\"day\"} 3",
            "sluicegate_shadow_never_total{limit=\"day\"} 0",
            "sluicegate_shadow_longest_wait_seconds{limit=\"day\"} 41.5",
            "sluicegate_shadow_starts_total{limit=\"other\"} 30",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let series = text.matches("sluicegate_shadow_starts_total{").count();
        assert_eq!(series, MAX_LIMITS + 1);
    }
}
