// README's links are paths in the repository. Here its pages are those of the published package, and the workers to copy, which
// are packages of their own, are what they implement: of two definitions of a link the first one counts.
#![doc = include_str!("readme-links.md")]
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

// A job's way is one way: delivery -> job -> gate -> dispatch | delay | dead letter -> ack.
// `rules` decides and never waits; `gate`, `broker` and `handler` do I/O and decide nothing;
// `engine` moves jobs between them; only `app` names the concrete servers.
//
// The modules are open to this workspace's programs, suites and benches, and to nobody else: what is hidden here is no
// part of the API, and changes without notice.
#[doc(hidden)]
pub mod admin;
#[doc(hidden)]
pub mod app;
#[doc(hidden)]
pub mod broker;
#[doc(hidden)]
pub mod config;
#[doc(hidden)]
pub mod engine;
#[doc(hidden)]
pub mod gate;
#[doc(hidden)]
pub mod handler;
#[doc(hidden)]
pub mod metrics;
#[doc(hidden)]
pub mod operator;
#[doc(hidden)]
pub mod rules;
mod shortage;
#[doc(hidden)]
pub mod tasks;
#[doc(hidden)]
pub mod telemetry;
mod tls;
#[doc(hidden)]
pub mod untrusted;

// The API: all that a worker of one's own names. docs/public-api.txt lists it.
pub use app::{AppError, run_until, run_with};
pub use config::{Config, ConfigErrors};
pub use engine::Stop;
pub use handler::{
    Answered, Attempt, Fate, Handler, LateEnd, Outcome, Permit, PreparingHandler, Trouble,
};
pub use rules::answers::{Pushback, Quota, Quotas, Seen};
pub use rules::job::{Job, Properties, Value};
pub use rules::tenant::{Tenant, TenantError};
pub use telemetry::{TelemetryError, init_log};
