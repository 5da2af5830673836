//! The admin HTTP server: `/metrics`, `/livez`, `/readyz`, `/readyz/PIPELINE`, the API `/api/v1`
//! and the page for people (`page`). The API and the page check access themselves (`api/guard.rs`
//! and `page/access.rs`).
//!
//! If `admin.token` is set, only requests that show it (`Authorization: Bearer TOKEN`, RFC 6750)
//! get details. Two questions are answered without the token, with yes or no: whether the process
//! is alive (`/livez`) and whether it is ready (`/readyz`, without the reasons). Load balancers
//! and kubelets ask them and can't keep a token secret. The mere ability to connect already reveals
//! the first.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test may have many cases")
)]
#![deny(missing_docs)]

#[cfg(feature = "server")]
mod api;
#[cfg(not(feature = "server"))]
mod disabled;
#[cfg(feature = "server")]
mod page;
mod pipeline_states;
#[cfg(feature = "server")]
mod server;
#[cfg(feature = "server")]
mod wrong_tokens;

use std::net::SocketAddr;

#[cfg(not(feature = "server"))]
pub use self::disabled::{AdminServer, serve};
pub use self::pipeline_states::{InForce, PipelineState, PipelineStates, Readiness};
#[cfg(feature = "server")]
pub use self::server::{AdminServer, serve};

/// The reason why the admin port can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Another process listens on the address.
    #[error(
        "admin.listen: {0} is in use; set another address, or {any} for any free port",
        any = with_any_port(.0)
    )]
    Taken(SocketAddr),
    /// Any other error.
    #[error("admin.listen: can't listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
}

/// Returns `listen` with port 0.
fn with_any_port(listen: &SocketAddr) -> SocketAddr {
    SocketAddr::new(listen.ip(), 0)
}
