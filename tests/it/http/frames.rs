//! The API's end of HTTP/2 connections, frame by frame.

use kit::certificates::TestCertificates;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::*;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

/// Flags of DATA and HEADERS, of HEADERS, and of SETTINGS and PING.
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// Settings: the maximum number of concurrent streams, and the initial window of a request in
/// bytes.
pub const STREAMS: u16 = 3;
pub const WINDOW: u16 = 4;

/// Error codes.
pub const NO_ERROR: u32 = 0;
pub const REFUSED: u32 = 7;
pub const CANCEL: u32 = 8;

/// Header blocks (RFC 7541) of an answer 200 and of an interim answer 103.
const OK: &[u8] = &[0x88];
const EARLY_HINTS: &[u8] = b"\x08\x03103";

/// An API that negotiates HTTP/2.
pub struct Api {
    listener: TcpListener,
    tls: TlsAcceptor,
    papers: TestCertificates,
}

impl Api {
    pub async fn start() -> Self {
        let papers = TestCertificates::new();
        papers.issue("api", &["127.0.0.1"]);
        Self {
            listener: TcpListener::bind("127.0.0.1:0").await.expect("a free port"),
            tls: papers.acceptor_with("api", None, &["h2"]),
            papers,
        }
    }

    /// Returns a configuration that calls it.
    pub fn http(&self, timeout: Duration) -> Http {
        let address = self.listener.local_addr().expect("it is bound");
        Http {
            tls: self.papers.trusted(),
            ..http(format!("https://{address}/"), timeout)
        }
    }

    /// Returns a handler that calls it with up to four concurrent calls.
    pub fn handler(&self, timeout: Duration) -> HttpHandler {
        HttpHandler::new(&self.http(timeout), 4).expect("usable files")
    }

    /// Accepts the next connection and sends these settings.
    pub async fn accept(&self, settings: &[(u16, u32)]) -> Peer {
        let (stream, _) = self.listener.accept().await.expect("a connection");
        // Nagle's algorithm would add its own delays.
        stream.set_nodelay(true).expect("a socket");
        let mut stream = self.tls.accept(stream).await.expect("it trusts us");
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).await.expect("a preface");
        assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let mut peer = Peer(stream);
        peer.settings(settings).await;
        peer
    }

    /// Accepts the next connection and answers its first call.
    pub async fn answers(&self, settings: &[(u16, u32)]) -> Peer {
        let mut peer = self.accept(settings).await;
        let stream = peer.request().await;
        peer.answer(stream).await;
        peer
    }
}

#[derive(Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// Returns the reset stream and the error code.
    pub fn reset(&self) -> Option<(u32, u32)> {
        let reason = self.payload.first_chunk().copied().map(u32::from_be_bytes);
        (self.kind == RESET).then(|| (self.stream, reason.expect("it has one")))
    }
}

/// A connection. Dropping it closes the connection.
pub struct Peer(TlsStream<TcpStream>);

impl Peer {
    /// Returns the next frame of a call or of the client's shutdown, or `None` if the connection is
    /// closed.
    pub async fn read(&mut self) -> Option<Frame> {
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.ok()?;
            let [a, b, c, kind, flags, stream @ ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            self.0.read_exact(&mut payload).await.ok()?;
            match kind {
                SETTINGS | PING if flags & ACK == 0 => {
                    let echo = if kind == PING { &payload[..] } else { &[] };
                    self.write(kind, ACK, 0, echo).await;
                }
                SETTINGS | PING | WINDOW_UPDATE => {}
                _ => {
                    return Some(Frame {
                        kind,
                        flags,
                        stream: u32::from_be_bytes(stream),
                        payload,
                    });
                }
            }
        }
    }

    /// Reads until the end of a request. Returns its stream.
    pub async fn request(&mut self) -> u32 {
        loop {
            let frame = self.read().await.expect("a request");
            if frame.kind <= HEADERS && frame.flags & END_STREAM != 0 {
                return frame.stream;
            }
        }
    }

    /// Reads until the connection's end. Returns all frames.
    pub async fn rest(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        let rest = async {
            while let Some(frame) = self.read().await {
                frames.push(frame);
            }
        };
        tokio::time::timeout(LONG, rest)
            .await
            .expect("it is closed");
        frames
    }

    async fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let frame = bytes(kind, flags, stream, payload);
        // An error means that the client has ended the connection, which is read next.
        let _ = self.0.write_all(&frame).await;
        let _ = self.0.flush().await;
    }

    pub async fn settings(&mut self, settings: &[(u16, u32)]) {
        let bytes = |(name, value): &(u16, u32)| {
            let mut bytes = name.to_be_bytes().to_vec();
            bytes.extend(value.to_be_bytes());
            bytes
        };
        let payload: Vec<u8> = settings.iter().flat_map(bytes).collect();
        self.write(SETTINGS, 0, 0, &payload).await;
    }

    /// Answers 200 without a body.
    pub async fn answer(&mut self, stream: u32) {
        self.write(HEADERS, END_HEADERS | END_STREAM, stream, OK)
            .await;
    }

    /// Answers 200 with a body without an end.
    pub async fn answer_for_ever(&mut self, stream: u32) -> Vec<Frame> {
        self.write(HEADERS, END_HEADERS, stream, OK).await;
        // This is no more than the window that the client grants initially.
        for _ in 0..8 {
            self.write(DATA, 0, stream, &[b'x'; 8 * 1024]).await;
        }
        vec![self.read().await.expect("it is open")]
    }

    /// Lets the client send this many more bytes.
    pub async fn takes(&mut self, stream: u32, bytes: u32) {
        self.write(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
            .await;
    }

    pub async fn reset(&mut self, stream: u32, reason: u32) {
        self.write(RESET, 0, stream, &reason.to_be_bytes()).await;
    }

    /// Sends GOAWAY after the stream `last`.
    pub async fn go_away(&mut self, last: u32, reason: u32) {
        let payload = [last.to_be_bytes(), reason.to_be_bytes()].concat();
        self.write(GO_AWAY, 0, 0, &payload).await;
    }

    /// Sends pings or interim answers until the client closes the connection. Returns the number of
    /// bytes.
    pub async fn floods(&mut self, stream: Option<u32>) -> usize {
        let one = match stream {
            Some(stream) => bytes(HEADERS, END_HEADERS, stream, EARLY_HINTS),
            // An answer to a ping that was never sent.
            None => bytes(PING, ACK, 0, &[0; 8]),
        };
        let many = one.repeat(1000);
        let mut written = 0;
        while self.0.write_all(&many).await.is_ok() {
            written += many.len();
        }
        written
    }
}

/// Encodes a frame.
fn bytes(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame");
    let mut frame = length.to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}
