//! The algorithms by which APIs count calls, under the names of limiters that use them.
//! docs/LIMITS.md says which of our algorithms fits each. Pure.

use std::collections::VecDeque;
use std::str::FromStr;

use sluicegate::rules::limit::Algorithm;

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
    /// All ways to count.
    pub const ALL: [Self; 6] = [
        Self::Sliding,
        Self::Aligned,
        Self::FirstCall,
        Self::Estimated,
        Self::Even,
        Self::Bucket,
    ];

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
    /// When the calls of a sliding window were taken, in microseconds; the newest is last.
    taken: VecDeque<u64>,
    /// When the current window began, its calls, and the calls of the window before.
    window_start: u64,
    current: usize,
    before: usize,
    /// The shortfall of the bucket, in calls times the window, and when it was computed.
    missing: u128,
    at: u64,
}

impl CallCounter {
    /// Takes a call at `at_us` if `limit` allows it.
    ///
    /// # Errors
    /// Returns the microseconds until a call may be allowed, 1 or more.
    pub fn call(&mut self, limit: ApiLimit, at_us: u64) -> Result<(), u64> {
        let ApiLimit { max, counting, .. } = limit;
        let window = micros(limit.window);
        let is_first = self.at == 0 && self.current == 0;
        let wait = match counting {
            Counting::Sliding => {
                while (self.taken.front()).is_some_and(|first| first + window <= at_us) {
                    self.taken.pop_front();
                }
                let first = self.taken.front().filter(|_| self.taken.len() >= max);
                first.map(|first| first + window - at_us)
            }
            Counting::FirstCall => {
                if is_first || at_us >= self.window_start + window {
                    (self.window_start, self.current) = (at_us, 0);
                }
                (self.current >= max).then(|| self.window_start + window - at_us)
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
                (counts >= max).then_some(left)
            }
            Counting::Even | Counting::Bucket => {
                let one = u128::from(window);
                let room = if counting == Counting::Even {
                    1
                } else {
                    max as u128
                };
                let flowed = u128::from(at_us - self.at.min(at_us)) * max as u128;
                self.missing = self.missing.saturating_sub(flowed);
                self.at = at_us;
                let beyond = (self.missing + one).saturating_sub(room * one);
                let wait = u64::try_from(beyond.div_ceil(max as u128)).unwrap_or(u64::MAX);
                (wait > 0).then_some(wait)
            }
        };
        match wait {
            Some(wait) => Err(wait.max(1)),
            None => {
                self.current += 1;
                self.missing += u128::from(window);
                if counting == Counting::Sliding {
                    self.taken.push_back(at_us);
                }
                self.at = at_us;
                Ok(())
            }
        }
    }

    /// Returns true if calls before `at_us` no longer count.
    pub fn is_idle(&self, limit: ApiLimit, at_us: u64) -> bool {
        // An estimate also counts the window before.
        let windows = if limit.counting == Counting::Estimated {
            2
        } else {
            1
        };
        self.at + windows * micros(limit.window) <= at_us
    }
}

#[cfg(test)]
mod tests {
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
    fn limiters_are_known_by_their_names() {
        assert_eq!("nginx".parse(), Ok(Counting::Even));
        assert_eq!("haproxy".parse(), Ok(Counting::Estimated));
        let why = "apache".parse::<Counting>().expect_err("unknown");
        assert!(why.contains("nginx-nodelay, haproxy"), "{why}");
    }
}
