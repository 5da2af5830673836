//! The algorithms by which APIs count calls, under the names of limiters that use them.
//! docs/LIMITS.md says which of our algorithms fits each. Pure.

use std::collections::VecDeque;
use std::str::FromStr;

use rules::calendar::Calendar;
use rules::limit::Algorithm;

use crate::environment::micros;
use crate::forms::ApiLimit;

/// How an API counts calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Counting {
    /// Windows that may begin at any time.
    #[default]
    Sliding,
    /// Windows that begin at multiples of their length.
    Aligned,
    /// Windows that begin with the first call after the end of the previous one.
    FirstCall,
    /// Aligned windows, of which the previous one counts with the share that a sliding window still
    /// covers.
    Estimated,
    /// A bucket of one call: consecutive calls are at least window / limit apart.
    Even,
    /// A bucket that holds the whole limit.
    Bucket,
    /// Calls in flight. It has no name, since it is part of profiles only.
    Concurrent,
    /// Days, weeks or months of a time zone. It has no name, since it is part of profiles only.
    Calendar(Calendar),
}

/// Names of limiters, and how each counts by default.
const NAMES: [(&str, Counting); 14] = [
    ("sliding", Counting::Sliding),
    ("aligned", Counting::Aligned),
    ("first-call", Counting::FirstCall),
    ("estimated", Counting::Estimated),
    ("even", Counting::Even),
    ("bucket", Counting::Bucket),
    ("nginx", Counting::Even),
    ("nginx-nodelay", Counting::Bucket),
    ("haproxy", Counting::Estimated),
    ("express-rate-limit", Counting::FirstCall),
    ("rate-limiter-flexible", Counting::FirstCall),
    ("fastify-rate-limit", Counting::FirstCall),
    ("tower-governor", Counting::Bucket),
    ("cloudflare", Counting::Estimated),
];

impl Counting {
    /// Returns its own name.
    pub fn name(self) -> &'static str {
        let own = NAMES.iter().find(|(_, counting)| *counting == self);
        own.map_or("", |(name, _)| name)
    }

    /// Returns the algorithm that docs/LIMITS.md recommends for such an API.
    pub fn algorithm(self) -> Algorithm {
        match self {
            Self::Sliding | Self::FirstCall => Algorithm::SlidingWindow,
            Self::Aligned => Algorithm::FixedWindow,
            Self::Estimated | Self::Even => Algorithm::LeakyBucket,
            Self::Bucket => Algorithm::TokenBucket,
            Self::Concurrent => Algorithm::Concurrency,
            Self::Calendar(_) => Algorithm::CalendarWindow,
        }
    }
}

impl FromStr for Counting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = NAMES.iter().find(|(name, _)| *name == text);
        known.map(|(_, counting)| *counting).ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            format!("it must be one of {}", names.join(", "))
        })
    }
}

/// The calls of one tenant, or of all, as a limiter counts them.
#[derive(Debug, Default)]
pub struct CallCounter {
    /// The times from which calls of a sliding window, or in flight, no longer count, in
    /// microseconds, with their units.
    taken: VecDeque<(u64, usize)>,
    /// When the current window began.
    window_start: u64,
    /// Units in the current window.
    current: usize,
    /// Units in the window before.
    before: usize,
    /// The shortfall of the bucket, in units times the window.
    missing: u128,
    /// When the last call came.
    at: u64,
}

/// A call that asks for room.
#[derive(Debug, Clone, Copy)]
pub struct CountedCall {
    /// When it arrives, in microseconds.
    pub at_us: u64,
    /// When it ends.
    pub until_us: u64,
    /// The cost of its job.
    pub cost: usize,
}

impl CallCounter {
    /// Takes a call of cost 1 at `at_us` if `limit` allows it.
    ///
    /// # Errors
    /// Returns the microseconds until a call may be allowed, 1 or more.
    pub fn call(&mut self, limit: ApiLimit, at_us: u64) -> Result<(), u64> {
        let call = CountedCall {
            at_us,
            until_us: at_us,
            cost: 1,
        };
        match self.wait(limit, call) {
            Some(wait) => Err(wait),
            None => {
                self.take(limit, call);
                Ok(())
            }
        }
    }

