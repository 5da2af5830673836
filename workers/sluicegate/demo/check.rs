//! The checker: was a limit exceeded, and was any of it left idle? Pure functions over one tenant's
//! arrivals, sorted, in nanoseconds of the downstream's own clock. Tolerance zero everywhere.

/// How many arrivals came when the window that ends with them was already full: with `limit` others less
/// than `window` before. Windows are half-open: an arrival exactly `window` later is in the next one.
pub fn sliding_violations(times: &[u64], limit: usize, window: u64) -> usize {
    times
        .iter()
        .zip(times.iter().skip(limit))
        .filter(|(before, after)| *after - *before < window)
        .count()
}

/// How many arrivals exceed `limit` in their window, with windows aligned to the epoch.
pub fn aligned_violations(times: &[u64], limit: usize, window: u64) -> usize {
    times
        .chunk_by(|a, b| a / window == b / window)
        .map(|arrivals| arrivals.len().saturating_sub(limit))
        .sum()
}

/// The most arrivals in any sliding window.
pub fn fullest_sliding(times: &[u64], window: u64) -> usize {
    let mut first = 0;
    let mut most = 0;
    for (last, time) in times.iter().enumerate() {
        while time - times[first] >= window {
            first += 1;
        }
        most = most.max(last - first + 1);
    }
    most
}

/// The most arrivals in any aligned window.
pub fn fullest_aligned(times: &[u64], window: u64) -> usize {
    times
        .chunk_by(|a, b| a / window == b / window)
        .map(<[u64]>::len)
        .max()
        .unwrap_or(0)
}

/// From the first to the last of `jobs` starts that wait for nothing but a sliding limit; `period` is
/// the window with its guard.
pub fn ideal_sliding(jobs: usize, limit: usize, period: u64) -> u64 {
    (jobs.saturating_sub(1) / limit) as u64 * period
}

/// The same for aligned windows, when the first may start at `start`, and none in the last `guard` of a
/// window.
pub fn ideal_aligned(jobs: usize, limit: usize, window: u64, guard: u64, start: u64) -> u64 {
    let full_windows = (jobs.saturating_sub(1) / limit) as u64;
    let guarded = start % window >= window - guard;
    let first = if guarded {
        (start / window + 1) * window
    } else {
        start
    };
    let last = match full_windows {
        0 => first,
        _ => (first / window + full_windows) * window,
    };
    last - start
}

/// What was used of what was allowed while there was a backlog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    /// Arrivals in the whole periods of the backlog; more than was allowed is no better use.
    pub arrived: usize,
    /// What the limit allowed in them.
    pub allowed: usize,
}

impl Used {
    fn new(arrived: usize, periods: u64, limit: usize) -> Self {
        let periods = usize::try_from(periods).unwrap_or(usize::MAX);
        let allowed = periods.saturating_mul(limit);
        Self {
            arrived: arrived.min(allowed),
            allowed,
        }
    }

    /// From 0 to 1; 1 when the backlog did not last one whole period.
    pub fn share(self) -> f64 {
        if self.allowed == 0 {
            return 1.0;
        }
        self.arrived as f64 / self.allowed as f64
    }
}

/// Counts the whole periods from the first to the last arrival.
pub fn used_sliding(times: &[u64], limit: usize, period: u64) -> Used {
    let (Some(first), Some(last)) = (times.first(), times.last()) else {
        return Used::default();
    };
    let periods = (last - first) / period;
    let end = first + periods * period;
    Used::new(times.partition_point(|time| *time < end), periods, limit)
}

