//! Promises: the turn that a job was given when it was first denied, and how far its start is from
//! it.

use std::fmt;

/// Maximum difference for a promise to be kept, in milliseconds.
const NEAR_MS: u64 = 100;
/// The maximum difference is the wait divided by this, if that is more.
const PART_OF_WAIT: u64 = 50;

/// The first turn that the gate gave a job since it last started. Later turns only correct it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promise {
    /// The promised start, by the store's clock in milliseconds since the epoch.
    pub at_ms: u64,
    /// The wait until then at the time of the promise, in milliseconds.
    pub wait_ms: u64,
}

/// The difference between a promise and the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromiseGap {
    /// The difference in milliseconds.
    pub ms: u64,
    /// Whether the start was later than promised.
    pub is_late: bool,
    /// Whether the difference is at most 2 % of the wait, or at most 100 ms.
    pub is_met: bool,
}

impl Promise {
    /// Returns the difference for a job that starts at `now_ms` of the store's clock.
    pub fn off(self, now_ms: u64) -> PromiseGap {
        let ms = self.at_ms.abs_diff(now_ms);
        PromiseGap {
            ms,
            is_late: now_ms > self.at_ms,
            is_met: ms <= NEAR_MS.max(self.wait_ms / PART_OF_WAIT),
        }
    }

    /// Parses the text that [`Display`](fmt::Display) writes.
    pub fn read(text: &str) -> Option<Self> {
        let (at, wait) = text.split_once(':')?;
        Some(Self {
            at_ms: at.parse().ok()?,
            wait_ms: wait.parse().ok()?,
        })
    }
}

impl fmt::Display for Promise {
    /// Writes `at:wait`, both in milliseconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.at_ms, self.wait_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_is_kept_within_a_tenth_of_a_second_or_two_percent_of_the_wait() {
        let promise = |wait_ms| Promise {
            at_ms: 1_000_000,
            wait_ms,
        };
        for (wait_ms, now_ms, is_late, is_kept) in [
            (1_000, 1_000_000, false, true),
            (1_000, 1_000_100, true, true),
            (1_000, 1_000_101, true, false),
            (1_000, 999_900, false, true),
            (1_000, 999_899, false, false),
            (60_000, 1_001_200, true, true),
            (60_000, 1_001_201, true, false),
        ] {
            let off = promise(wait_ms).off(now_ms);
            assert_eq!((off.is_late, off.is_met), (is_late, is_kept), "{now_ms}");
            assert_eq!(off.ms, now_ms.abs_diff(1_000_000));
        }
    }

    #[test]
    fn a_promise_survives_a_header_and_other_texts_are_none() {
        let promise = Promise {
            at_ms: 1_700_000_000_000,
            wait_ms: 42,
        };
        assert_eq!(Promise::read(&promise.to_string()), Some(promise));
        for text in ["", "1", "1:", ":1", "1:2:3", "-1:2", "a:b"] {
            assert_eq!(Promise::read(text), None, "{text}");
        }
    }
}
