//! Sends each job to a downstream API over HTTP/1.1, and turns the answer into an [`Outcome`].
//!
//! What is sent: POST with the job's body and content type (`application/octet-stream` where the job has none
//! that fits into a header), `x-tenant`, `x-job-id` and `x-attempt`. Tenant and id are sent as they are, in
//! UTF-8; only what no header can carry, control characters and spaces at either end, is percent-encoded, and
//! `%` itself: percent-decoding gives the very text, and two tenants or ids never look the same.
//! A user and password in the url are sent as Basic authorization, and the configured headers as they are.
//!
//! What the answer means is decided by its status and headers. Its body is read as far as a connection that
//! can be used again is worth it; when it breaks off or hangs, that changes nothing.
//!
//! One call of [`Handler::handle`] is at most one request: it has cost one permit. So redirects are not followed,
//! and nothing is sent twice. The permit is looked at when a connection is open and the request could go out at
//! once, since opening one (name, TCP, TLS) can take longer than a permit is good for; a connection
//! that came too late waits in the pool for the next call. (Where a reused connection turns out to be closed
//! before a byte of the request was written, the request goes over a new one, after another look at the permit;
//! the downstream has seen nothing of it.)

mod connection;
mod pool;
mod text;

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http_body_util::Full;
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
    USER_AGENT,
};
use hyper::{Method, Request, StatusCode, Uri};
use percent_encoding::percent_decode_str;
use tokio::time::{Instant, timeout_at};
use url::{Position, Url};

use super::{Attempt, Handler, Outcome, Permit, Trouble};
use crate::config::Http;
use crate::rules::answers::{Answers, Meaning};
use crate::rules::job::Job;
use crate::rules::pushback::{Pushback, Verdict, verdict};
use crate::tls;
use connection::{Connection, Sent};
use pool::Pool;
use text::{explain, one_line};

/// So much of an answer's body is read, in bytes; a connection with more to come is closed.
const MAX_BODY: usize = 64 * 1024;
/// So much of it is kept, in bytes: what is shown, and room for a secret that crosses its end.
const KEPT: usize = 4 * 1024;

/// A configured header's value that is shorter, in bytes, is no secret.
const SHORTEST_SECRET: usize = 8;

/// Where the keys of TLS stand in the configuration.
const SECTION: &str = "dispatch.http";

/// Calls one downstream API.
pub struct HttpHandler {
    pool: Arc<Pool>,
    /// With TLS.
    encrypted: bool,
    /// Path and query: what a request's first line names.
    target: Uri,
    /// What every request carries: the host, user and password of the url, and what is configured.
    headers: HeaderMap,
    timeout: Duration,
    /// What an answer means.
    answers: Answers,
    /// What a downstream that echoes our request must not bring into a reason.
    secrets: Vec<String>,
}

/// What came back for a request.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    /// The first bytes of the body.
    start: Vec<u8>,
    /// There was more of it, or there may have been.
    cut: bool,
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
}

impl HttpHandler {
    /// A handler that calls `http.url`, with up to `concurrency` connections kept open between calls. Of an `https`
    /// url the files in `http.tls` are read, once: blocks.
    ///
    /// # Errors
    /// [`HttpHandlerError`] when the url can't be used or TLS can't be set up.
    pub fn new(http: &Http, concurrency: usize) -> Result<Self, HttpHandlerError> {
        let url = Url::parse(http.url.expose())?;
        let tls = match url.scheme() {
            // A worker without TLS must not fail where the system has no root certificates.
            "http" => tls::nobody(),
            "https" => tls::client(&http.tls),
            _ => return Err(HttpHandlerError::Scheme),
        };
        let uri = |text: &str| {
            text.parse::<Uri>()
                .map_err(|why| HttpHandlerError::Unsendable(why.to_string()))
        };
        let host = &url[Position::BeforeHost..Position::AfterPort];
        let server = uri(&format!("{}://{host}/", url.scheme()))?;
        let target = uri(&url[Position::BeforePath..Position::AfterQuery])?;
        let mut headers = HeaderMap::new();
        let host = HeaderValue::from_str(host)
            .map_err(|why| HttpHandlerError::Unsendable(why.to_string()))?;
        headers.insert(HOST, host);
        let agent = concat!("sluicegate/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        if let Some(basic) = basic_authorization(&url) {
            headers.insert(AUTHORIZATION, basic);
        }
        for (name, value) in &http.headers {
            headers.insert(name, value.clone());
        }
        Ok(Self {
            pool: Pool::new(
                server,
                tls.map_err(HttpHandlerError::Tls)?,
                http.timeout,
                concurrency,
            ),
            encrypted: url.scheme() == "https",
            secrets: secrets(&url, &http.headers, &headers),
            target,
            headers,
            timeout: http.timeout,
            answers: http.answers.clone(),
        })
    }

