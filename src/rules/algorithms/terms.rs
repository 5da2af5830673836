//! The numbers of a limit that its algorithm counts with.

use strum::{IntoStaticStr, VariantArray};

use super::Algorithm;
use crate::calendar::{Boundaries, Calendar};
use crate::named::Named;

/// The unit that a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Unit {
    /// `calls`: one unit per start, independent of the job's cost.
    Calls,
    /// `cost`: a job's cost.
    Cost,
}

impl Named for Unit {}

impl Unit {
    /// Returns how many units a job of `cost` uses.
    pub fn of(self, cost: u64) -> u64 {
        match self {
            Self::Calls => 1,
            Self::Cost => cost,
        }
    }
}

/// A limit of `max` units per `window_ms`, counted by `algorithm`. It holds at the API as long as
/// the latency from the gate to the API varies by less than `guard_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Terms {
    pub(crate) algorithm: Algorithm,
    pub(crate) max: u64,
    pub(crate) window_ms: u64,
    pub(crate) guard_ms: u64,
    pub(crate) burst: u64,
    pub(crate) unit: Unit,
    pub(crate) spacing_us: u32,
    /// See [`forgiven_ms`](super::bucket::forgiven_ms).
    pub(crate) forgiven_ms: u64,
    pub(crate) calendar: Option<Calendar>,
}

impl Terms {
    /// Returns the algorithm that counts.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
    /// Returns L, in units.
    pub fn max(&self) -> u64 {
        self.max
    }
    /// Returns W, in milliseconds.
    pub fn window_ms(&self) -> u64 {
        self.window_ms
    }
    /// Returns the guard, in milliseconds.
    pub fn guard_ms(&self) -> u64 {
        self.guard_ms
    }
    /// Returns the bucket's size in units, or `max` if the algorithm has no bucket.
    pub fn burst(&self) -> u64 {
        self.burst
    }
    /// Returns the unit that is counted.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// Returns by how many microseconds the starts of an empty bucket are further apart than
    /// `window / max`. The latencies of their calls may differ by this. 0 for the other algorithms.
    pub fn spacing_us(&self) -> u32 {
        self.spacing_us
    }

    /// Returns the calendar of windows that are days, weeks or months.
    pub fn calendar(&self) -> Option<&Calendar> {
        self.calendar.as_ref()
    }

    /// Returns the boundaries of the aligned windows around `now_ms`.
    pub fn boundaries(&self, now_ms: u64) -> Boundaries {
        match &self.calendar {
            Some(calendar) => calendar.boundaries(now_ms),
            None => Boundaries::aligned(self.window_ms.max(1), now_ms),
        }
    }

    /// Returns when the aligned window of `at_ms` begins.
    pub fn window_start(&self, at_ms: u64) -> u64 {
        match &self.calendar {
            Some(calendar) => calendar.boundaries(at_ms).starts[0],
            None => at_ms - at_ms % self.window_ms.max(1),
        }
    }

    /// Returns the maximum number of units that can start at one moment.
    pub fn capacity(&self) -> u64 {
        if self.algorithm.has_burst() {
            self.burst
        } else {
            self.max
        }
    }

    /// Returns how late a start may be without wasting quota, in milliseconds: 1 % of the window,
    /// at most 10. For a bucket it is GCRA's tolerance for jitter (CDVT): with a burst of 1 nothing
    /// else keeps the refill until a job asks. The sliding counter's windows are longer by it.
    /// Without it, neither limit could be used up.
    pub fn lateness_ms(&self) -> u64 {
        (self.window_ms / 100).clamp(1, 10)
    }

    /// Returns the algorithm's [`Rules::span`](super::Rules::span).
    pub fn span(&self) -> u64 {
        self.algorithm.rules().span(self)
    }

    /// Returns the algorithm's [`Rules::margin`](super::Rules::margin).
    pub fn margin(&self) -> u64 {
        self.algorithm.rules().margin(self)
    }

    /// Returns the algorithm's [`Rules::worst_case`](super::Rules::worst_case).
    pub fn worst_case(&self) -> u64 {
        self.algorithm.rules().worst_case(self)
    }

    /// Returns the algorithm's [`Rules::max_units_in`](super::Rules::max_units_in).
    pub(crate) fn max_units_in(&self, ms: u64) -> u64 {
        self.algorithm.rules().max_units_in(self, ms)
    }
}
