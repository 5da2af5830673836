//! A connection that many calls share (HTTP/2), each on a stream of its own.
//!
//! A task drives the connection. A call that is being sent drives it, too, right after the check of
//! its permit, so the request is written in the same poll. A call has its stream before its permit
//! is requested, so no permit expires while it waits for a stream.

use std::convert::Infallible;
use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{self, Builder, SendRequest};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep};

use super::bounded::{BoundedStream, Bounds};
use super::pool::MAX_IDLE;
use super::socket::{Socket, Stream};

/// Flow-control window of a stream in bytes: the part of an answer's body that arrives before it is
/// read.
const STREAM_WINDOW: u32 = 64 * 1024;
/// Flow-control window of a connection in bytes.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Maximum size of an answer's head in bytes.
const MAX_HEAD: u32 = 64 * 1024;
/// Maximum number of bytes read until a call gets an answer or a part of one. The flow-control
/// windows keep a correct server below it. It stops a server that sends frames that belong to no
/// call.
const MAX_READ: usize = 4 << 20;
/// Time for a connection without users to announce its end to the server.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// An open connection. It is closed when its last user has gone.
pub(super) struct SharedConnection {
    sender: SendRequest<Bytes>,
    wire: Arc<Mutex<Http2Wire>>,
    socket: Socket,
    bounds: Bounds,
    /// Maximum number of streams, further limited by the server.
    max: usize,
    usage: Mutex<SharedUsage>,
    /// Notified when another call may be sent.
    changed: Arc<Notify>,
    /// Dropping it tells the task that the connection has no users.
    _held: oneshot::Sender<Infallible>,
}

/// The connection's I/O. A call that holds its lock can read and write.
pub(super) struct Http2Wire {
    /// The connection; `None` once it has ended.
    connection: Option<client::Connection<BoundedStream, Bytes>>,
    socket: Socket,
    /// Waker of the task. Every poll registers it, so the task is woken even if a call polled last.
    waker: Waker,
    /// Whether the kernel has taken everything that was to be written.
    is_drained: bool,
}

struct SharedUsage {
    /// Streams that are reserved for or used by calls.
    taken: usize,
    /// Streams that are open.
    running: usize,
    /// Open streams whose request waits for the server to accept more of it.
    writing: usize,
    /// Time at which the last stream ended.
    since: Instant,
    /// Whether a call had no answer in time. No further call is sent over the connection then.
    retired: bool,
}

impl SharedConnection {
    /// Starts HTTP/2 over `stream`, with at most `max` simultaneous calls. Returns when the server
    /// has announced that it accepts at least one.
    pub(super) async fn over(
        stream: Stream,
        max: usize,
        changed: Arc<Notify>,
    ) -> Result<Arc<Self>, Box<dyn Error + Send + Sync>> {
        let socket = Socket::below(&stream);
        let bounds = Bounds::new(MAX_READ);
        // An error of TLS, if there is one, explains more than its consequence.
        let failure_of = |why: h2::Error| match (bounds.failure(), why.is_io()) {
            (Some(why), _) => why.into(),
            (None, true) => why.into_io().map_or_else(closed, Into::into),
            (None, false) => why.into(),
        };
        let shaken = Builder::new()
            .enable_push(false)
            // No stream until the server announces how many it accepts.
            .initial_max_send_streams(0)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_HEAD)
            .handshake(BoundedStream::new(stream, &bounds));
        let (sender, mut connection) = shaken.await.map_err(failure_of)?;
        let takes_one = poll_fn(|cx| match Pin::new(&mut connection).poll(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(Err(closed())),
            Poll::Ready(Err(why)) => Poll::Ready(Err(failure_of(why))),
            Poll::Pending if sender.current_max_send_streams() > 0 => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        });
        takes_one.await?;
        let wire = Arc::new(Mutex::new(Http2Wire {
            connection: Some(connection),
            is_drained: !socket.waits(),
            socket: socket.clone(),
            // The task polls before anything else does.
            waker: Waker::noop().clone(),
        }));
        let (held, released) = oneshot::channel();
        tokio::spawn(drive(Arc::clone(&wire), released));
        Ok(Arc::new(Self {
            sender,
            wire,
            socket,
            bounds,
            max,
            usage: Mutex::new(SharedUsage {
                taken: 0,
                running: 0,
                writing: 0,
                since: Instant::now(),
                retired: false,
            }),
            changed,
            _held: held,
        }))
    }

    /// Returns the number of simultaneous calls that the connection takes.
    pub(super) fn room(&self) -> usize {
        self.max.min(self.sender.current_max_send_streams())
    }

    /// Returns until when the connection is kept if no call uses it, or `None` if it must not be
    /// used any more.
    pub(super) fn idle_deadline(&self, now: Instant) -> Option<Instant> {
        let until = self.usage().idle_deadline(now)?;
        self.is_open().then_some(until)
    }

    /// Reserves a stream for one call, if one is free.
    pub(super) fn take(self: &Arc<Self>) -> Option<StreamSlot> {
        if !self.is_free() {
            return None;
        }
        let room = self.room();
        let mut usage = self.usage();
        if usage.taken >= room {
            return None;
        }
        usage.taken += 1;
        Some(StreamSlot {
            shared: Arc::clone(self),
            runs: false,
            writes: false,
        })
    }

    /// Returns true if a request would probably be written at once, and not queue behind others.
    /// Does not wait.
    fn is_free(&self) -> bool {
        let usage = self.usage();
        let is_kept = usage.idle_deadline(Instant::now()).is_some() && usage.writing == 0;
        drop(usage);
        is_kept && self.wire().is_drained_now() && self.is_open()
    }

    /// Returns true if the server accepts calls: it has neither announced its end nor gone.
    fn is_open(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        matches!(self.sender.clone().poll_ready(&mut cx), Poll::Ready(Ok(())))
    }

    fn wire(&self) -> MutexGuard<'_, Http2Wire> {
        lock(&self.wire)
    }

    fn usage(&self) -> MutexGuard<'_, SharedUsage> {
        lock(&self.usage)
    }
}

