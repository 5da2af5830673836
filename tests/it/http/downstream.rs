//! A downstream that answers byte by byte as a test wants it, and records what it was sent.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What follows an answer.
#[derive(Clone, Copy)]
pub enum Then {
    /// The next request of the connection.
    Keep,
    /// The connection's end.
    Close,
    /// Nothing, for ever.
    Hang,
    /// Chunks of 64 KiB, until the client closes the connection.
    Repeat,
    /// An interim answer each millisecond, until the client closes the connection.
    Interim,
}

/// A request as it came.
#[derive(Clone)]
pub struct Request {
    /// Which request of its connection it was, from 0.
    pub of_connection: usize,
    pub head: Vec<u8>,
    pub body: Vec<u8>,
}

impl Request {
    /// The lines of the head: the request line, then `name: value`.
    pub fn lines(&self) -> Vec<&[u8]> {
        self.head
            .split(|byte| *byte == b'\n')
            .map(<[u8]>::trim_ascii_end)
            .collect()
    }

    /// The value of the header `name`, which stands there once at most.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let prefix = format!("{name}: ");
        let mut values = self
            .lines()
            .into_iter()
            .filter_map(|line| line.strip_prefix(prefix.as_bytes()));
        let value = values.next();
        assert!(values.next().is_none(), "{name} stands there twice");
        value
    }
}

/// A listening downstream; it ends with the test's runtime.
pub struct Downstream {
    pub addr: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    repeated: Arc<Mutex<Option<usize>>>,
}

impl Downstream {
    /// Gives each request the answer that `answer` has for it.
    pub async fn start(
        answer: impl Fn(&Request) -> (Vec<u8>, Then) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let downstream = Self {
            addr: listener.local_addr().expect("it is bound"),
            requests: Arc::default(),
            repeated: Arc::default(),
        };
        let (requests, repeated) = (
            Arc::clone(&downstream.requests),
            Arc::clone(&downstream.repeated),
        );
        let answer = Arc::new(answer);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, requests) = (Arc::clone(&answer), Arc::clone(&requests));
                let repeated = Arc::clone(&repeated);
                tokio::spawn(async move {
                    // An error: the client has closed the connection.
                    let _ = serve(stream, &*answer, &requests, &repeated).await;
                });
            }
        });
        downstream
    }

    /// Gives each request the same answer.
    pub async fn answering(answer: impl Into<Vec<u8>>, then: Then) -> Self {
        let answer = answer.into();
        Self::start(move |_| (answer.clone(), then)).await
    }

    /// All requests until now.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no thread panicked").clone()
    }

    /// The bytes that [`Then::Repeat`] wrote, once the client has closed the connection.
    pub async fn repeated(&self) -> usize {
        loop {
            if let Some(bytes) = *self.repeated.lock().expect("no thread panicked") {
                return bytes;
            }
            tokio::task::yield_now().await;
        }
    }
}

async fn serve(
    mut stream: TcpStream,
    answer: &(impl Fn(&Request) -> (Vec<u8>, Then) + Sync),
    requests: &Mutex<Vec<Request>>,
    repeated: &Mutex<Option<usize>>,
) -> std::io::Result<()> {
    for of_connection in 0.. {
        let request = read_request(&mut stream, of_connection).await?;
        requests
            .lock()
            .expect("no thread panicked")
            .push(request.clone());
        let (bytes, then) = answer(&request);
        stream.write_all(&bytes).await?;
        match then {
            Then::Keep => {}
            Then::Close => break,
            Then::Hang => std::future::pending().await,
            Then::Interim => loop {
                stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
                tokio::time::sleep(Duration::from_millis(1)).await;
            },
            Then::Repeat => {
                let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
                let mut written = 0;
                while stream.write_all(chunk.as_bytes()).await.is_ok() {
                    written += chunk.len();
                }
                *repeated.lock().expect("no thread panicked") = Some(written);
            }
        }
    }
    Ok(())
}

async fn read_request(stream: &mut TcpStream, of_connection: usize) -> std::io::Result<Request> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let mut request = Request {
        of_connection,
        head,
        body: Vec::new(),
    };
    let length = request
        .header("content-length")
        .expect("every request says its length");
    let length = std::str::from_utf8(length)
        .expect("digits")
        .parse()
        .expect("a number");
    request.body.resize(length, 0);
    stream.read_exact(&mut request.body).await?;
    Ok(request)
}
