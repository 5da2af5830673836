//! Sends each job to an API over HTTP, and turns the answer into an [`Outcome`]: over HTTP/2 where a server with TLS
//! offers it, else over HTTP/1.1.
//!
//! What is sent: the configured method, with the job's body, content encoding and content type (`application/octet-stream` where the job has none
//! that fits into a header), `x-tenant`, `x-job-id` and `x-attempt`. Tenant and id are sent as they are, in
//! UTF-8; only what no header can carry, control characters and spaces at either end, is percent-encoded, and
//! `%` itself: percent-decoding gives the very text, and two tenants or ids never look the same.
//! A user and password in the url are sent as Basic authorization, and the configured headers as they are, but that values of the
//! job stand for their placeholders, as they do in the url (`rules::job::call`). An access token is fetched and renewed beside the
//! calls; none is made without one.
//!
//! What the answer means is decided by its status and headers. Its body is read as far as a connection that
//! can be used again is worth it; when it breaks off or hangs, that changes nothing.
//!
//! One call of [`PreparingHandler::send`] is at most one request: it has cost one permit. So redirects are not followed,
//! and nothing is sent twice. What is prepared for it is an open connection (name, TCP, TLS), or a free stream of one that is
//! shared, since opening one can take longer than a permit is good for. Where it turns out to be closed before a byte of the
//! request was written, or the API says that it has done nothing with the request, the permit is given back, and the job
//! asks again with another connection.

mod abandoned;
mod advice;
mod answer;
mod bounded;
mod call;
mod connection;
mod kept;
mod openings;
mod pool;
mod proxy;
mod reach;
mod redaction;
mod requests;
mod secrets;
mod send;
mod setup;
mod shared;
mod sign;
mod socket;
mod stream;
mod text;
mod token_endpoint;
mod tokens;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use hyper::StatusCode;
use tokio::time::{Instant, timeout_at};

use super::ruled::unprepared;
use super::{Attempt, Outcome, Permit, PreparingHandler, Trouble};
use crate::rules::job::Job;
use crate::rules::tenant::Tenant;
use crate::shortage;
use abandoned::Abandoned;
use advice::no_connection;
use answer::Reader;
use pool::{Pool, Pooled};
pub use reach::{Reach, reach};
use requests::Requests;
pub use setup::HttpHandlerError;
use tokens::{NoToken, Token, Tokens};

/// Calls one API.
pub struct HttpHandler {
    pool: Arc<Pool>,
    abandoned: Abandoned,
    /// Calls that run at once.
    concurrency: usize,
    /// Calls in a row that the API refused, with nothing done.
    refused: AtomicUsize,
    /// With TLS.
    encrypted: bool,
    requests: Requests,
    /// The access tokens of calls that carry one.
    tokens: Option<Tokens>,
    timeout: Duration,
    /// Says what its answers mean.
    reader: Reader,
}

/// What a call needs beside its permit.
pub struct Ready {
    /// On which a request can be sent at once.
    connection: Pooled,
    /// Where calls carry one.
    token: Option<Arc<Token>>,
}

impl HttpHandler {
    /// Works on `job` at once: prepares, and sends if `permit` is still good then.
    pub async fn handle(&self, job: &Job, permit: Permit) -> Outcome {
        self.attempt(job, permit).await.outcome
    }

    /// [`HttpHandler::handle`], and what the answer said. For handlers that call this one: a worker prepares first.
    pub async fn attempt(&self, job: &Job, permit: Permit) -> Attempt {
        let ready = match self.at_once_for(&job.tenant) {
            Some(ready) => Ok(ready),
            None => self.prepare(job).await,
        };
        match ready {
            Ok(ready) => self.send(job, ready, permit).await,
            Err(attempt) => attempt,
        }
    }

