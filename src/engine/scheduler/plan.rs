//! When a job's time comes, and by how much it is late.

use std::time::Duration;

/// From this on a start is late.
pub const LATE: Duration = Duration::from_secs(1);

/// When a job may start, as far as that was told: when it arrived, or at the end of its last wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// Then it starts, at the earliest.
    at: Duration,
    /// It was late by so much already.
    over: Duration,
}

impl Plan {
    /// Its time comes then.
    pub(super) fn at(at: Duration) -> Self {
        Self {
            at,
            over: Duration::ZERO,
        }
    }

    /// It came now, out of a wait that ended (or ends) at `until_ms`, when the store's clock says `store_ms`; 0: the end is not known.
    pub(super) fn of_wait(now: Duration, until_ms: u64, store_ms: u64, left: Duration) -> Self {
        let over_ms = match until_ms {
            0 => 0,
            until => store_ms.saturating_sub(until),
        };
        Self {
            at: now + left,
            over: Duration::from_millis(over_ms),
        }
    }

    /// By how much it is late.
    pub(super) fn late(self, now: Duration) -> Duration {
        match now >= self.at {
            true => self.over + (now - self.at),
            false => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_job_is_late_from_its_time_on() {
        let plan = Plan::at(50 * MS);
        assert_eq!(plan.late(49 * MS), Duration::ZERO);
        assert_eq!(plan.late(50 * MS), Duration::ZERO);
        assert_eq!(plan.late(53 * MS), 3 * MS);
    }

    #[test]
    fn what_came_too_late_was_late_before() {
        let late = |until_ms, left| Plan::of_wait(10 * MS, until_ms, 5_000, left).late(12 * MS);
        assert_eq!(late(4_000, Duration::ZERO), 1_002 * MS);
        assert_eq!(late(5_001, MS), MS, "its end is near");
        assert_eq!(late(9_000, 4_000 * MS), Duration::ZERO, "it is ahead");
        assert_eq!(late(0, Duration::ZERO), 2 * MS, "it is not known");
    }
}