    /// Sends one request at most. The error is what becomes of a job without an answer.
    async fn exchange(&self, job: &Job, permit: Permit) -> Result<Answer, Attempt> {
        if !permit.is_good() {
            return Err(Outcome::Late.into());
        }
        let deadline = Instant::now() + self.timeout;
        let mut pooled = self.pool.take();
        loop {
            let reused = pooled.is_some();
            let mut connection = match pooled.take() {
                Some(connection) => connection,
                None => match timeout_at(deadline, self.pool.open()).await {
                    Ok(Ok(connection)) => connection,
                    Ok(Err(why)) => {
                        let advice = match self.encrypted {
                            true => tls::setup_advice(why.as_ref(), SECTION),
                            false => None,
                        };
                        let words = told(why.as_ref(), advice);
                        return Err(unreachable(format!("no connection: {words}")));
                    }
                    Err(_) => return Err(unreachable(self.too_late("no connection"))),
                },
            };
            let request = self.request(job);
            match timeout_at(deadline, connection.send(request, permit)).await {
                Ok(Sent::Answered(answer)) => {
                    let (head, body) = answer.into_parts();
                    let mut start = Vec::new();
                    // A body that breaks off or does not end in time has told what it could.
                    let read = read_start(&mut connection, body, &mut start);
                    let ended = timeout_at(deadline, read).await == Ok(true);
                    if ended {
                        self.pool.put(connection);
                    }
                    return Ok(Answer {
                        status: head.status,
                        headers: head.headers,
                        cut: !ended || start.len() == KEPT,
                        start,
                    });
                }
                Ok(Sent::Late) => {
                    self.pool.put(connection);
                    return Err(Outcome::Late.into());
                }
                // A new connection is tried once.
                Ok(Sent::Unwritten(_)) if reused => {}
                Ok(Sent::Unwritten(why) | Sent::Failed(why)) => {
                    let words = told(&why, tls::advice(&why, SECTION));
                    return Err(failed(format!("no answer: {words}")).into());
                }
                Err(_) => return Err(failed(self.too_late("no answer")).into()),
            }
        }
    }

    fn request(&self, job: &Job) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(job.body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.target.clone();
        let headers = request.headers_mut();
        headers.clone_from(&self.headers);
        let content_type = job.content_type.as_deref().filter(|text| !text.is_empty());
        let content_type =
            content_type.and_then(|text| HeaderValue::from_bytes(text.as_bytes()).ok());
        let bytes = HeaderValue::from_static("application/octet-stream");
        headers.insert(CONTENT_TYPE, content_type.unwrap_or(bytes));
        // The client leaves it out for an empty body, and some servers insist on it (411).
        headers.insert(CONTENT_LENGTH, job.body.len().into());
        let mut set = |name, value| headers.insert(HeaderName::from_static(name), value);
        set("x-tenant", header_value(job.tenant.as_str()));
        set("x-job-id", header_value(&job.id));
        set("x-attempt", job.attempt.into());
        request
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
        let mut reason = format!("the downstream answered {}", status.as_str());
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
        let mut text = String::from_utf8_lossy(&answer.start).into_owned();
        for secret in &self.secrets {
            text = text.replace(secret, "***");
        }
        if answer.cut {
            drop_begun(&mut text, &self.secrets);
        }
        one_line(&text)
    }
}

impl Handler for HttpHandler {
    async fn handle(&self, job: &Job, permit: Permit) -> Outcome {
        self.attempt(job, permit).await.outcome
    }

    async fn attempt(&self, job: &Job, permit: Permit) -> Attempt {
        match self.exchange(job, permit).await {
            Ok(answer) => {
                let headers = answer.headers.iter();
                let headers = headers.map(|(name, value)| (name.as_str(), value.as_bytes()));
                let status = answer.status.as_u16();
                let verdict = verdict(&self.answers, status, headers, SystemTime::now());
                let outcome = self.outcome(&answer, &verdict);
                // Another status that is mapped to a retry is the job's affair.
                let fails = verdict.meaning == Meaning::Retry && answer.status.is_server_error();
                Attempt {
                    outcome,
                    seen: verdict.seen,
                    trouble: fails.then_some(Trouble::Failing),
                }
            }
            Err(attempt) => attempt,
        }
    }
}

