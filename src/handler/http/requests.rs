//! Builds the request for a job.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::body::Bytes;
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap,
    HeaderName, HeaderValue, USER_AGENT,
};
use hyper::http::method::InvalidMethod;
use hyper::{Method, Request, Uri};
use percent_encoding::percent_decode_str;
use url::{Position, Url};

use super::secrets::Secrets;
use super::server::Server;
use super::sign::Signer;
use crate::verdicts::unprepared;
use crate::{Attempt, Fate, Outcome, Trouble};
use config::{self, Http, OF_TENANTS, SIGNATURE_HEADERS, signing_keys};
use rules::headers::TRACEPARENT;
use rules::job::Job;
use rules::job::call::Template;
use rules::named::Named;
use rules::tenant::Tenant;

/// Headers that describe the job of a request.
const OF_JOB: [HeaderName; 3] = [
    HeaderName::from_static("x-tenant"),
    HeaderName::from_static("x-job-id"),
    HeaderName::from_static("x-attempt"),
];

/// Value of the `User-Agent` header.
pub(super) const AGENT: &str = concat!("sluicegate/", env!("CARGO_PKG_VERSION"));

/// Builds requests to one API.
pub(super) struct Requests {
    method: Method,
    has_body: bool,
    /// Path and query for the first line of an HTTP/1.1 request; `/` if they depend on the job.
    target: Uri,
    /// The same with the server, for an HTTP/2 request.
    pub full_uri: Uri,
    /// Path and query with placeholders, if they depend on the job.
    of_jobs: Option<Template>,
    /// Whether the server depends on the job.
    has_hosts_of_jobs: bool,
    /// Headers of every request: host, Basic authorization from the URL, the configured ones, and
    /// the job's without their values. A clone has no room for more.
    pub headers: HeaderMap,
    /// Headers with placeholders.
    headers_of_jobs: Vec<(HeaderName, Template)>,
    /// Headers that are forwarded from jobs.
    forward: Vec<HeaderName>,
    /// Secrets of tenants, if calls need them.
    secrets: Option<Secrets>,
    sign: Option<Signing>,
}

/// Keys that sign calls.
enum Signing {
    /// The same keys for all calls.
    With(Signer),
    /// The keys of each call's tenant.
    ByTenant,
}

/// The reason why there is no request for a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoRequest {
    /// The reason is temporary.
    Temporary(String),
    /// This machine lacks a resource.
    Shortage(String),
    /// The reason is permanent.
    Permanent(String),
}

impl From<NoRequest> for Attempt {
    /// Returns the attempt of a job whose call was not made. Neither the API nor other tenants are
    /// at fault.
    fn from(why: NoRequest) -> Self {
        match why {
            NoRequest::Temporary(reason) => unprepared(Trouble::Tenant, reason),
            NoRequest::Shortage(reason) => unprepared(Trouble::Local, reason),
            NoRequest::Permanent(reason) => Self {
                fate: Fate::Unwritten,
                ..Outcome::Reject { reason }.into()
            },
        }
    }
}

/// A request, and its URL including the server.
pub(super) struct BuiltRequest<'r> {
    pub request: Request<Bytes>,
    pub full_uri: Cow<'r, Uri>,
    /// Secret of the tenant, which must be hidden in answers.
    pub secret: Option<Arc<str>>,
}

