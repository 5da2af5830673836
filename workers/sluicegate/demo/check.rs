//! The checker: was a limit exceeded, and was quota left unused? Pure functions over one tenant's
//! sorted arrivals, in nanoseconds of the API's clock, with zero tolerance everywhere.

use std::collections::VecDeque;

use trial::windows::Arrival;

/// A call that asks to start, in units of each limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdealCall {
    /// The units that must be available.
    pub asked: Vec<u64>,
    /// The units that it uses.
    pub used: Vec<u64>,
    /// How long its answer throttles the tenant, in the time unit of the limits' periods.
    pub closes_for: u64,
    /// Whether it was in flight when the tenant was throttled, and so did not wait.
    pub under_way: bool,
}

/// Returns the time from the first to the last start of `calls`, in order, if each starts as early
/// as all sliding `limits` allow. A limit is its units and its period, which is the window plus the
/// guard.
pub fn ideal(calls: impl IntoIterator<Item = IdealCall>, limits: &[(u64, u64)]) -> u64 {
    let mut logs = vec![(VecDeque::<Arrival>::new(), 0); limits.len()];
    let (mut now, mut open_at) = (0, 0);
    for call in calls {
        if !call.under_way {
            now = open_at.max(now);
        }
        for (((log, units), (max, period)), asked) in logs.iter_mut().zip(limits).zip(&call.asked) {
            while *units + asked > *max
                && let Some((start, used)) = log.pop_front()
            {
                *units -= used;
                now = now.max(start + period);
            }
        }
        for ((log, units), used) in logs.iter_mut().zip(&call.used) {
            log.push_back((now, *used));
            *units += used;
        }
        if call.closes_for > 0 {
            open_at = now + call.closes_for;
        }
    }
    now
}

/// Does the same for aligned windows, if the first call may start at `start` and none in the last
/// `guard` of a window.
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

/// How much of the allowed calls was used during a backlog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BacklogUsage {
    /// Arrivals in the backlog's whole periods. More than allowed is not better use.
    pub arrived: usize,
    /// The calls that the limit allowed in these periods.
    pub allowed: usize,
}

impl BacklogUsage {
    fn new(arrived: usize, periods: u64, limit: usize) -> Self {
        let periods = usize::try_from(periods).unwrap_or(usize::MAX);
        let allowed = periods.saturating_mul(limit);
        Self {
            arrived: arrived.min(allowed),
            allowed,
        }
    }

    /// Returns the share from 0 to 1, or 1 if the backlog did not last a whole period.
    pub fn share(self) -> f64 {
        if self.allowed == 0 {
            return 1.0;
        }
        self.arrived as f64 / self.allowed as f64
    }
}

/// Counts the whole periods from the first to the last arrival.
pub fn used_sliding(times: &[u64], limit: usize, period: u64) -> BacklogUsage {
    let (Some(first), Some(last)) = (times.first(), times.last()) else {
        return BacklogUsage::default();
    };
    let periods = (last - first) / period;
    let end = first + periods * period;
    BacklogUsage::new(times.partition_point(|time| *time < end), periods, limit)
}

/// Counts the whole aligned windows between those of the first and the last arrival.
pub fn used_aligned(times: &[u64], limit: usize, window: u64) -> BacklogUsage {
    let (Some(first), Some(last)) = (times.first(), times.last()) else {
        return BacklogUsage::default();
    };
    let begin = first / window + 1;
    let end = (last / window).max(begin);
    let arrived = times.partition_point(|time| time / window < end)
        - times.partition_point(|time| time / window < begin);
    BacklogUsage::new(arrived, end - begin, limit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use trial::windows::aligned;

    /// Keeps 3 per 100 exactly: a group of 3 every 100.
    fn kept(groups: u64) -> Vec<u64> {
        (0..groups)
            .flat_map(|group| [group * 100, group * 100, group * 100 + 7])
            .collect()
    }

    fn arrivals(times: &[u64]) -> Vec<Arrival> {
        times.iter().map(|time| (*time, 1)).collect()
    }

    fn one(asked: u64, used: u64) -> IdealCall {
        IdealCall {
            asked: vec![asked],
            used: vec![used],
            closes_for: 0,
            under_way: false,
        }
    }

    #[test]
    fn idle_quota_shows_in_the_share() {
        assert_eq!(
            used_sliding(&kept(11), 3, 100),
            BacklogUsage {
                arrived: 30,
                allowed: 30
            }
        );
        let lazy: Vec<u64> = (0..31).map(|n| n * 50).collect(); // 2 where 3 are allowed
        assert_eq!(
            used_sliding(&lazy, 3, 100),
            BacklogUsage {
                arrived: 30,
                allowed: 45
            }
        );
        assert_eq!(
            used_aligned(&lazy, 3, 100),
            BacklogUsage {
                arrived: 28,
                allowed: 42
            }
        );
        assert_eq!(
            BacklogUsage {
                arrived: 30,
                allowed: 45
            }
            .share(),
            30.0 / 45.0
        );
    }

    #[test]
    fn no_arrivals_mean_no_idle_quota() {
        assert_eq!(ideal([], &[(3, 100)]), 0);
        assert_eq!(used_sliding(&[], 3, 100).share(), 1.0);
        assert_eq!(used_aligned(&[], 3, 100).share(), 1.0);
    }

    #[test]
    fn the_ideal_waits_for_all_limits_for_what_is_reserved_and_for_the_opening() {
        let many = |n, call: IdealCall| vec![call; n];
        // 2 per 10 and 3 per 100: the fourth call waits for the longer window.
        let both = IdealCall {
            asked: vec![1, 1],
            used: vec![1, 1],
            ..one(1, 1)
        };
        assert_eq!(ideal(many(4, both.clone()), &[(2, 10), (3, 100)]), 100);
        assert_eq!(ideal(many(3, both), &[(2, 10), (3, 100)]), 10);
        // 8 units must be available and 3 of them are used, so two calls start at once.
        assert_eq!(ideal(many(2, one(8, 3)), &[(11, 10)]), 0);
        assert_eq!(ideal(many(2, one(8, 3)), &[(10, 10)]), 10);
        // Above the limit it could never start, but it must not hang.
        assert_eq!(ideal(many(2, one(20, 20)), &[(10, 10)]), 10);
        let closes = IdealCall {
            closes_for: 50,
            ..one(1, 1)
        };
        let under_way = IdealCall {
            under_way: true,
            ..one(1, 1)
        };
        assert_eq!(ideal([closes.clone(), one(1, 1)], &[(9, 10)]), 50);
        assert_eq!(ideal([closes, under_way], &[(9, 10)]), 0);
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

    proptest! {
        #[test]
        fn the_sliding_ideal_is_the_greedy_one(
            costs in proptest::collection::vec((1..4_u64, 1..4_u64), 1..30), max in 3..9_u64, period in 1..50_u64,
        ) {
            let calls: Vec<(u64, u64)> = costs.iter().map(|(a, b)| (*a.max(b), *a.min(b))).collect();
            let times = greedy(calls.len(), 0, |times, now| {
                let within = times.iter().zip(&calls).filter(|(time, _)| now - **time < period);
                let used: u64 = within.map(|(_, (_, used))| used).sum();
                used + calls[times.len()].0 <= max
            });
            let found = ideal(calls.iter().map(|(asked, used)| one(*asked, *used)), &[(max, period)]);
            prop_assert_eq!(found, times[times.len() - 1]);
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
            prop_assert!(aligned(&arrivals(&times), window).iter().all(|units| *units <= limit as u64));
            prop_assert_eq!(used_aligned(&times, limit, window).share(), 1.0);
        }
    }
}
