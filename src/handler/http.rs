//! Sends each job to a downstream API over HTTP/1.1, and turns the answer into an [`Outcome`].
//!
//! What is sent: POST with the job's body and content type (`application/octet-stream` where the job has none
//! that fits into a header), `x-tenant`, `x-job-id` and `x-attempt`. Tenant and id are sent as they are, in
//! UTF-8; only what no header can carry, control characters and spaces at either end, is percent-encoded, and
//! `%` itself: percent-decoding gives the very text, and two tenants or ids never look the same.
//! A user and password in the url are sent as Basic authorization.
//!
//! What the answer means is decided by its status and headers. Its body is read as far as a connection that
//! can be used again is worth it; when it breaks off or hangs, that changes nothing.
//!
//! One call of [`Handler::handle`] is at most one request: it has cost one permit. So redirects are not followed,
//! and nothing is sent twice. (Where a reused connection turns out to be closed before
//! a byte of the request was written, the request goes over another one; the downstream has seen nothing of it.)

use std::error::Error;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use percent_encoding::percent_decode_str;
use reqwest::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
};
use reqwest::{Client, Method, Request, Response, StatusCode, Url, redirect, retry};
use tokio::time::{Instant, timeout_at};

use super::{Handler, Outcome, Permit};
use crate::config::Http;
use crate::rules::job::Job;
use crate::rules::pushback::{Pushback, pushback};

/// Idle connections are closed sooner than servers commonly do it (after 5 s), so that hardly any request is
/// written to a connection that is being closed.
const IDLE: Duration = Duration::from_secs(4);
/// So much of an answer's body is read, in bytes; a connection with more to come is closed.
const MAX_BODY: usize = 64 * 1024;
/// So much of it is kept, in bytes: what is shown, and room for a secret that crosses its end.
const KEPT: usize = 4 * 1024;
/// So much of it is shown in a reason, in bytes.
const SHOWN: usize = 256;

/// Calls one downstream API.
pub struct HttpHandler {
    client: Client,
    /// Without user and password: they are in `headers`.
    url: Url,
    headers: HeaderMap,
    timeout: Duration,
    /// What a downstream that echoes our request must not bring into a reason.
    secrets: Vec<String>,
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
    /// The client can't be built, for example because the system has no root certificates.
    #[error("no HTTP client: {0}")]
    Client(String),
}

