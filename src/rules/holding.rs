//! How long a worker may hold a job unacked before it calls the API.
//!
//! RabbitMQ closes the channel of a consumer that has not acked a delivery within `consumer_timeout`: the session is lost, and every job of it
//! is delivered again, those that are being called included. So a job that waits is let go before: it takes another trip through a delay
//! queue, and its time begins anew with its next delivery. A call that has begun runs to its end, so the time that it may take counts, too.

use std::time::Duration;

/// RabbitMQ looks for deliveries that are too old once in this time (`channel_tick_interval`).
pub const TICK: Duration = Duration::from_secs(60);
/// The longest hold while the timeout is not known.
pub const UNKNOWN: Duration = Duration::from_secs(20);
/// What preparing a call, acks and confirms may take, as a part of the timeout: 1 / this.
const RESERVE: u32 = 10;
/// The least that is left for waiting, and the most, as parts of the timeout.
const LEAST: u32 = 15;
const MOST: u32 = 2;

/// The bounds of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// RabbitMQ's `consumer_timeout`, as far as it is known.
    timeout: Duration,
    /// The longest call.
    call: Duration,
    /// The broker finds the timeout out: until then it may be shorter.
    is_looked_for: bool,
}

impl Holding {
    /// Of a worker whose calls take `call` at most.
    pub fn new(timeout: Duration, call: Duration) -> Self {
        Self {
            timeout,
            call,
            is_looked_for: false,
        }
    }

    /// The same at a broker that finds its timeout out.
    pub fn looked_for(self) -> Self {
        Self {
            is_looked_for: true,
            ..self
        }
    }

    /// Reports whether the broker finds its timeout out.
    pub fn is_looked_for(&self) -> bool {
        self.is_looked_for
    }

    /// The longest call that fits into `timeout`.
    pub fn longest_call(timeout: Duration) -> Duration {
        timeout - timeout / RESERVE - timeout / LEAST
    }

    /// RabbitMQ's `consumer_timeout`, as far as it is known.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// RabbitMQ's timeout is shorter than was known. Returns true if so.
    pub fn learn(&mut self, timeout: Duration) -> bool {
        let is_news = timeout < self.timeout;
        self.timeout = self.timeout.min(timeout);
        is_news
    }

    /// Returns true if each call ends in time.
    pub fn fits(&self) -> bool {
        self.call <= Self::longest_call(self.timeout)
    }

    /// The longest time for which a job may wait unacked.
    pub fn longest(&self) -> Duration {
        let left = (self.timeout - self.timeout / RESERVE).saturating_sub(self.call);
        left.clamp(self.timeout / LEAST, self.timeout / MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn waits_calls_and_what_is_around_them_fit_into_the_timeout() {
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
