//! The open connections that no call uses at the moment.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hyper::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::ClientConfig;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};
use tower_service::Service;

use super::call::Carrier;
use super::connection::{Connection, Stream};
use super::multi::{Multi, Slot};
use super::socket::Sockets;

/// Idle connections are closed sooner than servers commonly do it (after 5 s), so that hardly any request is
/// written to a connection that is being closed.
const IDLE: Duration = Duration::from_secs(4);

/// A stream is taken for so long at most, before it is used.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// Opens connections to one server and keeps those that can be used again.
pub(super) struct Pool {
    connector: HttpsConnector<Sockets>,
    server: Uri,
    /// So many are kept at most.
    most: usize,
    idle: Mutex<Idle>,
    /// Each call has a connection of its own, as far as is known.
    one_by_one: AtomicBool,
    /// Where calls share connections, one is opened at a time.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Idle {
    /// With the time until which each is kept, the soonest first.
    connections: Vec<(Instant, Connection)>,
    /// Connections that many calls share, in use or not.
    shared: Vec<Arc<Multi>>,
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
            .enable_http2()
            .wrap_connector(Sockets(tcp));
        Arc::new(Self {
            connector,
            // Only with TLS a server says that it speaks HTTP/2.
            one_by_one: AtomicBool::new(server.scheme_str() == Some("http")),
            opening: tokio::sync::Mutex::default(),
            server,
            most,
            idle: Mutex::default(),
        })
    }

    /// A stream of a connection that is shared, or the connection that was used last among those that are still open.
    pub(super) fn take(self: &Arc<Self>) -> Option<Pooled> {
        if let Some(slot) = self.lock().shared.iter().find_map(Multi::take) {
            return Some(self.streamed(slot));
        }
        loop {
            let (until, connection) = self.lock().connections.pop()?;
            let mut pooled = self.pooled(Carrier::Own(connection), until);
            if pooled.is_ready() {
                return Some(pooled);
            }
        }
    }

    fn pooled(self: &Arc<Self>, carrier: Carrier, until: Instant) -> Pooled {
        Pooled {
            carrier: Some(carrier),
            until,
            pool: Arc::clone(self),
        }
    }

    fn streamed(self: &Arc<Self>, slot: Slot) -> Pooled {
        // A connection that is in use is open.
        self.pooled(Carrier::Stream(slot), Instant::now() + NEVER)
    }

    /// A new connection, up to where a request can be sent: name looked up, connected, TLS agreed on.
    pub(super) async fn open(self: &Arc<Self>) -> Result<Pooled, Box<dyn Error + Send + Sync>> {
        // Whoever waits for another's connection may share it.
        let _turn = match self.one_by_one.load(Ordering::Relaxed) {
            true => None,
            false => Some(self.opening.lock().await),
        };
        if let Some(there) = self.take() {
            return Ok(there);
        }
        // The connector is ready at any time, and its clone shares what it holds.
        let stream = self.connector.clone().call(self.server.clone()).await?;
        let shares = speaks_http2(&stream);
        self.one_by_one.store(!shares, Ordering::Relaxed);
        if !shares {
            let connection = Connection::over(stream).await?;
            return Ok(self.pooled(Carrier::Own(connection), Instant::now() + IDLE));
        }
        let multi = Multi::over(stream, self.most).await?;
        let slot = multi.take().ok_or("the server takes no request")?;
        let mut idle = self.lock();
        idle.shared.retain(|multi| multi.is_open());
        idle.shared.push(multi);
        self.sweep(&mut idle, Instant::now() + IDLE);
        drop(idle);
        Ok(self.streamed(slot))
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
        if !self.sweep(&mut idle, until) {
            return;
        }
        // One that was not used since it was taken ends sooner than others. Where it is the first, it is closed with the next one.
        let at = (idle.connections).partition_point(|(other, _)| *other <= until);
        idle.connections.insert(at, (until, connection));
    }

    /// From `first` on, what is idle is closed in time. False: nobody calls any more, since there is no runtime.
    fn sweep(self: &Arc<Self>, idle: &mut Idle, first: Instant) -> bool {
        if !idle.swept {
            let Ok(runtime) = Handle::try_current() else {
                return false;
            };
            idle.swept = true;
            runtime.spawn(sweep(Arc::downgrade(self), first));
        }
        true
    }

    /// Closes what has been idle for too long; the next time to look, or `None`: nothing is left.
    fn close_old(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut idle = self.lock();
        let young = idle.connections.partition_point(|(until, _)| *until <= now);
        let old: Vec<_> = idle.connections.drain(..young).collect();
        let until =
            |multi: &Arc<Multi>| multi.idle_since().map_or(now + IDLE, |since| since + IDLE);
        let (kept, ended): (Vec<_>, Vec<_>) = std::mem::take(&mut idle.shared)
            .into_iter()
            .partition(|multi| multi.is_open() && until(multi) > now);
        let next_shared = kept.iter().map(until).min();
        idle.shared = kept;
        let next = idle.connections.first().map(|(until, _)| *until);
        let next = next.into_iter().chain(next_shared).min();
        idle.swept = next.is_some();
        drop(idle);
        drop((old, ended));
        next
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        // What it holds is whole at any time.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that is taken for one call. Dropped before it is used, it goes back to its pool.
pub struct Pooled {
    carrier: Option<Carrier>,
    until: Instant,
    pool: Arc<Pool>,
}

impl Pooled {
    /// Whether a request can be sent, as far as can be seen without waiting.
    pub(super) fn is_ready(&mut self) -> bool {
        let open = self.carrier.as_mut().is_some_and(Carrier::is_ready);
        open && Instant::now() < self.until
    }

    /// The connection, for a request. What is not given back after it is closed.
    pub(super) fn used(mut self) -> Option<Carrier> {
        self.carrier.take()
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(Carrier::Own(connection)) = self.carrier.take() {
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

/// Whether the server chose HTTP/2.
fn speaks_http2(stream: &Stream) -> bool {
    match stream {
        Stream::Http(_) => false,
        Stream::Https(tls) => tls.inner().get_ref().1.alpn_protocol() == Some(b"h2"),
    }
}
