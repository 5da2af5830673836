//! A connection that can freeze: bytes that its peer sends stay in the kernel until it continues.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Whether connections are frozen, and the tasks that wait for the end.
#[derive(Default)]
pub struct Stillness(Mutex<(bool, Vec<Waker>)>);

impl Stillness {
    pub fn set(&self, still: bool) {
        let mut inner = self.0.lock().expect("no panic");
        inner.0 = still;
        if !still {
            inner.1.drain(..).for_each(Waker::wake);
        }
    }

    fn poll_over(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.0.lock().expect("no panic");
        if inner.0 {
            inner.1.push(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

/// A connection that is not read while frozen.
pub struct FreezableStream {
    stream: TcpStream,
    stillness: Arc<Stillness>,
    /// Whether it ends with a reset.
    pub resets: Arc<AtomicBool>,
}

impl FreezableStream {
    pub fn new(stream: TcpStream, stillness: &Arc<Stillness>) -> Self {
        Self {
            stream,
            stillness: Arc::clone(stillness),
            resets: Arc::default(),
        }
    }

    /// Returns the connection, for callers that read from it themselves while it is not frozen.
    pub fn tcp(&self) -> &TcpStream {
        &self.stream
    }

    /// Waits until it is not frozen.
    pub fn poll_thawed(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.stillness.poll_over(cx)
    }
}

impl Drop for FreezableStream {
    fn drop(&mut self) {
        if self.resets.load(Ordering::Relaxed) {
            // The caller may have ended it before.
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for FreezableStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.poll_thawed(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Pin::new(&mut self.stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for FreezableStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
