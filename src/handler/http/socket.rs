//! A TCP connection that tracks how many of the written bytes the peer has acknowledged.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use hyper::Uri;
use hyper_rustls::MaybeHttpsStream;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use sluicegate_unacked::unacked;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tower_service::Service;

/// A TCP connection, with or without TLS on top.
pub(super) type Stream = MaybeHttpsStream<TokioIo<Tcp>>;

/// The read and write halves of a connection.
#[derive(Debug)]
pub(super) struct Tcp {
    /// A half of its own lets tokio notice that a read returned less than it had room for, and skip
    /// the next read, which would find nothing.
    reader: OwnedReadHalf,
    socket: Socket,
}

/// A connection. Clones share it. It is closed when the last clone and its [`Tcp`] are dropped.
#[derive(Debug, Clone)]
pub(super) struct Socket(Arc<SocketState>);

#[derive(Debug)]
struct SocketState {
    writer: OwnedWriteHalf,
    written: AtomicU64,
    /// Whether a write waits for room in the kernel.
    waits: AtomicBool,
}

impl Tcp {
    pub(super) fn over(tcp: TcpStream) -> Self {
        let (reader, writer) = tcp.into_split();
        let socket = Socket(Arc::new(SocketState {
            writer,
            written: AtomicU64::new(0),
            waits: AtomicBool::new(false),
        }));
        Self { reader, socket }
    }
}

impl Socket {
    /// Returns the socket below `stream`, with or without TLS.
    pub(super) fn below(stream: &Stream) -> Self {
        let tcp = match stream {
            Stream::Http(tcp) => tcp,
            Stream::Https(tls) => tls.inner().get_ref().0.inner(),
        };
        tcp.inner().socket.clone()
    }

    fn tcp(&self) -> &TcpStream {
        self.0.writer.as_ref()
    }

    /// Returns the number of bytes that the kernel has taken so far.
    pub(super) fn written(&self) -> u64 {
        self.0.written.load(Ordering::Acquire)
    }

    /// Returns true if a write waits because the kernel has no room.
    pub(super) fn waits(&self) -> bool {
        self.0.waits.load(Ordering::Acquire)
    }

    /// Returns true if the peer's machine has acknowledged everything that was written, or the
    /// system does not report it.
    pub(super) fn is_acked(&self) -> bool {
        unacked(self.tcp()).is_none_or(|bytes| bytes == 0)
    }

    /// Returns true if the peer's machine has acknowledged the first `bytes` that were written, or
    /// the system does not report it.
    pub(super) fn has_acked(&self, bytes: u64) -> bool {
        // A write after this line can only add to the unacknowledged bytes, so the result errs on
        // the safe side.
        let written = self.written();
        unacked(self.tcp()).is_none_or(|left| {
            let left = u64::try_from(left).unwrap_or(u64::MAX);
            bytes <= written.saturating_sub(left)
        })
    }

    /// Makes the kernel drop unacknowledged bytes when the connection is closed, instead of
    /// resending them. Acknowledged bytes can't be recalled.
    pub(super) fn recall(&self) {
        // An error means that nothing can be sent any more.
        let _ = self.tcp().set_zero_linger();
    }

    fn count(&self, result: io::Result<usize>) -> io::Result<usize> {
        let bytes = result?;
        (self.0.written).fetch_add(bytes.try_into().unwrap_or(u64::MAX), Ordering::Release);
        Ok(bytes)
    }

    /// Repeats `write` until it succeeds, fails or must wait for room.
    fn poll_write_by(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        // The flag is set until the write has succeeded.
        self.0.waits.store(true, Ordering::Release);
        loop {
            ready!(self.tcp().poll_write_ready(cx))?;
            match write(self.tcp()) {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
                result => {
                    self.0.waits.store(false, Ordering::Release);
                    return Poll::Ready(self.count(result));
                }
            }
        }
    }
}

impl AsyncRead for Tcp {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(cx, buf)
    }
}

impl AsyncWrite for Tcp {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_write_by(cx, |tcp| tcp.try_write(buf))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(self.socket.tcp()).shutdown(Shutdown::Write))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.socket
            .poll_write_by(cx, |tcp| tcp.try_write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

impl Connection for Tcp {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// Opens connections as [`Tcp`].
#[derive(Debug, Clone)]
pub(super) struct Sockets(pub(super) HttpConnector);

impl Service<Uri> for Sockets {
    type Response = TokioIo<Tcp>;
    type Error = <HttpConnector as Service<Uri>>::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let opening = self.0.call(server);
        Box::pin(async move {
            let tcp = opening.await?.into_inner();
            Ok(TokioIo::new(Tcp::over(tcp)))
        })
    }
}
