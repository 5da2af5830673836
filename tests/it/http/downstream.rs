//! An API that answers byte by byte as a test requires, and records its requests.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

/// The fate of the connection after an answer.
#[derive(Clone, Copy)]
pub enum AfterAnswer {
    /// The connection's next request.
    Keep,
    /// The connection's end.
    Close,
    /// Nothing, forever.
    Hang,
    /// Chunks of 64 KiB, until the client closes the connection.
    Repeat,
    /// This text again and again as fast as it is read, until the client closes the connection.
    Endless(&'static str),
    /// One byte per millisecond, until the client closes the connection.
    Drip,
    /// An interim answer per millisecond, until the client closes the connection.
    Interim,
}

/// How an API differs from one that speaks plain HTTP and answers at once.
#[derive(Default)]
pub struct DownstreamBehavior {
    pub tls: Option<TlsAcceptor>,
    /// Connections are accepted, but TLS continues only once this is true.
    pub set_up: Option<watch::Receiver<bool>>,
    /// Requests are recorded, but answered only once this is true.
    pub answers: Option<watch::Receiver<bool>>,
}

/// A request as received.
#[derive(Clone)]
pub struct Request {
    /// Its number on its connection, from 0.
    pub of_connection: usize,
    pub head: Vec<u8>,
    pub body: Vec<u8>,
}

impl Request {
    /// Returns the lines of the head: the request line, then `name: value`.
    pub fn lines(&self) -> Vec<&[u8]> {
        self.head
            .split(|byte| *byte == b'\n')
            .map(<[u8]>::trim_ascii_end)
            .collect()
    }

    /// Returns the method and target.
    pub fn request_line(&self) -> String {
        let line = String::from_utf8_lossy(self.lines()[0]).into_owned();
        let what = line.strip_suffix(" HTTP/1.1");
        what.unwrap_or_else(|| panic!("{line:?}")).to_owned()
    }

    /// Returns the value of the header `name`, which must occur at most once.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let prefix = format!("{name}: ");
        let mut values = self
            .lines()
            .into_iter()
            .filter_map(|line| line.strip_prefix(prefix.as_bytes()));
        let value = values.next();
        assert!(values.next().is_none(), "{name} is listed twice");
        value
    }
}

/// A listening API. It ends with the test's runtime.
pub struct Downstream {
    pub addr: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    manner: DownstreamBehavior,
    requests: Mutex<Vec<Request>>,
    repeated: Mutex<Option<usize>>,
    /// Number of connections so far.
    opened: watch::Sender<usize>,
    /// Number of ended connections.
    ended: watch::Sender<usize>,
}

impl Downstream {
    /// Answers each request with `answer`.
    pub async fn start(
        answer: impl Fn(&Request) -> (Vec<u8>, AfterAnswer) + Send + Sync + 'static,
    ) -> Self {
        Self::with(DownstreamBehavior::default(), answer).await
    }

