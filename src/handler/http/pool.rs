//! The open connections to the servers of an API: idle connections and shared ones.

use std::error::Error;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, Uri};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::call::Exchange;
use super::connection::Connection;
use super::openings::Opening;
use super::server::{Server, ServerSetup, Servers};
use super::shared_connection::{SharedConnection, StreamSlot, lock};
use super::socket::Stream;
use super::stream;

/// Protocols offered to a server with TLS, best first.
const PROTOCOLS: [&[u8]; 2] = [HTTP2, b"http/1.1"];
const HTTP2: &[u8] = b"h2";

/// Idle connections are closed after this time. Servers usually close them after 5 s, so few
/// requests are written to a connection that the server is closing.
pub(super) const MAX_IDLE: Duration = Duration::from_secs(4);
/// How long a connection to a server that closes unused ones must stay open before it is used.
const TRIAL: Duration = Duration::from_millis(250);
/// How long a connection is new. Servers close older ones if they get no request.
const NEW: Duration = Duration::from_secs(1);

/// Opens connections to the servers of an API and keeps the reusable ones.
pub(super) struct Pool {
    setup: ServerSetup,
    servers: Mutex<Servers>,
    /// Maximum number of idle connections, and of calls that share one connection.
    max: AtomicUsize,
    open: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    /// Idle connections with the time until which each is kept, soonest first.
    idle: Vec<IdleConnection>,
    /// Shared connections: in use, idle or being opened. One is opened only if no other to its
    /// server has room, so there are never more in use than calls.
    shared: Vec<(Arc<Server>, Arc<SharedConnection>)>,
    /// Whether a task is running that closes idle connections.
    swept: bool,
}

struct IdleConnection {
    until: Instant,
    server: Arc<Server>,
    connection: Box<Connection>,
    /// Whether no request has been sent over it.
    is_unused: bool,
}

impl IdleConnection {
    /// Returns true if it was opened within [`NEW`], and no request has been sent over it.
    fn is_new(&self) -> bool {
        self.is_unused && self.until > Instant::now() + MAX_IDLE - NEW
    }
}

impl Pool {
    /// Creates a pool for connections by `setup`. There are at most `max` calls at a time.
    pub(super) fn new(setup: ServerSetup, max: usize) -> Arc<Self> {
        Arc::new(Self {
            setup,
            servers: Mutex::default(),
            max: max.into(),
            open: Mutex::default(),
        })
    }

    /// Returns the maximum number of calls at a time.
    pub(super) fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    /// Sets the maximum number of calls at a time. Open connections keep their number of calls.
    pub(super) fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// Returns the server at `host`, which may have a port.
    ///
    /// # Errors
    /// A message for the operator: no request can name the host, or its proxy can't be used.
    pub(super) fn server(&self, host: &str) -> Result<Arc<Server>, String> {
        lock(&self.servers).at(host, &self.setup)
    }

    /// Takes a connection to `server` on which a call can be sent at once: a stream of a shared
    /// connection, or the most recently used idle connection that is still open.
    pub(super) fn take(self: &Arc<Self>, server: &Arc<Server>) -> Option<PooledConnection> {
        if let Some(slot) = self.slot(server) {
            return Some(PooledConnection(CallConnection::Stream(slot)));
        }
        loop {
            let mut open = lock(&self.open);
            let at = (open.idle.iter()).rposition(|idle| Arc::ptr_eq(&idle.server, server))?;
            let found = open.idle.remove(at);
            drop(open);
            let mut idle = self.idle_connection(found);
            if idle.is_ready() {
                return Some(PooledConnection(CallConnection::Own(idle)));
            }
        }
    }

    /// Takes a stream of a shared connection to `server`.
    fn slot(&self, server: &Arc<Server>) -> Option<StreamSlot> {
        let mut open = lock(&self.open);
        if open.shared.is_empty() {
            return None;
        }
        let now = Instant::now();
        let (own, others): (Vec<_>, Vec<_>) = mem::take(&mut open.shared)
            .into_iter()
            .partition(|(of, _)| Arc::ptr_eq(of, server));
        let remains =
            |(_, shared): &(_, Arc<SharedConnection>)| shared.idle_deadline(now).is_some();
        let (own, ended): (Vec<_>, Vec<_>) = own.into_iter().partition(remains);
        open.shared = others;
        open.shared.extend_from_slice(&own);
        drop(open);
        // Dropped outside the lock, since ending a connection notifies the server.
        drop(ended);
        own.iter().find_map(|(_, shared)| shared.take())
    }

