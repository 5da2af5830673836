//! A worker's log (`logs`), the spans of its jobs (`traces`), numbers for Prometheus (`metrics`),
//! and its readiness (`health`).

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod health;
mod log_output;
mod logs;
pub mod metrics;
pub mod traces;

pub use self::health::{Health, show_redis};
pub use self::logs::{TelemetryError, init, init_log};