    /// Returns the access token for a call of `tenant`, or `None` if calls carry none. The error says what becomes of the job: a missing
    /// token that all tenants share is the API's failure, and a missing token of `tenant` is the tenant's own.
    async fn token(
        &self,
        tenant: &Tenant,
        deadline: Instant,
    ) -> Result<Option<Arc<Token>>, Attempt> {
        let Some(tokens) = &self.tokens else {
            return Ok(None);
        };
        match tokens.wait(tenant, deadline).await {
            Ok(token) => Ok(Some(token)),
            Err(NoToken::InTime(why)) => {
                let is_shortage = why.as_ref().is_some_and(|why| why.is_shortage);
                let why = why.map_or(String::new(), |it| format!(": {}", it.why));
                let why = format!("{}{why}", self.too_late("no access token"));
                let trouble = match is_shortage {
                    true => Trouble::Local,
                    false => Trouble::Unreachable,
                };
                Err(unprepared(trouble, why))
            }
            Err(NoToken::Failed(why)) => Err(unprepared(
                Trouble::Tenant,
                format!("no access token: {why}"),
            )),
            Err(NoToken::Pending(after)) => Err(Outcome::Snooze { after }.into()),
            Err(NoToken::Short(why)) => Err(unprepared(
                Trouble::Local,
                format!("no access token: {why}"),
            )),
            Err(NoToken::NoClient(why)) => Err(why.into()),
        }
    }

    /// Returns a connection on which a request can be sent at once. The error says what becomes of a job without one.
    async fn open(&self, deadline: Instant) -> Result<Pooled, Attempt> {
        let why = match timeout_at(deadline, self.pool.open()).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(why)) => why,
            Err(_) => {
                let why = self.too_late("no connection");
                return Err(unprepared(Trouble::Unreachable, why));
            }
        };
        let trouble = shortage::of(why.as_ref()).map_or(Trouble::Unreachable, |_| Trouble::Local);
        let why = no_connection(why.as_ref(), self.encrypted);
        Err(unprepared(trouble, format!("no connection: {why}")))
    }

    /// A connection with `token`, if one is free.
    fn with(&self, token: Option<Arc<Token>>) -> Option<Ready> {
        let connection = self.pool.take()?;
        Some(Ready { connection, token })
    }

    fn too_late(&self, what: &str) -> String {
        let timeout = self.timeout;
        format!("{what} within {timeout:?} (dispatch.http.timeout)")
    }
}

impl PreparingHandler for HttpHandler {
    type Ready = Ready;

    fn at_once(&self) -> Option<Ready> {
        match &self.tokens {
            Some(tokens) => tokens.usable().and_then(|token| self.with(Some(token))),
            None => self.with(None),
        }
    }

    fn at_once_for(&self, tenant: &Tenant) -> Option<Ready> {
        match &self.tokens {
            Some(tokens) => {
                let token = tokens.usable_for(tenant)?;
                self.with(Some(token))
            }
            None => self.with(None),
        }
    }

    async fn prepare(&self, job: &Job) -> Result<Ready, Attempt> {
        let deadline = Instant::now() + self.timeout;
        let token = self.token(&job.tenant, deadline).await?;
        // It may not have been a connection that was missing.
        if token.is_some()
            && let Some(connection) = self.pool.take()
        {
            return Ok(Ready { connection, token });
        }
        let connection = self.open(deadline).await?;
        Ok(Ready { connection, token })
    }

    fn is_ready(&self, ready: &mut Ready) -> bool {
        let is_usable = |token: &Arc<Token>| token.is_usable();
        ready.connection.is_ready() && ready.token.as_ref().is_none_or(is_usable)
    }

    async fn send(&self, job: &Job, ready: Ready, permit: Permit) -> Attempt {
        match self.exchange(job, ready, permit).await {
            Ok(answer) => {
                if let (Some(tokens), Some(token)) = (&self.tokens, &answer.token)
                    && answer.status == StatusCode::UNAUTHORIZED
                {
                    tokens.refused(&job.tenant, token);
                }
                self.reader.read(answer)
            }
            Err(attempt) => attempt,
        }
    }
}

fn failed(reason: String) -> Outcome {
    Outcome::Retry {
        after: None,
        reason,
    }
}
