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
mod answered;
mod bounded;
mod call;
mod connection;
mod openings;
mod pool;
mod proxy;
mod reach;
mod redaction;
mod requests;
mod secrets;
mod shared;
mod sign;
mod socket;
mod stream;
mod text;
mod token_endpoint;
mod tokens;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderMap};
use hyper_util::client::proxy::matcher::Matcher;
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::{Answered, Attempt, Fate, Outcome, Permit, PreparingHandler, Trouble};
use crate::config::{Http, OAuth2, Results};
use crate::rules::answers::{Answers, Meaning, Pushback, Verdict, verdict};
use crate::rules::job::Job;
use crate::rules::tenant::Tenant;
use crate::tls;
use abandoned::Abandoned;
use answered::Kept;
use call::{Exchange, Failure, Sent};
use pool::{Pool, Pooled};
use proxy::Proxy;
pub use reach::{Reach, reach};
use redaction::{Redaction, drop_begun, hide};
use requests::Requests;
use text::{explain, one_line};
use token_endpoint::Endpoint;
use tokens::{NoToken, Token, Tokens};

/// So much of an answer's body is read, in bytes; a connection with more to come is closed.
const MAX_BODY: usize = 64 * 1024;
/// So much of it is kept, in bytes: what is shown, and room for a secret that crosses its end.
const KEPT: usize = 4 * 1024;

/// Where the keys of TLS stand in the configuration.
const SECTION: &str = "dispatch.http";

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
    /// What an answer means.
    answers: Answers,
    /// What an API that echoes our request must not bring into a reason.
    redaction: Redaction,
    /// What is kept of answers for results; `None`: nobody wants them.
    kept: Option<Kept>,
}

/// What a call needs beside its permit.
pub struct Ready {
    /// On which a request can be sent at once.
    connection: Pooled,
    /// Where calls carry one.
    token: Option<Arc<Token>>,
}

/// A request on its way.
struct Begun {
    exchange: Exchange,
    /// As in [`Answer`].
    secret: Option<Arc<str>>,
    token: Option<Arc<Token>>,
}

/// What came back for a request.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    /// The first bytes of the body.
    start: Vec<u8>,
    /// There was more of it, or there may have been.
    cut: bool,
    /// The secret of its job's tenant, which it may echo.
    secret: Option<Arc<str>>,
    /// The access token that the call carried, which it may echo, too.
    token: Option<Arc<Token>>,
}

impl Answer {
    /// What its call had for itself that nobody else may see.
    fn secrets(&self) -> impl Iterator<Item = &str> {
        let of_tenant = self.secret.iter();
        let of_tenant = of_tenant.flat_map(|secret| secret.split_whitespace());
        of_tenant.chain(self.token.iter().map(|token| &*token.text))
    }
}

/// Why there can be no client; no text of it holds a part of the url.
#[derive(Debug, thiserror::Error)]
pub enum HttpHandlerError {
    /// The url can't be read.
    #[error("url: {0}; it has the form http://host:port/path")]
    Url(#[from] url::ParseError),
    /// The url's scheme is another one.
    #[error("url: it begins with neither http:// nor https://")]
    Scheme,
    /// The url holds what no request can carry.
    #[error("url: {0}; percent-encode what is not a letter or a digit")]
    Unsendable(String),
    /// TLS can't be set up: a file can't be used, or the system has no root certificates.
    #[error("TLS: {0}")]
    Tls(String),
    /// The url of access tokens holds what no request can carry.
    #[error("oauth2.token-url: {0}; percent-encode what is not a letter or a digit")]
    TokenUrl(String),
    /// The proxy can't be used.
    #[error("{0}")]
    Proxy(String),
}

impl HttpHandler {
    /// A handler that calls `http.url`, with up to `concurrency` connections kept open between calls. Of an `https`
    /// url the files in `http.tls` are read, once: blocks.
    ///
    /// # Errors
    /// [`HttpHandlerError`] when the url can't be used or TLS can't be set up.
    pub fn new(http: &Http, concurrency: usize) -> Result<Self, HttpHandlerError> {
        Self::through(http, concurrency, None)
    }

