//! Limits that an API advertises, and how they compare with ours.

use std::fmt;
use std::time::Duration;

use crate::limit::{Algorithm, Limit};
use crate::scope::Scope;
use crate::text::show_duration;

/// Maximum number of an API's limits that are kept: those with the shortest windows.
pub const MAX_QUOTAS: usize = 4;

/// One limit of an API: a number of calls in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quota {
    /// Number of calls, at least 1.
    pub limit: u64,
    /// The window in whole seconds, at least 1 s, or `None` if the API does not say.
    pub window: Option<Duration>,
}

/// All limits that an API advertises, one per window, the shortest first and one without a window
/// last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Quotas([Option<Quota>; MAX_QUOTAS]);

impl Quotas {
    /// Keeps the lowest limit per window. Drops one without a window if another one has the same
    /// number.
    pub fn new(quotas: impl IntoIterator<Item = Quota>) -> Self {
        let mut all: Vec<Quota> = quotas.into_iter().filter(|quota| quota.limit > 0).collect();
        all.sort_by_key(|quota| (quota.window.is_none(), quota.window, quota.limit));
        all.dedup_by_key(|quota| quota.window);
        let has_window = |limit| {
            let same = |quota: &Quota| quota.limit == limit && quota.window.is_some();
            all.iter().any(same)
        };
        let mut lowest = all
            .iter()
            .filter(|q| q.window.is_some() || !has_window(q.limit));
        Self(std::array::from_fn(|_| lowest.next().copied()))
    }

    /// Returns true if the API advertises no limit.
    pub fn is_empty(&self) -> bool {
        self.0[0].is_none()
    }

    /// Iterates over the limits.
    pub fn iter(&self) -> impl Iterator<Item = Quota> {
        self.0.into_iter().flatten()
    }

    /// Returns true if `limits` keep all of these quotas, and one quota's window is at least
    /// `rest`, the time for which nothing is left. The limits then know better than headers in
    /// whole seconds when the next call may be made.
    #[doc(hidden)]
    pub fn are_met_by(&self, limits: &[Limit], rest: Duration) -> bool {
        let is_long = |window: Duration| window >= rest;
        let keeps_number = |limit: &Limit, number| {
            let window = Duration::from_millis(limit.window_ms());
            bounds_tenant(limit) && is_long(window) && arriving(limit, limit.window_ms()) <= number
        };
        let is_kept = |quota: &Quota| match quota.window {
            Some(_) => Excess::of(limits, *quota).is_none(),
            None => limits.iter().any(|limit| keeps_number(limit, quota.limit)),
        };
        let is_longest = |quota: &Quota| quota.window.is_none_or(is_long);
        self.iter().all(|quota| is_kept(&quota)) && self.iter().any(|quota| is_longest(&quota))
    }

    /// Returns the form in which the store keeps them: `10/1,100/60`, limit and window in seconds,
    /// 0 for an unknown window.
    #[doc(hidden)]
    pub fn text(&self) -> String {
        let one = |quota: Quota| {
            let seconds = quota.window.map_or(0, |window| window.as_secs());
            format!("{}/{seconds}", quota.limit)
        };
        self.iter().map(one).collect::<Vec<_>>().join(",")
    }

    /// Parses the text that [`Quotas::text`] writes. Skips entries that are invalid.
    #[doc(hidden)]
    pub fn read(text: &str) -> Self {
        let one = |text: &str| {
            let (limit, seconds) = text.split_once('/')?;
            let seconds = seconds.parse().ok()?;
            Some(Quota {
                limit: limit.parse().ok()?,
                window: (seconds > 0).then(|| Duration::from_secs(seconds)),
            })
        };
        Self::new(text.split(',').filter_map(one))
    }
}

/// A limit of an API that allows less in its window than our limits do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excess {
    quota: Quota,
    window_ms: u64,
    /// The strictest of our limits over that window and the number of calls it lets through, or
    /// `None` if there is none.
    ours: Option<(Limit, u64)>,
    /// Whether an additional limit must set its scope, because the enforced limits have other
    /// scopes.
    scoped: bool,
}

