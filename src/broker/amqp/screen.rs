//! Inspects incoming frames before `lapin` reads them, and changes frames that would end the
//! connection.
//!
//! An AMQP 0-9-1 frame has a type (1 method, 2 content header, 3 body, 8 heartbeat), the channel (2
//! bytes), the payload's size (4 bytes), the payload, and an end mark.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_rs::Tokio;
use async_rs::traits::Reactor;
use futures_util::io::{AsyncRead, AsyncWrite};
use futures_util::{Stream, TryFutureExt};
use lapin::AsyncTcpStream;

use super::content;

/// `lapin`'s runtime, but with [`ScreenedConnection`] streams.
pub(super) type Runtime = async_rs::Runtime<async_rs::util::RuntimeParts<Tokio, Net>>;
type Inner = AsyncTcpStream<<Tokio as Reactor>::TcpStream>;

const METHOD: u8 = 1;
const HEADER: u8 = 2;
/// Bytes before a frame's payload.
const FRAME_HEAD: usize = 7;
/// Maximum payload of an inspected frame, in bytes. Larger frames pass. RabbitMQ's have 128 KiB
/// unless configured otherwise.
const MAX_HELD: usize = 4 << 20;
/// Bytes of a frame that are reserved for headers that we and the broker add, and for the other
/// properties.
const RESERVE: usize = 12 << 10;
/// The largest frame that we ask for, in bytes: RabbitMQ's own limit, unless it is configured with
/// a smaller one.
pub(super) const FRAME_MAX: u32 = 128 << 10;
/// The smallest maximum that a server may have, in bytes (AMQP 0-9-1, 4.2.3).
const FRAME_MIN: usize = 4 << 10;
/// Bytes read from the socket at once.
const CHUNK: usize = 64 << 10;

/// Returns a runtime that uses the current tokio runtime. Must be called within one.
pub(super) fn runtime() -> Runtime {
    let parts = async_rs::util::RuntimeParts::new(Tokio::current(), Net(Tokio::current()));
    async_rs::Runtime::new(parts)
}

/// Tokio's reactor, with [`ScreenedConnection`] streams.
#[derive(Debug, Clone)]
pub(super) struct Net(Tokio);

impl Reactor for Net {
    type TcpStream = ScreenedConnection;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: io::Read + io::Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.0.register(socket)
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.0.sleep(time)
    }

    fn interval(&self, time: Duration) -> impl Stream<Item = std::time::Instant> + Send + 'static {
        self.0.interval(time)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<ScreenedConnection>> + Send + 'static {
        (self.0.tcp_connect_addr(address))
            .map_ok(|stream| ScreenedConnection::new(Inner::Plain(stream)))
    }
}

/// A connection whose incoming frames are screened.
pub(super) struct ScreenedConnection {
    inner: Inner,
    chunk: Box<[u8]>,
    screen: Screen,
    /// Bytes of `screen.ready` that were already read.
    given: usize,
}

impl ScreenedConnection {
    pub fn new(inner: Inner) -> Self {
        Self {
            inner,
            chunk: vec![0; CHUNK].into(),
            screen: Screen::default(),
            given: 0,
        }
    }
}

impl AsyncRead for ScreenedConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        loop {
            let ready = &this.screen.ready()[this.given..];
            if !ready.is_empty() {
                let count = ready.len().min(buf.len());
                buf[..count].copy_from_slice(&ready[..count]);
                this.given += count;
                return Poll::Ready(Ok(count));
            }
            this.screen.ready.clear();
            this.given = 0;
            match ready!(Pin::new(&mut this.inner).poll_read(cx, &mut this.chunk))? {
                0 => return Poll::Ready(Ok(0)),
                count => this.screen.feed(&this.chunk[..count]),
            }
        }
    }
}

impl AsyncWrite for ScreenedConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, bufs)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_close(cx)
    }
}

/// Accepts bytes in pieces of any size, and makes them ready for `lapin`.
#[derive(Default)]
pub struct Screen {
    ready: Vec<u8>,
    /// A frame's head, or a frame that is inspected once it is complete.
    held: Vec<u8>,
    /// Number of bytes left of a frame that passes without inspection.
    pass: usize,
    /// Whether the peer does not speak AMQP 0-9-1. Then nothing is inspected anymore.
    foreign: bool,
    frame_max: Option<usize>,
}

impl Screen {
    /// Returns all bytes that are ready.
    pub fn ready(&self) -> &[u8] {
        &self.ready
    }

