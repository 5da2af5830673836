//! The request that a job becomes.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::body::Bytes;
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap,
    HeaderName, HeaderValue, USER_AGENT,
};
use hyper::{Method, Request, Uri};
use percent_encoding::percent_decode_str;
use url::{Position, Url};

use crate::rules::job::Job;

/// Makes requests to one url.
pub(super) struct Requests {
    /// Path and query: what a request's first line names in HTTP/1.1.
    target: Uri,
    /// These and the server: what a request names in HTTP/2.
    pub whole: Uri,
    /// What every request carries: the host, user and password of the url, and what is configured.
    pub headers: HeaderMap,
}

impl Requests {
    /// Requests to `url`, with the headers that are `configured`.
    ///
    /// # Errors
    /// In words: the url holds what no request can carry.
    pub(super) fn to(url: &Url, configured: &HeaderMap) -> Result<Self, String> {
        let host = &url[Position::BeforeHost..Position::AfterPort];
        let path = &url[Position::BeforePath..Position::AfterQuery];
        let (target, whole) = (uri(path)?, format!("{}://{host}{path}", url.scheme()));
        let whole = uri(&whole)?;
        let mut headers = HeaderMap::new();
        let host = HeaderValue::from_str(host).map_err(|why| why.to_string())?;
        headers.insert(HOST, host);
        let agent = concat!("sluicegate/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        if let Some(basic) = basic_authorization(url) {
            headers.insert(AUTHORIZATION, basic);
        }
        for (name, value) in configured {
            headers.insert(name, value.clone());
        }
        Ok(Self {
            target,
            whole,
            headers,
        })
    }

    /// The one for `job`.
    pub(super) fn of(&self, job: &Job) -> Request<Bytes> {
        let mut request = Request::new(job.body.clone());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.target.clone();
        let headers = request.headers_mut();
        headers.clone_from(&self.headers);
        let said = |text: &Option<String>| {
            let text = text.as_deref().filter(|text| !text.is_empty())?;
            HeaderValue::from_bytes(text.as_bytes()).ok()
        };
        let bytes = HeaderValue::from_static("application/octet-stream");
        headers.insert(CONTENT_TYPE, said(&job.content_type).unwrap_or(bytes));
        if let Some(encoding) = said(&job.content_encoding) {
            headers.insert(CONTENT_ENCODING, encoding);
        }
        // The client leaves it out for an empty body, and some servers insist on it (411).
        headers.insert(CONTENT_LENGTH, job.body.len().into());
        let mut set = |name, value| headers.insert(HeaderName::from_static(name), value);
        set("x-tenant", header_value(job.tenant.as_str()));
        set("x-job-id", header_value(&job.id));
        set("x-attempt", job.attempt.into());
        request
    }
}

fn uri(text: &str) -> Result<Uri, String> {
    text.parse()
        .map_err(|why: hyper::http::uri::InvalidUri| why.to_string())
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
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'%';
    if text.bytes().all(is_plain)
        && let Ok(value) = HeaderValue::from_str(text)
    {
        return value;
    }
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