impl Excess {
    /// Compares `quota` with `limits`, which are enforced together for a tenant. Returns `None` if
    /// they keep it, or if it names no window and can't be compared.
    pub fn of(limits: &[Limit], quota: Quota) -> Option<Self> {
        let window_ms = u64::try_from(quota.window?.as_millis()).ok()?;
        let ours = limits.iter().filter(|limit| bounds_tenant(limit));
        let ours = ours.map(|limit| (limit.clone(), arriving(limit, window_ms)));
        let ours = ours.min_by_key(|(_, allowed)| *allowed);
        let exceeds = ours.as_ref().is_none_or(|(_, max)| *max > quota.limit);
        exceeds.then_some(Self {
            quota,
            window_ms,
            ours,
            scoped: limits.iter().any(|limit| *limit.scope() != Scope::Tenant),
        })
    }

    /// Returns the maximum number of calls that our limits let through in that window, or `None` if
    /// there is no bound.
    pub fn allowed(&self) -> Option<u64> {
        self.ours.as_ref().map(|(_, allowed)| *allowed)
    }

    /// Returns the one of our limits that should be lowered.
    pub fn limit(&self) -> Option<&Limit> {
        self.ours.as_ref().map(|(limit, _)| limit)
    }

    /// Returns the highest `max-requests` for that limit that keeps the API's limit.
    pub fn max_requests(&self) -> Option<u64> {
        let limit = self.limit()?;
        let keeps =
            |max: &u64| arriving(&limit.clone().with_max(*max), self.window_ms) <= self.quota.limit;
        let (mut good, mut bad) = (0, limit.max());
        while good + 1 < bad {
            let max = good + (bad - good) / 2;
            *(if keeps(&max) { &mut good } else { &mut bad }) = max;
        }
        (good > 0).then_some(good)
    }

    /// Returns an item for `rate-limiter.limits` that keeps the API's limit.
    fn item(&self) -> Option<String> {
        let (max, seconds) = (self.quota.limit, self.window_ms / 1000);
        let window = Duration::from_millis(self.window_ms);
        let limit = Limit::new("api", Algorithm::SlidingWindow, max, window, Duration::ZERO);
        let algorithm = limit.ok()?.algorithm_without_large_log().name();
        let scope = if self.scoped { ", scope: tenant" } else { "" };
        Some(format!(
            "{{name: api, use-algo: {algorithm}, unit: calls, max-requests: {max}, window-size: {seconds}{scope}}}"
        ))
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let window = show_duration(Duration::from_millis(self.window_ms));
        write!(f, "the API allows {} calls in {window}, ", self.quota.limit)?;
        match &self.ours {
            Some((limit, allowed)) => {
                write!(f, "but the limit {} admits {allowed}", limit.name())?;
            }
            None => write!(f, "but no limit bounds the calls of a tenant")?,
        }
        let lower = (self.max_requests()).map(|max| format!("set its max-requests to {max}"));
        let same = |limit: &Limit| limit.window_ms() == self.window_ms;
        let add = match (&lower, self.limit().is_some_and(same)) {
            (Some(_), true) => None,
            _ => (self.item()).map(|item| format!("add {item} to rate-limiter.limits")),
        };
        let advice: Vec<String> = lower.into_iter().chain(add).collect();
        if advice.is_empty() {
            return write!(f, ": no limit can be set that low");
        }
        write!(f, ": {}", advice.join(", or "))
    }
}

/// Returns true if `limit` bounds a tenant's calls over time. A limit per value of a header does
/// not: a tenant may send any number of values.
fn bounds_tenant(limit: &Limit) -> bool {
    limit.algorithm() != Algorithm::Concurrency && !limit.scope().is_part()
}

