#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

// A job's way is one way: delivery -> job -> gate -> dispatch | delay | dead letter -> ack.
// `rules` decides and never waits; `gate`, `broker` and `handler` do I/O and decide nothing;
// `engine` moves jobs between them; only `app` names the concrete servers.
pub mod admin;
pub mod app;
pub mod broker;
pub mod config;
pub mod engine;
pub mod gate;
pub mod handler;
pub mod metrics;
pub mod rules;
pub mod tasks;
pub mod telemetry;
mod tls;
#[doc(hidden)]
pub mod untrusted;

// All that a worker of one's own names.
pub use app::{AppError, run_until, run_with};
pub use config::{Config, ConfigErrors};
pub use engine::Stop;
pub use handler::{Attempt, Fate, Handler, LateEnd, Outcome, Permit, PreparingHandler};
pub use rules::job::Job;
pub use rules::tenant::Tenant;
