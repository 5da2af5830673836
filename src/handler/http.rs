//! Sends each job to an API over HTTP and turns the answer into an [`Outcome`]. It speaks HTTP/2 if
//! a server with TLS offers it, and HTTP/1.1 otherwise.
//!
//! A request has the configured method and the job's body, content encoding and content type
//! (`application/octet-stream` if the job has none that fits into a header). Its headers are
//! `x-tenant`, `x-job-id` and `x-attempt`, and the configured ones. Tenant and ID are sent in
//! UTF-8. Only `%` and what no header can carry (control characters, and spaces at either end) are
//! percent-encoded. Percent-decoding therefore restores the exact text, and two tenants or IDs
//! never look the same. A user and password in the URL are sent as Basic authorization.
//! Placeholders in configured headers and in the URL are replaced with values of the job
//! (`rules::job::call`). Access tokens are fetched and renewed in the background. A call that needs
//! one is not made without it.
//!
//! The status and headers of an answer decide its meaning, and its body if a rule needs it
//! (`rules::answers`). The body is read up to a bound, so that the connection can be reused. A body
//! that breaks off or hangs matches no rule and changes nothing else.
//!
//! One call of [`PreparingHandler::send`] makes at most one request, since it costs one permit.
//! Redirects are therefore not followed, and nothing is sent twice. Preparation opens a connection
//! (name, TCP, TLS) or reserves a stream of a shared one, because opening one can take longer than
//! a permit is valid. If the connection turns out to be closed before a byte of the request was
//! written, or the API reports that it did nothing with the request, the permit is given back and
//! the job asks again with another connection. A server that closes unused connections at once
//! counts as unreachable.

mod abandoned;
mod advice;
mod answer;
mod bounded;
mod call;
mod connection;
mod hosts;
mod openings;
mod pool;
mod proxy;
mod reach;
mod redaction;
mod requests;
mod result_fields;
mod secrets;
mod send;
mod server;
mod setup;
mod shared_connection;
mod sign;
mod socket;
mod stream;
mod text;
mod token_endpoint;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use tokio::time::{Instant, timeout_at};

use super::verdicts::unprepared;
use super::{Attempt, Outcome, Permit, PreparingHandler, Trouble};
use abandoned::CallAbandoner;
use advice::no_connection;
use answer::AnswerReader;
use hosts::Hosts;
use pool::{Pool, PooledConnection};
pub use reach::{Reach, reach};
use requests::{NoRequest, Requests};
use rules::job::Job;
use rules::tenant::Tenant;
use server::Server;
pub use setup::HttpHandlerError;
use token_endpoint::TokenError;
use tokens::{AccessToken, NoToken, Tokens};

/// Calls one API.
pub struct HttpHandler {
    pool: Arc<Pool>,
    hosts: Hosts,
    abandoned: CallAbandoner,
    /// Whether connections use TLS.
    encrypted: bool,
    requests: Requests,
    /// Access tokens, if calls carry one.
    tokens: Option<Tokens>,
    timeout: Duration,
    /// Interprets answers.
    reader: AnswerReader,
}

/// Everything that a call needs beside its permit.
pub struct ReadyCall {
    server: Arc<Server>,
    /// A connection to it on which a request can be sent at once.
    connection: PooledConnection,
    /// The access token, if calls carry one.
    token: Option<Arc<AccessToken>>,
}

impl HttpHandler {
    /// Prepares and sends the call for `job` at once, if `permit` is still valid after the
    /// preparation.
    pub async fn handle(&self, job: &Job, permit: Permit) -> Outcome {
        self.attempt(job, permit).await.outcome
    }

    /// Does what [`HttpHandler::handle`] does and also returns the answer's other information. It
    /// is for handlers that wrap this one: a worker prepares before it asks for the permit.
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