    /// Like [`Downstream::start`], in this manner.
    pub async fn with(
        manner: DownstreamBehavior,
        answer: impl Fn(&Request) -> (Vec<u8>, AfterAnswer) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let shared = Arc::new(Shared {
            manner,
            requests: Mutex::default(),
            repeated: Mutex::default(),
            opened: watch::Sender::new(0),
            ended: watch::Sender::new(0),
        });
        let downstream = Self {
            addr: listener.local_addr().expect("it is bound"),
            shared: Arc::clone(&shared),
        };
        let answer = Arc::new(answer);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.opened.send_modify(|count| *count += 1);
                let (answer, shared) = (Arc::clone(&answer), Arc::clone(&shared));
                tokio::spawn(async move {
                    let manner = &shared.manner;
                    wait_for(manner.set_up.clone()).await;
                    // An error means that the client has closed the connection or does not trust
                    // the server.
                    match &manner.tls {
                        None => drop(serve(stream, &*answer, &shared).await),
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                drop(serve(stream, &*answer, &shared).await);
                            }
                        }
                    }
                    shared.ended.send_modify(|count| *count += 1);
                });
            }
        });
        downstream
    }

    /// Gives each request the same answer.
    pub async fn answering(answer: impl Into<Vec<u8>>, then: AfterAnswer) -> Self {
        let answer = answer.into();
        Self::start(move |_| (answer.clone(), then)).await
    }

    /// Returns all requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared
            .requests
            .lock()
            .expect("no thread panicked")
            .clone()
    }

    /// Returns the bytes written by [`AfterAnswer::Repeat`] or [`AfterAnswer::Endless`], once the
    /// client has closed the connection.
    pub async fn repeated(&self) -> usize {
        loop {
            if let Some(bytes) = *self.shared.repeated.lock().expect("no thread panicked") {
                return bytes;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Returns the number of connections so far.
    pub fn opened(&self) -> usize {
        *self.shared.opened.borrow()
    }

    /// Waits until this many connections were opened.
    pub async fn opens(&self, count: usize) {
        reach(&self.shared.opened, count).await;
    }

    /// Waits until this many connections have ended.
    pub async fn ends(&self, count: usize) {
        reach(&self.shared.ended, count).await;
    }
}

async fn reach(counter: &watch::Sender<usize>, count: usize) {
    let mut counter = counter.subscribe();
    let reached = counter.wait_for(|now| *now >= count);
    reached.await.expect("the downstream lives");
}

async fn wait_for(gate: Option<watch::Receiver<bool>>) {
    if let Some(mut gate) = gate {
        // An error means that the test has ended.
        let _ = gate.wait_for(|open| *open).await;
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: &(impl Fn(&Request) -> (Vec<u8>, AfterAnswer) + Sync),
    shared: &Shared,
) -> std::io::Result<()> {
    for of_connection in 0.. {
        let request = read_request(&mut stream, of_connection).await?;
        shared
            .requests
            .lock()
            .expect("no thread panicked")
            .push(request.clone());
        let (bytes, then) = answer(&request);
        wait_for(shared.manner.answers.clone()).await;
        stream.write_all(&bytes).await?;
        stream.flush().await?;
        match then {
            AfterAnswer::Keep => {}
            AfterAnswer::Close => break,
            AfterAnswer::Hang => std::future::pending().await,
            AfterAnswer::Interim => loop {
                stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
                tokio::time::sleep(Duration::from_millis(1)).await;
            },
            AfterAnswer::Repeat => {
                let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
                repeat(&mut stream, &chunk, shared).await;
            }
            AfterAnswer::Endless(piece) => {
                let pieces = piece.repeat(0x10000 / piece.len());
                // A head that arrives alone has other bounds than one with more bytes after it.
                tokio::time::sleep(Duration::from_millis(50)).await;
                repeat(&mut stream, &pieces, shared).await;
            }
            AfterAnswer::Drip => loop {
                stream.write_all(b"x").await?;
                tokio::time::sleep(Duration::from_millis(1)).await;
            },
        }
    }
    Ok(())
}

/// Writes `chunk` until the client closes the connection, and records the number of bytes.
async fn repeat(stream: &mut (impl AsyncWrite + Unpin), chunk: &str, shared: &Shared) {
    let mut written = 0;
    while stream.write_all(chunk.as_bytes()).await.is_ok() {
        written += chunk.len();
    }
    *shared.repeated.lock().expect("no thread panicked") = Some(written);
}

async fn read_request(
    stream: &mut (impl AsyncRead + Unpin),
    of_connection: usize,
) -> std::io::Result<Request> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let mut request = Request {
        of_connection,
        head,
        body: Vec::new(),
    };
    let has_none = ["GET ", "DELETE "].map(|method| request.head.starts_with(method.as_bytes()));
    let length = match request.header("content-length") {
        None if has_none.contains(&true) => 0,
        length => std::str::from_utf8(length.expect("every request with a body says its length"))
            .expect("digits")
            .parse()
            .expect("a number"),
    };
    request.body.resize(length, 0);
    stream.read_exact(&mut request.body).await?;
    Ok(request)
}