/// Reads to the body's end or [`MAX_BODY`], and keeps the first [`KEPT`] bytes in `kept`. Whether it was the end.
async fn read_start(connection: &mut Connection, mut body: Incoming, kept: &mut Vec<u8>) -> bool {
    let mut read = 0;
    while read < MAX_BODY {
        if body.is_end_stream() {
            return true;
        }
        let frame = match connection.next(&mut body).await {
            Some(Ok(frame)) => frame,
            Some(Err(_)) => return false,
            None => return true,
        };
        // The other frames are trailers, which say nothing about the job.
        if let Some(chunk) = frame.data_ref() {
            read += chunk.len();
            let room = KEPT - kept.len();
            kept.extend_from_slice(&chunk[..chunk.len().min(room)]);
        }
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

/// The job was not to be seen: that is nobody's fault but the API's, or of the way there.
fn unreachable(reason: String) -> Attempt {
    Attempt {
        trouble: Some(Trouble::Unreachable),
        ..failed(reason).into()
    }
}

fn failed(reason: String) -> Outcome {
    Outcome::Retry {
        after: None,
        reason,
    }
}

/// The url's user and password. Both are percent-encoded there, and as they are in the header.
fn basic_authorization(url: &Url) -> Option<HeaderValue> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let mut pair: Vec<u8> = percent_decode_str(url.username()).collect();
    pair.push(b':');
    pair.extend(percent_decode_str(url.password().unwrap_or_default()));
    let text = format!("Basic {}", BASE64_STANDARD.encode(pair));
    let mut value = HeaderValue::from_str(&text).expect("base64 is ASCII");
    value.set_sensitive(true);
    Some(value)
}

/// `text` as a header's value. Bytes that are not ASCII are allowed there (RFC 9110, 5.5: opaque data).
fn header_value(text: &str) -> HeaderValue {
    let mut value = Vec::with_capacity(text.len());
    let last = text.len().saturating_sub(1);
    for (at, byte) in text.bytes().enumerate() {
        // A receiver drops spaces at the ends: another tenant could be meant then.
        let dropped = byte == b' ' && (at == 0 || at == last);
        if byte.is_ascii_control() || byte == b'%' || dropped {
            value.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            value.push(byte);
        }
    }
    HeaderValue::from_bytes(&value).expect("all that a header can't carry has been encoded")
}

/// Takes from the end of `text`, which goes on elsewhere, what may be the beginning of one of `secrets`.
fn drop_begun(text: &mut String, secrets: &[String]) {
    // The first bytes of a character.
    text.truncate(text.trim_end_matches(char::REPLACEMENT_CHARACTER).len());
    let begun = |secret: &String| {
        let ends = |at: &usize| secret.get(..*at).is_some_and(|begin| text.ends_with(begin));
        (1..secret.len()).rev().find(ends)
    };
    let longest = secrets.iter().filter_map(begun).max().unwrap_or(0);
    text.truncate(text.len() - longest);
}

/// What an echo must not show: the password, or a user without one (a token), in the forms in which it may come back; the
/// query; and what is `configured`, with and without a scheme such as `Bearer`.
fn secrets(url: &Url, configured: &HeaderMap, headers: &HeaderMap) -> Vec<String> {
    let credential = url.password().unwrap_or(url.username());
    let basic = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let basic = basic.and_then(|value| value.strip_prefix("Basic "));
    let decoded = percent_decode_str(credential).decode_utf8_lossy();
    let query = url.query().unwrap_or_default();
    let all = [basic.unwrap_or_default(), credential, &*decoded, query];
    let all = all.into_iter().filter(|secret| !secret.is_empty());
    let values = configured
        .values()
        .filter_map(|value| str::from_utf8(value.as_bytes()).ok());
    let parts = values.flat_map(|value| [Some(value), value.split_once(' ').map(|(_, part)| part)]);
    // A version, say, hides nothing, and words of the answer would be missing.
    let long = parts.flatten().filter(|part| part.len() >= SHORTEST_SECRET);
    let mut all: Vec<String> = all.chain(long).map(str::to_owned).collect();
    // One that holds another is looked for first, or its rest would be seen.
    all.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    all
}
