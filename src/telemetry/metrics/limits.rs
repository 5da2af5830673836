//! Metrics of limits that the API's answers lowered, and of shadow limits: starts and waits as they
//! would have been.

use std::sync::atomic::Ordering;

use super::{Metrics, set};
use rules::decision::Tally;

impl Metrics {
    /// Counts that `limit` was lowered. `lowered` is the number of tenants for which it is lowered
    /// now.
    pub fn limit_lowered(&self, limit: &str, lowered: usize) {
        self.limit_decreases.of(limit).inc();
        self.limit_whole(limit, lowered);
    }

    /// Records that `limit` is whole again for a tenant. `lowered` is the number of tenants for
    /// which it is still lowered.
    pub fn limit_whole(&self, limit: &str, lowered: usize) {
        // The numbers of limits that share a series can't be added: each comes at its own time.
        if let Some(gauge) = self.limits_lowered.own(limit) {
            set(&gauge, lowered);
        }
    }

    /// Adds `tally`, the starts and waits that the shadow `limit` would have caused.
    pub fn shadow_tally(&self, limit: &str, tally: &Tally) {
        self.shadow_starts.of(limit).inc_by(tally.starts);
        self.shadow_waits.of(limit).inc_by(tally.waited);
        self.shadow_never.of(limit).inc_by(tally.never);
        let seconds = tally.worst_ms as f64 / 1_000.0;
        // Positive numbers have the order of their bits.
        let longest = self.shadow_longest_wait_seconds.of(limit);
        (longest.inner()).fetch_max(seconds.to_bits(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::labels::MAX_LIMITS;
    use super::*;

    /// Checks that `metrics` has `lines`, and as many series `name` as limits may have.
    #[track_caller]
    fn shows(metrics: &Metrics, name: &str, lines: &[&str]) {
        let text = metrics.encode();
        for line in lines {
            assert!(text.lines().any(|found| found == *line), "{line}\n{text}");
        }
        let series = text.matches(&format!("sluicegate_{name}{{")).count();
        assert_eq!(series, MAX_LIMITS + 1);
    }

    #[test]
    fn limits_have_a_bounded_number_of_series() {
        let metrics = Metrics::new();
        for _ in 0..2 {
            for number in 0..MAX_LIMITS + 3 {
                metrics.denials.of(&format!("limit-{number}")).inc();
            }
        }
        let lines = [
            "sluicegate_denials_total{limit=\"limit-63\"} 2",
            "sluicegate_denials_total{limit=\"other\"} 6",
        ];
        shows(&metrics, "denials_total", &lines);
    }

    #[test]
    fn limits_that_share_a_series_are_not_shown_as_lowered() {
        let metrics = Metrics::new();
        metrics.limit_lowered("minute", 1);
        metrics.limit_lowered("minute", 2);
        metrics.limit_whole("minute", 1);
        for number in 0..2 * MAX_LIMITS {
            metrics.limit_lowered(&format!("limit-{number}"), 1);
        }
        let lines = [
            "sluicegate_limit_decreases_total{limit=\"minute\"} 2",
            "sluicegate_limit_decreases_total{limit=\"other\"} 65",
            "sluicegate_limits_lowered{limit=\"minute\"} 1",
            "sluicegate_limits_lowered{limit=\"other\"} 0",
        ];
        shows(&metrics, "limits_lowered", &lines);
    }

    #[test]
    fn shadow_tallies_add_up_and_keep_the_longest_wait() {
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
        let lines = [
            "sluicegate_shadow_starts_total{limit=\"day\"} 6",
            "sluicegate_shadow_waits_total{limit=\"day\"} 3",
            "sluicegate_shadow_never_total{limit=\"day\"} 0",
            "sluicegate_shadow_longest_wait_seconds{limit=\"day\"} 41.5",
            "sluicegate_shadow_starts_total{limit=\"other\"} 30",
        ];
        shows(&metrics, "shadow_starts_total", &lines);
    }
}
