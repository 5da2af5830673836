//! A stream that can be read up to a bound only. Without it, input that an HTTP client skips while
//! reading could keep a thread busy forever: interim answers (1xx), digits of a chunk's size, or
//! frames that belong to no call.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::socket::Stream;

type SharedError = Arc<dyn Error + Send + Sync>;

/// Number of bytes that may still be read. Clones share it.
#[derive(Clone)]
pub(super) struct Bounds(Arc<BoundsState>);

struct BoundsState {
    /// Bound in bytes.
    max: usize,
    left: AtomicUsize,
    failure: OnceLock<SharedError>,
}

impl Bounds {
    /// Creates a bound of `max` bytes.
    pub(super) fn new(max: usize) -> Self {
        Self(Arc::new(BoundsState {
            max,
            left: AtomicUsize::new(max),
            failure: OnceLock::new(),
        }))
    }

    /// Restores the full number of bytes.
    pub(super) fn renew(&self) {
        self.0.left.store(self.0.max, Ordering::Relaxed);
    }

    /// Allows that many more bytes.
    pub(super) fn allow(&self, bytes: usize) {
        self.0.left.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the first read error with its causes. The user of the stream may pass on only its
    /// text.
    pub(super) fn failure(&self) -> Option<SharedError> {
        self.0.failure.get().cloned()
    }

    fn read(&self, bytes: usize) -> io::Result<()> {
        let less = |left: usize| left.checked_sub(bytes);
        let order = Ordering::Relaxed;
        if self.0.left.fetch_update(order, order, less).is_err() {
            let words = format!("received {} KiB without an answer", self.0.max / 1024);
            return Err(io::Error::other(words));
        }
        Ok(())
    }
}

/// The bounded stream.
pub(super) struct BoundedStream {
    stream: TokioIo<Stream>,
    bounds: Bounds,
}

impl BoundedStream {
    pub(super) fn new(stream: Stream, bounds: &Bounds) -> Self {
        Self {
            stream: TokioIo::new(stream),
            bounds: bounds.clone(),
        }
    }
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if let Err(why) = ready!(Pin::new(&mut self.stream).poll_read(cx, buf)) {
            let (kind, why) = (why.kind(), SharedError::from(Box::from(why)));
            // Only the first error is kept.
            let _ = self.bounds.0.failure.set(Arc::clone(&why));
            return Poll::Ready(Err(io::Error::new(kind, why)));
        }
        Poll::Ready(self.bounds.read(buf.filled().len() - before))
    }
}
impl AsyncWrite for BoundedStream {
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