    fn idle_connection(self: &Arc<Self>, idle: IdleConnection) -> TakenConnection {
        TakenConnection {
            idle: Some(idle),
            pool: Arc::clone(self),
        }
    }

    /// Returns a connection to `server` on which a request can be sent. Opens one if no existing
    /// connection has room.
    pub(super) async fn open(
        self: &Arc<Self>,
        server: &Arc<Server>,
    ) -> Result<PooledConnection, Box<dyn Error + Send + Sync>> {
        let wanted = server.openings.want();
        loop {
            let change = wanted.change();
            if let Some(slot) = self.slot(server) {
                return Ok(PooledConnection(CallConnection::Stream(slot)));
            }
            if let Some(opening) = wanted.begin() {
                return self.connect(server, opening).await;
            }
            change.await;
        }
    }

    async fn connect(
        self: &Arc<Self>,
        server: &Arc<Server>,
        opening: Opening<'_>,
    ) -> Result<PooledConnection, Box<dyn Error + Send + Sync>> {
        let stream = server.connect().await?;
        if !speaks_http2(&stream) {
            let connection = Connection::over(stream).await?;
            opening.ended(1);
            let idle = self.idle_connection(IdleConnection {
                until: Instant::now() + MAX_IDLE,
                server: Arc::clone(server),
                connection: Box::new(connection),
                is_unused: true,
            });
            return Ok(PooledConnection(CallConnection::Own(idle)));
        }
        let changed = Arc::clone(&server.changed);
        let shared = SharedConnection::over(stream, self.max(), changed).await?;
        let slot = shared.take().ok_or("the server accepts no call")?;
        let room = shared.room();
        let mut open = lock(&self.open);
        if self.sweeps(&mut open, Instant::now() + MAX_IDLE) {
            open.shared.push((Arc::clone(server), shared));
        }
        let surplus = open.surplus_shared(self.max());
        drop(open);
        drop(surplus);
        // Calls that wait for a connection look again after this.
        opening.ended(room);
        Ok(PooledConnection(CallConnection::Stream(slot)))
    }

    /// Keeps `connection` to `server` for the next call after a call has used it.
    pub(super) fn put_back(self: &Arc<Self>, server: &Arc<Server>, connection: Box<Connection>) {
        self.put(IdleConnection {
            until: Instant::now() + MAX_IDLE,
            server: Arc::clone(server),
            connection,
            is_unused: false,
        });
    }

    /// Keeps a connection for later calls, if it is reusable, until its time at the latest. If
    /// there is no room, it replaces the connection that would be closed first.
    fn put(self: &Arc<Self>, mut idle: IdleConnection) {
        let until = idle.until;
        let is_ready = idle.connection.is_ready();
        if !is_ready && idle.is_new() {
            idle.server.closed_unused();
        }
        if !is_ready || until <= Instant::now() {
            return;
        }
        let mut open = lock(&self.open);
        if !self.sweeps(&mut open, until) {
            return;
        }
        let is_full = open.idle.len() >= self.max();
        let surplus = is_full.then(|| open.idle.remove(0));
        // A connection that was taken and not used keeps its earlier deadline. If it is now the
        // first, `sweep` still wakes for the one behind it, and closes both.
        let at = (open.idle).partition_point(|other| other.until <= until);
        open.idle.insert(at, idle);
        drop(open);
        drop(surplus);
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
        let mut open = lock(&self.open);
        let young = open.idle.partition_point(|idle| idle.until <= now);
        let old: Vec<_> = open.idle.drain(..young).collect();
        let mut next = open.idle.first().map(|idle| idle.until);
        let mut ended = Vec::new();
        for (server, shared) in mem::take(&mut open.shared) {
            match shared.idle_deadline(now) {
                Some(until) => {
                    next = Some(next.map_or(until, |next| next.min(until)));
                    open.shared.push((server, shared));
                }
                None => ended.push(shared),
            }
        }
        open.swept = next.is_some();
        drop(open);
        drop((old, ended));
        next
    }
}

