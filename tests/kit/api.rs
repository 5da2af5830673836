//! The API of a test: plain or https, HTTP/1.1 or HTTP/2. It records each call by its own monotonic
//! clock. It can be slow, refuse connections, freeze, close idle connections, or answer as a test
//! requires.

use std::net::SocketAddr;
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Uri, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_rustls::TlsAcceptor;
use trial::api::ApiServer;
pub use trial::api::{Cut, Reply};
use trial::door::ANY_PORT;

use super::arrivals::{DatedStream, KernelNotes};
use super::proxy::Range;
use crate::certificates::TestCertificates;

/// A call by the API's clock.
#[derive(Debug, Clone)]
pub struct Call {
    pub job: String,
    pub tenant: String,
    /// 0 if a program does not report it.
    pub attempt: u32,
    /// When its head had been read.
    pub at: Instant,
    /// When its head had arrived, by the kernel's clock: no pause of the API moves it.
    pub arrived: Instant,
    /// When it was answered, or its caller was found gone.
    pub ended: Option<Instant>,
    /// The number of its connection, from 0.
    pub connection: usize,
    pub version: Version,
    pub method: Method,
    pub uri: Uri,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// How an API differs from one that speaks plain HTTP and keeps its connections open.
#[derive(Default)]
pub struct ApiBehavior {
    pub tls: Option<TlsAcceptor>,
    /// Closes connections that have been idle for this long.
    pub idle: Option<Duration>,
}

impl ApiBehavior {
    /// TLS with a certificate of `papers`. Offers these protocols: `h2`, `http/1.1`.
    pub fn https(papers: &TestCertificates, protocols: &[&str]) -> Self {
        papers.issue("api", &["127.0.0.1"]);
        Self {
            tls: Some(papers.acceptor_with("api", None, protocols)),
            idle: None,
        }
    }
}

type Answers = dyn Fn(&Call) -> Reply + Send + Sync;

/// A running API. Dropping it ends it and its connections.
pub struct Api {
    server: ApiServer,
    shared: Arc<Shared>,
    _notes: KernelNotes,
}

impl Deref for Api {
    type Target = ApiServer;

    fn deref(&self) -> &ApiServer {
        &self.server
    }
}

struct Shared {
    manner: ApiBehavior,
    answers: Mutex<Arc<Answers>>,
    calls: Mutex<Vec<Call>>,
    /// The longest time that the machine kept this process from running.
    paused: Mutex<Duration>,
}

impl Api {
    /// Starts an API with plain HTTP/1.1 that answers 200 at once.
    pub async fn start() -> Self {
        Self::with(ApiBehavior::default()).await
    }

    /// Starts an API in this manner that answers 200 at once.
    pub async fn with(manner: ApiBehavior) -> Self {
        let shared = Arc::new(Shared {
            manner,
            answers: Mutex::new(Arc::new(|_: &Call| Reply::ok())),
            calls: Mutex::default(),
            paused: Mutex::default(),
        });
        tokio::spawn(observe_pauses(Arc::downgrade(&shared)));
        let notes = KernelNotes::start().await;
        let called = Arc::clone(&shared);
        let server = ApiServer::serving(ANY_PORT, move |stream, number| {
            let shared = Arc::clone(&called);
            async move {
                let resets = Arc::clone(&stream.resets);
                let (stream, arrival) = DatedStream::new(stream);
                let answer = |request| call(Arc::clone(&shared), request, (number, arrival.time()));
                serve((stream, resets), &shared.manner, answer).await;
            }
        });
        Self {
            server: server.expect("a free port"),
            shared,
            _notes: notes,
        }
    }

    pub fn url(&self) -> String {
        self.url_at(self.door.address)
    }

    /// Returns its URL through the address `address`.
    pub fn url_at(&self, address: SocketAddr) -> String {
        let scheme = match self.shared.manner.tls {
            Some(_) => "https",
            None => "http",
        };
        format!("{scheme}://{address}/")
    }

