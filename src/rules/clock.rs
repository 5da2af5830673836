//! The store's clock.

/// One reading of the store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// Milliseconds since the epoch, rounded down: what is compared.
    pub now_ms: u64,
    /// Milliseconds since the epoch, rounded up: what a start is written with, so that it never counts for less
    /// than its window.
    pub stamp_ms: u64,
}

impl Clock {
    /// A reading in microseconds since the epoch.
    pub fn from_micros(micros: u64) -> Self {
        Self {
            now_ms: micros / 1000,
            stamp_ms: micros.div_ceil(1000),
        }
    }
}
