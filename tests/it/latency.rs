//! An API that is slow in both directions: a proxy before it delays what is sent, and it delays what it answers.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

/// How long something takes: from the first to the second, evenly distributed.
#[derive(Debug, Clone, Copy)]
pub struct Range(pub Duration, pub Duration);

impl Range {
    pub const NONE: Self = Self(Duration::ZERO, Duration::ZERO);

    fn pick(self, random: &mut SmallRng) -> Duration {
        random.random_range(self.0..=self.1)
    }
}

/// One call, by the API's clock.
#[derive(Debug, Clone)]
pub struct Arrival {
    pub job: String,
    pub tenant: String,
    pub at: Instant,
}

/// The API. It answers 200 after a while, with the headers that it was given.
pub struct Api {
    pub address: SocketAddr,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
    task: JoinHandle<()>,
}

struct Manner {
    arrivals: Arc<Mutex<Vec<Arrival>>>,
    takes: Range,
    random: Mutex<SmallRng>,
    headers: HeaderMap,
}

impl Api {
    pub async fn start(takes: Range, seed: u64, headers: &[(&'static str, &'static str)]) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let arrivals = Arc::<Mutex<Vec<Arrival>>>::default();
        let header = |(name, value): &(&'static str, &'static str)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        let manner = Arc::new(Manner {
            arrivals: Arc::clone(&arrivals),
            takes,
            random: Mutex::new(SmallRng::seed_from_u64(seed)),
            headers: headers.iter().map(header).collect(),
        });
        let app = Router::new().fallback(call).with_state(manner);
        let task =
            tokio::spawn(async move { axum::serve(listener, app).await.expect("it serves") });
        Self {
            address,
            arrivals,
            task,
        }
    }

    pub fn arrivals(&self) -> Vec<Arrival> {
        self.arrivals.lock().expect("nobody panics").clone()
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn call(State(manner): State<Arc<Manner>>, request: Request) -> HeaderMap {
    {
        let text = |name: &str| {
            let value = request.headers().get(name).and_then(|v| v.to_str().ok());
            value.expect("our header").to_owned()
        };
        let (job, tenant) = (text("x-job-id"), text("x-tenant"));
        let mut arrivals = manner.arrivals.lock().expect("nobody panics");
        // Read under the lock, so that they are sorted.
        let at = Instant::now();
        arrivals.push(Arrival { job, tenant, at });
    }
    to_bytes(request.into_body(), 1 << 16)
        .await
        .expect("a body");
    let takes = manner
        .takes
        .pick(&mut manner.random.lock().expect("nobody panics"));
    sleep(takes).await;
    manner.headers.clone()
}

/// A way to `target` on which what is sent takes a random time, each connection's bytes in order; what comes back
/// takes none.
pub struct Proxy {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Proxy {
    pub async fn start(target: SocketAddr, takes: Range, seed: u64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let task = tokio::spawn(async move {
            let mut number = 0;
            while let Ok((client, _)) = listener.accept().await {
                number += 1;
                let random = SmallRng::seed_from_u64(seed ^ (number << 32));
                tokio::spawn(pass(client, target, takes, random));
            }
        });
        Self { address, task }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(client: TcpStream, target: SocketAddr, takes: Range, random: SmallRng) {
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    // Nagle's algorithm would add delays of its own.
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("a socket");
    }
    let (from_client, mut to_client) = client.into_split();
    let (mut from_server, to_server) = server.into_split();
    let back = async {
        // Either side may end first.
        let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
    };
    tokio::join!(delay(from_client, to_server, takes, random), back);
}

async fn delay(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    takes: Range,
    mut random: SmallRng,
) {
    let (sender, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(16);
    let read = async move {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let at = Instant::now() + takes.pick(&mut random);
            if sender.send((at, buffer[..length].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((at, bytes)) = due.recv().await {
            sleep_until(at).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(read, write);
}

#[tokio::test]
async fn the_proxy_delays_what_is_sent_and_keeps_its_order() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let listener = listener.expect("a free port");
    let least = Duration::from_millis(100);
    let range = Range(least, Duration::from_millis(300));
    let address = listener.local_addr().expect("bound");
    let proxy = Proxy::start(address, range, 7).await;
    let mut client = TcpStream::connect(proxy.address).await.expect("it listens");
    let (mut server, _) = listener.accept().await.expect("it is called");
    let sent = Instant::now();
    for byte in 0..20 {
        client.write_all(&[byte]).await.expect("sent");
        tokio::task::yield_now().await;
    }
    let mut bytes = [0; 20];
    server.read_exact(&mut bytes).await.expect("all of it");
    assert!(sent.elapsed() >= least);
    assert!(bytes.is_sorted(), "{bytes:?}");
    server.write_all(b"back").await.expect("sent");
    let mut answer = [0; 4];
    client.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(&answer, b"back");
}