    /// Sets the answer to calls from now on.
    pub fn answers(&self, answer: impl Fn(&Call) -> Reply + Send + Sync + 'static) {
        *self.shared.answers.lock().expect("no panic") = Arc::new(answer);
    }

    /// Answers 200 after a random time from `time`, chosen by `seed`.
    pub fn takes(&self, time: Range, seed: u64) {
        let random = Mutex::new(SmallRng::seed_from_u64(seed));
        self.answers(move |_| {
            let time = time.pick(&mut random.lock().expect("no panic"));
            Reply::ok().after(time)
        });
    }

    /// Returns the longest time for which the machine kept this process from running. Calls that
    /// arrive in the meantime are read late.
    pub fn longest_pause(&self) -> Duration {
        *self.shared.paused.lock().expect("no panic")
    }

    /// Returns all calls so far, in order.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.calls.lock().expect("no panic").clone()
    }

    /// Returns the number of calls.
    pub fn count(&self) -> usize {
        self.shared.calls.lock().expect("no panic").len()
    }
}

/// Records the longest pause of this process until the API is gone.
async fn observe_pauses(shared: Weak<Shared>) {
    const TICK: Duration = Duration::from_millis(10);
    loop {
        let begun = Instant::now();
        sleep(TICK).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let pause = begun.elapsed().saturating_sub(TICK);
        let mut longest = shared.paused.lock().expect("no panic");
        *longest = pause.max(*longest);
    }
}

/// Serves a connection in this manner. `resets` says whether it ends with a reset. `answer` answers
/// its calls.
pub(crate) async fn serve<S, R>(
    (stream, resets): (S, Arc<AtomicBool>),
    manner: &ApiBehavior,
    answer: impl Fn(Request<Incoming>) -> R,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    R: Future<Output = Reply> + Send + 'static,
{
    match &manner.tls {
        None => connection(stream, manner.idle, false, (resets, answer)).await,
        Some(tls) => {
            // An error means that the caller does not trust the API.
            if let Ok(stream) = tls.accept(stream).await {
                let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                connection(stream, manner.idle, http2, (resets, answer)).await;
            }
        }
    }
}

async fn connection<S, R>(
    stream: S,
    may_be_idle: Option<Duration>,
    http2: bool,
    (resets, answer): (Arc<AtomicBool>, impl Fn(Request<Incoming>) -> R),
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    R: Future<Output = Reply> + Send + 'static,
{
    let idle = Idle::new(Instant::now());
    let service = service_fn(|request| {
        let (reply, used, resets) = (answer(request), idle.used(), Arc::clone(&resets));
        async move {
            let sent = reply.await.send().await;
            // HTTP/2 resets only the call.
            let is_reset = !http2 && matches!(sent, Err(Cut::Reset));
            resets.store(is_reset, Ordering::Relaxed);
            drop(used);
            sent
        }
    });
    let stream = TokioIo::new(stream);
    // Both end with the connection, which a reply or the caller may have broken.
    if http2 {
        let served = http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service);
        let mut served = pin!(served);
        tokio::select! {
            _ = &mut served => return,
            () = idle.over(may_be_idle) => served.as_mut().graceful_shutdown(),
        }
        let _ = served.await;
    } else {
        let served = http1::Builder::new().serve_connection(stream, service);
        let mut served = pin!(served);
        tokio::select! {
            _ = &mut served => return,
            () = idle.over(may_be_idle) => served.as_mut().graceful_shutdown(),
        }
        let _ = served.await;
    }
}

async fn call(
    shared: Arc<Shared>,
    request: Request<Incoming>,
    (connection, arrived): (usize, Instant),
) -> Reply {
    let headers = request.headers();
    // A program that does not report its job in headers reports it in the body.
    let by_program = !headers.contains_key("x-job-id");
    let text = |name: &str| {
        // Tenants may have names that are not ASCII.
        let value = headers
            .get(name)
            .map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned());
        let value = value.or(by_program.then(String::new));
        value.expect("the worker sets it")
    };
    let mut seen = Call {
        job: text("x-job-id"),
        tenant: text("x-tenant"),
        attempt: match by_program {
            true => 0,
            false => text("x-attempt").parse().expect("a number"),
        },
        at: arrived,
        arrived,
        ended: None,
        connection,
        version: request.version(),
        method: request.method().clone(),
        uri: request.uri().clone(),
        headers: request.headers().clone(),
        body: Bytes::new(),
    };
    let index = {
        let mut calls = shared.calls.lock().expect("no panic");
        // Read under the lock, so that calls are sorted.
        seen.at = Instant::now();
        calls.push(seen.clone());
        calls.len() - 1
    };
    let _ended = EndRecorder(&shared, index);
    // A body that breaks off means that the caller goes away.
    if let Ok(body) = request.into_body().collect().await {
        seen.body = body.to_bytes();
        shared.calls.lock().expect("no panic")[index].body = seen.body.clone();
    }
    let answers = Arc::clone(&shared.answers.lock().expect("no panic"));
    let mut reply = answers(&seen);
    reply.wait().await;
    reply
}

