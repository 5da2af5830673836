//! The open connections to a server: idle connections and shared ones.

use std::error::Error;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::ClientConfig;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tower_service::Service;

use super::call::Exchange;
use super::connection::Connection;
use super::openings::{Opening, Openings};
use super::proxy::{Connector, Proxy};
use super::shared_connection::{SharedConnection, StreamSlot};
use super::socket::{Sockets, Stream};
use super::stream;

/// Protocols offered to a server with TLS, best first.
const PROTOCOLS: [&[u8]; 2] = [HTTP2, b"http/1.1"];
const HTTP2: &[u8] = b"h2";

/// Idle connections are closed after this time. Servers usually close them after 5 s, so few
/// requests are written to a connection that the server is closing.
pub(super) const MAX_IDLE: Duration = Duration::from_secs(4);

/// Opens connections to one server and keeps the reusable ones.
pub(super) struct Pool {
    connector: HttpsConnector<Connector>,
    /// Whether connections go to the server without a proxy.
    is_direct: bool,
    server: Uri,
    /// Maximum number of idle connections, and of calls that share one connection.
    max: usize,
    open: Mutex<OpenConnections>,
    openings: Openings,
    /// Notified when another call may fit on a shared connection.
    changed: Arc<Notify>,
}

#[derive(Default)]
struct OpenConnections {
    /// Idle connections with the time until which each is kept, soonest first.
    idle: Vec<(Instant, Box<Connection>)>,
    /// Shared connections. One is opened only if no other has room, so there are at most as many as
    /// calls, plus some that are idle or being opened.
    shared: Vec<Arc<SharedConnection>>,
    /// Whether a task is running that closes idle connections.
    swept: bool,
}

