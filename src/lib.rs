// README links to paths in the repository. `readme-links.md` redefines them for rustdoc: pages link
// to the published package, and the example workers, which are packages of their own, link to the
// traits they implement. Markdown uses the first definition of a link, so that file comes first.
#![doc = include_str!("readme-links.md")]
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

// A job takes one path: delivery -> job -> gate -> dispatch | delay | dead letter -> ack. Each
// folder of `src` is a package: `rules` decides and never waits; `gate`, `broker` and `handler` do
// I/O and decide nothing; `engine` moves jobs between them; only `app` names the concrete servers.
//
// The API: everything that a custom worker needs. docs/public-api.txt lists it.
#[doc(inline)]
pub use app::{AppError, run_until, run_with};
#[doc(inline)]
pub use config::{Config, ConfigErrors};
#[doc(inline)]
pub use engine::Stop;
#[doc(inline)]
pub use handler::{
    ApiAnswer, Attempt, Fate, Handler, LateEnd, Outcome, Permit, PreparingHandler, Trouble,
};
#[doc(inline)]
pub use rules::answers::{LimitInfo, Pushback, Quota, Quotas};
#[doc(inline)]
pub use rules::job::{Job, Properties, Value};
#[doc(inline)]
pub use rules::tenant::{Tenant, TenantError};
#[doc(inline)]
pub use telemetry::{TelemetryError, init_log};