impl Requests {
    /// Prepares requests to `url`, the URL of `http`.
    ///
    /// # Errors
    /// A message for the operator if the URL, a header or a signing key can't be used in a request.
    pub(super) fn to(url: &Url, http: &Http) -> Result<Self, String> {
        let host = &url[Position::BeforeHost..Position::AfterPort];
        let path = match &http.target {
            Some(_) => "/",
            None => &url[Position::BeforePath..Position::AfterQuery],
        };
        let (target, full_uri) = (uri(path)?, format!("{}://{host}{path}", url.scheme()));
        let full_uri = uri(&full_uri)?;
        let mut headers = HeaderMap::new();
        let host = HeaderValue::from_str(host).map_err(|why| why.to_string())?;
        headers.insert(HOST, host);
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        if let Some(basic) = basic_authorization(url) {
            headers.insert(AUTHORIZATION, basic);
        }
        for (name, value) in &http.headers.same {
            headers.insert(name, value.clone());
        }
        if http.method.has_body() {
            let bytes = HeaderValue::from_static("application/octet-stream");
            headers.entry(CONTENT_TYPE).or_insert(bytes);
            headers.insert(CONTENT_LENGTH, 0.into());
        }
        for name in OF_JOB {
            headers.insert(name, HeaderValue::from_static(""));
        }
        let name = |name: &String| HeaderName::from_bytes(name.as_bytes());
        let forward = http.forward.iter().map(name).collect::<Result<_, _>>();
        let method = http.method.name().parse();
        let keys = http.sign_secrets.as_ref();
        let sign = match keys.filter(|_| http.sign == config::Sign::StandardWebhooks) {
            None => None,
            Some(keys) if keys.expose() == OF_TENANTS => Some(Signing::ByTenant),
            Some(keys) => Some(Signing::With(Signer::new(&signing_keys(keys.expose())?))),
        };
        Ok(Self {
            method: method.map_err(|why: InvalidMethod| why.to_string())?,
            has_body: http.method.has_body(),
            target,
            full_uri,
            of_jobs: http.target.clone(),
            has_hosts_of_jobs: http.host.is_some(),
            headers,
            headers_of_jobs: http.headers.of_jobs.clone(),
            forward: forward.map_err(|why| why.to_string())?,
            secrets: http.secrets.clone().map(Secrets::new),
            sign,
        })
    }

    /// Returns the secret of `tenant`, or `None` if calls need none.
    ///
    /// # Errors
    /// [`NoRequest`] with the reason if the secret is missing or can't be read.
    pub(super) async fn secret_of(&self, tenant: &Tenant) -> Result<Option<Arc<str>>, NoRequest> {
        match &self.secrets {
            Some(secrets) => Ok(Some(secrets.of(tenant).await?)),
            None => Ok(None),
        }
    }