    /// Takes the next bytes that arrived.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.foreign {
                self.ready.extend_from_slice(bytes);
                return;
            }
            if self.pass > 0 {
                let (passed, rest) = bytes.split_at(self.pass.min(bytes.len()));
                self.ready.extend_from_slice(passed);
                self.pass -= passed.len();
                bytes = rest;
                continue;
            }
            let missing = self.wanted() - self.held.len();
            let (taken, rest) = bytes.split_at(missing.min(bytes.len()));
            self.held.extend_from_slice(taken);
            bytes = rest;
            if taken.len() == missing {
                self.advance();
            }
        }
    }

    /// Returns the length of `held` at which the next step can be taken.
    fn wanted(&self) -> usize {
        match self.size() {
            None => FRAME_HEAD,
            Some(size) => FRAME_HEAD + size + 1,
        }
    }

    /// Returns the payload's size, or `None` until the head is complete.
    fn size(&self) -> Option<usize> {
        let size = self.held.get(3..FRAME_HEAD)?.try_into().ok()?;
        Some(u32::from_be_bytes(size) as usize)
    }

    /// Handles a complete head or frame in `held`.
    fn advance(&mut self) {
        let Some(size) = self.size() else { return };
        if self.held.len() > FRAME_HEAD {
            self.parse_frame();
            return;
        }
        match self.held[0] {
            METHOD | HEADER if size <= MAX_HELD => {}
            METHOD | HEADER | 3 | 8 => {
                self.pass = size.saturating_add(1);
                self.ready.append(&mut self.held);
            }
            // A peer that speaks another version names it and hangs up.
            _ => {
                self.foreign = true;
                self.ready.append(&mut self.held);
            }
        }
    }

    /// Inspects the complete frame in `held`.
    fn parse_frame(&mut self) {
        let payload = &self.held[FRAME_HEAD..self.held.len() - 1];
        let changed = match self.held[0] {
            // No server sends this, and not even the body's length can be read from it: `lapin`
            // ends the connection.
            HEADER if payload.len() < content::PREFIX => None,
            HEADER => {
                let frame_max = self.frame_max.unwrap_or(FRAME_MAX as usize);
                let max = frame_max.saturating_sub(RESERVE).max(frame_max / 4);
                content::unreadable(payload, max).map(|why| {
                    tracing::warn!(%why, "a message's properties are invalid: it becomes a dead \
                        letter");
                    content::wrapped(payload, &why, max)
                })
            }
            _ => {
                if let Some(tuned) = frame_max(payload) {
                    self.frame_max = Some(tuned);
                }
                routed(payload)
            }
        };
        match changed {
            None => self.ready.append(&mut self.held),
            Some(payload) => {
                self.ready.extend_from_slice(&self.held[..3]);
                // The size fits in 4 bytes: the original did, and the changed payload is hardly
                // larger.
                self.ready.extend((payload.len() as u32).to_be_bytes());
                self.ready.extend_from_slice(&payload);
                self.ready.extend(self.held.last());
                self.held.clear();
            }
        }
    }
}

/// Returns the maximum frame size in a connection.tune (10, 30), or `None` for other methods and
/// for 0, which means any size.
fn frame_max(method: &[u8]) -> Option<usize> {
    let rest = method.strip_prefix(&[0, 10, 0, 30])?;
    let size = u32::from_be_bytes(rest.get(2..6)?.try_into().ok()?);
    (size > 0).then_some((size.min(FRAME_MAX) as usize).max(FRAME_MIN))
}

/// Returns a changed basic.deliver, get-ok or return if its exchange or routing key is not UTF-8,
/// with an empty text in its place. Neither is needed for an answer.
fn routed(method: &[u8]) -> Option<Vec<u8>> {
    let (id, arguments) = method.split_at_checked(4)?;
    let before = match id {
        // The consumer's tag, the delivery's tag, and the redelivered flag.
        [0, 60, 0, 60] => 1 + usize::from(*arguments.first()?) + 9,
        [0, 60, 0, 71] => 9,
        // The reply's code and text.
        [0, 60, 0, 50] => 3 + usize::from(*arguments.get(2)?),
        _ => return None,
    };
    let (before, rest) = arguments.split_at_checked(before)?;
    let (exchange, rest) = short(rest)?;
    let (key, rest) = short(rest)?;
    if std::str::from_utf8(exchange).is_ok() && std::str::from_utf8(key).is_ok() {
        return None;
    }
    tracing::warn!("a message's exchange or routing key is not UTF-8: treating it as empty");
    let mut changed = [id, before].concat();
    for text in [exchange, key] {
        let text = if std::str::from_utf8(text).is_ok() {
            text
        } else {
            b""
        };
        // Fits: a short text's length field is one byte, and the text did not grow.
        changed.push(text.len() as u8);
        changed.extend_from_slice(text);
    }
    changed.extend_from_slice(rest);
    Some(changed)
}