    /// Returns the microseconds until `limit` may allow `call`, 1 or more, or `None` if it allows
    /// it now.
    pub fn wait(&mut self, limit: ApiLimit, call: CountedCall) -> Option<u64> {
        let ApiLimit { max, counting, .. } = limit;
        let (at_us, units) = (call.at_us, limit.units(call));
        let window = micros(limit.window);
        let is_first = self.at == 0 && self.current == 0;
        let wait = match counting {
            Counting::Sliding | Counting::Concurrent => self.wait_for_ends(max, at_us, units),
            Counting::FirstCall => {
                if is_first || at_us >= self.window_start + window {
                    (self.window_start, self.current) = (at_us, 0);
                }
                let is_full = self.current.saturating_add(units) > max;
                is_full.then(|| self.window_start + window - at_us)
            }
            Counting::Aligned | Counting::Estimated => {
                let window_start = at_us / window * window;
                if window_start != self.window_start {
                    let follows = window_start == self.window_start + window;
                    self.before = if follows { self.current } else { 0 };
                    (self.window_start, self.current) = (window_start, 0);
                }
                let left = window_start + window - at_us;
                let before = self.before as u128 * u128::from(left) / u128::from(window);
                let before = usize::try_from(before).unwrap_or(usize::MAX);
                let counts = match counting {
                    Counting::Aligned => self.current,
                    _ => self.current.saturating_add(before),
                };
                (counts.saturating_add(units) > max).then_some(left)
            }
            Counting::Calendar(calendar) => {
                let [start, end, ..] = calendar.boundaries(at_us / 1_000).starts;
                if start * 1_000 != self.window_start {
                    (self.window_start, self.current) = (start * 1_000, 0);
                }
                let is_full = self.current.saturating_add(units) > max;
                is_full.then(|| end * 1_000 - at_us)
            }
            Counting::Even | Counting::Bucket => {
                let usual = if counting == Counting::Even { 1 } else { max };
                let room = limit.burst.unwrap_or(usual) as u128 * u128::from(window);
                let flowed = u128::from(at_us - self.at.min(at_us)) * max as u128;
                self.missing = self.missing.saturating_sub(flowed);
                self.at = at_us;
                let needed = units as u128 * u128::from(window);
                let beyond = (self.missing + needed).saturating_sub(room);
                let wait = u64::try_from(beyond.div_ceil(max as u128)).unwrap_or(u64::MAX);
                (wait > 0).then_some(wait)
            }
        };
        wait.map(|wait| wait.max(1))
    }

    /// Returns the microseconds until enough earlier calls no longer count, so that there is room
    /// for `units` of `max`, or `None` if there is room now.
    fn wait_for_ends(&mut self, max: usize, at_us: u64, units: usize) -> Option<u64> {
        self.taken.retain(|(until, _)| *until > at_us);
        let used: usize = self.taken.iter().map(|(_, units)| units).sum();
        let mut beyond = used.saturating_add(units).saturating_sub(max);
        if beyond == 0 {
            return None;
        }
        let mut ends: Vec<_> = self.taken.iter().copied().collect();
        ends.sort_unstable();
        let mut last = at_us;
        for (until, units) in ends {
            last = until;
            beyond = beyond.saturating_sub(units);
            if beyond == 0 {
                break;
            }
        }
        Some(last - at_us)
    }

    /// Counts a call that [`CallCounter::wait`] allowed.
    pub fn take(&mut self, limit: ApiLimit, call: CountedCall) {
        let units = limit.units(call);
        self.current = self.current.saturating_add(units);
        self.missing += units as u128 * u128::from(micros(limit.window));
        match limit.counting {
            Counting::Sliding => self
                .taken
                .push_back((call.at_us + micros(limit.window), units)),
            Counting::Concurrent => self.taken.push_back((call.until_us, units)),
            _ => {}
        }
        self.at = call.at_us;
    }

    /// Returns true if calls before `at_us` no longer count.
    pub fn is_idle(&self, limit: ApiLimit, at_us: u64) -> bool {
        // An estimate also counts the window before.
        let windows = if limit.counting == Counting::Estimated {
            2
        } else {
            1
        };
        let ends = self.taken.iter().map(|(until, _)| *until);
        self.at + windows * micros(limit.window) <= at_us && ends.max().unwrap_or(0) <= at_us
    }
}

