//! When bytes arrived, by the kernel's clock. A process that is kept from running reads them later,
//! but this does not change when they arrived.

use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::Instant;
use trial::freezable_stream::FreezableStream;

/// How close to each other two clocks are read.
const CLOSE: Duration = Duration::from_millis(1);

/// Makes the kernel note the arrival of everything, also before a connection is accepted.
pub struct KernelNotes(#[expect(dead_code, reason = "the kernel's notes end with it")] UdpSocket);

impl KernelNotes {
    pub async fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true).expect("Linux");
        Self(socket)
    }
}

/// The arrival of the newest bytes that a connection's owner has read.
#[derive(Clone, Default)]
pub struct LastArrival(Arc<Mutex<Option<Instant>>>);

impl LastArrival {
    /// Returns that time, or now if the kernel has not noted it. It is never before the bytes
    /// arrived, and after that only if newer bytes were read together with them.
    pub fn time(&self) -> Instant {
        let last = *self.0.lock().expect("no panic");
        last.unwrap_or_else(Instant::now)
    }
}

/// A connection that records when its bytes arrived.
pub struct DatedStream {
    stream: FreezableStream,
    last: LastArrival,
}

impl DatedStream {
    pub fn new(stream: FreezableStream) -> (Self, LastArrival) {
        // A connection that has already ended can't be set.
        let _ = setsockopt(stream.tcp(), sockopt::ReceiveTimestampns, &true);
        let last = LastArrival::default();
        let dated = Self {
            stream,
            last: last.clone(),
        };
        (dated, last)
    }
}

/// Reads the available bytes. Returns their number, and when the last of them arrived.
fn receive(stream: &TcpStream, buffer: &mut [u8]) -> io::Result<(usize, Option<Instant>)> {
    let mut space = nix::cmsg_space!(TimeSpec);
    let mut slices = [IoSliceMut::new(buffer)];
    let (socket, flags) = (stream.as_raw_fd(), MsgFlags::empty());
    let message = recvmsg::<()>(socket, &mut slices, Some(&mut space), flags)?;
    let note = message.cmsgs()?.find_map(|note| match note {
        ControlMessageOwned::ScmTimestampns(at) => Some(UNIX_EPOCH + Duration::from(at)),
        _ => None,
    });
    Ok((message.bytes, note.map(monotonic)))
}

/// Returns the time `at` of the wall clock by the monotonic one.
fn monotonic(at: SystemTime) -> Instant {
    loop {
        let (now, wall) = (Instant::now(), SystemTime::now());
        // No pause came in between.
        if now.elapsed() < CLOSE {
            // A wall clock that was set back in the meantime leaves the present.
            return now - wall.duration_since(at).unwrap_or_default();
        }
    }
}

impl AsyncRead for DatedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.stream.poll_thawed(cx));
        let tcp = self.stream.tcp();
        loop {
            ready!(tcp.poll_read_ready(cx))?;
            let unfilled = buffer.initialize_unfilled();
            match tcp.try_io(Interest::READABLE, || receive(tcp, unfilled)) {
                Ok((bytes, at)) => {
                    buffer.advance(bytes);
                    *self.last.0.lock().expect("no panic") = at;
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for DatedStream {
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::api::Api;
    use crate::{SECOND, until};

    #[tokio::test]
    async fn a_call_that_is_read_late_had_arrived_when_it_was_sent() {
        let api = Api::start().await;
        api.stand_still(true);
        let mut caller = TcpStream::connect(api.door.address).await.expect("open");
        let sent = Instant::now();
        let call = b"POST / HTTP/1.1\r\nhost: a\r\nx-job-id: 1\r\nx-tenant: acme\r\n\
            x-attempt: 1\r\ncontent-length: 0\r\n\r\n";
        caller.write_all(call).await.expect("there is room");
        tokio::time::sleep(SECOND).await;
        let read = Instant::now();
        api.stand_still(false);
        until("the call", || api.count() == 1).await;
        let call = &api.calls()[0];
        assert!(call.at >= read, "{call:?}");
        assert!(call.arrived < read, "{call:?}");
        assert!(call.arrived + CLOSE >= sent, "{call:?}");
    }
}
