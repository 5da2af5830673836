//! What an operator's systems ask a worker over HTTP: `/metrics`, `/livez`, `/readyz`. Nothing can be changed there.
//!
//! With `admin.token` only those who show it (`Authorization: Bearer TOKEN`, RFC 6750) see what there is. Two questions
//! are answered to everybody, yes or no: is it alive (`/livez`), is it ready (`/readyz`, without what is missing). What
//! asks them, load balancers and kubelets, has no place to keep a token secret; and who may connect learns
//! the first from that alone.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use subtle::ConstantTimeEq;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::{Admin, Secret};
use crate::gate::Primaries;
use crate::metrics::Metrics;
use crate::tasks::Watched;

/// Stopping waits so long for answers that are being written.
const STOP_WITHIN: Duration = Duration::from_secs(1);
/// A connection carries one request and is closed after this: slow clients don't hold it for ever.
const CONNECTION_WITHIN: Duration = Duration::from_secs(10);
/// So many connections are open at once. One more takes the place of the oldest: connections that say nothing keep nobody out, and
/// who asks has an answer long before so many others have come.
const MAX_CONNECTIONS: usize = 64;
/// A request's head has at most this many bytes.
const MAX_HEAD: usize = 16 * 1024;
/// A failed accept (no file descriptor is free) is tried again after this.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// What a worker needs to be ready; set by the engine.
#[derive(Debug, Default)]
pub struct Health {
    rabbitmq: AtomicBool,
    redis: AtomicBool,
    recovering: AtomicBool,
    /// Primaries of Redis: how many, how many of them admit jobs, how many are in a recovery wait.
    primaries: [AtomicUsize; 3],
    consuming: AtomicBool,
    /// There is no agreement.
    alone: AtomicBool,
}

impl Health {
    /// RabbitMQ answers, or not.
    pub fn set_rabbitmq(&self, up: bool) {
        self.rabbitmq.store(up, Ordering::Relaxed);
    }
    /// Redis answers, or not.
    pub fn set_redis(&self, up: bool) {
        self.redis.store(up, Ordering::Relaxed);
    }
    /// A recovery wait, or none: in a cluster, of all primaries, or not of all.
    pub fn set_recovering(&self, recovering: bool) {
        self.recovering.store(recovering, Ordering::Relaxed);
    }
    /// In which state the primaries of Redis are.
    pub fn set_primaries(&self, now: Primaries) {
        let numbers = [now.all(), now.admitting, now.recovering];
        for (known, number) in self.primaries.iter().zip(numbers) {
            known.store(number, Ordering::Relaxed);
        }
    }
    /// The workers agree on the effective limits, or this one does not with the others.
    pub fn set_agreed(&self, agreed: bool) {
        self.alone.store(!agreed, Ordering::Relaxed);
    }
    /// Jobs are being taken, or not.
    pub fn set_consuming(&self, consuming: bool) {
        self.consuming.store(consuming, Ordering::Relaxed);
    }

    /// What is missing for being ready; empty: nothing.
    pub fn missing(&self) -> Vec<&'static str> {
        let parts = [
            (&self.rabbitmq, true, "RabbitMQ does not answer"),
            (&self.redis, true, "Redis does not answer"),
            (&self.recovering, false, "Redis may have lost data"),
            (
                &self.alone,
                false,
                "the workers do not agree on the limits, so no job is admitted; the log says why",
            ),
            (&self.consuming, true, "no jobs are being taken"),
        ];
        let missing = |(is, wanted, what): (&AtomicBool, bool, _)| {
            (is.load(Ordering::Relaxed) != wanted).then_some(what)
        };
        parts.into_iter().filter_map(missing).collect()
    }

    /// Where a worker that is ready admits no job all the same: a line for each reason.
    pub fn partly(&self) -> Vec<String> {
        let [all, admitting, recovering] =
            (self.primaries.each_ref()).map(|number| number.load(Ordering::Relaxed));
        // Each is written by itself: for a moment they may belong to different looks.
        let away = all.saturating_sub(admitting + recovering);
        let line = |number: usize, what| {
            (number > 0 && admitting > 0).then(|| {
                format!(
                    "{number} of {all} Redis primaries {what}: no job of its tenants is admitted"
                )
            })
        };
        let lines = [
            line(recovering, "may have lost data"),
            line(away, "does not answer"),
        ];
        lines.into_iter().flatten().collect()
    }
}

/// Shows a recovery wait: `recovering`, where no job is admitted at all, and the states of the primaries.
pub fn show_recovery(health: &Health, metrics: &Metrics, recovering: bool, primaries: Primaries) {
    health.set_recovering(recovering);
    health.set_primaries(primaries);
    metrics.set_gate_recovering(recovering || primaries.recovering > 0);
    metrics.set_primaries(primaries);
}

/// Why the admin port can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Somebody else listens there.
    #[error(
        "admin.listen: {0} is in use; name another address, or {any} for any free port",
        any = with_any_port(.0)
    )]
    Taken(SocketAddr),
    /// Anything else.
    #[error("admin.listen: can't listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
}

