//! Limits that take much memory in Redis, and alternatives that take less.

use super::{Algorithm, Limit, Limits};

/// Size in bytes above which a tenant's log is large. A GiB of Redis holds 8,192 logs of this size.
/// A log of up to 1,000 starts, which few tenants ever have at once, is smaller.
pub const LARGE_BYTES: u64 = 128 << 10;
/// [`LARGE_BYTES`] for a log that all tenants share, of which there is only one.
pub const LARGE_GLOBAL_BYTES: u64 = 16 << 20;

/// A limit with a large log, and an alternative that needs less memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LargeLog<'a> {
    /// The limit.
    pub limit: &'a Limit,
    /// The size of the log in Redis when the quota is used up, in bytes.
    pub bytes: u64,
    /// The same limit, counted by segments.
    pub instead: Limit,
}

impl LargeLog<'_> {
    /// Returns the size of [`LargeLog::instead`] in Redis, in bytes.
    pub fn bytes_instead(&self) -> u64 {
        self.instead.stored_bytes()
    }

    /// Returns by how much a start counts longer than the window and the guard with the
    /// alternative, at most, in milliseconds.
    pub fn longer_ms(&self) -> u64 {
        let terms = self.instead.terms();
        (terms.span() + terms.margin()).saturating_sub(terms.window_ms() + terms.guard_ms())
    }

    /// Returns the maximum share of the quota that this costs, from 0 to 1.
    pub fn lost(&self) -> f64 {
        let counts = self.instead.window_ms() + self.instead.guard_ms();
        self.longer_ms() as f64 / (counts + self.longer_ms()) as f64
    }
}

impl Limit {
    /// Returns the limit's algorithm, or the one that needs less memory if its log would be large.
    pub fn algorithm_without_large_log(&self) -> Algorithm {
        let limits = Limits::from(self.clone());
        let large = limits.large().next();
        large.map_or(self.algorithm(), |large| large.instead.algorithm())
    }

    /// Returns an estimate of the maximum size of a partition in Redis, when its quota is used up,
    /// in bytes.
    pub fn stored_bytes(&self) -> u64 {
        self.algorithm().rules().stored(self.terms()).bytes()
    }
}

impl Limits {
    /// Returns the limits with a large log. Leaves out limits that a stricter limit keeps from
    /// having many entries, and `max-concurrent`, whose entries are bounded by the calls that
    /// workers make.
    pub fn large(&self) -> impl Iterator<Item = LargeLog<'_>> {
        self.iter().filter_map(|limit| self.as_large(limit))
    }

    fn as_large<'a>(&self, limit: &'a Limit) -> Option<LargeLog<'a>> {
        let algorithm = limit.algorithm();
        let is_log = algorithm.rules().stored(limit.terms()).is_log();
        if !is_log || algorithm == Algorithm::Concurrency {
            return None;
        }
        let bounding = self
            .iter()
            .filter(|other| other.scope().covers(limit.scope()));
        let max = bounding.map(|other| other.max_units_in(limit.memory_ms()));
        let max = max.fold(limit.max(), u64::min);
        let bytes = limit.clone().with_max(max).stored_bytes();
        let large = match limit.is_global() {
            true => LARGE_GLOBAL_BYTES,
            false => LARGE_BYTES,
        };
        (bytes > large).then(|| LargeLog {
            limit,
            bytes,
            instead: limit.counted_by_segments(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::kit::guarded;
    use crate::scope::Scope;

    fn limit(name: &str, algorithm: Algorithm, max: u64, seconds: u64) -> Limit {
        guarded(name, algorithm, max, Duration::from_secs(seconds))
    }

    /// Returns the names of the limits that are large.
    fn large(limits: &[Limit]) -> Vec<String> {
        let limits = Limits::new(limits.to_vec()).expect("limits");
        let names = limits.large().map(|large| large.limit.name().to_owned());
        names.collect()
    }

    #[test]
    fn a_log_of_more_than_some_thousand_starts_is_large() {
        use Algorithm::{FixedWindow, SlidingSegments, SlidingWindow, Strict, TokenBucket};
        let hour = |algorithm, max| limit("hour", algorithm, max, 3600);
        assert_eq!(large(&[hour(SlidingWindow, 1_000)]), [""; 0]);
        assert_eq!(large(&[hour(SlidingWindow, 1_200)]), ["hour"]);
        assert_eq!(large(&[hour(Strict, 1_200)]), ["hour"]);
        for algorithm in [FixedWindow, SlidingSegments, TokenBucket] {
            assert_eq!(large(&[hour(algorithm, 1_000_000)]), [""; 0]);
        }
        let running = Limit::concurrent("running", 1_000_000).expect("in range");
        assert_eq!(large(&[running]), [""; 0]);
    }

    #[test]
    fn a_stricter_limit_keeps_a_log_small() {
        use Algorithm::{LeakyBucket, SlidingWindow};
        let hour = || limit("hour", SlidingWindow, 100_000, 3600);
        let day = limit("day", LeakyBucket, 1_000, 24 * 3600);
        assert_eq!(large(&[hour(), day.clone()]), [""; 0]);
        let second = limit("second", SlidingWindow, 1, 1);
        assert_eq!(large(&[hour(), second]), ["hour"]);
        // A limit on a part of the tenant's jobs does not bound the tenant.
        let path = day.with_scope(Scope::Header("path".to_owned()));
        assert_eq!(large(&[hour(), path]), ["hour"]);
        // A single log for all tenants.
        let all = |max| limit("all", SlidingWindow, max, 60).with_scope(Scope::Global);
        assert_eq!(large(&[all(100_000)]), [""; 0]);
        assert_eq!(large(&[all(1_000_000)]), ["all"]);
    }

    #[test]
    fn segments_keep_the_worst_case_in_less() {
        let limits = Limits::from(limit("hour", Algorithm::SlidingWindow, 10_000, 3600));
        let found: Vec<_> = limits.large().collect();
        let [large] = &found[..] else {
            panic!("{found:?}");
        };
        assert!((1_250_000..1_350_000).contains(&large.bytes), "{large:?}");
        assert!(large.bytes_instead() < 3_500, "{large:?}");
        assert_eq!(large.instead.worst_case(), large.limit.worst_case());
        assert_eq!(large.longer_ms(), 18_892);
        assert!((0.005..0.006).contains(&large.lost()), "{}", large.lost());
    }
}
