//! The store's clock.

/// One reading of the store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// Milliseconds since the epoch, rounded down, for comparisons.
    pub now_ms: u64,
    /// Milliseconds since the epoch, rounded up. Starts are recorded with it, so that they never
    /// count for less than their window.
    pub stamp_ms: u64,
}

impl Clock {
    /// Returns a reading from microseconds since the epoch.
    pub fn from_micros(micros: u64) -> Self {
        Self {
            now_ms: micros / 1000,
            stamp_ms: micros.div_ceil(1000),
        }
    }
}
