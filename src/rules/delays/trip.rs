//! One stay of a job in a delay queue, as the job carries it.

/// The longest trip through a delay queue, in milliseconds. A job may be in a worker's hands for all of it, and RabbitMQ closes the
/// channel of a consumer that has had a message for `consumer_timeout` (30 minutes, or what somebody has set).
pub const MAX_TRIP_MS: u64 = 600_000;

/// A job's wait in a delay queue, as the job carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trip {
    /// When it ends, in milliseconds of the store's clock; 0: the clock was not known.
    pub until_ms: u64,
    /// How long it takes, in milliseconds.
    pub wait_ms: u64,
}

impl Trip {
    /// What is left of it for a job that has just arrived, in milliseconds. Never more than the whole: a clock that was stepped
    /// back makes nobody wait for as long as the step.
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
    fn nobody_waits_for_longer_than_he_was_told() {
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
