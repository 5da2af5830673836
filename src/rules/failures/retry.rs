//! When a failed operation is tried again. This is the only module that uses the `backoff` crate,
//! which is unmaintained (RUSTSEC-2025-0012): replacing it must touch only one file.

use std::time::Duration;

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff as _;

/// A job's retry policy: exponential backoff that doubles each time, with jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Maximum number of calls of the handler for one job, including the first.
    pub max_attempts: u32,
    /// The wait after the first failure, before jitter.
    pub initial_interval: Duration,
    /// The maximum wait.
    pub max_interval: Duration,
    /// Time after its first failure or throttle at which a job that still fails or is throttled is
    /// given up.
    pub give_up_after: Duration,
    /// Maximum number of calls of one job that may crash their worker, from its second delivery on;
    /// 0 disables the count.
    pub max_crashes: u32,
}

impl RetryPolicy {
    /// Returns the wait after attempt number `attempt` (from 1) has failed, or `None` if no attempt
    /// is left. The wait is the schedule's interval times 0.5 to 1.5 as `jitter` goes from 0 to 1,
    /// but at most `max_interval`, so that jobs that failed together do not return together.
    pub fn wait(&self, attempt: u32, jitter: f64) -> Option<Duration> {
        if attempt >= self.max_attempts {
            return None;
        }
        let interval = pause(self.initial_interval, self.max_interval, attempt);
        Some(spread(interval, self.max_interval, jitter))
    }
}

/// Returns the pause after `failures` failures in a row: `first` after one, doubled by each further
/// one, but at most `longest`. It has no jitter.
pub fn pause(first: Duration, longest: Duration, failures: u32) -> Duration {
    let mut schedule = exponential(first, longest);
    // 64 doublings reach any `longest`.
    for _ in 1..failures.min(64) {
        schedule.next_backoff();
    }
    // The return value of `next_backoff` is not used because it adds a random fraction of a
    // nanosecond.
    schedule.current_interval
}

/// Growing waits between attempts, whose number has no limit: by default 100 ms to 10 s.
#[derive(Debug)]
pub struct Backoff(ExponentialBackoff);

impl Default for Backoff {
    fn default() -> Self {
        Self(exponential(
            Duration::from_millis(100),
            Duration::from_secs(10),
        ))
    }
}

impl Backoff {
    /// Returns waits from `first` to `longest`.
    pub fn between(first: Duration, longest: Duration) -> Self {
        Self(exponential(first, longest))
    }

    /// Returns the wait after one more failure. `jitter` is as in [`RetryPolicy::wait`].
    pub fn next(&mut self, jitter: f64) -> Duration {
        let interval = self.0.current_interval;
        self.0.next_backoff();
        spread(interval, self.0.max_interval, jitter)
    }

    /// Starts again with the shortest wait, because the server answered.
    pub fn reset(&mut self) {
        self.0.reset();
    }
}

/// Returns a schedule without the crate's own jitter and time limit. Callers pass the jitter, so
/// that a schedule is repeatable.
fn exponential(initial: Duration, max: Duration) -> ExponentialBackoff {
    let initial = initial.min(max);
    ExponentialBackoff {
        current_interval: initial,
        initial_interval: initial,
        max_interval: max,
        multiplier: 2.0,
        randomization_factor: 0.0,
        max_elapsed_time: None,
        ..ExponentialBackoff::default()
    }
}