impl OpenConnections {
    /// Removes the shared connection that has been idle the longest, if there are more than twice
    /// `max`. At most `max` are in use.
    fn surplus_shared(&mut self, max: usize) -> Option<Arc<SharedConnection>> {
        if self.shared.len() <= 2 * max {
            return None;
        }
        let now = Instant::now();
        let deadlines = self
            .shared
            .iter()
            .map(|(_, shared)| shared.idle_deadline(now));
        let (at, _) = deadlines.enumerate().min_by_key(|(_, until)| *until)?;
        Some(self.shared.swap_remove(at).1)
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

    /// Returns true if the connection was opened within [`NEW`], and no request has been sent over it.
    pub(super) fn is_new(&self) -> bool {
        match &self.0 {
            CallConnection::Own(own) => own.idle.as_ref().is_some_and(IdleConnection::is_new),
            CallConnection::Stream(_) => false,
        }
    }

    /// Returns the connection if the server leaves it open for [`TRIAL`], or until `deadline`. A job
    /// whose connections are closed at once would otherwise connect and ask again without a pause.
    pub(super) async fn tried(
        mut self,
        deadline: Instant,
    ) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let CallConnection::Own(own) = &mut self.0 else {
            // Its server has announced that it takes calls.
            return Ok(self);
        };
        let Some(idle) = &mut own.idle else {
            return Ok(self);
        };
        let until = deadline.min(Instant::now() + TRIAL);
        match timeout_at(until, idle.connection.closed()).await {
            Ok(why) => Err(why.into()),
            Err(_) => Ok(self),
        }
    }

    /// Sends `request`, now or with the first poll of [`Exchange::answer`]. `full_uri` is its URL
    /// including the server. Returns `None`, and sends nothing, if it can't be sent at once.
    pub(super) fn send(self, request: Request<Bytes>, full_uri: &Uri) -> Option<Exchange> {
        match self.0 {
            CallConnection::Own(mut own) => {
                let idle = own.idle.take()?;
                Some(Exchange::Own(idle.connection.send(request)))
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
    idle: Option<IdleConnection>,
    pool: Arc<Pool>,
}

impl TakenConnection {
    fn is_ready(&mut self) -> bool {
        let is_ready =
            |it: &mut IdleConnection| it.connection.is_ready() && Instant::now() < it.until;
        self.idle.as_mut().is_some_and(is_ready)
    }
}

impl Drop for TakenConnection {
    fn drop(&mut self) {
        if let Some(idle) = self.idle.take() {
            self.pool.put(idle);
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

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::Barrier;

    use super::*;
    use crate::http::HttpHandler;
    use crate::{Outcome, Permit, PreparingHandler};
    use config::Config;
    use rules::job::Job;
    use rules::tenant::Tenant;

    /// Number of simultaneous calls.
    const CALLS: usize = 3;

    /// Answers the calls of one connection, each when all simultaneous ones have come.
    async fn answer(mut stream: TcpStream, all: Arc<Barrier>) {
        let mut request = [0; 4096];
        while stream.read(&mut request).await.is_ok_and(|bytes| bytes > 0) {
            all.wait().await;
            let answer = b"HTTP/1.1 204 No Content\r\n\r\n";
            if stream.write_all(answer).await.is_err() {
                return;
            }
        }
    }

    /// Returns how many connections three rounds of calls open if the handler learns of
    /// `concurrency` after its start.
    async fn opened(concurrency: usize) -> usize {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let yaml = format!("dispatch: {{http: {{url: 'http://{addr}/', method: GET}}}}");
        let config = Config::parse("c.yaml", &yaml, std::iter::empty()).expect("valid");
        let http = config.dispatch.http.expect("an API");
        let handler = HttpHandler::new(&http, 1).expect("a usable url");
        handler.set_concurrency(concurrency);
        let number = Arc::<AtomicUsize>::default();
        let (opened, all) = (Arc::clone(&number), Arc::new(Barrier::new(CALLS)));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                opened.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(answer(stream, Arc::clone(&all)));
            }
        });
        let job = Job::new("1", Tenant::parse("acme").expect("a tenant"), "");
        for _ in 0..3 {
            let permit = || Permit::until(Instant::now() + Duration::from_secs(60));
            let calls = (0..CALLS).map(|_| handler.handle(&job, permit()));
            let outcomes = join_all(calls).await;
            assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Done));
        }
        number.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn a_raised_concurrency_keeps_more_connections() {
        assert_eq!(
            opened(1).await,
            7,
            "all but one are closed after each round"
        );
        assert_eq!(opened(CALLS).await, 3);
    }
}
