//! The open connections over which a call could be sent: those that no call uses at the moment, and those that calls share.

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
use super::shared::{Shared, Slot};
use super::socket::{Sockets, Stream};
use super::stream;

/// What a server with TLS may choose from, the best first.
const PROTOCOLS: [&[u8]; 2] = [HTTP2, b"http/1.1"];
const HTTP2: &[u8] = b"h2";

/// Idle connections are closed sooner than servers commonly do it (after 5 s), so that hardly any request is
/// written to a connection that is being closed.
pub(super) const IDLE: Duration = Duration::from_secs(4);

/// Opens connections to one server and keeps those that can be used again.
pub(super) struct Pool {
    connector: HttpsConnector<Connector>,
    /// There is no proxy between us and the server.
    is_direct: bool,
    server: Uri,
    /// So many idle ones are kept at most, and so many calls share one.
    most: usize,
    open: Mutex<Open>,
    openings: Openings,
    /// Told when another call might be sent over a connection that is shared.
    changed: Arc<Notify>,
}

#[derive(Default)]
struct Open {
    /// Those that no call uses, with the time until which each is kept, the soonest first.
    idle: Vec<(Instant, Box<Connection>)>,
    /// Those that calls share. One is opened only where no other has room: so there are no more than calls, but for those that are
    /// being opened and some that are idle.
    shared: Vec<Arc<Shared>>,
    /// Whether a task waits for the first of these times.
    swept: bool,
}

