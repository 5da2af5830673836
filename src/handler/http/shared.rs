//! A connection that many calls share (HTTP/2), each on a stream of its own.
//!
//! A task drives it. Who sends a call drives it, too, right after the look at the permit, so what is sent is written in the same
//! poll. A call has its stream before its permit is asked for: no permit is used up by waiting for one.

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

use super::bounded::{Bounded, Bounds};
use super::pool::IDLE;
use super::socket::{Socket, Stream};

/// So much of an answer's body comes before it is read, in bytes,
const WINDOW: u32 = 64 * 1024;
/// and so much of all answers on a connection.
const WINDOW_OF_ALL: u32 = 1 << 20;
/// An answer's head is no longer, in bytes.
const MAX_HEAD: u32 = 64 * 1024;
/// So many bytes are read until one of the calls gets an answer, or a part of one: more than comes unasked while nobody reads.
const MAX_READ: usize = 4 << 20;
/// So long a connection that nobody has any more may take to say so to the server.
const CLOSING: Duration = Duration::from_secs(1);

/// An open connection. It is closed when nobody has it any more.
pub(super) struct Shared {
    sender: SendRequest<Bytes>,
    wire: Arc<Mutex<Wire>>,
    socket: Socket,
    bounds: Bounds,
    /// There are so many streams at most, and no more than the server takes.
    most: usize,
    usage: Mutex<Usage>,
    /// Told when another call might be sent.
    changed: Arc<Notify>,
    /// Its end is heard by the task.
    _held: oneshot::Sender<Infallible>,
}

/// What is read and written, by whoever has it at the moment.
pub(super) struct Wire {
    /// `None`: it has ended.
    connection: Option<client::Connection<Bounded, Bytes>>,
    socket: Socket,
    /// Wakes the task, whoever looked last.
    waker: Waker,
    /// Whether the kernel has taken all that there was to write.
    is_drained: bool,
}

struct Usage {
    /// Streams that calls have, or are to have.
    taken: usize,
    /// Streams that are open.
    running: usize,
    /// Those of them whose request waits for the server to take more of it.
    writing: usize,
    /// When the last one ended.
    since: Instant,
    /// A call has waited in vain for an answer: nothing is sent over it any more.
    retired: bool,
}