    /// Builds the request for `job` to `server`, with the `secret` of its tenant.
    ///
    /// # Errors
    /// [`NoRequest`] with the reason if a value of the job can't be sent.
    pub(super) fn of(
        &self,
        (job, server): (&Job, &Server),
        secret: Option<Arc<str>>,
    ) -> Result<BuiltRequest<'_>, NoRequest> {
        let built = |secret: &str| self.with((job, server), secret);
        let unsendable = |secret: &str| built(secret).map_err(NoRequest::Permanent);
        let (request, full_uri) = unsendable(secret.as_deref().unwrap_or_default())?;
        Ok(BuiltRequest {
            request,
            full_uri,
            secret,
        })
    }

    fn with(
        &self,
        (job, server): (&Job, &Server),
        secret: &str,
    ) -> Result<(Request<Bytes>, Cow<'_, Uri>), String> {
        let body = match self.has_body {
            true => job.body.clone(),
            false => Bytes::new(),
        };
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        let target = match &self.of_jobs {
            None => self.target.clone(),
            Some(template) => uri(&template.render(job, secret))?,
        };
        let full_uri = match self.of_jobs.is_some() || self.has_hosts_of_jobs {
            true => Cow::Owned(on_server(server, &target)?),
            false => Cow::Borrowed(&self.full_uri),
        };
        *request.uri_mut() = target;
        let headers = request.headers_mut();
        headers.clone_from(&self.headers);
        if self.has_hosts_of_jobs {
            headers.insert(HOST, server.host.clone());
        }
        for (name, template) in &self.headers_of_jobs {
            let value = HeaderValue::from_bytes(template.render(job, secret).as_bytes());
            let mut value = value.map_err(|why| format!("header {name}: {why}"))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        for (number, name) in self.forward.iter().enumerate() {
            if let Some(text) = job.values.forwarded(number) {
                let value = HeaderValue::from_bytes(text.as_bytes());
                headers.insert(name, value.map_err(|why| format!("header {name}: {why}"))?);
            }
        }
        let header_of = |text: &Option<String>| {
            let text = text.as_deref().filter(|text| !text.is_empty())?;
            HeaderValue::from_bytes(text.as_bytes()).ok()
        };
        if self.has_body {
            if let Some(kind) = header_of(&job.content_type) {
                headers.insert(CONTENT_TYPE, kind);
            }
            if let Some(encoding) = header_of(&job.content_encoding) {
                headers.insert(CONTENT_ENCODING, encoding);
            }
            // The client omits this header for an empty body, but some servers require it (411).
            headers.insert(CONTENT_LENGTH, job.body.len().into());
        } else {
            headers.remove(CONTENT_TYPE);
            headers.remove(CONTENT_ENCODING);
        }
        let (tenant, id) = (header_value(job.tenant.as_str()), header_value(&job.id));
        for (name, value) in OF_JOB.into_iter().zip([tenant, id, job.attempt.into()]) {
            headers.insert(name, value);
        }
        // Replaces a trace context from the publisher or the configuration, so that there is only
        // one.
        if let Some(context) = job.traceparent() {
            headers.insert(TRACEPARENT, header_value(&context));
        }
        if let Some(sign) = &self.sign {
            self.sign(sign, &mut request, job, secret)?;
        }
        Ok((request, full_uri))
    }

    /// Signs `request` with the current time of this machine's clock. Receivers reject signatures
    /// that are some minutes old.
    fn sign(
        &self,
        sign: &Signing,
        request: &mut Request<Bytes>,
        job: &Job,
        secret: &str,
    ) -> Result<(), String> {
        let of_tenant;
        let signer = match sign {
            Signing::With(signer) => signer,
            Signing::ByTenant => {
                let keys = signing_keys(secret);
                let keys = keys.map_err(|why| {
                    format!("the secret of this tenant (dispatch.http.secrets-folder) {why}")
                })?;
                of_tenant = Signer::new(&keys);
                &of_tenant
            }
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let timestamp = now.map_or(0, |now| now.as_secs());
        let id = header_value(&job.id);
        let text = signer.signature(id.as_bytes(), timestamp, request.body());
        let signature = HeaderValue::from_str(&text).map_err(|why| why.to_string())?;
        let values = [id, timestamp.into(), signature];
        for (name, value) in SIGNATURE_HEADERS.into_iter().zip(values) {
            request.headers_mut().insert(name, value);
        }
        Ok(())
    }
}

/// Returns the full URL of `target`, which is a path and query.
fn on_server(server: &Server, target: &Uri) -> Result<Uri, String> {
    let mut parts = server.uri.clone().into_parts();
    parts.path_and_query = target.path_and_query().cloned();
    Uri::from_parts(parts).map_err(|why| why.to_string())
}

pub(super) fn uri(text: &str) -> Result<Uri, String> {
    text.parse()
        .map_err(|why: hyper::http::uri::InvalidUri| why.to_string())
}

/// Returns the Basic authorization for the user and password in the URL, which are percent-encoded
/// there but not in the header.
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

/// Encodes `text` as a header's value: percent-encodes control characters, `%`, and spaces at the
/// ends. Bytes beyond ASCII are allowed (RFC 9110, 5.5: opaque data).
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
        // Receivers drop spaces at the ends, which could turn one tenant into another.
        let dropped = byte == b' ' && (at == 0 || at == last);
        if byte.is_ascii_control() || byte == b'%' || dropped {
            value.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            value.push(byte);
        }
    }
    HeaderValue::from_bytes(&value).expect("all that a header can't carry has been encoded")
}