impl Pool {
    /// For connections to `server`, whose path does not matter, through `proxy` if there is one, with `timeout` for all its addresses together. With TLS it may choose HTTP/2
    /// if `http2`.
    pub(super) fn new(
        (server, proxy): (Uri, Option<Proxy>),
        (mut tls, http2): (ClientConfig, bool),
        timeout: Duration,
        most: usize,
    ) -> Arc<Self> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        // The caller bounds all of it; this leaves a part for each address.
        tcp.set_connect_timeout(Some(timeout));
        tls.alpn_protocols = offer(http2);
        let changed = Arc::<Notify>::default();
        Arc::new(Self {
            is_direct: proxy.is_none(),
            connector: HttpsConnector::from((Connector::new(Sockets(tcp), proxy), tls)),
            server,
            most,
            open: Mutex::default(),
            openings: Openings::new(Arc::clone(&changed)),
            changed,
        })
    }

    /// Whether what the machine at the other end acknowledges has reached the server.
    pub(super) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// What a call can be sent over at once: a stream, or the connection that was used last among those that are still open.
    pub(super) fn take(self: &Arc<Self>) -> Option<Pooled> {
        if let Some(slot) = self.slot() {
            return Some(Pooled(Carrier::Stream(slot)));
        }
        loop {
            let (until, connection) = self.lock().idle.pop()?;
            let mut kept = self.kept(connection, until);
            if kept.is_ready() {
                return Some(Pooled(Carrier::Own(kept)));
            }
        }
    }

    /// A stream of a connection that is shared.
    fn slot(&self) -> Option<Slot> {
        let now = Instant::now();
        let mut open = self.lock();
        let kept = |shared: &Arc<Shared>| shared.kept_until(now).is_some();
        let (shared, ended) = mem::take(&mut open.shared).into_iter().partition(kept);
        open.shared = shared;
        let shared = open.shared.clone();
        drop(open);
        // Those that end say so to the server.
        drop::<Vec<_>>(ended);
        shared.iter().find_map(Shared::take)
    }

    fn kept(self: &Arc<Self>, connection: Box<Connection>, until: Instant) -> Kept {
        Kept {
            connection: Some(connection),
            until,
            pool: Arc::clone(self),
        }
    }

    /// What a call can be sent over, for which a connection is opened where none has room: up to where a request can be sent.
    pub(super) async fn open(self: &Arc<Self>) -> Result<Pooled, Box<dyn Error + Send + Sync>> {
        let wanted = self.openings.want();
        loop {
            let change = wanted.change();
            if let Some(slot) = self.slot() {
                return Ok(Pooled(Carrier::Stream(slot)));
            }
            if let Some(opening) = wanted.begin() {
                return self.connect(opening).await;
            }
            change.await;
        }
    }

    /// A new connection: name looked up, connected, TLS and the protocol agreed on.
    async fn connect(
        self: &Arc<Self>,
        opening: Opening<'_>,
    ) -> Result<Pooled, Box<dyn Error + Send + Sync>> {
        // The connector is ready at any time, and its clone shares what it holds.
        let stream = self.connector.clone().call(self.server.clone()).await?;
        if !speaks_http2(&stream) {
            let connection = Connection::over(stream).await?;
            opening.ended(1);
            let kept = self.kept(Box::new(connection), Instant::now() + IDLE);
            return Ok(Pooled(Carrier::Own(kept)));
        }
        let shared = Shared::over(stream, self.most, Arc::clone(&self.changed)).await?;
        let slot = shared.take().ok_or("the server takes no call")?;
        let room = shared.room();
        let mut open = self.lock();
        if self.sweeps(&mut open, Instant::now() + IDLE) {
            open.shared.push(shared);
        }
        drop(open);
        // The others look for it only now.
        opening.ended(room);
        Ok(Pooled(Carrier::Stream(slot)))
    }

    /// Keeps `connection`, which was used, for a while.
    pub(super) fn put_back(self: &Arc<Self>, connection: Box<Connection>) {
        self.put(connection, Instant::now() + IDLE);
    }

    /// Keeps `connection` until then, if it can be used again and there is room.
    fn put(self: &Arc<Self>, mut connection: Box<Connection>, until: Instant) {
        if !connection.is_ready() || until <= Instant::now() {
            return;
        }
        let mut open = self.lock();
        if open.idle.len() >= self.most || !self.sweeps(&mut open, until) {
            return;
        }
        // One that was not used since it was taken ends sooner than others. Where it is the first, it is closed with the next one.
        let at = (open.idle).partition_point(|(other, _)| *other <= until);
        open.idle.insert(at, (until, connection));
    }

    /// Sees to it that what is open is closed when it is not used any more, `first` or before. False: without a runtime nobody calls
    /// any more.
    fn sweeps(self: &Arc<Self>, open: &mut Open, first: Instant) -> bool {
        if !open.swept {
            let Ok(runtime) = Handle::try_current() else {
                return false;
            };
            open.swept = true;
            runtime.spawn(sweep(Arc::downgrade(self), first));
        }
        true
    }

    /// Closes what has been idle for too long; the next time to look, or `None`: nothing is left.
    fn close_old(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut open = self.lock();
        let young = open.idle.partition_point(|(until, _)| *until <= now);
        let old: Vec<_> = open.idle.drain(..young).collect();
        let mut next = open.idle.first().map(|(until, _)| *until);
        let mut ended = Vec::new();
        for shared in mem::take(&mut open.shared) {
            match shared.kept_until(now) {
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

    fn lock(&self) -> MutexGuard<'_, Open> {
        // What it holds is whole at any time.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one call can be sent over. Dropped before it is used, it goes back to its pool.
pub struct Pooled(Carrier);

enum Carrier {
    Own(Kept),
    Stream(Slot),
}

impl Pooled {
    /// Whether a request can be sent, as far as can be seen without waiting.
    pub(super) fn is_ready(&mut self) -> bool {
        match &mut self.0 {
            Carrier::Own(kept) => kept.is_ready(),
            Carrier::Stream(slot) => slot.is_ready(),
        }
    }

    /// Sends `request`, now or with the first poll of [`Exchange::answer`]; `whole` is its url with the server. `None`: it can't be
    /// sent at once, and nothing of it was.
    pub(super) fn send(self, request: Request<Bytes>, whole: &Uri) -> Option<Exchange> {
        match self.0 {
            Carrier::Own(mut kept) => {
                let connection = kept.connection.take()?;
                Some(Exchange::Own(connection.send(request)))
            }
            Carrier::Stream(slot) => {
                stream::Exchange::send(slot, request, whole).map(Exchange::Stream)
            }
        }
    }
}

/// A connection that is taken for one call. Dropped before it is used, it goes back to its pool.
struct Kept {
    /// What is not given back after it was used is closed.
    connection: Option<Box<Connection>>,
    until: Instant,
    pool: Arc<Pool>,
}

impl Kept {
    fn is_ready(&mut self) -> bool {
        let open = self.connection.as_mut().is_some_and(|it| it.is_ready());
        open && Instant::now() < self.until
    }
}

impl Drop for Kept {
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

/// What a server may choose from.
pub(super) fn offer(http2: bool) -> Vec<Vec<u8>> {
    let offered = PROTOCOLS.into_iter().filter(|name| http2 || *name != HTTP2);
    offered.map(<[u8]>::to_vec).collect()
}

/// Whether the server has chosen HTTP/2; without TLS none does.
pub(super) fn speaks_http2(stream: &Stream) -> bool {
    match stream {
        Stream::Http(_) => false,
        Stream::Https(tls) => tls.inner().get_ref().1.alpn_protocol() == Some(HTTP2),
    }
}