    /// As [`HttpHandler::new`]; where `http` names no proxy, the environment's counts (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`,
    /// `NO_PROXY`).
    ///
    /// # Errors
    /// [`HttpHandlerError`] as there, and when the proxy can't be used.
    pub fn in_environment(http: &Http, concurrency: usize) -> Result<Self, HttpHandlerError> {
        Self::through(http, concurrency, Some(&Matcher::from_env()))
    }

    fn through(
        http: &Http,
        concurrency: usize,
        environment: Option<&Matcher>,
    ) -> Result<Self, HttpHandlerError> {
        let url = Url::parse(http.url.expose())?;
        let encrypted = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return Err(HttpHandlerError::Scheme),
        };
        // A worker without TLS must not fail where the system has no root certificates.
        let tls = match encrypted || http.oauth2.as_ref().is_some_and(OAuth2::has_tls) {
            true => tls::client(&http.tls),
            false => tls::nobody(),
        };
        let tls = tls.map_err(HttpHandlerError::Tls)?;
        let requests = Requests::to(&url, http).map_err(HttpHandlerError::Unsendable)?;
        let tokens = http.oauth2.as_ref().map(|oauth2| {
            let endpoint = Endpoint::new(oauth2, tls.clone(), http.timeout, |server| {
                Proxy::of(http, environment, server)
            });
            let tokens = endpoint.and_then(|endpoint| Tokens::new(endpoint, http));
            tokens.map_err(HttpHandlerError::TokenUrl)
        });
        let answers = http.answers.clone();
        let proxy = Proxy::of(http, environment, &requests.whole);
        let proxy = proxy.map_err(HttpHandlerError::Proxy)?;
        if let Some(proxy) = &proxy {
            tracing::info!(proxy = %proxy.url(), "calls go through a proxy");
        }
        Ok(Self {
            pool: Pool::new(
                (requests.whole.clone(), proxy),
                (tls, http.http2),
                http.timeout,
                concurrency,
            ),
            abandoned: Abandoned::new(http.abandoned, concurrency),
            concurrency,
            refused: AtomicUsize::new(0),
            encrypted,
            redaction: Redaction::of(&url, http, &requests.headers),
            requests,
            answers: match &http.oauth2 {
                Some(_) => answers.renewing_tokens(),
                None => answers,
            },
            tokens: tokens.transpose()?,
            timeout: http.timeout,
            kept: None,
        })
    }

