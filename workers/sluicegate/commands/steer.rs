//! The duration of an instruction for all workers.

use std::time::Duration;

use clap::Args;
use operator::steer::YEAR;
pub use operator::steer::{
    FOLLOW_TIMEOUT, Followers, POLL_INTERVAL, WorkerLoad, loads, span, wait,
};
use rules::limit::ceil_ms;

/// For how long something is asked.
#[derive(Debug, Args)]
#[group(id = "span")]
pub struct DurationOption {
    /// How long the change lasts: 90s, 30m, 1h, 7d; a bare number is in seconds [default: 365d]
    #[arg(long = "for", value_name = "DURATION", value_parser = span)]
    duration: Option<Duration>,
}

impl DurationOption {
    /// Returns the duration in milliseconds, a year by default.
    pub fn millis(&self) -> u64 {
        ceil_ms(self.duration.unwrap_or(YEAR))
    }
}
