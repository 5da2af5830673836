//! The servers of an API: one, or one for each host that jobs name.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::ClientConfig;
use tokio::sync::Notify;
use tower_service::Service;

use super::openings::Openings;
use super::proxy::{Connector, Proxies};
use super::requests::uri;
use super::socket::{Sockets, Stream};

/// Number of servers without a call or a connection that are remembered.
const MAX_UNUSED: usize = 1_000;

/// A server, and the state that its connections share.
pub(super) struct Server {
    /// Scheme, host and port, with the path `/`.
    pub uri: Uri,
    /// Host and port, as the header `host` has them.
    pub host: HeaderValue,
    connector: HttpsConnector<Connector>,
    /// Whether connections go to the server without a proxy.
    pub is_direct: bool,
    pub openings: Openings,
    /// Notified when another call may fit on a shared connection.
    pub changed: Arc<Notify>,
    /// Number of consecutive calls that the server refused without processing them.
    refused: AtomicUsize,
    /// Whether the server has closed a connection before a request, and answered no call since.
    closes_unused: AtomicBool,
}

impl Server {
    /// Opens a connection: resolves the name, connects, and negotiates TLS and the protocol.
    pub(super) async fn connect(&self) -> Result<Stream, Box<dyn Error + Send + Sync>> {
        // The connector is always ready, and its clone shares its state.
        self.connector.clone().call(self.uri.clone()).await
    }

    /// Returns true if this is the server at `host`, which includes the port.
    pub(super) fn is_at(&self, host: &str) -> bool {
        self.host.as_bytes() == host.as_bytes()
    }

    /// Records that the server has answered a call.
    pub(super) fn answered(&self) {
        self.refused.store(0, Ordering::Relaxed);
        self.closes_unused.store(false, Ordering::Relaxed);
    }

    /// Records that the server closed a connection before a request was written.
    pub(super) fn closed_unused(&self) {
        self.closes_unused.store(true, Ordering::Relaxed);
    }

    /// Returns true if the server has closed a connection before a request was written, and has
    /// answered no call since.
    pub(super) fn closes_unused(&self) -> bool {
        self.closes_unused.load(Ordering::Relaxed)
    }

    /// Records that the server refused a call without processing it. Returns how often in a row it
    /// had done so before.
    pub(super) fn refused(&self) -> usize {
        self.refused.fetch_add(1, Ordering::Relaxed)
    }
}

/// Settings for connections to servers.
pub(super) struct ServerSetup {
    scheme: &'static str,
    tcp: HttpConnector,
    tls: Arc<ClientConfig>,
    proxies: Proxies,
}

impl ServerSetup {
    /// Creates settings for servers with https, if `encrypted`, or else http. `timeout` bounds the
    /// attempts at all addresses of a server together.
    pub(super) fn new(
        encrypted: bool,
        tls: ClientConfig,
        proxies: Proxies,
        timeout: Duration,
    ) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        // The caller bounds the total time. This divides it among the server's addresses.
        tcp.set_connect_timeout(Some(timeout));
        Self {
            scheme: if encrypted { "https" } else { "http" },
            tcp,
            tls: Arc::new(tls),
            proxies,
        }
    }

    /// Creates the server at `host`, which may have a port.
    ///
    /// # Errors
    /// A message for the operator: no request can name the host, or its proxy can't be used.
    pub(super) fn server(&self, host: &str) -> Result<Arc<Server>, String> {
        let uri = uri(&format!("{}://{host}/", self.scheme))?;
        // A program that creates its own jobs may not have checked their values.
        let port = uri.port().map_or(String::new(), |port| format!(":{port}"));
        if uri.host().map(|name| format!("{name}{port}")).as_deref() != Some(host) {
            return Err("the host has characters that are invalid in a host".to_owned());
        }
        let proxy = self.proxies.of(&uri)?;
        let is_direct = proxy.is_none();
        let connector = Connector::new(Sockets(self.tcp.clone()), proxy);
        let changed = Arc::<Notify>::default();
        Ok(Arc::new(Server {
            host: HeaderValue::from_str(host).map_err(|why| why.to_string())?,
            uri,
            connector: HttpsConnector::from((connector, Arc::clone(&self.tls))),
            is_direct,
            openings: Openings::new(Arc::clone(&changed)),
            changed,
            refused: AtomicUsize::new(0),
            closes_unused: AtomicBool::new(false),
        }))
    }
}

/// The servers at the hosts that jobs name.
#[derive(Default)]
pub(super) struct Servers(HashMap<String, Arc<Server>>);

impl Servers {
    /// Returns the server at `host`. The first call for it creates it.
    ///
    /// # Errors
    /// See [`ServerSetup::server`].
    pub(super) fn at(&mut self, host: &str, setup: &ServerSetup) -> Result<Arc<Server>, String> {
        if let Some(server) = self.0.get(host) {
            return Ok(Arc::clone(server));
        }
        let server = setup.server(host)?;
        if self.0.len() >= MAX_UNUSED {
            // Connections and calls hold their servers, so the others have neither.
            self.0.retain(|_, server| Arc::strong_count(server) > 1);
        }
        self.0.insert(host.to_owned(), Arc::clone(&server));
        Ok(server)
    }
}
