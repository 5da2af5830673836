//! Creates the HTTP handler from a configuration, or explains why that is impossible.

use hyper_util::client::proxy::matcher::Matcher;
use url::Position;

use super::HttpHandler;
use super::abandoned::CallAbandoner;
use super::answer::AnswerReader;
use super::hosts::{HostFaults, Hosts};
use super::pool::{Pool, offer};
use super::proxy::Proxies;
use super::redaction::Redaction;
use super::requests::Requests;
use super::result_fields::ResultFields;
use super::server::ServerSetup;
use super::token_endpoint::Endpoint;
use super::tokens::Tokens;
use config::{Http, OAuth2, Results};
use runtime::tls;

/// The reason why no handler can be created. Its text contains no part of the URL.
#[derive(Debug, thiserror::Error)]
pub enum HttpHandlerError {
    /// The URL can't be parsed.
    #[error("url: {0}; it must have the form http://host:port/path")]
    Url(#[from] url::ParseError),
    /// The URL's scheme is neither `http` nor `https`.
    #[error("url: it must begin with http:// or https://")]
    Scheme,
    /// The URL contains something that no request can carry.
    #[error("url: {0}; percent-encode all characters except letters and digits")]
    Unsendable(String),
    /// TLS can't be set up: a file can't be used, or the system has no root certificates.
    #[error("TLS: {0}")]
    Tls(String),
    /// The URL of access tokens contains something that no request can carry.
    #[error("oauth2.token-url: {0}; percent-encode all characters except letters and digits")]
    TokenUrl(String),
    /// The proxy can't be used.
    #[error("{0}")]
    Proxy(String),
}

impl HttpHandler {
    /// Creates a handler that calls `http.url` and keeps up to `concurrency` connections open
    /// between calls. For an `https` URL, reads the files in `http.tls` once, and so blocks.
    ///
    /// # Errors
    /// [`HttpHandlerError`] if the URL can't be used or TLS can't be set up.
    pub fn new(http: &Http, concurrency: usize) -> Result<Self, HttpHandlerError> {
        Self::through(http, concurrency, None)
    }

    /// Does what [`HttpHandler::new`] does, but if `http` names no proxy, uses the environment's
    /// (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`).
    ///
    /// # Errors
    /// [`HttpHandlerError`] in the cases of [`HttpHandler::new`], and if the proxy can't be used.
    pub fn in_environment(http: &Http, concurrency: usize) -> Result<Self, HttpHandlerError> {
        Self::through(http, concurrency, Some(Matcher::from_env()))
    }

    fn through(
        http: &Http,
        concurrency: usize,
        environment: Option<Matcher>,
    ) -> Result<Self, HttpHandlerError> {
        let url = http.url.parse()?;
        let encrypted = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return Err(HttpHandlerError::Scheme),
        };
        // A worker without TLS must not fail because the system has no root certificates.
        let tls = match encrypted || http.oauth2.as_ref().is_some_and(OAuth2::has_tls) {
            true => tls::client(&http.tls),
            false => tls::untrusting(),
        };
        let mut tls = tls.map_err(HttpHandlerError::Tls)?;
        let requests = Requests::to(&url, http).map_err(HttpHandlerError::Unsendable)?;
        let proxies = Proxies::new(http, environment);
        let tokens = http.oauth2.as_ref().map(|oauth2| {
            let endpoint = Endpoint::new(oauth2, tls.clone(), http.timeout, proxies.clone());
            let tokens = endpoint.and_then(|endpoint| Tokens::new(endpoint, http));
            tokens.map_err(HttpHandlerError::TokenUrl)
        });
        let answers = http.answers.clone();
        let proxy = proxies.of(&requests.full_uri);
        if let Some(proxy) = proxy.map_err(HttpHandlerError::Proxy)? {
            tracing::info!(proxy = %proxy.url(), "calls go through a proxy");
        }
        tls.alpn_protocols = offer(http.http2);
        let setup = ServerSetup::new(encrypted, tls, proxies, http.timeout);
        let pool = Pool::new(setup, concurrency);
        let hosts = match &http.host {
            Some(host) => Hosts::OfJobs(host.clone(), HostFaults::default()),
            None => {
                let host = &url[Position::BeforeHost..Position::AfterPort];
                let server = pool.server(host).map_err(HttpHandlerError::Unsendable)?;
                Hosts::One(server)
            }
        };
        Ok(Self {
            pool,
            hosts,
            abandoned: CallAbandoner::new(http.abandoned, concurrency),
            encrypted,
            reader: AnswerReader {
                answers: match &http.oauth2 {
                    Some(_) => answers.renewing_tokens(),
                    None => answers,
                },
                redaction: Redaction::of(&url, http, &requests.headers),
                result_fields: None,
            },
            requests,
            tokens: tokens.transpose()?,
            timeout: http.timeout,
        })
    }

    /// Keeps the parts of each answer that `results` reports.
    #[must_use]
    pub fn with_results(mut self, results: &Results) -> Self {
        self.reader.result_fields = ResultFields::new(results);
        self
    }
}
