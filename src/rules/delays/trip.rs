//! A job's stay in a delay queue, which the job itself records.

/// Maximum duration of a trip through a delay queue, in milliseconds. A worker may hold the job for
/// all of it, and RabbitMQ closes the channel of a consumer that has held a message for
/// `consumer_timeout` (30 minutes by default).
pub const MAX_TRIP_MS: u64 = 600_000;

/// A job's wait in a delay queue, as the job carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trip {
    /// When the trip ends, in milliseconds of the store's clock; 0 if the clock was not known.
    pub until_ms: u64,
    /// The duration of the trip, in milliseconds.
    pub wait_ms: u64,
}

impl Trip {
    /// Returns the rest of the trip for a job that has just arrived, in milliseconds. Never
    /// more than the whole trip: after a clock was stepped back, jobs do not wait for as long as
    /// the step.
    pub fn left_ms(&self, store_now_ms: u64) -> u64 {
        match self.until_ms {
            0 => self.wait_ms,
            until => until.saturating_sub(store_now_ms).min(self.wait_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_waits_at_most_its_reported_delay() {
        let trip = |until_ms| Trip {
            until_ms,
            wait_ms: 10_000,
        };
        let left = |until, now| trip(until).left_ms(now);
        assert_eq!(left(1_010_000, 1_000_000), 10_000);
        assert_eq!(left(1_010_000, 1_009_999), 1);
        assert_eq!(left(1_010_000, 2_000_000), 0);
        assert_eq!(
            left(1_010_000, 500_000),
            10_000,
            "the clock was stepped back"
        );
        assert_eq!(left(0, 1_000_000), 10_000, "the clock was not known");
    }
}