impl ApiLimit {
    /// Returns what `call` counts.
    fn units(&self, call: CountedCall) -> usize {
        if self.by_cost { call.cost } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use rules::calendar::Zone;

    use super::*;

    /// Returns how many calls of each of four bursts pass, at 10 in 100 ms.
    fn passed(counting: Counting) -> [usize; 4] {
        let limit = ApiLimit {
            counting,
            .."10/100ms:tenant".parse().expect("a limit")
        };
        let mut counter = CallCounter::default();
        [(1_050, 1), (1_140, 20), (1_155, 20), (1_240, 20)].map(|(ms, calls)| {
            let call = |_: &i32| counter.call(limit, ms * 1_000).is_ok();
            (0..calls).filter(call).count()
        })
    }

    #[test]
    fn each_kind_counts_in_its_way() {
        assert_eq!(passed(Counting::Sliding), [1, 9, 1, 9]);
        assert_eq!(passed(Counting::Aligned), [1, 10, 0, 10]);
        assert_eq!(passed(Counting::FirstCall), [1, 9, 10, 0]);
        assert_eq!(passed(Counting::Estimated), [1, 10, 0, 4]);
        assert_eq!(passed(Counting::Even), [1, 1, 1, 1]);
        assert_eq!(passed(Counting::Bucket), [1, 10, 1, 9]);
    }

    #[test]
    fn a_day_of_a_time_zone_ends_at_its_midnight() {
        let zone = Zone::find("America/Los_Angeles").expect("a zone");
        let day = Calendar::parse("day", zone, None).expect("a calendar");
        let limit = ApiLimit {
            counting: Counting::Calendar(day),
            .."10/1s:tenant".parse().expect("a limit")
        };
        // 2026-11-26 23:59 and 2026-11-27 00:00 in California.
        let (last_minute_us, midnight_us) = (1_795_766_340_000_000, 1_795_766_400_000_000);
        let mut counter = CallCounter::default();
        for _ in 0..limit.max {
            assert_eq!(counter.call(limit, last_minute_us), Ok(()));
        }
        assert_eq!(counter.call(limit, last_minute_us), Err(60_000_000));
        assert_eq!(counter.call(limit, midnight_us), Ok(()));
    }

    #[test]
    fn costs_bursts_and_calls_in_flight_count() {
        let usual: ApiLimit = "10/1s:tenant".parse().expect("a limit");
        let waits = |limit: ApiLimit, calls: &[(u64, u64, usize)]| {
            let mut counter = CallCounter::default();
            let wait = |&(at_ms, until_ms, cost): &(u64, u64, usize)| {
                let call = CountedCall {
                    at_us: at_ms * 1_000,
                    until_us: until_ms * 1_000,
                    cost,
                };
                let wait = counter.wait(limit, call);
                if wait.is_none() {
                    counter.take(limit, call);
                }
                wait.map(|wait| wait / 1_000)
            };
            calls.iter().map(wait).collect::<Vec<_>>()
        };
        let by_cost = ApiLimit {
            by_cost: true,
            ..usual
        };
        assert_eq!(
            waits(
                by_cost,
                &[(5, 5, 4), (105, 105, 6), (205, 205, 5), (1_005, 1_005, 4)]
            ),
            [None, None, Some(900), None]
        );
        let bucket = ApiLimit {
            counting: Counting::Bucket,
            burst: Some(2),
            ..usual
        };
        assert_eq!(
            waits(bucket, &[(5, 5, 9), (5, 5, 9), (5, 5, 9), (105, 105, 9)]),
            [None, None, Some(100), None]
        );
        let concurrent = ApiLimit {
            max: 2,
            counting: Counting::Concurrent,
            ..usual
        };
        assert_eq!(
            waits(
                concurrent,
                &[(5, 90, 1), (6, 30, 1), (7, 40, 1), (30, 40, 1)]
            ),
            [None, None, Some(23), None]
        );
    }

    #[test]
    fn limiters_are_known_by_their_names() {
        assert_eq!("nginx".parse(), Ok(Counting::Even));
        assert_eq!("haproxy".parse(), Ok(Counting::Estimated));
        let why = "apache".parse::<Counting>().expect_err("unknown");
        assert!(why.contains("nginx-nodelay, haproxy"), "{why}");
    }
}
