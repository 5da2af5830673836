//! The handler that a configuration asks for.
//!
//! One type covers all handlers, so that the engine is compiled once. Compiled for each handler,
//! the program was 0.7 MB larger, and calls took longer because the code no longer fit into the
//! processor's caches.

use crate::handler::exec::ExecHandler;
use crate::handler::forward::ForwardHandler;
use crate::handler::http::HttpHandler;
use crate::handler::{Attempt, Outcome, Permit, PreparingHandler};
use crate::rules::job::Job;
use crate::rules::tenant::Tenant;

/// The handler of a pipeline.
#[expect(
    clippy::large_enum_variant,
    reason = "a pipeline has one of them, behind an Arc"
)]
pub(super) enum Chosen {
    Http(HttpHandler),
    Exec(ExecHandler),
    Forward(ForwardHandler),
}

/// The prepared state of a call, of the same handler.
pub(super) enum Ready {
    Http(<HttpHandler as PreparingHandler>::Ready),
    Exec(<ExecHandler as PreparingHandler>::Ready),
    Forward(<ForwardHandler as PreparingHandler>::Ready),
}

impl PreparingHandler for Chosen {
    type Ready = Ready;

    fn at_once(&self) -> Option<Ready> {
        Some(match self {
            Self::Http(handler) => Ready::Http(handler.at_once()?),
            Self::Exec(handler) => Ready::Exec(handler.at_once()?),
            Self::Forward(handler) => Ready::Forward(handler.at_once()?),
        })
    }

    fn at_once_for(&self, tenant: &Tenant) -> Option<Ready> {
        Some(match self {
            Self::Http(handler) => Ready::Http(handler.at_once_for(tenant)?),
            Self::Exec(handler) => Ready::Exec(handler.at_once_for(tenant)?),
            Self::Forward(handler) => Ready::Forward(handler.at_once_for(tenant)?),
        })
    }

    async fn prepare(&self, job: &Job) -> Result<Ready, Attempt> {
        Ok(match self {
            Self::Http(handler) => Ready::Http(handler.prepare(job).await?),
            Self::Exec(handler) => Ready::Exec(handler.prepare(job).await?),
            Self::Forward(handler) => Ready::Forward(handler.prepare(job).await?),
        })
    }

    fn is_ready(&self, ready: &mut Ready) -> bool {
        match (self, ready) {
            (Self::Http(handler), Ready::Http(ready)) => handler.is_ready(ready),
            (Self::Exec(handler), Ready::Exec(ready)) => handler.is_ready(ready),
            (Self::Forward(handler), Ready::Forward(ready)) => handler.is_ready(ready),
            // Not reachable: an engine has one handler.
            _ => false,
        }
    }

    async fn send(&self, job: &Job, ready: Ready, permit: Permit) -> Attempt {
        match (self, ready) {
            (Self::Http(handler), Ready::Http(ready)) => handler.send(job, ready, permit).await,
            (Self::Exec(handler), Ready::Exec(ready)) => handler.send(job, ready, permit).await,
            // Boxed because this future is three times as large as the others. Inline, it would
            // enlarge the future of every call.
            (Self::Forward(handler), Ready::Forward(ready)) => {
                Box::pin(handler.send(job, ready, permit)).await
            }
            _ => Outcome::Late.into(),
        }
    }
}
