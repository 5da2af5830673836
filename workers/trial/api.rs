//! A fake HTTP/1.1 API. Its owner records calls as they arrive and says how each is answered; this
//! server keeps the connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;

use crate::door::{ANY_PORT, Door};
use crate::freezable_stream::{FreezableStream, Stillness};

/// The answer to a call.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The delay before it.
    pub after: Duration,
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// How its connection ends instead of an answer.
    pub cut: Option<Cut>,
}

/// How a connection ends without an answer, as an error of the service, at which hyper drops it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Cut {
    #[error("closed")]
    Closed,
    #[error("reset")]
    Reset,
}

impl Reply {
    /// Returns an empty answer.
    pub fn status(status: u16) -> Self {
        Self {
            after: Duration::ZERO,
            status: StatusCode::from_u16(status).expect("a status from 100 to 999"),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            cut: None,
        }
    }

    pub fn ok() -> Self {
        Self::status(200)
    }

    /// Ends the connection.
    pub fn cut(how: Cut) -> Self {
        Self {
            cut: Some(how),
            ..Self::ok()
        }
    }

    pub fn after(mut self, time: Duration) -> Self {
        self.after = time;
        self
    }

    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        let value = value.parse().expect("printable ASCII");
        self.headers.insert(name, value);
        self
    }

    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Waits for the delay. None is left then.
    pub async fn wait(&mut self) {
        let after = std::mem::take(&mut self.after);
        // A sleep of zero would take a millisecond.
        if !after.is_zero() {
            sleep(after).await;
        }
    }

    /// Waits for the delay, and returns what hyper sends.
    ///
    /// # Errors
    /// The connection's end, if there is no answer.
    pub async fn send(mut self) -> Result<Response<Full<Bytes>>, Cut> {
        self.wait().await;
        if let Some(cut) = self.cut {
            return Err(cut);
        }
        let mut response = Response::new(Full::new(self.body));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        Ok(response)
    }
}

/// Returns the value of a header that exists and is text.
pub fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// A running API. Dropping it ends it and its connections.
pub struct ApiServer {
    pub door: Door,
    stillness: Arc<Stillness>,
    /// Its own runtime, if it has one.
    _runtime: Option<OwnRuntime>,
}

impl ApiServer {
    /// Starts an API that answers each call with `answer`, which gets it when its head has been
    /// read and is dropped if the caller leaves.
    ///
    /// # Errors
    /// The system's error, if it can't listen at `address`.
    pub fn start<R>(
        address: SocketAddr,
        answer: impl Fn(Request<Incoming>) -> R + Send + Sync + 'static,
    ) -> io::Result<Self>
    where
        R: Future<Output = Reply> + Send + 'static,
    {
        let answer = Arc::new(answer);
        Self::serving(address, move |stream, _| serve(stream, Arc::clone(&answer)))
    }

    /// Starts an API that serves each connection with `serve`, which gets the connection's number,
    /// from 0.
    ///
    /// # Errors
    /// The system's error, if it can't listen at `address`.
    pub fn serving<S>(
        address: SocketAddr,
        serve: impl Fn(FreezableStream, usize) -> S + Send + Sync + 'static,
    ) -> io::Result<Self>
    where
        S: Future<Output = ()> + Send + 'static,
    {
        let stillness = Arc::<Stillness>::default();
        let shared = Arc::clone(&stillness);
        let serve = move |stream, number| serve(FreezableStream::new(stream, &shared), number);
        Ok(Self {
            door: Door::open(address, serve)?,
            stillness,
            _runtime: None,
        })
    }

    /// Starts an API on a free port and a thread of its own, so that nothing else delays its clock.
    ///
    /// # Errors
    /// The system's error, if no port or thread is available.
    pub fn start_apart<R>(
        answer: impl Fn(Request<Incoming>) -> R + Send + Sync + 'static,
    ) -> io::Result<Self>
    where
        R: Future<Output = Reply> + Send + 'static,
    {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("api")
            .enable_all()
            .build()?;
        let runtime = OwnRuntime(Some(runtime));
        let server = {
            let _inside = runtime.0.as_ref().map(Runtime::enter);
            Self::start(ANY_PORT, answer)?
        };
        Ok(Self {
            _runtime: Some(runtime),
            ..server
        })
    }

    /// Freezes or unfreezes the API. A frozen API reads nothing, so sent bytes stay in the kernel
    /// until it continues. Calls that it has already read are answered.
    pub fn stand_still(&self, still: bool) {
        self.stillness.set(still);
    }
}

/// A runtime that can be dropped in a task of another one.
struct OwnRuntime(Option<Runtime>);

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

async fn serve<R>(stream: FreezableStream, answer: Arc<impl Fn(Request<Incoming>) -> R>)
where
    R: Future<Output = Reply>,
{
    let resets = Arc::clone(&stream.resets);
    let service = service_fn(|request| {
        let reply = answer(request);
        async {
            let sent = reply.await.send().await;
            resets.store(matches!(sent, Err(Cut::Reset)), Ordering::Relaxed);
            sent
        }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // An error means that the caller or the reply has ended the connection.
    let _ = connection.await;
}
