//! One connection to the API, driven by whoever uses it: no task of its own stands between the look at
//! the permit and the write.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{TrySendError, http1};
use hyper::{Request, Response};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::socket::Socket;

/// What is read is buffered up to this, in bytes: an answer's head is no longer.
const MAX_BUFFER: usize = 64 * 1024;
/// So many bytes are read, interim answers included, until the head of an answer is complete, and as many after it: what
/// frames a body (sizes of chunks, their extensions, trailers) is not counted by who reads the body.
const MAX_READ: usize = 4 * MAX_BUFFER;

/// TCP, with or without TLS on it.
pub(super) type Stream = MaybeHttpsStream<TokioIo<Socket>>;
type Wire = http1::Connection<TokioIo<Bounded>, Full<Bytes>>;
type Answer = Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>>;

/// What became of a request.
pub(super) enum Sent {
    /// The answer's head is there.
    Answered(Response<Incoming>),
    /// The connection was closed before a byte of the request was written.
    Unwritten,
    /// The downstream may have seen the request.
    Failed(hyper::Error),
}

/// An open connection. Dropped, it is closed.
pub(super) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    /// `None`: closed.
    wire: Option<Wire>,
    /// So many bytes may still be read.
    readable: Arc<AtomicUsize>,
    socket: Socket,
}

/// A request on its way, and its connection. Dropped, it is closed.
pub(super) struct Exchange {
    connection: Connection,
    answer: Pin<Box<dyn Future<Output = Answer> + Send>>,
    /// Bytes that had been written to the connection before.
    before: u64,
}

impl Connection {
    /// Speaks HTTP/1.1 over `stream`.
    pub(super) async fn over(stream: Stream) -> hyper::Result<Self> {
        let readable = Arc::new(AtomicUsize::new(MAX_READ));
        let socket = Socket::below(&stream);
        let io = TokioIo::new(Bounded {
            stream: TokioIo::new(stream),
            readable: Arc::clone(&readable),
        });
        let (sender, wire) = http1::Builder::new()
            .max_buf_size(MAX_BUFFER)
            .handshake(io)
            .await?;
        Ok(Self {
            sender,
            wire: Some(wire),
            readable,
            socket,
        })
    }

    /// Whether the next request can be sent, as far as can be seen without waiting.
    pub(super) fn is_ready(&mut self) -> bool {
        // Whoever waits for this connection next leaves a waker of its own.
        self.advance(&mut Context::from_waker(Waker::noop()));
        self.wire.is_some() && self.sender.is_ready()
    }

    /// Sends `request`: the first poll of [`Exchange::answer`] writes.
    pub(super) fn send(mut self, request: Request<Full<Bytes>>) -> Exchange {
        self.readable.store(MAX_READ, Ordering::Relaxed);
        Exchange {
            answer: Box::pin(self.sender.try_send_request(request)),
            before: self.socket.written(),
            connection: self,
        }
    }

    /// The next part of an answer's body; `None`: it has ended.
    pub(super) async fn next(
        &mut self,
        body: &mut Incoming,
    ) -> Option<hyper::Result<Frame<Bytes>>> {
        let mut frame = body.frame();
        poll_fn(|cx| {
            self.advance(cx);
            Pin::new(&mut frame).poll(cx)
        })
        .await
    }

    /// Reads and writes what can be without waiting.
    fn advance(&mut self, cx: &mut Context<'_>) {
        // An error is passed on by what waits for the answer; with nobody waiting there is nobody to tell.
        if let Some(open) = &mut self.wire
            && Pin::new(open).poll(cx).is_ready()
        {
            self.wire = None;
        }
    }
}

impl Exchange {
    /// Waits for the answer's head.
    pub(super) async fn answer(&mut self) -> Sent {
        let Self {
            connection, answer, ..
        } = self;
        let answer = poll_fn(|cx| {
            connection.advance(cx);
            answer.as_mut().poll(cx)
        });
        match answer.await {
            Ok(answer) => {
                connection.readable.store(MAX_READ, Ordering::Relaxed);
                Sent::Answered(answer)
            }
            Err(mut why) => match why.take_message() {
                Some(_) => Sent::Unwritten,
                None => Sent::Failed(why.into_error()),
            },
        }
    }

    /// The connection, for the rest of the answer.
    pub(super) fn into_connection(self) -> Connection {
        self.connection
    }

    /// Whether a byte of the request was written.
    pub(super) fn is_written(&self) -> bool {
        self.connection.socket.written() > self.before
    }

    /// Whether the API's machine has all that was written.
    pub(super) fn is_acked(&self) -> bool {
        self.connection.socket.is_acked()
    }

    /// Tells whether the API's machine has all of a request whose body has so many bytes, but for as many at its end as its
    /// head has at most. It may be asked at any time.
    pub(super) fn arrival(&self, body: usize) -> impl Fn() -> bool + Send + Sync + 'static {
        let whole = self.before + u64::try_from(body).unwrap_or(u64::MAX);
        let socket = self.connection.socket.clone();
        move || socket.written() > whole && socket.is_acked()
    }

    /// Closes the connection, and drops what was not acknowledged.
    pub(super) fn recall(self) {
        self.connection.socket.recall();
    }
}

/// A stream that may be read up to a bound only. Without it, what the client passes over as it is read would keep a
/// thread busy: interim answers (1xx), or the digits of a chunk's size, without an end.
struct Bounded {
    stream: TokioIo<Stream>,
    readable: Arc<AtomicUsize>,
}

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let read = buf.filled().len() - before;
        // One task at a time uses a connection; the atomic is for the compiler.
        match self.readable.load(Ordering::Relaxed).checked_sub(read) {
            Some(left) => self.readable.store(left, Ordering::Relaxed),
            None => {
                let words = format!("{} KiB came, and no answer was among it", MAX_READ / 1024);
                return Poll::Ready(Err(io::Error::other(words)));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
