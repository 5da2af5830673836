// README links to paths in the repository. `readme-links.md` redefines them for rustdoc: pages link
// to the published package, and the example workers, which are packages of their own, link to the
// traits they implement. Markdown uses the first definition of a link, so that file comes first.
#![doc = include_str!("readme-links.md")]
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test may have many cases")
)]
#![deny(missing_docs)]

// A job takes one path: delivery -> job -> gate -> dispatch | delay | dead letter -> ack. `rules`
// decides and never waits; `gate`, `broker` and `handler` do I/O and decide nothing; `engine` moves
// jobs between them; only `app` names the concrete servers.
//
// The modules are public for this workspace's programs, test suites and benches only. Hidden items
// are not part of the API and change without notice.
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
mod shortage;
#[doc(hidden)]
pub mod tasks;
#[doc(hidden)]
pub mod telemetry;
mod tls;
#[doc(hidden)]
pub mod untrusted;

// The API: everything that a custom worker needs. docs/public-api.txt lists it.
pub use app::{AppError, run_until, run_with};
pub use config::{Config, ConfigErrors};
pub use engine::Stop;
pub use handler::{
    Answered, Attempt, Fate, Handler, LateEnd, Outcome, Permit, PreparingHandler, Trouble,
};
#[doc(inline)]
pub use rules::answers::{LimitInfo, Pushback, Quota, Quotas};
#[doc(inline)]
pub use rules::job::{Job, Properties, Value};
#[doc(inline)]
pub use rules::tenant::{Tenant, TenantError};
pub use telemetry::{TelemetryError, init_log};