/// Returns the maximum number of calls that `limit` lets arrive in an API's window of `window_ms`:
/// [`Limit::worst_case`] for any length. An aligned window is assumed to have the API's edges if
/// one is a multiple of the other, because operators choose `fixed-window-algo` for an API that
/// counts that way. A call costs at least one unit.
fn arriving(limit: &Limit, window_ms: u64) -> u64 {
    limit.algorithm().rules().arriving(limit.terms(), window_ms)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kit::guarded;
    use crate::limit::MAX_REQUESTS;

    fn quota(limit: u64, seconds: u64) -> Quota {
        let window = (seconds > 0).then(|| Duration::from_secs(seconds));
        Quota { limit, window }
    }

    fn limit(name: &str, algorithm: Algorithm, max: u64, seconds: u64) -> Limit {
        guarded(name, algorithm, max, Duration::from_secs(seconds))
    }

    #[test]
    fn each_window_counts_once_with_its_lowest_limit() {
        let pairs = [(100, 0), (7, 0), (1000, 60), (100, 60), (0, 5), (10, 1)];
        let quotas = Quotas::new(pairs.map(|(limit, seconds)| quota(limit, seconds)));
        assert_eq!(quotas.text(), "10/1,100/60,7/0");
        let stored = Quotas::new([quota(100, 0), quota(100, 60)]);
        assert_eq!(stored.text(), "100/60");
        assert_eq!(Quotas::new((1..9).map(|n| quota(n, n))).iter().count(), 4);
        assert!(Quotas::new([quota(0, 1)]).is_empty());
    }

    proptest! {
        #[test]
        fn stored_quotas_survive_a_round_trip(pairs in prop::collection::vec((any::<u64>(), 0..u64::from(u32::MAX)), 0..6)) {
            let quotas = Quotas::new(pairs.into_iter().map(|(limit, seconds)| quota(limit, seconds)));
            prop_assert_eq!(Quotas::read(&quotas.text()), quotas);
        }

        #[test]
        fn any_text_can_be_read(text in "[0-9/,@-]{0,40}") {
            prop_assert!(Quotas::read(&text).iter().all(|quota| quota.limit > 0));
        }

        /// Over its own window each limit lets through its documented worst case.
        #[test]
        fn each_limit_allows_its_documented_worst_case(
            which in 0..=Algorithm::ALL.len(), max in 1..3_000_u64, seconds in 1..4_000_u64,
        ) {
            let algorithm = Algorithm::ALL.get(which).copied().unwrap_or(Algorithm::Strict);
            let limit = limit("x", algorithm, max, seconds);
            let most = match algorithm {
                Algorithm::FixedWindow => max,
                _ => limit.worst_case(),
            };
            prop_assert_eq!(arriving(&limit, seconds * 1000), most);
        }

        /// The advice is the highest number that keeps the API's limit.
        #[test]
        fn the_advice_is_exact(
            which in 0..Algorithm::ALL.len(), max in 1..300_u64, seconds in 1..20_u64, calls in 1..400_u64, window in 1..60_u64,
        ) {
            let ours = limit("x", Algorithm::ALL[which], max, seconds);
            let Some(excess) = Excess::of(std::slice::from_ref(&ours), quota(calls, window)) else {
                prop_assert!(arriving(&ours, window * 1000) <= calls);
                return Ok(());
            };
            let keeps = |max| arriving(&ours.clone().with_max(max), window * 1000) <= calls;
            let best = (1..=ours.max()).rev().find(|max| keeps(*max));
            prop_assert_eq!(excess.max_requests(), best);
        }
    }

    #[test]
    fn limits_take_precedence_where_they_satisfy_the_api() {
        use Algorithm::{FixedWindow, SlidingWindow, TokenBucket};
        let ours = [
            limit("short", SlidingWindow, 20, 2),
            limit("long", SlidingWindow, 1_000, 3_600),
        ];
        let check = |limits: &[Limit], advertised: &str, rest: u64, expected: bool| {
            let found = Quotas::read(advertised).are_met_by(limits, Duration::from_secs(rest));
            assert_eq!(found, expected, "{advertised} {rest}");
        };
        check(&ours, "20/0", 0, true);
        check(&ours, "20/2", 2, true);
        check(&ours, "20/2,1000/3600", 3_000, true);
        check(&ours, "1000/0", 3_000, true);
        check(&ours, "21/0", 1, true);
        // No quota is advertised, the API allows less, or our limits do not count the used-up
        // quota.
        check(&ours, "", 1, false);
        check(&ours, "19/0", 1, false);
        check(&ours, "19/2", 1, false);
        check(&ours, "20/0", 3, false);
        check(&ours, "20/2", 3, false);
        check(&ours, "20/2,900/3600", 1, false);
        check(&ours[..1], "20/2,1000/3600", 1, false);
        check(&ours[..1], "1000/0", 3, false);
        check(&[limit("x", FixedWindow, 20, 2)], "20/0", 1, true);
        check(&[limit("x", TokenBucket, 20, 2)], "20/0", 1, false);
        let part = limit("x", SlidingWindow, 5, 60).with_scope(Scope::Header("x-path".into()));
        check(&[part], "20/0", 1, false);
        check(
            &[Limit::concurrent("x", 5).expect("in range")],
            "20/0",
            0,
            false,
        );
    }

    #[track_caller]
    fn assert_advice(limits: &[Limit], quota: Quota, expected: &str) {
        let advice = Excess::of(limits, quota).map(|excess| excess.to_string());
        assert_eq!(advice.as_deref().unwrap_or("kept"), expected);
    }

    #[test]
    fn the_advice_names_the_limit_and_the_value() {
        use Algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
        let second = limit("second", SlidingWindow, 20, 1);
        let minute = limit("minute", SlidingWindow, 100, 60);
        let both = [second.clone(), minute.clone()];
        assert_advice(&both, quota(100, 60), "kept");
        assert_advice(&both, quota(20, 1), "kept");
        assert_advice(&both, quota(5, 0), "kept");
        assert_advice(
            &both,
            quota(90, 60),
            "the API allows 90 calls in 1m, but the limit minute admits 100: set its \
            max-requests to 90",
        );
        assert_advice(
            &both,
            quota(1000, 3600),
            "the API allows 1000 calls in 1h, but the limit minute admits 6000: set its \
             max-requests to 16, or add {name: api, use-algo: sliding-window-algo, unit: calls, \
             max-requests: 1000, window-size: 3600} to rate-limiter.limits",
        );
        let bucket = [limit("default", TokenBucket, 100, 60)];
        assert_advice(
            &bucket,
            quota(100, 60),
            "the API allows 100 calls in 1m, but the limit default admits 199: set its \
             max-requests to 50",
        );
        assert_advice(
            &[limit("even", LeakyBucket, 100, 60)],
            quota(100, 60),
            "kept",
        );
        let aligned = [limit("default", FixedWindow, 100, 60)];
        assert_advice(&aligned, quota(100, 60), "kept");
        assert_advice(&aligned, quota(100, 1), "kept");
        let path = || Scope::Header("x-path".to_owned());
        let part = limit("path", SlidingWindow, 10, 60).with_scope(path());
        assert_advice(
            std::slice::from_ref(&part),
            quota(100, 60),
            "the API allows 100 calls in 1m, but no limit bounds the calls of a tenant: add \
             {name: api, use-algo: sliding-window-algo, unit: calls, max-requests: 100, \
             window-size: 60, scope: tenant} to rate-limiter.limits",
        );
        assert_advice(
            &[part.clone(), limit("own", SlidingWindow, 200, 60)],
            quota(100, 60),
            "the API allows 100 calls in 1m, but the limit own admits 200: set its max-requests \
            to 100",
        );
        let all = limit("all", SlidingWindow, 100, 60).with_scope(Scope::Global);
        assert_advice(&[part, all], quota(100, 60), "kept");
        let running = [Limit::concurrent("running", 5).expect("in range")];
        assert_advice(
            &running,
            quota(2_000_000, 60),
            "the API allows 2000000 calls in 1m, but no limit bounds the calls of a tenant: add \
            {name: api, use-algo: sliding-segments-algo, unit: calls, max-requests: 2000000, \
            window-size: 60} to rate-limiter.limits",
        );
        assert_advice(
            &running,
            quota(MAX_REQUESTS + 1, 60),
            "the API allows 1000000000001 calls in 1m, but no limit bounds the calls of a tenant: \
            no limit can be set that low",
        );
    }
}
