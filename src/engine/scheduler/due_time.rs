//! When a job's time comes, and by how much it is late.

use std::time::Duration;

/// Delay from which a start counts as late.
pub const LATE_AFTER: Duration = Duration::from_secs(1);

/// When a job may start, as far as it is known: when it arrived, or at the end of its last wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DueTime {
    /// Earliest start.
    at: Duration,
    /// Delay that it already had at that time.
    overdue: Duration,
}

impl DueTime {
    /// Creates the due time of a job whose time comes at `at`.
    pub(super) fn at(at: Duration) -> Self {
        Self {
            at,
            overdue: Duration::ZERO,
        }
    }

    /// Creates the due time of a job that arrives now from a wait. `until_ms` is the end of the
    /// wait, in the past or the future; 0 if it is unknown. `store_ms` is the current time of the
    /// store's clock, and `left` the rest of the wait.
    pub(super) fn after_wait(now: Duration, until_ms: u64, store_ms: u64, left: Duration) -> Self {
        let over_ms = match until_ms {
            0 => 0,
            until => store_ms.saturating_sub(until),
        };
        Self {
            at: now + left,
            overdue: Duration::from_millis(over_ms),
        }
    }

    /// Returns by how much the job is late.
    pub(super) fn late(self, now: Duration) -> Duration {
        match now >= self.at {
            true => self.overdue + (now - self.at),
            false => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::MS;

    #[test]
    fn a_job_is_late_from_its_time_on() {
        let due = DueTime::at(50 * MS);
        assert_eq!(due.late(49 * MS), Duration::ZERO);
        assert_eq!(due.late(50 * MS), Duration::ZERO);
        assert_eq!(due.late(53 * MS), 3 * MS);
    }

    #[test]
    fn a_late_delivery_was_due_before_it_arrived() {
        let late =
            |until_ms, left| DueTime::after_wait(10 * MS, until_ms, 5_000, left).late(12 * MS);
        assert_eq!(late(4_000, Duration::ZERO), 1_002 * MS);
        assert_eq!(late(5_001, MS), MS, "its end is near");
        assert_eq!(late(9_000, 4_000 * MS), Duration::ZERO, "it is ahead");
        assert_eq!(late(0, Duration::ZERO), 2 * MS, "it is not known");
    }
}
