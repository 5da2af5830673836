//! The open connections that no call uses at the moment.

use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hyper::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::ClientConfig;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};
use tower_service::Service;

use super::connection::Connection;
use super::socket::Sockets;

/// Idle connections are closed sooner than servers commonly do it (after 5 s), so that hardly any request is
/// written to a connection that is being closed.
const IDLE: Duration = Duration::from_secs(4);

/// Opens connections to one server and keeps those that can be used again.
pub(super) struct Pool {
    connector: HttpsConnector<Sockets>,
    server: Uri,
    /// So many are kept at most.
    most: usize,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    /// With the time until which each is kept, the soonest first.
    connections: Vec<(Instant, Connection)>,
    /// Whether a task waits for the first of these times.
    swept: bool,
}

impl Pool {
    /// For connections to `server`, whose path does not matter, with `timeout` for all its addresses together.
    pub(super) fn new(server: Uri, tls: ClientConfig, timeout: Duration, most: usize) -> Arc<Self> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        // The caller bounds all of it; this leaves a part for each address.
        tcp.set_connect_timeout(Some(timeout));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(Sockets(tcp));
        Arc::new(Self {
            connector,
            server,
            most,
            idle: Mutex::default(),
        })
    }

    /// The connection that was used last among those that are still open.
    pub(super) fn take(self: &Arc<Self>) -> Option<Pooled> {
        loop {
            let (until, connection) = self.lock().connections.pop()?;
            let mut pooled = self.pooled(connection, until);
            if pooled.is_ready() {
                return Some(pooled);
            }
        }
    }

    fn pooled(self: &Arc<Self>, connection: Connection, until: Instant) -> Pooled {
        Pooled {
            connection: Some(connection),
            until,
            pool: Arc::clone(self),
        }
    }

    /// A new connection, up to where a request can be sent: name looked up, connected, TLS agreed on.
    pub(super) async fn open(self: &Arc<Self>) -> Result<Pooled, Box<dyn Error + Send + Sync>> {
        // The connector is ready at any time, and its clone shares what it holds.
        let stream = self.connector.clone().call(self.server.clone()).await?;
        let connection = Connection::over(stream).await?;
        Ok(self.pooled(connection, Instant::now() + IDLE))
    }

    /// Keeps `connection`, which was used, for a while.
    pub(super) fn put_back(self: &Arc<Self>, connection: Connection) {
        self.put(connection, Instant::now() + IDLE);
    }

    /// Keeps `connection` until then, if it can be used again and there is room.
    fn put(self: &Arc<Self>, mut connection: Connection, until: Instant) {
        if !connection.is_ready() || until <= Instant::now() {
            return;
        }
        let mut idle = self.lock();
        if idle.connections.len() >= self.most {
            return;
        }
        if !idle.swept {
            // Without a runtime nobody calls any more.
            let Ok(runtime) = Handle::try_current() else {
                return;
            };
            idle.swept = true;
            runtime.spawn(sweep(Arc::downgrade(self), until));
        }
        // One that was not used since it was taken ends sooner than others. Where it is the first, it is closed with the next one.
        let at = (idle.connections).partition_point(|(other, _)| *other <= until);
        idle.connections.insert(at, (until, connection));
    }

    /// Closes what has been idle for too long; the next time to look, or `None`: nothing is left.
    fn close_old(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut idle = self.lock();
        let young = idle.connections.partition_point(|(until, _)| *until <= now);
        let old: Vec<_> = idle.connections.drain(..young).collect();
        let next = idle.connections.first().map(|(until, _)| *until);
        idle.swept = next.is_some();
        drop(idle);
        drop(old);
        next
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        // What it holds is whole at any time.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that is taken for one call. Dropped before it is used, it goes back to its pool.
pub struct Pooled {
    connection: Option<Connection>,
    until: Instant,
    pool: Arc<Pool>,
}

impl Pooled {
    /// Whether a request can be sent, as far as can be seen without waiting.
    pub(super) fn is_ready(&mut self) -> bool {
        let open = self.connection.as_mut().is_some_and(Connection::is_ready);
        open && Instant::now() < self.until
    }

    /// The connection, for a request. What is not given back after it is closed.
    pub(super) fn used(mut self) -> Option<Connection> {
        self.connection.take()
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.pool.put(connection, self.until);
        }
    }
}

/// Closes idle connections in time. Ends with the pool, or when it is empty.
async fn sweep(pool: Weak<Pool>, mut next: Instant) {
    loop {
        sleep_until(next).await;
        match pool.upgrade().and_then(|pool| pool.close_old()) {
            Some(then) => next = then,
            None => return,
        }
    }
}