    /// Returns the access token for a call of `tenant`, or `None` if calls carry none. The error is
    /// the attempt of the job. A missing token that all tenants share is a failure of the API; a
    /// missing token of `tenant` is a failure of that tenant.
    async fn token(
        &self,
        tenant: &Tenant,
        deadline: Instant,
    ) -> Result<Option<Arc<AccessToken>>, Attempt> {
        let Some(tokens) = &self.tokens else {
            return Ok(None);
        };
        match tokens.wait(tenant, deadline).await {
            Ok(token) => Ok(Some(token)),
            Err(NoToken::InTime(why)) => {
                let is_local = (why.as_ref()).is_some_and(|why| why.trouble == Trouble::Local);
                let why = why.map_or(String::new(), |it| format!(": {}", it.why));
                let why = format!("{}{why}", self.too_late("no access token"));
                let trouble = match is_local {
                    true => Trouble::Local,
                    false => Trouble::Unreachable,
                };
                Err(unprepared(trouble, why))
            }
            Err(NoToken::Failed(TokenError { why, trouble })) => {
                Err(unprepared(trouble, format!("no access token: {why}")))
            }
            Err(NoToken::Pending(after)) => Err(Outcome::Snooze { after }.into()),
            Err(NoToken::NoClient(why)) => Err(why.into()),
        }
    }

    /// Returns a connection to `server` on which a request can be sent at once. The error is the
    /// attempt of a job without one.
    async fn open(
        &self,
        server: &Arc<Server>,
        deadline: Instant,
    ) -> Result<PooledConnection, Attempt> {
        let opened = match timeout_at(deadline, self.pool.open(server)).await {
            Ok(Ok(connection)) if server.closes_unused() => Ok(connection.tried(deadline).await),
            opened => opened,
        };
        let why = match opened {
            Ok(Ok(connection)) => {
                self.hosts.reached();
                return Ok(connection);
            }
            Ok(Err(why)) => why,
            Err(_) => {
                let why = self.too_late("no connection");
                return Err(unprepared(self.hosts.unreached(server, None), why));
            }
        };
        let trouble = self.hosts.unreached(server, Some(why.as_ref()));
        let why = no_connection(why.as_ref(), self.encrypted);
        Err(unprepared(trouble, format!("no connection: {why}")))
    }

    /// Returns a free connection to `server` together with `token`, if there is one.
    fn with(&self, server: Arc<Server>, token: Option<Arc<AccessToken>>) -> Option<ReadyCall> {
        let connection = self.pool.take(&server)?;
        Some(ReadyCall {
            server,
            connection,
            token,
        })
    }

    fn too_late(&self, what: &str) -> String {
        let timeout = self.timeout;
        format!("{what} within {timeout:?} (dispatch.http.timeout)")
    }
}

// Not for authors of workers, who see the pages of the trait.
#[doc(hidden)]
impl PreparingHandler for HttpHandler {
    type Ready = ReadyCall;

    fn at_once(&self) -> Option<ReadyCall> {
        let Hosts::One(server) = &self.hosts else {
            return None;
        };
        let token = match &self.tokens {
            Some(tokens) => Some(tokens.usable()?),
            None => None,
        };
        self.with(Arc::clone(server), token)
    }

    fn at_once_for(&self, tenant: &Tenant) -> Option<ReadyCall> {
        let server = self.hosts.of_tenant(tenant, &self.pool)?;
        let token = match &self.tokens {
            Some(tokens) => Some(tokens.usable_for(tenant)?),
            None => None,
        };
        self.with(server, token)
    }

    fn set_concurrency(&self, calls: usize) {
        self.pool.set_max(calls);
        self.abandoned.raise(calls);
    }

    async fn prepare(&self, job: &Job) -> Result<ReadyCall, Attempt> {
        let deadline = Instant::now() + self.timeout;
        let server = self.hosts.of(job, &self.pool);
        let server = server.map_err(|why| Attempt::from(NoRequest::Permanent(why)))?;
        let token = self.token(&job.tenant, deadline).await?;
        // The job may have lacked only a token, or its server was not known: use a free connection
        // if there is one.
        let connection = match self.pool.take(&server) {
            Some(connection) => connection,
            None => self.open(&server, deadline).await?,
        };
        Ok(ReadyCall {
            server,
            connection,
            token,
        })
    }

    fn is_ready(&self, ready: &mut ReadyCall) -> bool {
        let is_usable = |token: &Arc<AccessToken>| token.is_usable();
        ready.connection.is_ready() && ready.token.as_ref().is_none_or(is_usable)
    }

    async fn send(&self, job: &Job, ready: ReadyCall, permit: Permit) -> Attempt {
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