impl HttpHandler {
    /// A handler that calls `http.url`, with up to `concurrency` connections kept open between calls.
    ///
    /// # Errors
    /// [`HttpHandlerError`] when the url can't be used or TLS can't be set up.
    pub fn new(http: &Http, concurrency: usize) -> Result<Self, HttpHandlerError> {
        let url = Url::parse(http.url.expose())?;
        if !["http", "https"].contains(&url.scheme()) {
            return Err(HttpHandlerError::Scheme);
        }
        // Without a provider the client panics. An error says that there is one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let failed = |why: reqwest::Error| HttpHandlerError::Client(explain(why));
        let mut client = Client::builder()
            .user_agent(concat!("sluicegate/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            .no_proxy()
            .referer(false)
            .tcp_nodelay(true)
            // A connection that another call's end made unnecessary is set up in the background.
            .connect_timeout(http.timeout)
            .pool_max_idle_per_host(concurrency)
            .pool_idle_timeout(IDLE);
        if url.scheme() == "http" {
            // No TLS: the client must not fail where the system has no root certificates.
            client = client.tls_certs_only([]);
        }
        let client = client.build().map_err(failed)?;
        // The client takes user and password out of the url.
        let request = client.post(url.clone()).build().map_err(failed)?;
        Ok(Self {
            client,
            secrets: secrets(&url, request.headers()),
            url: request.url().clone(),
            headers: request.headers().clone(),
            timeout: http.timeout,
        })
    }

    fn request(&self, job: &Job) -> Request {
        let mut request = Request::new(Method::POST, self.url.clone());
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
        *request.body_mut() = Some(job.body.clone().into());
        request
    }

    fn outcome(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Outcome {
        if status.is_success() {
            return Outcome::Done;
        }
        let mut reason = format!("the downstream answered {}", status.as_str());
        if let Some(name) = status.canonical_reason() {
            reason = format!("{reason} {name}");
        }
        if status.is_redirection() {
            reason.push_str(" (a redirect; it is not followed)");
        }
        let shown = self.shown(body);
        if !shown.is_empty() {
            reason = format!("{reason}: {shown}");
        }
        let headers = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes()));
        if let Some(Pushback { after }) = pushback(status.as_u16(), headers, SystemTime::now()) {
            return Outcome::Throttled { after, reason };
        }
        let rejects = status.is_redirection() || status.is_client_error();
        if rejects && status != StatusCode::REQUEST_TIMEOUT {
            return Outcome::Reject { reason };
        }
        // 5xx, and what has no meaning: a 101 that nobody asked for, a 600.
        Outcome::Retry {
            after: None,
            reason,
        }
    }

    /// The first bytes of `body` as one line of text, without our secrets.
    fn shown(&self, body: &[u8]) -> String {
        let mut text = String::from_utf8_lossy(body).into_owned();
        for secret in &self.secrets {
            text = text.replace(secret, "***");
        }
        let mut shown = String::new();
        for c in text.trim_start().chars().map(printable) {
            if shown.len() + c.len_utf8() > SHOWN {
                break;
            }
            shown.push(c);
        }
        shown.truncate(shown.trim_end().len());
        shown
    }
}

impl Handler for HttpHandler {
    async fn handle(&self, job: &Job, permit: Permit) -> Outcome {
        let request = self.request(job);
        if !permit.is_good() {
            return Outcome::Late;
        }
        let retry = |reason| Outcome::Retry {
            after: None,
            reason,
        };
        let deadline = Instant::now() + self.timeout;
        let mut response = match timeout_at(deadline, self.client.execute(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(why)) => return retry(explain(why)),
            Err(_) => {
                return retry(format!(
                    "no answer within {:?} (dispatch.http.timeout)",
                    self.timeout
                ));
            }
        };
        let mut body = Vec::new();
        // A body that breaks off or does not end in time has told what it could.
        let _ = timeout_at(deadline, read_start(&mut response, &mut body)).await;
        self.outcome(response.status(), response.headers(), &body)
    }
}

/// Reads to the body's end or [`MAX_BODY`], and keeps the first [`KEPT`] bytes in `kept`.
async fn read_start(response: &mut Response, kept: &mut Vec<u8>) -> Result<(), reqwest::Error> {
    let mut read = 0;
    while read < MAX_BODY
        && let Some(chunk) = response.chunk().await?
    {
        read += chunk.len();
        let room = KEPT - kept.len();
        kept.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }
    Ok(())
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

/// What stands for itself in a log line and on a terminal; else a space or a replacement.
fn printable(c: char) -> char {
    match c {
        _ if c.is_whitespace() => ' ',
        _ if c.is_control() => char::REPLACEMENT_CHARACTER,
        // Invisible, or able to turn the order of the text around it.
        '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}' => char::REPLACEMENT_CHARACTER,
        _ => c,
    }
}

/// The password, or a user without one (a token), in the forms in which an echo may hold them; and the query.
fn secrets(url: &Url, headers: &HeaderMap) -> Vec<String> {
    let credential = url.password().unwrap_or(url.username());
    let basic = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let basic = basic.and_then(|value| value.strip_prefix("Basic "));
    let decoded = percent_decode_str(credential).decode_utf8_lossy();
    let query = url.query().unwrap_or_default();
    let all = [basic.unwrap_or_default(), credential, &*decoded, query];
    all.into_iter()
        .filter(|secret| !secret.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The error and what is behind it, without the url.
fn explain(why: reqwest::Error) -> String {
    let why = why.without_url();
    let mut text = why.to_string();
    let mut source = why.source();
    while let Some(deeper) = source {
        // Writing to a String can't fail.
        let _ = write!(text, ": {deeper}");
        source = deeper.source();
    }
    text
}
