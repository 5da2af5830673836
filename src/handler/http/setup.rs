//! Makes the client of a configuration, or says why there can be none.

use std::sync::atomic::AtomicUsize;

use hyper_util::client::proxy::matcher::Matcher;
use url::Url;

use super::HttpHandler;
use super::abandoned::Abandoned;
use super::answer::Reader;
use super::kept::Kept;
use super::pool::Pool;
use super::proxy::Proxy;
use super::redaction::Redaction;
use super::requests::Requests;
use super::token_endpoint::Endpoint;
use super::tokens::Tokens;
use crate::config::{Http, OAuth2, Results};
use crate::tls;

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
            reader: Reader {
                answers: match &http.oauth2 {
                    Some(_) => answers.renewing_tokens(),
                    None => answers,
                },
                redaction: Redaction::of(&url, http, &requests.headers),
                kept: None,
            },
            requests,
            tokens: tokens.transpose()?,
            timeout: http.timeout,
        })
    }

    /// A handler that keeps of each answer what `results` tell.
    #[must_use]
    pub fn with_results(mut self, results: &Results) -> Self {
        self.reader.kept = Kept::new(results);
        self
    }
}
