//! Decides how long a refusal that names no time throttles. Pure: `now` is an argument.
//!
//! An API that wants an even flow has room for the next call after the distance between two starts.
//! So such a throttle begins with that distance, and doubles until a call succeeds, up to the
//! shortest window. An API that counts windows may have no room before its window ends.

use std::collections::BTreeMap;
use std::time::Duration;

use super::breaker::BreakerScope;
use super::retry::pause;
use crate::limit::Limit;
use crate::tenant::Tenant;

/// Maximum number of scopes whose throttles are counted. Further scopes wait for a whole window.
const MAX_SCOPES: usize = 10_000;
/// Minimum length of a throttle: the gate's clock counts milliseconds.
const MIN_LENGTH: Duration = Duration::from_millis(1);

/// The throttles without a time since the last success, by scope.
#[derive(Debug, Default)]
pub struct ThrottleBackoff {
    scopes: BTreeMap<BreakerScope, ThrottleRun>,
}

/// Consecutive throttles of one scope.
#[derive(Debug, Clone, Copy, Default)]
struct ThrottleRun {
    doublings: u32,
    /// When the last refusal began a throttle.
    since: Duration,
    /// The end of the last throttle. Refusals before it are of calls that were in flight.
    until: Duration,
}

/// The length of a throttle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThrottleLength {
    pub duration: Duration,
    /// Whether it repeats a shorter throttle, so that its refusal says nothing new about the limit.
    pub is_repeated: bool,
}

impl ThrottleBackoff {
    /// Records the success of a call of `tenant`. `asked_at` is when its permit was requested: a
    /// call from before a throttle does not show that the API gives more again.
    pub fn succeeded(&mut self, tenant: &Tenant, asked_at: Duration) {
        if self.scopes.is_empty() {
            return;
        }
        for scope in [BreakerScope::Api, BreakerScope::Tenant(tenant.clone())] {
            if (self.scopes.get(&scope)).is_some_and(|run| run.since <= asked_at) {
                self.scopes.remove(&scope);
            }
        }
    }

    /// Returns the length of the throttle of `scope` that a refusal at `now` begins, or `None` if
    /// no limit has a window. `limits` are those of the refused job.
    pub fn refused(
        &mut self,
        now: Duration,
        scope: &BreakerScope,
        limits: &[Limit],
    ) -> Option<ThrottleLength> {
        let windows = limits.iter().filter(|limit| limit.window_ms() > 0);
        let lengths = windows.map(|limit| {
            let window = Duration::from_millis(limit.window_ms());
            match limit.is_even() {
                true => (limit.distance().max(MIN_LENGTH), window),
                false => (window, window),
            }
        });
        let (first, longest) = lengths.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1)))?;
        let is_full = self.scopes.len() >= MAX_SCOPES && !self.scopes.contains_key(scope);
        if first == longest || is_full {
            return Some(ThrottleLength {
                duration: longest,
                is_repeated: false,
            });
        }
        let row = self.scopes.entry(scope.clone()).or_default();
        if row.until > Duration::ZERO && now >= row.until {
            row.doublings += 1;
        }
        let duration = pause(first, longest, row.doublings + 1);
        row.since = now;
        row.until = row.until.max(now + duration);
        Some(ThrottleLength {
            duration,
            is_repeated: row.doublings > 0 && duration < longest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::{MS, SECOND, guarded, tenant};
    use crate::limit::Algorithm;

    fn of(number: usize) -> BreakerScope {
        BreakerScope::Tenant(tenant(number))
    }

    /// Returns a limit of 20 per 2 s.
    fn limit(algorithm: Algorithm) -> Limit {
        guarded("default", algorithm, 20, 2 * SECOND)
    }

    /// Returns the lengths in ms of throttles that each follow the one before.
    fn lengths(backoff: &mut ThrottleBackoff, scope: &BreakerScope, limits: &[Limit]) -> Vec<u128> {
        let mut now = SECOND;
        let lengths = (0..7).map(|_| {
            let length = backoff.refused(now, scope, limits).expect("a window");
            now += length.duration;
            length.duration.as_millis()
        });
        lengths.collect()
    }

    #[test]
    fn an_even_flow_is_throttled_for_one_distance_and_then_for_twice_as_long() {
        let (even, window) = (
            [limit(Algorithm::LeakyBucket)],
            [limit(Algorithm::SlidingWindow)],
        );
        let mut backoff = ThrottleBackoff::default();
        let doubled = [100, 200, 400, 800, 1_600, 2_000, 2_000];
        assert_eq!(lengths(&mut backoff, &of(1), &even), doubled);
        let whole_window = ThrottleLength {
            duration: 2 * SECOND,
            is_repeated: false,
        };
        let later = backoff.refused(60 * SECOND, &of(1), &even);
        assert_eq!(later, Some(whole_window), "it can't get longer");
        assert_eq!(lengths(&mut backoff, &of(2), &window), [2_000; 7]);
        let both = [&even[..], &window[..]].concat();
        assert_eq!(lengths(&mut backoff, &of(3), &both), doubled);
        let concurrent = Limit::concurrent("slots", 4).expect("in range");
        assert_eq!(backoff.refused(SECOND, &of(1), &[concurrent]), None);
    }

    #[test]
    fn refusals_during_a_throttle_do_not_extend_it_and_a_success_resets_the_count() {
        let even = [limit(Algorithm::LeakyBucket)];
        let mut backoff = ThrottleBackoff::default();
        let mut refused = |at_ms: u32, scope: &BreakerScope, succeeds: Option<usize>| {
            if let Some(number) = succeeds {
                backoff.succeeded(&tenant(number), SECOND / 2);
                backoff.succeeded(&tenant(number), at_ms * MS);
            }
            let length = backoff.refused(at_ms * MS, scope, &even);
            let ThrottleLength {
                duration,
                is_repeated,
            } = length.expect("a window");
            (duration.as_millis(), is_repeated)
        };
        for scope in [of(1), BreakerScope::Api] {
            assert_eq!(refused(1_000, &scope, None), (100, false));
            assert_eq!(refused(1_099, &scope, None), (100, false), "in flight");
            assert_eq!(refused(1_199, &scope, None), (200, true));
            assert_eq!(refused(1_398, &scope, None), (200, true), "in flight");
        }
        assert_eq!(refused(2_000, &of(1), Some(2)), (400, true), "of another");
        assert_eq!(refused(2_000, &BreakerScope::Api, None), (100, false));
        assert_eq!(refused(3_000, &of(1), Some(1)), (100, false));
    }

    #[test]
    fn memory_is_bounded() {
        let even = [limit(Algorithm::LeakyBucket)];
        let mut backoff = ThrottleBackoff::default();
        for number in 0..=MAX_SCOPES {
            backoff.refused(SECOND, &of(number), &even);
        }
        assert_eq!(backoff.scopes.len(), MAX_SCOPES);
        let length = backoff.refused(SECOND, &of(MAX_SCOPES), &even);
        assert_eq!(length.map(|it| it.duration), Some(2 * SECOND));
    }
}