/// Records when a call ends, even if its caller goes away.
struct EndRecorder<'a>(&'a Shared, usize);

impl Drop for EndRecorder<'_> {
    fn drop(&mut self) {
        let Self(shared, index) = *self;
        if let Ok(mut calls) = shared.calls.lock() {
            calls[index].ended = Some(Instant::now());
        }
    }
}

/// The number of a connection's calls, and since when it has none.
#[derive(Clone)]
struct Idle(Arc<watch::Sender<(usize, Instant)>>);

/// A call on the connection.
struct ActiveCall(Idle);

impl Idle {
    fn new(now: Instant) -> Self {
        Self(Arc::new(watch::Sender::new((0, now))))
    }

    fn used(&self) -> ActiveCall {
        self.0.send_modify(|(calls, _)| *calls += 1);
        ActiveCall(self.clone())
    }

    /// Waits until the connection has been idle for `idle`.
    async fn over(&self, idle: Option<Duration>) {
        let Some(idle) = idle else {
            return std::future::pending().await;
        };
        let mut seen = self.0.subscribe();
        loop {
            let (calls, since) = *seen.borrow_and_update();
            let over = async {
                match calls {
                    0 => sleep_until(since + idle).await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                () = over => return,
                changed = seen.changed() => changed.expect("the sender is ours"),
            }
        }
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        (self.0.0).send_modify(|(calls, since)| (*calls, *since) = (*calls - 1, Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    use rustls::{ClientConfig, RootCertStore};
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;

    use super::*;

    #[tokio::test]
    async fn the_api_speaks_http_2_on_request_and_closes_idle_connections() {
        let papers = TestCertificates::new();
        let mut manner = ApiBehavior::https(&papers, &["h2", "http/1.1"]);
        // Longer than any step until the call, or the connection would close before it.
        manner.idle = Some(Duration::from_secs(5));
        let api = Api::with(manner).await;
        let ca = CertificateDer::from_pem_file(papers.path("ca.pem"));
        let mut roots = RootCertStore::empty();
        roots.add(ca.expect("a file")).expect("a certificate");
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(ring).with_safe_default_protocol_versions();
        let config = config.expect("TLS").with_root_certificates(roots);
        let mut config = config.with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = TcpStream::connect(api.door.address).await.expect("open");
        let name = "127.0.0.1".try_into().expect("a name");
        let stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await;
        let stream = TokioIo::new(stream.expect("trusted"));
        let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await;
        let (mut sender, connection) = shaken.expect("HTTP/2");
        let connection = tokio::spawn(connection);
        let request = Request::post(api.url())
            .header("x-job-id", "1")
            .header("x-tenant", "acme")
            .header("x-attempt", "1");
        let request = request.body(Full::new(Bytes::from("body"))).expect("good");
        let answer = sender.send_request(request).await.expect("an answer");
        assert_eq!(answer.status(), 200);
        connection
            .await
            .expect("no panic")
            .expect("it ends in order");
        let call = &api.calls()[0];
        assert_eq!(
            (call.version, &call.body[..]),
            (Version::HTTP_2, &b"body"[..])
        );
        assert!(call.ended.is_some());
    }
}