impl Shared {
    /// Speaks HTTP/2 over `stream`, with at most so many calls at once. It is open when the server has said that it takes one.
    pub(super) async fn over(
        stream: Stream,
        most: usize,
        changed: Arc<Notify>,
    ) -> Result<Arc<Self>, Box<dyn Error + Send + Sync>> {
        let socket = Socket::below(&stream);
        let bounds = Bounds::new(MAX_READ);
        // What TLS said, if it did, tells more than what became of it.
        let told = |why: h2::Error| match (bounds.failure(), why.is_io()) {
            (Some(why), _) => why.into(),
            (None, true) => why.into_io().map_or_else(closed, Into::into),
            (None, false) => why.into(),
        };
        let shaken = Builder::new()
            .enable_push(false)
            // Until the server says how many it takes.
            .initial_max_send_streams(0)
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW_OF_ALL)
            .max_header_list_size(MAX_HEAD)
            .handshake(Bounded::new(stream, &bounds));
        let (sender, mut connection) = shaken.await.map_err(told)?;
        let takes_one = poll_fn(|cx| match Pin::new(&mut connection).poll(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(Err(closed())),
            Poll::Ready(Err(why)) => Poll::Ready(Err(told(why))),
            Poll::Pending if sender.current_max_send_streams() > 0 => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        });
        takes_one.await?;
        let wire = Arc::new(Mutex::new(Wire {
            connection: Some(connection),
            is_drained: !socket.waits(),
            socket: socket.clone(),
            // The task looks first of all.
            waker: Waker::noop().clone(),
        }));
        let (held, released) = oneshot::channel();
        tokio::spawn(drive(Arc::clone(&wire), released));
        Ok(Arc::new(Self {
            sender,
            wire,
            socket,
            bounds,
            most,
            usage: Mutex::new(Usage {
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

    /// So many calls it takes at once.
    pub(super) fn room(&self) -> usize {
        self.most.min(self.sender.current_max_send_streams())
    }

    /// Until when it is kept if nothing is sent over it; `None`: no call is to be sent over it any more.
    pub(super) fn kept_until(&self, now: Instant) -> Option<Instant> {
        let until = self.usage().kept_until(now)?;
        self.is_open().then_some(until)
    }

    /// A stream for one call, if one is free.
    pub(super) fn take(self: &Arc<Self>) -> Option<Slot> {
        if !self.is_free() {
            return None;
        }
        let room = self.room();
        let mut usage = self.usage();
        if usage.taken >= room {
            return None;
        }
        usage.taken += 1;
        Some(Slot {
            shared: Arc::clone(self),
            runs: false,
            writes: false,
        })
    }

    /// Whether what is sent would be written at once and not be behind others, as far as can be seen without waiting.
    fn is_free(&self) -> bool {
        let usage = self.usage();
        let is_kept = usage.kept_until(Instant::now()).is_some() && usage.writing == 0;
        drop(usage);
        is_kept && self.wire().is_drained_now() && self.is_open()
    }

    /// Whether the server takes calls: it has not said that it goes away, nor gone.
    fn is_open(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        matches!(self.sender.clone().poll_ready(&mut cx), Poll::Ready(Ok(())))
    }

    fn wire(&self) -> MutexGuard<'_, Wire> {
        lock(&self.wire)
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        lock(&self.usage)
    }
}

impl Usage {
    fn kept_until(&self, now: Instant) -> Option<Instant> {
        let until = match self.running {
            0 => self.since + IDLE,
            _ => now + IDLE,
        };
        (!self.retired && now < until).then_some(until)
    }
}

impl Wire {
    /// Reads and writes what can be without waiting. Ready: it has ended.
    pub(super) fn advance(&mut self) -> Poll<()> {
        let Some(connection) = &mut self.connection else {
            return Poll::Ready(());
        };
        let mut cx = Context::from_waker(&self.waker);
        // An error is passed on by what waits for answers; with nobody waiting there is nobody to tell.
        let ended = Pin::new(connection).poll(&mut cx).map(drop);
        self.is_drained = !self.socket.waits();
        if ended.is_ready() {
            self.connection = None;
            self.waker.wake_by_ref();
        }
        ended
    }

    /// Whether it is open, and all is written that can be by now.
    pub(super) fn is_drained_now(&mut self) -> bool {
        self.advance().is_pending() && self.is_drained
    }

    /// Whether all that was handed over before the last [`Wire::advance`] is written.
    pub(super) fn is_drained(&self) -> bool {
        self.is_drained
    }
}

/// Drives a connection until it ends, or soon after nobody has it any more.
async fn drive(wire: Arc<Mutex<Wire>>, released: oneshot::Receiver<Infallible>) {
    let ended = poll_fn(|cx| {
        let mut wire = lock(&wire);
        wire.waker.clone_from(cx.waker());
        wire.advance()
    });
    let given_up = async {
        // An error: that is how it is told.
        let _ = released.await;
        sleep(CLOSING).await;
    };
    tokio::select! {
        () = ended => {}
        () = given_up => {}
    }
    lock(&wire).connection = None;
}

/// The right to one stream. Dropped, it is given back.
pub(super) struct Slot {
    shared: Arc<Shared>,
    /// The stream is open,
    runs: bool,
    /// and its request waits for the server to take more of it.
    writes: bool,
}

impl Slot {
    /// Whether a call could be sent at once, as far as can be seen without waiting.
    pub(super) fn is_ready(&self) -> bool {
        // The server may take fewer than before.
        self.shared.is_free() && self.shared.usage().taken <= self.shared.room()
    }

    /// Opens the stream, if there is room for one at the server now.
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

    /// Whether its request waits for the server to take more of it.
    pub(super) fn writes(&mut self, writes: bool) {
        if writes != self.writes {
            let mut usage = self.shared.usage();
            usage.writing = usage.writing + usize::from(writes) - usize::from(self.writes);
            self.writes = writes;
            drop(usage);
            self.shared.changed.notify_waiters();
        }
    }

    /// A call got an answer, or a part of one.
    pub(super) fn gets_on(&self) {
        self.shared.bounds.renew();
    }

    /// Sends no more calls over the connection.
    pub(super) fn retire(&self) {
        self.shared.usage().retired = true;
    }

    pub(super) fn wire(&self) -> &Arc<Mutex<Wire>> {
        &self.shared.wire
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.shared.socket
    }
}

impl Drop for Slot {
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

/// What they hold is whole at any time.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The server closed the connection before it had said anything.
fn closed() -> Box<dyn Error + Send + Sync> {
    io::Error::from(io::ErrorKind::UnexpectedEof).into()
}
