//! The numbers of a limit, by which its algorithm counts.

use super::Algorithm;

/// What a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// `calls`: one for each start, whatever it costs.
    Calls,
    /// `cost`: a job's cost.
    Cost,
}

impl Unit {
    /// The value in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Cost => "cost",
        }
    }

    /// What a job of `cost` uses.
    pub fn of(self, cost: u64) -> u64 {
        match self {
            Self::Calls => 1,
            Self::Cost => cost,
        }
    }
}

/// At most `max` units per `window_ms`, counted by `algorithm`, kept at the API as long as the way
/// from the gate to it varies by less than `guard_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Terms {
    pub(in crate::rules) algorithm: Algorithm,
    pub(in crate::rules) max: u32,
    pub(in crate::rules) window_ms: u64,
    pub(in crate::rules) guard_ms: u64,
    pub(in crate::rules) burst: u32,
    pub(in crate::rules) unit: Unit,
    pub(in crate::rules) apart_us: u32,
}

impl Terms {
    /// How it counts.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
    /// L, in units.
    pub fn max(&self) -> u32 {
        self.max
    }
    /// W, in milliseconds.
    pub fn window_ms(&self) -> u64 {
        self.window_ms
    }
    /// The guard, in milliseconds.
    pub fn guard_ms(&self) -> u64 {
        self.guard_ms
    }
    /// The bucket's size in units; `max` where there is no bucket.
    pub fn burst(&self) -> u32 {
        self.burst
    }
    /// What it counts.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// By how many microseconds more than `window / max` the starts of an empty bucket are apart. Their latencies may differ by this. 0
    /// for the other algorithms.
    pub fn apart_us(&self) -> u32 {
        self.apart_us
    }

    /// The most units that can start at one moment.
    pub fn capacity(&self) -> u32 {
        if self.algorithm.has_burst() {
            self.burst
        } else {
            self.max
        }
    }

    /// Returns how late a start may be without wasting quota, in milliseconds: 1 % of the window, at most 10. For a bucket it is GCRA's
    /// tolerance for jitter (CDVT): with a burst of 1 nothing else holds what flows in until a job asks. The sliding counter's windows
    /// are longer by it. Neither could be used up without it.
    pub fn lateness_ms(&self) -> u64 {
        (self.window_ms / 100).clamp(1, 10)
    }

    /// [`Rules::span`](super::Rules::span)
    pub fn span(&self) -> u64 {
        self.algorithm.rules().span(self)
    }

    /// [`Rules::margin`](super::Rules::margin)
    pub fn margin(&self) -> u64 {
        self.algorithm.rules().margin(self)
    }

    /// [`Rules::worst_case`](super::Rules::worst_case)
    pub fn worst_case(&self) -> u64 {
        self.algorithm.rules().worst_case(self)
    }

    /// [`Rules::most_in`](super::Rules::most_in)
    pub(in crate::rules) fn most_in(&self, ms: u64) -> u64 {
        self.algorithm.rules().most_in(self, ms)
    }
}