/// Counts the whole aligned windows between the first arrival's and the last one's.
pub fn used_aligned(times: &[u64], limit: usize, window: u64) -> Used {
    let (Some(first), Some(last)) = (times.first(), times.last()) else {
        return Used::default();
    };
    let begin = first / window + 1;
    let end = (last / window).max(begin);
    let arrived = times.partition_point(|time| time / window < end)
        - times.partition_point(|time| time / window < begin);
    Used::new(arrived, end - begin, limit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 3 per 100, kept exactly: a group of 3 each 100.
    fn kept(groups: u64) -> Vec<u64> {
        (0..groups)
            .flat_map(|group| [group * 100, group * 100, group * 100 + 7])
            .collect()
    }

    #[test]
    fn a_kept_limit_has_no_violation_and_a_planted_one_is_found() {
        let mut times = kept(10);
        assert_eq!(sliding_violations(&times, 3, 100), 0);
        assert_eq!(fullest_sliding(&times, 100), 3);
        times.insert(12, 399); // a fourth call, 1 ns before the window of 300 to 399 ends
        assert_eq!(sliding_violations(&times, 3, 100), 3); // it, and the two at 400 that it still counts for
        assert_eq!(fullest_sliding(&times, 100), 4);
    }

    #[test]
    fn one_nanosecond_is_a_violation_and_none_is_not() {
        assert_eq!(sliding_violations(&[0, 100], 1, 100), 0);
        assert_eq!(sliding_violations(&[0, 99], 1, 100), 1);
        assert_eq!(aligned_violations(&[199, 200], 1, 100), 0);
        assert_eq!(aligned_violations(&[100, 199], 1, 100), 1);
    }

    #[test]
    fn aligned_windows_allow_twice_the_limit_across_an_edge_and_sliding_ones_do_not() {
        let times = [98, 99, 100, 101];
        assert_eq!(aligned_violations(&times, 2, 100), 0);
        assert_eq!(fullest_aligned(&times, 100), 2);
        assert_eq!(sliding_violations(&times, 2, 100), 2);
    }

    #[test]
    fn idle_quota_shows_in_the_share() {
        assert_eq!(
            used_sliding(&kept(11), 3, 100),
            Used {
                arrived: 30,
                allowed: 30
            }
        );
        let lazy: Vec<u64> = (0..31).map(|n| n * 50).collect(); // 2 where 3 are allowed
        assert_eq!(
            used_sliding(&lazy, 3, 100),
            Used {
                arrived: 30,
                allowed: 45
            }
        );
        assert_eq!(
            used_aligned(&lazy, 3, 100),
            Used {
                arrived: 28,
                allowed: 42
            }
        );
        assert_eq!(
            Used {
                arrived: 30,
                allowed: 45
            }
            .share(),
            30.0 / 45.0
        );
    }

    #[test]
    fn no_arrivals_are_no_violation_and_no_idleness() {
        assert_eq!(sliding_violations(&[], 3, 100), 0);
        assert_eq!(aligned_violations(&[], 3, 100), 0);
        assert_eq!(fullest_sliding(&[], 100), 0);
        assert_eq!(fullest_aligned(&[], 100), 0);
        assert_eq!(used_sliding(&[], 3, 100).share(), 1.0);
        assert_eq!(used_aligned(&[], 3, 100).share(), 1.0);
    }

    /// Starts each job as early as the definition of the limit allows, trying every nanosecond.
    fn greedy(jobs: usize, start: u64, allowed: impl Fn(&[u64], u64) -> bool) -> Vec<u64> {
        let mut times = Vec::new();
        let mut now = start;
        while times.len() < jobs {
            if allowed(&times, now) {
                times.push(now);
            } else {
                now += 1;
            }
        }
        times
    }

    fn sorted_times() -> impl Strategy<Value = Vec<u64>> {
        proptest::collection::vec(0..300_u64, 0..60).prop_map(|mut times| {
            times.sort_unstable();
            times
        })
    }

    proptest! {
        #[test]
        fn sliding_violations_are_those_of_the_definition(
            times in sorted_times(), limit in 1..6_usize, window in 1..80_u64,
        ) {
            let before = |last: usize| (0..=last).filter(|i| times[last] - times[*i] < window).count();
            let expected = (0..times.len()).filter(|last| before(*last) > limit).count();
            prop_assert_eq!(sliding_violations(&times, limit, window), expected);
            let fullest = (0..times.len()).map(before).max().unwrap_or(0);
            prop_assert_eq!(fullest_sliding(&times, window), fullest);
            prop_assert_eq!(expected > 0, fullest > limit);
        }

        #[test]
        fn aligned_violations_are_those_of_the_definition(
            times in sorted_times(), limit in 1..6_usize, window in 1..80_u64,
        ) {
            let counts = || (0..=300 / window).map(|index| {
                times.iter().filter(|time| (index * window..(index + 1) * window).contains(time)).count()
            });
            let expected: usize = counts().map(|count| count.saturating_sub(limit)).sum();
            prop_assert_eq!(aligned_violations(&times, limit, window), expected);
            prop_assert_eq!(fullest_aligned(&times, window), counts().max().unwrap_or(0));
        }

        #[test]
        fn the_sliding_ideal_is_the_greedy_one(
            jobs in 1..30_usize, limit in 1..6_usize, period in 1..50_u64, start in 0..200_u64,
        ) {
            let times = greedy(jobs, start, |times, now| {
                times.iter().filter(|time| now - **time < period).count() < limit
            });
            prop_assert_eq!(ideal_sliding(jobs, limit, period), times[jobs - 1] - start);
            prop_assert_eq!(sliding_violations(&times, limit, period), 0);
            prop_assert_eq!(used_sliding(&times, limit, period).share(), 1.0);
        }

        #[test]
        fn the_aligned_ideal_is_the_greedy_one(
            jobs in 1..30_usize, limit in 1..6_usize, window in 10..50_u64, guard in 0..5_u64,
            start in 0..200_u64,
        ) {
            let times = greedy(jobs, start, |times, now| {
                let here = times.iter().filter(|time| *time / window == now / window).count();
                here < limit && now % window < window - guard
            });
            let ideal = ideal_aligned(jobs, limit, window, guard, start);
            prop_assert_eq!(ideal, times[jobs - 1] - start);
            prop_assert_eq!(aligned_violations(&times, limit, window), 0);
            prop_assert_eq!(used_aligned(&times, limit, window).share(), 1.0);
        }
    }
}
