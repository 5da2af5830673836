//! The handler that a configuration asks for.
//!
//! One type covers all handlers, so that the engine is compiled once. Compiled for each handler,
//! the program was 0.7 MB larger, and calls took longer because the code no longer fit into the
//! processor's caches.

use handler::exec::ExecHandler;
use handler::forward::ForwardHandler;
use handler::http::HttpHandler;
use handler::{Attempt, Outcome, Permit, PreparingHandler};
use rules::job::Job;
use rules::tenant::Tenant;

/// The handler of a pipeline.
#[expect(
    clippy::large_enum_variant,
    reason = "a pipeline has one of them, behind an Arc"
)]
pub(super) enum AnyHandler {
    Http(HttpHandler),
    Exec(ExecHandler),
    Forward(ForwardHandler),
}

/// The prepared state of a call, of the same handler.
pub(super) enum PreparedCall {
    Http(<HttpHandler as PreparingHandler>::Ready),
    Exec(<ExecHandler as PreparingHandler>::Ready),
    Forward(<ForwardHandler as PreparingHandler>::Ready),
}

impl PreparingHandler for AnyHandler {
    type Ready = PreparedCall;

    fn at_once(&self) -> Option<PreparedCall> {
        Some(match self {
            Self::Http(handler) => PreparedCall::Http(handler.at_once()?),
            Self::Exec(handler) => PreparedCall::Exec(handler.at_once()?),
            Self::Forward(handler) => PreparedCall::Forward(handler.at_once()?),
        })
    }

    fn at_once_for(&self, tenant: &Tenant) -> Option<PreparedCall> {
        Some(match self {
            Self::Http(handler) => PreparedCall::Http(handler.at_once_for(tenant)?),
            Self::Exec(handler) => PreparedCall::Exec(handler.at_once_for(tenant)?),
            Self::Forward(handler) => PreparedCall::Forward(handler.at_once_for(tenant)?),
        })
    }

    fn set_concurrency(&self, calls: usize) {
        match self {
            Self::Http(handler) => handler.set_concurrency(calls),
            Self::Exec(handler) => handler.set_concurrency(calls),
            Self::Forward(handler) => handler.set_concurrency(calls),
        }
    }

    async fn prepare(&self, job: &Job) -> Result<PreparedCall, Attempt> {
        Ok(match self {
            Self::Http(handler) => PreparedCall::Http(handler.prepare(job).await?),
            Self::Exec(handler) => PreparedCall::Exec(handler.prepare(job).await?),
            Self::Forward(handler) => PreparedCall::Forward(handler.prepare(job).await?),
        })
    }

    fn is_ready(&self, ready: &mut PreparedCall) -> bool {
        match (self, ready) {
            (Self::Http(handler), PreparedCall::Http(ready)) => handler.is_ready(ready),
            (Self::Exec(handler), PreparedCall::Exec(ready)) => handler.is_ready(ready),
            (Self::Forward(handler), PreparedCall::Forward(ready)) => handler.is_ready(ready),
            // Not reachable: an engine has one handler.
            _ => false,
        }
    }

    async fn send(&self, job: &Job, ready: PreparedCall, permit: Permit) -> Attempt {
        match (self, ready) {
            (Self::Http(handler), PreparedCall::Http(ready)) => {
                handler.send(job, ready, permit).await
            }
            (Self::Exec(handler), PreparedCall::Exec(ready)) => {
                handler.send(job, ready, permit).await
            }
            // Boxed because this future is three times as large as the others. Inline, it would
            // enlarge the future of every call.
            (Self::Forward(handler), PreparedCall::Forward(ready)) => {
                Box::pin(handler.send(job, ready, permit)).await
            }
            _ => Outcome::Late.into(),
        }
    }
}