/// Splits off a short text. Returns its bytes and the rest.
fn short(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let size = (payload.len() as u32).to_be_bytes();
        [&[kind, 0, 1], &size[..], payload, &[0xce]].concat()
    }

    /// Returns the output, and checks that it does not depend on how the input is split.
    fn screened(bytes: &[u8]) -> Vec<u8> {
        let in_pieces = |size| {
            let mut screen = Screen::default();
            bytes.chunks(size).for_each(|piece| screen.feed(piece));
            screen.ready
        };
        let whole = in_pieces(bytes.len());
        for size in [1, 2, 7, 8, 13] {
            assert_eq!(in_pieces(size), whole, "in pieces of {size}");
        }
        whole
    }

    const ID: &[u8] = b"\0\x3c\0\0\0\0\0\0\0\0\0\x01\0\x80\x02id";
    const BAD_ID: &[u8] = b"\0\x3c\0\0\0\0\0\0\0\0\0\x01\0\x80\x02i\xff";

    #[test]
    fn readable_content_passes_unchanged() {
        let all = [
            frame(METHOD, b"\0\x3c\0\x3c\x01t\0\0\0\0\0\0\0\x01\0\0\x04jobs"),
            frame(HEADER, ID),
            frame(3, b"\xff"),
            frame(8, b""),
        ]
        .concat();
        assert_eq!(screened(&all), all);
        // A content header whose payload is shorter than `content::PREFIX` can't be repaired and
        // passes unchanged.
        let stub = frame(HEADER, b"\0\x3c\0");
        assert_eq!(screened(&stub), stub);
        // The answer of another protocol version is shorter than a frame's head and one byte.
        assert_eq!(screened(b"AMQP\0\x01\0\0"), b"AMQP\0\x01\0\0");
    }

    #[test]
    fn only_unreadable_content_is_changed() {
        let (before, after) = (frame(HEADER, ID), frame(3, b"x"));
        let out = screened(&[before.clone(), frame(HEADER, BAD_ID), after.clone()].concat());
        let wrapped = content::wrapped(BAD_ID, "message-id is not UTF-8", FRAME_MAX as usize);
        assert_eq!(out, [before, frame(HEADER, &wrapped), after].concat());
    }

    #[test]
    fn the_servers_frame_size_bounds_the_headers() {
        let with_headers = |bytes: usize| {
            let length = (bytes as u32).to_be_bytes();
            let long = [b"\x01kS", &length[..], &vec![b'v'; bytes]].concat();
            let size = (long.len() as u32).to_be_bytes();
            [&ID[..12], &[0x20, 0], &size[..], &long].concat()
        };
        let header = with_headers(0xfff);
        let tune = |max: u32| {
            frame(
                METHOD,
                &[&[0, 10, 0, 30, 0, 0], &max.to_be_bytes()[..], &[0, 9]].concat(),
            )
        };
        for (max, passes) in [(0, true), (1 << 17, true), (8 << 10, false), (8, false)] {
            let all = [tune(max), frame(HEADER, &header)].concat();
            let out = screened(&all);
            assert_eq!(out == all, passes, "{max}");
            assert_eq!(screened(&out), out, "{max}: it comes again");
        }
        // Even if the server allows larger frames, its frames are no larger than we ask for.
        for (bytes, passes) in [(100 << 10, true), (120 << 10, false)] {
            let all = [tune(1 << 20), frame(HEADER, &with_headers(bytes))].concat();
            assert_eq!(screened(&all) == all, passes, "{bytes}");
        }
    }

    #[test]
    fn a_routing_key_that_cannot_be_read_is_empty() {
        for (before, after) in [
            (&b"\0\x3c\0\x3c\x01t\0\0\0\0\0\0\0\x01\0"[..], &b""[..]),
            (b"\0\x3c\0\x47\0\0\0\0\0\0\0\x01\0", b"\0\0\0\x07"),
            (b"\0\x3c\0\x32\x01\x38\x02no", b""),
        ] {
            let out = screened(&frame(
                METHOD,
                &[before, b"\x01e\x02\xff\xfe", after].concat(),
            ));
            assert_eq!(out, frame(METHOD, &[before, b"\x01e\0", after].concat()));
        }
    }
}