impl Pool {
    /// Creates a pool for connections to `server`, whose path is ignored, through `proxy`, if any.
    /// `timeout` bounds the attempts at all addresses of the server together. With `http2`, a
    /// server with TLS may choose HTTP/2.
    pub(super) fn new(
        (server, proxy): (Uri, Option<Proxy>),
        (mut tls, http2): (ClientConfig, bool),
        timeout: Duration,
        max: usize,
    ) -> Arc<Self> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        // The caller bounds the total time. This divides it among the server's addresses.
        tcp.set_connect_timeout(Some(timeout));
        tls.alpn_protocols = offer(http2);
        let changed = Arc::<Notify>::default();
        Arc::new(Self {
            is_direct: proxy.is_none(),
            connector: HttpsConnector::from((Connector::new(Sockets(tcp), proxy), tls)),
            server,
            max,
            open: Mutex::default(),
            openings: Openings::new(Arc::clone(&changed)),
            changed,
        })
    }

    /// Returns true if the peer is the server itself, so that its acknowledgements prove arrival.
    pub(super) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Takes a connection on which a call can be sent at once: a stream of a shared connection, or
    /// the most recently used idle connection that is still open.
    pub(super) fn take(self: &Arc<Self>) -> Option<PooledConnection> {
        if let Some(slot) = self.slot() {
            return Some(PooledConnection(CallConnection::Stream(slot)));
        }
        loop {
            let (until, connection) = self.lock().idle.pop()?;
            let mut idle = self.idle_connection(connection, until);
            if idle.is_ready() {
                return Some(PooledConnection(CallConnection::Own(idle)));
            }
        }
    }

    /// Takes a stream of a shared connection.
    fn slot(&self) -> Option<StreamSlot> {
        let now = Instant::now();
        let mut open = self.lock();
        let remains = |shared: &Arc<SharedConnection>| shared.idle_deadline(now).is_some();
        let (shared, ended) = mem::take(&mut open.shared).into_iter().partition(remains);
        open.shared = shared;
        let shared = open.shared.clone();
        drop(open);
        // Dropped outside the lock, since ending a connection notifies the server.
        drop::<Vec<_>>(ended);
        shared.iter().find_map(SharedConnection::take)
    }

    fn idle_connection(
        self: &Arc<Self>,
        connection: Box<Connection>,
        until: Instant,
    ) -> TakenConnection {
        TakenConnection {
            connection: Some(connection),
            until,
            pool: Arc::clone(self),
        }
    }

    /// Returns a connection on which a request can be sent. Opens one if no existing connection has
    /// room.
    pub(super) async fn open(
        self: &Arc<Self>,
    ) -> Result<PooledConnection, Box<dyn Error + Send + Sync>> {
        let wanted = self.openings.want();
        loop {
            let change = wanted.change();
            if let Some(slot) = self.slot() {
                return Ok(PooledConnection(CallConnection::Stream(slot)));
            }
            if let Some(opening) = wanted.begin() {
                return self.connect(opening).await;
            }
            change.await;
        }
    }

    /// Opens a connection: resolves the name, connects, and negotiates TLS and the protocol.
    async fn connect(
        self: &Arc<Self>,
        opening: Opening<'_>,
    ) -> Result<PooledConnection, Box<dyn Error + Send + Sync>> {
        // The connector is always ready, and its clone shares its state.
        let stream = self.connector.clone().call(self.server.clone()).await?;
        if !speaks_http2(&stream) {
            let connection = Connection::over(stream).await?;
            opening.ended(1);
            let idle = self.idle_connection(Box::new(connection), Instant::now() + MAX_IDLE);
            return Ok(PooledConnection(CallConnection::Own(idle)));
        }
        let shared = SharedConnection::over(stream, self.max, Arc::clone(&self.changed)).await?;
        let slot = shared.take().ok_or("the server accepts no call")?;
        let room = shared.room();
        let mut open = self.lock();
        if self.sweeps(&mut open, Instant::now() + MAX_IDLE) {
            open.shared.push(shared);
        }
        drop(open);
        // Calls that wait for a connection look again after this.
        opening.ended(room);
        Ok(PooledConnection(CallConnection::Stream(slot)))
    }

    /// Keeps `connection` for the next call after a call has used it.
    pub(super) fn put_back(self: &Arc<Self>, connection: Box<Connection>) {
        self.put(connection, Instant::now() + MAX_IDLE);
    }

    /// Keeps `connection` for later calls, at most until the time `until`, if it is reusable and
    /// there is room.
    fn put(self: &Arc<Self>, mut connection: Box<Connection>, until: Instant) {
        if !connection.is_ready() || until <= Instant::now() {
            return;
        }
        let mut open = self.lock();
        if open.idle.len() >= self.max || !self.sweeps(&mut open, until) {
            return;
        }
        // A connection that was taken and not used keeps its earlier deadline. If it is now the
        // first, `sweep` still wakes for the one behind it, and closes both.
        let at = (open.idle).partition_point(|(other, _)| *other <= until);
        open.idle.insert(at, (until, connection));
    }

    /// Makes sure that a task closes unused connections at `first` or earlier. Returns false
    /// without a runtime, because no calls are made then.
    fn sweeps(self: &Arc<Self>, open: &mut OpenConnections, first: Instant) -> bool {
        if !open.swept {
            let Ok(runtime) = Handle::try_current() else {
                return false;
            };
            open.swept = true;
            runtime.spawn(sweep(Arc::downgrade(self), first));
        }
        true
    }

    /// Closes connections that have been idle for too long. Returns when to call it again, or
    /// `None` if no connection is left.
    fn close_old(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut open = self.lock();
        let young = open.idle.partition_point(|(until, _)| *until <= now);
        let old: Vec<_> = open.idle.drain(..young).collect();
        let mut next = open.idle.first().map(|(until, _)| *until);
        let mut ended = Vec::new();
        for shared in mem::take(&mut open.shared) {
            match shared.idle_deadline(now) {
                Some(until) => {
                    next = Some(next.map_or(until, |next| next.min(until)));
                    open.shared.push(shared);
                }
                None => ended.push(shared),
            }
        }
        open.swept = next.is_some();
        drop(open);
        drop((old, ended));
        next
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        // The state is consistent at any time.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection for one call. Dropping it unused returns it to its pool.
pub struct PooledConnection(CallConnection);

enum CallConnection {
    Own(TakenConnection),
    Stream(StreamSlot),
}

impl PooledConnection {
    /// Returns true if a request can probably be sent. Does not wait.
    pub(super) fn is_ready(&mut self) -> bool {
        match &mut self.0 {
            CallConnection::Own(own) => own.is_ready(),
            CallConnection::Stream(slot) => slot.is_ready(),
        }
    }

    /// Sends `request`, now or with the first poll of [`Exchange::answer`]. `full_uri` is its URL
    /// including the server. Returns `None`, and sends nothing, if it can't be sent at once.
    pub(super) fn send(self, request: Request<Bytes>, full_uri: &Uri) -> Option<Exchange> {
        match self.0 {
            CallConnection::Own(mut own) => {
                let connection = own.connection.take()?;
                Some(Exchange::Own(connection.send(request)))
            }
            CallConnection::Stream(slot) => {
                stream::StreamExchange::send(slot, request, full_uri).map(Exchange::Stream)
            }
        }
    }
}

/// A connection that is taken for one call. Dropping it unused returns it to its pool.
struct TakenConnection {
    /// The connection; `None` once it is used. A used connection that is not given back is closed.
    connection: Option<Box<Connection>>,
    until: Instant,
    pool: Arc<Pool>,
}

impl TakenConnection {
    fn is_ready(&mut self) -> bool {
        let open = self.connection.as_mut().is_some_and(|it| it.is_ready());
        open && Instant::now() < self.until
    }
}

impl Drop for TakenConnection {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.pool.put(connection, self.until);
        }
    }
}

/// Closes idle connections in time. Ends with the pool, or when no connection is left.
async fn sweep(pool: Weak<Pool>, mut next: Instant) {
    loop {
        sleep_until(next).await;
        match pool.upgrade().and_then(|pool| pool.close_old()) {
            Some(then) => next = then,
            None => return,
        }
    }
}

/// Returns the protocols to offer to a server.
pub(super) fn offer(http2: bool) -> Vec<Vec<u8>> {
    let offered = PROTOCOLS.into_iter().filter(|name| http2 || *name != HTTP2);
    offered.map(<[u8]>::to_vec).collect()
}

/// Returns true if the server has chosen HTTP/2. A server without TLS never does.
pub(super) fn speaks_http2(stream: &Stream) -> bool {
    match stream {
        Stream::Http(_) => false,
        Stream::Https(tls) => tls.inner().get_ref().1.alpn_protocol() == Some(HTTP2),
    }
}
