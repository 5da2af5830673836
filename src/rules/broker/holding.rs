//! Limits how long a worker may hold a job unacked before it calls the API.
//!
//! RabbitMQ closes the channel of a consumer that does not ack a delivery within
//! `consumer_timeout`. The session is then lost, and all of its jobs are delivered again, even jobs
//! being called. A waiting job is therefore released earlier: it takes another trip through a delay
//! queue, and its time starts again with the next delivery. A call that has begun runs to its end,
//! so its duration counts, too.

use std::time::Duration;

/// Interval at which RabbitMQ looks for deliveries that are too old (`channel_tick_interval`).
pub const TICK: Duration = Duration::from_secs(60);
/// Maximum hold while the timeout is unknown.
pub const UNKNOWN: Duration = Duration::from_secs(20);
/// The part of the timeout that is reserved for preparing a call, acks and confirms: the timeout
/// divided by this.
const RESERVE: u32 = 10;
/// The minimum time for waiting is the timeout divided by this.
const MIN_SHARE: u32 = 15;
/// The maximum time for waiting is the timeout divided by this.
const MAX_SHARE: u32 = 2;

/// The times that bound how long one worker may hold a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// RabbitMQ's `consumer_timeout`, as far as it is known.
    timeout: Duration,
    /// Maximum duration of a call.
    call: Duration,
    /// Whether the broker finds out the timeout. Until it has, the true timeout may be shorter.
    detects_timeout: bool,
}

impl Holding {
    /// Returns the bounds for a worker whose calls take at most `call`.
    pub fn new(timeout: Duration, call: Duration) -> Self {
        Self {
            timeout,
            call,
            detects_timeout: false,
        }
    }

    /// Returns the same bounds for a broker that finds out the timeout.
    pub fn with_detection(self) -> Self {
        Self {
            detects_timeout: true,
            ..self
        }
    }

    /// Returns true if the broker finds out the timeout.
    pub fn detects_timeout(&self) -> bool {
        self.detects_timeout
    }

    /// Returns the maximum duration of a call that fits into `timeout`.
    pub fn longest_call(timeout: Duration) -> Duration {
        timeout - timeout / RESERVE - timeout / MIN_SHARE
    }

    /// Returns RabbitMQ's `consumer_timeout`, as far as it is known.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Lowers the known timeout to `timeout`. Returns true if it was longer before.
    pub fn learn(&mut self, timeout: Duration) -> bool {
        let is_news = timeout < self.timeout;
        self.timeout = self.timeout.min(timeout);
        is_news
    }

    /// Returns true if the longest call ends in time.
    pub fn fits(&self) -> bool {
        self.call <= Self::longest_call(self.timeout)
    }

    /// Returns the maximum time from a delivery to the end of its move to another queue.
    pub fn longest_move(&self) -> Duration {
        self.timeout - self.timeout / RESERVE
    }

    /// Returns the maximum time for which a job may wait unacked.
    pub fn longest(&self) -> Duration {
        let left = self.longest_move().saturating_sub(self.call);
        left.clamp(self.timeout / MIN_SHARE, self.timeout / MAX_SHARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::SECOND;

    #[test]
    fn waits_calls_and_overhead_fit_into_the_timeout() {
        for (timeout, call, longest, fits) in [
            (1_800, 10, 900, true),
            (1_800, 1_200, 420, true),
            (1_800, 1_500, 120, true),
            (1_800, 1_501, 120, false),
            (60, 10, 30, true),
            (30, 10, 15, true),
            (30, 60, 2, false),
        ] {
            let holding = Holding::new(timeout * SECOND, call * SECOND);
            let found = (holding.longest(), holding.fits());
            assert_eq!(found, (longest * SECOND, fits), "{timeout} {call}");
            if fits {
                assert!(holding.longest() + call * SECOND < timeout * SECOND);
            }
        }
    }

    #[test]
    fn a_shorter_timeout_is_learned_and_a_longer_one_is_not() {
        let mut holding = Holding::new(600 * SECOND, SECOND);
        assert!(!holding.learn(1_800 * SECOND));
        assert_eq!(holding.timeout(), 600 * SECOND);
        assert!(holding.learn(60 * SECOND));
        assert!(!holding.learn(60 * SECOND));
        assert_eq!(holding.longest(), 30 * SECOND);
    }
}