/// Returns a wait between half of `interval` and one and a half times `interval`, but at most
/// `max`. Waits are spread below the longest one instead of piling up on it. Never panics: a
/// `jitter` of NaN counts as 0, and durations above 584 years count as 584 years.
fn spread(interval: Duration, max: Duration, jitter: f64) -> Duration {
    let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    let min = nanos(interval / 2);
    let span = nanos(interval)
        .saturating_add(min)
        .min(nanos(max))
        .saturating_sub(min);
    // The cast saturates and turns NaN into 0.
    let above = (span as f64 * jitter.clamp(0.0, 1.0)) as u64;
    Duration::from_nanos(min.saturating_add(above)).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::SECOND;
    use proptest::prelude::*;

    #[test]
    fn waits_double_up_to_a_maximum_and_end_with_the_attempts() {
        let policy = RetryPolicy {
            max_attempts: 6,
            initial_interval: SECOND,
            max_interval: 5 * SECOND,
            give_up_after: SECOND,
            max_crashes: 5,
        };
        let waits: Vec<_> = (1..=6).map(|n| policy.wait(n, 0.5)).collect();
        let s = |n: u32| Some(n * SECOND);
        // From the third wait on, the maximum cuts off the upper half: the middles of 2 to 5, and
        // of 2.5 to 5.
        let ms = |n: u64| Some(Duration::from_millis(n));
        assert_eq!(waits, [s(1), s(2), ms(3_500), ms(3_750), ms(3_750), None]);
        assert_eq!(policy.wait(4, 0.0), Some(SECOND * 5 / 2));
        assert_eq!(policy.wait(4, 1.0), s(5));
        assert_eq!(policy.wait(1, 0.0), Some(SECOND / 2));
        assert_eq!(policy.wait(1, 1.0), Some(SECOND * 3 / 2));
        assert_eq!(policy.wait(u32::MAX, 0.5), None);
        let long = RetryPolicy {
            initial_interval: SECOND * 60,
            ..policy
        };
        assert_eq!(long.wait(1, 0.0), Some(SECOND * 5 / 2), "half the maximum");
    }

    #[test]
    fn a_backoff_never_ends_and_resets_after_a_success() {
        let mut backoff = Backoff::default();
        let first = backoff.next(0.5);
        assert_eq!(first, Duration::from_millis(100));
        let last = (0..1000).map(|_| backoff.next(0.5)).last();
        assert_eq!(last, Some(Duration::from_millis(7_500)));
        assert_eq!(backoff.next(0.0), 5 * SECOND);
        assert_eq!(backoff.next(1.0), 10 * SECOND);
        backoff.reset();
        assert_eq!(backoff.next(0.5), first);
    }

    fn any_duration() -> impl Strategy<Value = Duration> {
        prop_oneof![
            (0_u64..=600_000).prop_map(Duration::from_millis),
            any::<u64>().prop_map(Duration::from_nanos),
            Just(Duration::ZERO),
            Just(Duration::MAX),
        ]
    }

    proptest! {
        #[test]
        fn a_wait_is_within_its_bounds(
            attempt in 1_u32..200,
            jitter in -1.0..2.0_f64,
            initial in 1_u64..100_000,
            max in 1_u64..1_000_000,
        ) {
            let max_interval = Duration::from_millis(max);
            let policy = RetryPolicy {
                max_attempts: u32::MAX,
                initial_interval: Duration::from_millis(initial),
                max_interval,
                give_up_after: SECOND,
                max_crashes: 5,
            };
            let wait = policy.wait(attempt, jitter);
            let min = max_interval.min(policy.initial_interval) / 2;
            prop_assert!(wait.is_some_and(|w| w <= max_interval && w >= min));
            prop_assert!(wait <= policy.wait(attempt + 1, jitter));
        }

        #[test]
        fn no_numbers_make_it_panic_or_wait_too_long(
            max_attempts: u32,
            initial_interval in any_duration(),
            max_interval in any_duration(),
            attempt: u32,
            jitter in prop_oneof![any::<f64>(), Just(f64::NAN), Just(f64::INFINITY)],
        ) {
            let policy = RetryPolicy { max_attempts, initial_interval, max_interval, give_up_after: SECOND, max_crashes: 5 };
            let wait = policy.wait(attempt, jitter);
            prop_assert_eq!(wait.is_none(), attempt >= max_attempts);
            prop_assert!(wait.is_none_or(|wait| wait <= max_interval));
            prop_assert_eq!(wait, policy.wait(attempt, jitter));
        }
    }
}