    /// A handler that keeps of each answer what `results` tell.
    #[must_use]
    pub fn with_results(mut self, results: &Results) -> Self {
        self.kept = Kept::new(results);
        self
    }

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
            Err(outcome) => Attempt {
                fate: Fate::Unwritten,
                trouble: Some(Trouble::Unreachable),
                ..outcome.into()
            },
        }
    }

    /// The access token of a call of `tenant`, where calls carry one. The error is what becomes of its job.
    async fn token(
        &self,
        tenant: &Tenant,
        deadline: Instant,
    ) -> Result<Option<Arc<Token>>, Outcome> {
        let Some(tokens) = &self.tokens else {
            return Ok(None);
        };
        match tokens.wait(tenant, deadline).await {
            Ok(token) => Ok(Some(token)),
            Err(NoToken::InTime(why)) => {
                let why = why.map_or(String::new(), |why| format!(": {why}"));
                Err(failed(format!("{}{why}", self.too_late("no access token"))))
            }
            Err(NoToken::Failed(why)) => Err(failed(format!("no access token: {why}"))),
            Err(NoToken::NoClient(why)) => Err(why.into()),
        }
    }

    /// A connection on which a request can be sent at once. The error says why there is none.
    async fn open(&self, deadline: Instant) -> Result<Pooled, String> {
        let why = match timeout_at(deadline, self.pool.open()).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(why)) => why,
            Err(_) => return Err(self.too_late("no connection")),
        };
        let advice = match self.encrypted {
            true => tls::setup_advice(why.as_ref(), SECTION),
            false => None,
        };
        Err(format!("no connection: {}", told(why.as_ref(), advice)))
    }

    /// A connection with `token`, if one is free.
    fn with(&self, token: Option<Arc<Token>>) -> Option<Ready> {
        let connection = self.pool.take()?;
        Some(Ready { connection, token })
    }

    /// Begins to send a request. The error is what becomes of a job of which none was sent.
    fn begin(&self, job: &Job, ready: Ready, permit: &Permit) -> Result<Begun, Box<Attempt>> {
        let Ready { connection, token } = ready;
        let made = self.requests.of(job);
        let mut made = made.map_err(|why| {
            Box::new(Attempt {
                fate: Fate::Unwritten,
                // The API has no part in it.
                trouble: None,
                ..Outcome::from(why).into()
            })
        })?;
        if let Some(token) = &token {
            // It has expired, or was refused, since it was looked at: the job asks again, with the next one.
            if !token.is_usable() {
                return Err(Box::new(Outcome::Late.into()));
            }
            let headers = made.request.headers_mut();
            headers.insert(AUTHORIZATION, token.header.clone());
        }
        // From here to the first poll of what sends, there is nothing to wait for.
        let connection = Some(connection).filter(|_| permit.is_good());
        let sent = connection.and_then(|free| free.send(made.request, &made.whole));
        let Some(exchange) = sent else {
            return Err(Box::new(Outcome::Late.into()));
        };
        // A proxy acknowledges what the API may see much later, or never.
        if self.pool.is_direct() {
            exchange.is_written_by(permit);
        }
        Ok(Begun {
            exchange,
            secret: made.secret,
            token,
        })
    }

    /// Sends one request at most. The error is what becomes of a job without an answer.
    async fn exchange(&self, job: &Job, ready: Ready, permit: Permit) -> Result<Answer, Attempt> {
        let deadline = Instant::now() + self.timeout;
        let Begun {
            mut exchange,
            secret,
            token,
        } = self
            .begin(job, ready, &permit)
            .map_err(|attempt| *attempt)?;
        match timeout_at(deadline, exchange.answer()).await {
            Ok(Sent::Answered(head)) => {
                self.refused.store(0, Ordering::Relaxed);
                let mut start = Vec::new();
                // A body that breaks off or does not end in time has told what it could.
                // One byte more shows that there are more.
                let keep = self.kept.as_ref().map_or(0, |kept| kept.max_body + 1);
                let read = read_start(&mut exchange, &mut start, keep.max(KEPT));
                let ended = timeout_at(deadline, read).await == Ok(true);
                if let Some(connection) = exchange.into_connection().filter(|_| ended) {
                    self.pool.put_back(connection);
                }
                Ok(Answer {
                    status: head.status,
                    headers: head.headers,
                    cut: !ended,
                    start,
                    secret,
                    token,
                })
            }
            Ok(Sent::Unwritten) => Err(Outcome::Late.into()),
            Ok(Sent::Refused(why)) => Err(self.refused(&why)),
            Ok(Sent::Failed(why)) => {
                let words = told(&why, tls::advice(&why, SECTION));
                Err(Attempt {
                    fate: self.abandoned.failed(&why),
                    ..failed(format!("no answer: {words}")).into()
                })
            }
            Err(_) => Err(Attempt {
                fate: self.abandoned.give_up(exchange),
                ..failed(self.too_late("no answer")).into()
            }),
        }
    }

    /// What becomes of a job that the API refused and did nothing with: it asks again. One that does nothing but refuse is
    /// out of order.
    fn refused(&self, why: &Failure) -> Attempt {
        if self.refused.fetch_add(1, Ordering::Relaxed) < self.concurrency {
            return Outcome::Late.into();
        }
        Attempt {
            trouble: Some(Trouble::Unreachable),
            ..failed(format!("no answer: {}", told(why, None))).into()
        }
    }

    fn too_late(&self, what: &str) -> String {
        let timeout = self.timeout;
        format!("{what} within {timeout:?} (dispatch.http.timeout)")
    }

    fn outcome(&self, answer: &Answer, verdict: &Verdict) -> Outcome {
        let after = verdict.seen.refused.and_then(|Pushback { after }| after);
        match verdict.meaning {
            Meaning::Done => Outcome::Done,
            Meaning::Throttle => Outcome::Throttled {
                after,
                reason: self.reason(answer),
            },
            Meaning::Reject => Outcome::Reject {
                reason: self.reason(answer),
            },
            Meaning::Retry => failed(self.reason(answer)),
        }
    }

    /// The answer in words.
    fn reason(&self, answer: &Answer) -> String {
        let status = answer.status;
        let mut reason = format!("the API answered {}", status.as_str());
        if let Some(name) = status.canonical_reason() {
            reason = format!("{reason} {name}");
        }
        if status.is_redirection() {
            reason.push_str(" (a redirect; it is not followed)");
        }
        let shown = self.shown(answer);
        if !shown.is_empty() {
            reason = format!("{reason}: {shown}");
        }
        reason
    }

    /// The first bytes of the body as one line of text, without our secrets.
    fn shown(&self, answer: &Answer) -> String {
        let kept = answer.start.len().min(KEPT);
        let secrets = self.redaction.with(answer.secrets());
        let mut text = hide(&answer.start[..kept], &secrets);
        if !answer.cut && answer.start.len() < KEPT {
            return one_line(&String::from_utf8_lossy(&text));
        }
        drop_begun(&mut text, &secrets);
        let text = String::from_utf8_lossy(&text);
        // The first bytes of a character.
        one_line(text.trim_end_matches(char::REPLACEMENT_CHARACTER))
    }

    /// What is told of the answer in its job's result.
    fn answered(&self, answer: Answer) -> Option<Box<Answered>> {
        let kept = self.kept.as_ref()?;
        let secrets = self.redaction.with(answer.secrets());
        let (status, start) = (answer.status.as_u16(), (answer.start, answer.cut));
        let answered = kept.answered(status, &answer.headers, start, &secrets);
        Some(Box::new(answered))
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

    async fn prepare(&self, job: &Job) -> Result<Ready, Outcome> {
        let deadline = Instant::now() + self.timeout;
        let token = self.token(&job.tenant, deadline).await?;
        // It may not have been a connection that was missing.
        if token.is_some()
            && let Some(connection) = self.pool.take()
        {
            return Ok(Ready { connection, token });
        }
        let connection = self.open(deadline).await.map_err(failed)?;
        Ok(Ready { connection, token })
    }

    fn is_ready(&self, ready: &mut Ready) -> bool {
        let is_usable = |token: &Arc<Token>| token.is_usable();
        ready.connection.is_ready() && ready.token.as_ref().is_none_or(is_usable)
    }

    async fn send(&self, job: &Job, ready: Ready, permit: Permit) -> Attempt {
        match self.exchange(job, ready, permit).await {
            Ok(answer) => {
                let headers = answer.headers.iter();
                let headers = headers.map(|(name, value)| (name.as_str(), value.as_bytes()));
                let status = answer.status.as_u16();
                if let (Some(tokens), Some(token)) = (&self.tokens, &answer.token)
                    && answer.status == StatusCode::UNAUTHORIZED
                {
                    tokens.refused(&job.tenant, token);
                }
                let verdict = verdict(&self.answers, status, headers, SystemTime::now());
                let outcome = self.outcome(&answer, &verdict);
                let mut seen = verdict.seen;
                // Another status is another matter: limits learn nothing from it.
                seen.refused = seen
                    .refused
                    .filter(|_| answer.status == StatusCode::TOO_MANY_REQUESTS);
                // Another status that is mapped to a retry is the job's affair.
                let fails = verdict.meaning == Meaning::Retry && answer.status.is_server_error();
                Attempt {
                    outcome,
                    seen,
                    fate: Fate::Answered,
                    trouble: fails.then_some(Trouble::Failing),
                    answered: self.answered(answer),
                }
            }
            Err(attempt) => attempt,
        }
    }
}

/// Reads to the body's end or [`MAX_BODY`], or as far as it is kept: the first `keep` bytes, in `kept`. Whether it was the end.
async fn read_start(exchange: &mut Exchange, kept: &mut Vec<u8>, keep: usize) -> bool {
    let mut read = 0;
    while read < MAX_BODY.max(keep) {
        let chunk = match exchange.next().await {
            Some(Ok(chunk)) => chunk,
            Some(Err(_)) => return false,
            None => return true,
        };
        read += chunk.len();
        let room = keep - kept.len();
        kept.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }
    false
}

/// The error, and what to do about it.
fn told(why: &(dyn Error + 'static), advice: Option<String>) -> String {
    let words = explain(why);
    match advice {
        Some(advice) => format!("{words} ({advice})"),
        None => words,
    }
}

fn failed(reason: String) -> Outcome {
    Outcome::Retry {
        after: None,
        reason,
    }
}