impl SharedUsage {
    fn idle_deadline(&self, now: Instant) -> Option<Instant> {
        let until = match self.running {
            0 => self.since + MAX_IDLE,
            _ => now + MAX_IDLE,
        };
        (!self.retired && now < until).then_some(until)
    }
}

impl Http2Wire {
    /// Reads and writes as much as possible without waiting. Returns `Ready` if the connection has
    /// ended.
    pub(super) fn advance(&mut self) -> Poll<()> {
        let Some(connection) = &mut self.connection else {
            return Poll::Ready(());
        };
        let mut cx = Context::from_waker(&self.waker);
        // The futures that wait for answers return the error. If there are none, the error concerns
        // no call.
        let ended = Pin::new(connection).poll(&mut cx).map(drop);
        self.is_drained = !self.socket.waits();
        if ended.is_ready() {
            self.connection = None;
            self.waker.wake_by_ref();
        }
        ended
    }

    /// Returns true if the connection is open and everything that can be written by now is written.
    pub(super) fn is_drained_now(&mut self) -> bool {
        self.advance().is_pending() && self.is_drained
    }

    /// Returns true if everything handed over before the last [`Http2Wire::advance`] is written.
    pub(super) fn is_drained(&self) -> bool {
        self.is_drained
    }
}

/// Drives a connection until it ends, or until shortly after its last user has gone.
async fn drive(wire: Arc<Mutex<Http2Wire>>, released: oneshot::Receiver<Infallible>) {
    let ended = poll_fn(|cx| {
        let mut wire = lock(&wire);
        wire.waker.clone_from(cx.waker());
        wire.advance()
    });
    let given_up = async {
        // The sender never sends; an error means that it was dropped.
        let _ = released.await;
        sleep(CLOSE_GRACE).await;
    };
    tokio::select! {
        () = ended => {}
        () = given_up => {}
    }
    lock(&wire).connection = None;
}

/// A reserved stream. Dropping it returns the reservation.
pub(super) struct StreamSlot {
    shared: Arc<SharedConnection>,
    /// Whether the stream is open.
    runs: bool,
    /// Whether its request waits for the server to accept more of it.
    writes: bool,
}

impl StreamSlot {
    /// Returns true if a call could probably be sent at once. Does not wait.
    pub(super) fn is_ready(&self) -> bool {
        // The server may have lowered its limit.
        self.shared.is_free() && self.shared.usage().taken <= self.shared.room()
    }

    /// Opens the stream if the server has room for it now.
    pub(super) fn run(&mut self) -> Option<SendRequest<Bytes>> {
        let room = self.shared.room();
        let mut usage = self.shared.usage();
        if usage.retired || usage.running >= room {
            return None;
        }
        usage.running += 1;
        self.runs = true;
        Some(self.shared.sender.clone())
    }

    /// Records whether the request waits for the server to accept more of it.
    pub(super) fn writes(&mut self, writes: bool) {
        if writes != self.writes {
            let mut usage = self.shared.usage();
            usage.writing = usage.writing + usize::from(writes) - usize::from(self.writes);
            self.writes = writes;
            drop(usage);
            self.shared.changed.notify_waiters();
        }
    }

    /// Records that a call got an answer, or a part of one.
    pub(super) fn gets_on(&self) {
        self.shared.bounds.renew();
    }

    /// Stops sending calls over the connection.
    pub(super) fn retire(&self) {
        self.shared.usage().retired = true;
    }

    pub(super) fn wire(&self) -> &Arc<Mutex<Http2Wire>> {
        &self.shared.wire
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.shared.socket
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut usage = self.shared.usage();
        usage.taken -= 1;
        usage.running -= usize::from(self.runs);
        usage.writing -= usize::from(self.writes);
        if self.runs {
            usage.since = Instant::now();
        }
        drop(usage);
        self.shared.changed.notify_waiters();
    }
}

/// Locks a mutex whose data is consistent at any time.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the error for a connection that the server closed before it sent anything.
fn closed() -> Box<dyn Error + Send + Sync> {
    io::Error::from(io::ErrorKind::UnexpectedEof).into()
}