/// The running admin server.
pub struct AdminServer {
    /// Where it listens, with the port that it got.
    pub listen: SocketAddr,
    stop: CancellationToken,
    /// What accepts connections until it is stopped.
    pub task: Watched,
}

impl AdminServer {
    /// Ends it.
    pub async fn stop(self) {
        self.stop.cancel();
        // A client that reads slowly does not keep the worker from ending, nor does a failed accept.
        let _ = timeout(STOP_WITHIN + ACCEPT_AGAIN, self.task.ended()).await;
    }
}

#[derive(Clone)]
struct Shown {
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    token: Option<Secret>,
}

/// Listens on `admin.listen`; the address that it got is logged as `admin.listen`.
///
/// # Errors
/// [`AdminError`] when the address can't be had.
pub async fn serve(
    admin: &Admin,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
) -> Result<AdminServer, AdminError> {
    let failed = |why: std::io::Error| match why.kind() {
        std::io::ErrorKind::AddrInUse => AdminError::Taken(admin.listen),
        _ => AdminError::Listen(admin.listen, why),
    };
    let listener = TcpListener::bind(admin.listen).await.map_err(failed)?;
    let listen = listener.local_addr().map_err(failed)?;
    info!(admin.listen = %listen, "metrics and health");
    let shown = Shown {
        metrics,
        health,
        token: admin.token.clone(),
    };
    let routes = Router::new()
        .route("/metrics", get(show_metrics))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .layer(from_fn_with_state(shown.clone(), door))
        .with_state(shown);
    let stop = CancellationToken::new();
    let accepting = accept(listener, routes, stop.clone());
    let task = Watched::spawn(async move {
        accepting.await;
        "it was stopped"
    });
    Ok(AdminServer { listen, stop, task })
}

/// Serves connections until it is stopped.
async fn accept(listener: TcpListener, routes: Router, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    // Those that are open, the oldest first.
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    open.retain(|connection| !connection.is_finished());
                    if open.len() >= MAX_CONNECTIONS && let Some(oldest) = open.pop_front() {
                        oldest.abort();
                    }
                    open.push_back(connections.spawn(answer(stream, routes.clone())));
                }
                Err(why) => {
                    warn!(reason = %why, "the admin port can't accept a connection");
                    sleep(ACCEPT_AGAIN).await;
                }
            },
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    // What is not done by then ends with the set.
    let _ = timeout(STOP_WITHIN, all).await;
}

/// Answers the one request of a connection.
async fn answer(stream: TcpStream, routes: Router) {
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    // Whatever goes wrong is the client's affair.
    let _ = timeout(CONNECTION_WITHIN, connection).await;
}

/// Lets those in who may see everything, and tells others whether the worker lives and is ready.
async fn door(State(shown): State<Shown>, request: Request, next: Next) -> Response {
    let open = match &shown.token {
        None => true,
        Some(token) => shows(request.headers(), token),
    };
    if open {
        return next.run(request).await;
    }
    let asks = matches!(*request.method(), Method::GET | Method::HEAD);
    match request.uri().path() {
        "/livez" => next.run(request).await,
        "/readyz" if asks => match shown.health.missing().is_empty() {
            true => (StatusCode::OK, "ready\n").into_response(),
            false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response(),
        },
        _ => {
            // RFC 6750, 3: who showed nothing is told the scheme alone.
            let challenge = match request.headers().contains_key(header::AUTHORIZATION) {
                true => "Bearer realm=\"sluicegate\", error=\"invalid_token\"",
                false => "Bearer realm=\"sluicegate\"",
            };
            let headers = [(header::WWW_AUTHENTICATE, challenge)];
            let words = "this needs the header `Authorization: Bearer` with admin.token\n";
            (StatusCode::UNAUTHORIZED, headers, words).into_response()
        }
    }
}

/// `headers` hold `token`, once and nothing else. How long it takes tells nothing of the token but its length.
fn shows(headers: &HeaderMap, token: &Secret) -> bool {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(only), None) = (all.next(), all.next()) else {
        return false;
    };
    let Some((scheme, shown)) = only.as_bytes().split_at_checked("Bearer ".len()) else {
        return false;
    };
    scheme.eq_ignore_ascii_case(b"Bearer ") && shown.ct_eq(token.expose().as_bytes()).into()
}

async fn show_metrics(State(shown): State<Shown>) -> impl IntoResponse {
    let openmetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    (
        [(header::CONTENT_TYPE, openmetrics)],
        shown.metrics.encode(),
    )
}

async fn ready(State(shown): State<Shown>) -> (StatusCode, String) {
    let missing = shown.health.missing();
    let (status, head, lines) = match missing.is_empty() {
        true => (StatusCode::OK, "ready", shown.health.partly()),
        false => {
            let missing = missing.into_iter().map(str::to_owned).collect();
            (StatusCode::SERVICE_UNAVAILABLE, "not ready", missing)
        }
    };
    let lines = lines.iter().map(|line| format!("{line}\n"));
    (status, format!("{head}\n{}", lines.collect::<String>()))
}

/// `listen` with port 0.
fn with_any_port(listen: &SocketAddr) -> SocketAddr {
    SocketAddr::new(listen.ip(), 0)
}
