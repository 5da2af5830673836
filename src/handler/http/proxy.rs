//! The proxies for connections, if there are any. Connections go through a tunnel (CONNECT), in which
//! the API is called as without a proxy.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::http::uri::Scheme;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use tower_service::Service;

use super::socket::{Sockets, Tcp};
use config::Http;

type BoxError = Box<dyn Error + Send + Sync>;

/// The source of a configured proxy, in messages.
const CONFIGURED: &str = "proxy";

/// A proxy.
#[derive(Clone)]
pub(super) struct Proxy {
    /// URL without user and password.
    url: Uri,
    authorization: Option<HeaderValue>,
}

/// The reason why there is no tunnel.
#[derive(Debug, thiserror::Error)]
#[error("through the proxy {proxy}")]
pub(super) struct TunnelError {
    proxy: Uri,
    source: BoxError,
}

/// Finds the proxy for each server.
#[derive(Clone)]
pub(super) struct Proxies {
    matcher: Option<Arc<Matcher>>,
    /// The name of the proxy's source in messages.
    source: &'static str,
}

impl Proxies {
    /// Uses the proxy in `http` for all servers, or else proxies from the variables in
    /// `environment`, if they are used.
    pub(super) fn new(http: &Http, environment: Option<Matcher>) -> Self {
        let (matcher, source) = match &http.proxy {
            Some(url) => (
                Some(Matcher::builder().all(url.expose()).build()),
                CONFIGURED,
            ),
            None => (environment, "the proxy of the environment"),
        };
        Self {
            matcher: matcher.map(Arc::new),
            source,
        }
    }

    /// Returns the proxy for `server`, if there is one.
    ///
    /// # Errors
    /// A message for the operator, without the password: the proxy can't be used.
    pub(super) fn of(&self, server: &Uri) -> Result<Option<Proxy>, String> {
        let source = self.source;
        let found = (self.matcher.as_ref()).and_then(|matcher| matcher.intercept(server));
        let found = match found {
            Some(found) => found,
            None if source == CONFIGURED => {
                return Err(
                    "proxy: invalid URL; percent-encode all characters of its user and password \
                    except letters and digits"
                        .to_owned(),
                );
            }
            None => return Ok(None),
        };
        if found.uri().scheme() != Some(&Scheme::HTTP) {
            return Err(format!("{source}: it does not begin with http://"));
        }
        Ok(Some(Proxy {
            url: found.uri().clone(),
            authorization: found.basic_auth().cloned(),
        }))
    }
}

impl Proxy {
    /// Returns the URL without user and password.
    pub(super) fn url(&self) -> &Uri {
        &self.url
    }
}

/// Opens connections to a server.
#[derive(Clone)]
pub(super) enum Connector {
    Direct(Sockets),
    Through(Proxy, Box<Tunnel<Sockets>>),
}

impl Connector {
    pub(super) fn new(sockets: Sockets, proxy: Option<Proxy>) -> Self {
        let Some(proxy) = proxy else {
            return Self::Direct(sockets);
        };
        let tunnel = Tunnel::new(proxy.url.clone(), sockets);
        let tunnel = match &proxy.authorization {
            Some(value) => tunnel.with_auth(value.clone()),
            None => tunnel,
        };
        Self::Through(proxy, Box::new(tunnel))
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Tcp>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Direct(sockets) => sockets.poll_ready(cx).map_err(BoxError::from),
            Self::Through(_, tunnel) => tunnel.poll_ready(cx).map_err(BoxError::from),
        }
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        match self {
            Self::Direct(sockets) => {
                let opening = sockets.call(server);
                Box::pin(async { opening.await.map_err(BoxError::from) })
            }
            Self::Through(proxy, tunnel) => {
                let proxy = proxy.url.clone();
                let opening = with_port(server).map(|server| tunnel.call(server));
                Box::pin(async move {
                    let opened = async { Ok(opening?.await?) };
                    opened
                        .await
                        .map_err(|source: BoxError| TunnelError { proxy, source }.into())
                })
            }
        }
    }
}

/// Returns `server` with its default port, since a tunnel would use 443 otherwise.
fn with_port(server: Uri) -> Result<Uri, BoxError> {
    let is_plain = server.scheme() == Some(&Scheme::HTTP);
    match server.host() {
        Some(host) if is_plain && server.port().is_none() => {
            let authority = format!("{host}:80");
            let mut parts = server.into_parts();
            parts.authority = Some(authority.parse()?);
            Ok(Uri::from_parts(parts)?)
        }
        _ => Ok(server),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_is_to_the_port_of_its_server() {
        for (server, expected) in [
            ("http://h/a?b", "http://h:80/a?b"),
            ("http://[::1]/", "http://[::1]:80/"),
            ("http://h:8080/", "http://h:8080/"),
            ("https://h/", "https://h/"),
        ] {
            let with = with_port(server.parse().expect("a url")).expect("a url");
            assert_eq!(with.to_string(), expected);
        }
    }
}
