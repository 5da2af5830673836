//! When something that failed is tried again. The one module that knows the `backoff` crate: it is
//! unmaintained (RUSTSEC-2025-0012), so replacing it must touch one file.

use std::time::Duration;

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff;

/// A job's retries: exponential, doubled each time, with jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Calls of the handler for one job, the first included.
    pub max_attempts: u32,
    /// The wait after the first failure, before jitter.
    pub initial_interval: Duration,
    /// The longest wait.
    pub max_interval: Duration,
}

impl RetryPolicy {
    /// The wait after attempt number `attempt` (from 1) has failed: the schedule's interval, times 0.5 to 1.5
    /// as `jitter` goes from 0 to 1, so that jobs that failed together do not return together.
    /// `None`: no attempt is left.
    pub fn wait(&self, attempt: u32, jitter: f64) -> Option<Duration> {
        if attempt >= self.max_attempts {
            return None;
        }
        let mut schedule = exponential(self.initial_interval, self.max_interval);
        // 64 doublings reach any `max_interval`.
        for _ in 1..attempt.min(64) {
            schedule.next_backoff();
        }
        let interval = schedule.next_backoff().unwrap_or(self.max_interval);
        Some(spread(interval, jitter).min(self.max_interval))
    }
}

/// Waits between attempts to reach a server: 100 ms to 10 s, without end.
#[derive(Debug)]
pub struct Reconnect(ExponentialBackoff);

impl Default for Reconnect {
    fn default() -> Self {
        Self(exponential(
            Duration::from_millis(100),
            Duration::from_secs(10),
        ))
    }
}

impl Reconnect {
    /// The wait after one more failure; `jitter` as in [`RetryPolicy::wait`].
    pub fn next(&mut self, jitter: f64) -> Duration {
        let most = self.0.max_interval;
        spread(self.0.next_backoff().unwrap_or(most), jitter).min(most)
    }

    /// The server answered.
    pub fn reset(&mut self) {
        self.0.reset();
    }
}

/// Jitter is ours, from an argument, so that a schedule is repeatable; and it never gives up by time.
fn exponential(initial: Duration, most: Duration) -> ExponentialBackoff {
    let initial = initial.min(most);
    ExponentialBackoff {
        current_interval: initial,
        initial_interval: initial,
        max_interval: most,
        multiplier: 2.0,
        randomization_factor: 0.0,
        max_elapsed_time: None,
        ..ExponentialBackoff::default()
    }
}

fn spread(interval: Duration, jitter: f64) -> Duration {
    interval.mul_f64(0.5 + jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn waits_double_up_to_the_longest_and_end_with_the_attempts() {
        let policy = RetryPolicy {
            max_attempts: 6,
            initial_interval: SECOND,
            max_interval: 5 * SECOND,
        };
        let waits: Vec<_> = (1..=6).map(|n| policy.wait(n, 0.5)).collect();
        let s = |n: u32| Some(n * SECOND);
        assert_eq!(waits, [s(1), s(2), s(4), s(5), s(5), None]);
        assert_eq!(policy.wait(1, 0.0), Some(SECOND / 2));
        assert_eq!(policy.wait(1, 1.0), Some(SECOND * 3 / 2));
        assert_eq!(policy.wait(u32::MAX, 0.5), None);
    }

    #[test]
    fn reconnecting_never_ends_and_begins_anew_after_a_success() {
        let mut reconnect = Reconnect::default();
        let first = reconnect.next(0.5);
        assert_eq!(first, Duration::from_millis(100));
        let last = (0..1000).map(|_| reconnect.next(0.5)).last();
        assert_eq!(last, Some(10 * SECOND));
        reconnect.reset();
        assert_eq!(reconnect.next(0.5), first);
    }

    proptest! {
        #[test]
        fn a_wait_is_within_its_bounds(
            attempt in 1_u32..200, jitter in -1.0..2.0_f64, initial in 1_u64..100_000, most in 1_u64..1_000_000,
        ) {
            let max_interval = Duration::from_millis(most);
            let policy = RetryPolicy {
                max_attempts: u32::MAX,
                initial_interval: Duration::from_millis(initial),
                max_interval,
            };
            let wait = policy.wait(attempt, jitter);
            prop_assert!(wait.is_some_and(|w| w <= max_interval && w >= max_interval.min(policy.initial_interval) / 2));
        }
    }
}
