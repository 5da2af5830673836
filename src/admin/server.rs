//! The HTTP server at `admin.listen`.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::api::{self, Api, challenge};
use super::page::{self, Page, StreamFlag};
use super::{AdminError, PipelineStates, Readiness};
use config::Admin;
use runtime::tasks::WatchedTask;

/// Maximum time that stopping waits for unfinished answers.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// Lifetime of a connection, which carries one request. It keeps slow clients from holding
/// connections.
const MAX_CONNECTION_LIFE: Duration = Duration::from_secs(10);
/// Maximum number of open connections, not counting streams. A further connection replaces the
/// oldest. Idle connections can't keep other clients out, and a client gets its answer long before
/// it is the oldest.
const MAX_CONNECTIONS: usize = 64;
/// Maximum size of a request's head in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// Delay after a failed accept, for example because no file descriptor is free.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The running admin server.
pub struct AdminServer {
    /// Address it listens on, with the actual port.
    pub listen: SocketAddr,
    stop: CancellationToken,
    /// Task that accepts connections until the server is stopped.
    pub task: WatchedTask,
}

impl AdminServer {
    /// Stops the server.
    pub async fn stop(self) {
        self.stop.cancel();
        // Bounded, so that neither slow clients nor a failed accept delay the worker's end.
        let _ = timeout(STOP_TIMEOUT + ACCEPT_RETRY_DELAY, self.task.ended()).await;
    }
}

#[derive(Clone)]
struct ServerState {
    states: Arc<PipelineStates>,
    api: Arc<Api>,
    page: Arc<Page>,
}

/// Address of the client.
#[derive(Clone, Copy)]
struct Peer(SocketAddr);

/// Listens on `admin.listen` and logs the actual address as `admin.listen`.
///
/// # Errors
/// [`AdminError`] if the address can't be bound.
pub async fn serve(admin: &Admin, states: Arc<PipelineStates>) -> Result<AdminServer, AdminError> {
    let failed = |why: std::io::Error| match why.kind() {
        std::io::ErrorKind::AddrInUse => AdminError::Taken(admin.listen),
        _ => AdminError::Listen(admin.listen, why),
    };
    let listener = TcpListener::bind(admin.listen).await.map_err(failed)?;
    let listen = listener.local_addr().map_err(failed)?;
    info!(admin.listen = %listen, "metrics and health");
    let stop = CancellationToken::new();
    let api = Arc::new(Api::new(admin, &states));
    let page = Arc::new(Page::new(admin, listen, (&states, &api), stop.clone()));
    let shown = ServerState {
        api,
        page: Arc::clone(&page),
        states,
    };
    let routes = Router::new()
        .route("/metrics", get(show_metrics))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/readyz/{pipeline}", get(ready_of))
        .layer(from_fn_with_state(shown.clone(), door))
        .with_state(shown);
    let accepting = accept(listener, routes, stop.clone());
    let task = WatchedTask::spawn(async move {
        tokio::select! {
            () = accepting => "it was stopped",
            never = page.keep_history() => match never {},
        }
    });
    Ok(AdminServer { listen, stop, task })
}

/// Accepts and serves connections until `stop`.
async fn accept(listener: TcpListener, routes: Router, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    // Open connections that are not streams, oldest first.
    let mut open: VecDeque<(AbortHandle, StreamFlag)> = VecDeque::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    open.retain(|(connection, lasting)| !connection.is_finished() && !lasting.is_streaming());
                    if open.len() >= MAX_CONNECTIONS && let Some((oldest, _)) = open.pop_front() {
                        oldest.abort();
                    }
                    let lasting = StreamFlag::default();
                    let answering = answer(stream, peer, routes.clone(), lasting.clone());
                    open.push_back((connections.spawn(answering), lasting));
                }
                Err(why) => {
                    warn!(reason = %why, "the admin port can't accept a connection");
                    sleep(ACCEPT_RETRY_DELAY).await;
                }
            },
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    // Dropping the set aborts the remaining connections.
    let _ = timeout(STOP_TIMEOUT, all).await;
}

/// Answers the one request of a connection.
async fn answer(stream: TcpStream, peer: SocketAddr, routes: Router, lasting: StreamFlag) {
    let routes = routes.layer((Extension(Peer(peer)), Extension(lasting.clone())));
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    let mut connection = pin!(connection);
    // Errors are the client's concern.
    let ended = timeout(MAX_CONNECTION_LIFE, &mut connection).await;
    if ended.is_err() && lasting.is_streaming() {
        let _ = timeout(page::MAX_STREAM_LIFE, connection).await;
    }
}

/// Answers a request. After many wrong tokens, the answer to another one is delayed.
async fn door(
    State(shown): State<ServerState>,
    Extension(Peer(peer)): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let guard = shown.api.guard();
    let path = request.uri().path();
    // The API and the page check access themselves.
    let response = if is_below(api::PREFIX, path) {
        shown.api.answer(request, peer).await
    } else if is_below(page::PREFIX, path) {
        shown.page.answer(request, peer).await
    } else if path == "/livez" || (path.starts_with("/readyz") && guard.ignores_probes()) {
        // Probes never wait. After many wrong tokens, theirs are not compared.
        see(&shown, false, request, next).await
    } else {
        match guard.may_see(request.headers(), peer) {
            Ok(is_open) => see(&shown, is_open, request, next).await,
            Err(problem) => problem.into_response(),
        }
    };
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        guard.pause().await;
    }
    response
}

/// Answers requests with full access (`is_open`). Others learn only whether the worker is alive and
/// ready.
async fn see(shown: &ServerState, is_open: bool, request: Request, next: Next) -> Response {
    if is_open {
        return next.run(request).await;
    }
    let asks = matches!(*request.method(), Method::GET | Method::HEAD);
    let path = request.uri().path();
    if path == "/livez" {
        return next.run(request).await;
    }
    let readiness = match path.strip_prefix("/readyz") {
        Some("") => Some(shown.states.readiness()),
        Some(rest) => (rest.strip_prefix('/')).and_then(|name| shown.states.readiness_of(name)),
        None => None,
    };
    match readiness.filter(|_| asks) {
        Some(Readiness { is_ready: true, .. }) => (StatusCode::OK, "ready\n").into_response(),
        Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response(),
        None => {
            let challenge = challenge(request.headers());
            let headers = [(header::WWW_AUTHENTICATE, challenge)];
            let words = "the header `Authorization: Bearer` with admin.token is required\n";
            (StatusCode::UNAUTHORIZED, headers, words).into_response()
        }
    }
}

/// Returns true if `path` is `prefix`, such as `/api/v1`, or below it.
fn is_below(prefix: &str, path: &str) -> bool {
    let below = path.strip_prefix(prefix);
    below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

async fn show_metrics(State(shown): State<ServerState>) -> impl IntoResponse {
    let openmetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    (
        [(header::CONTENT_TYPE, openmetrics)],
        shown.states.metrics(),
    )
}

async fn ready(State(shown): State<ServerState>) -> (StatusCode, String) {
    readiness_answer(shown.states.readiness())
}

async fn ready_of(
    State(shown): State<ServerState>,
    Path(pipeline): Path<String>,
) -> (StatusCode, String) {
    match shown.states.readiness_of(&pipeline) {
        Some(readiness) => readiness_answer(readiness),
        None => (
            StatusCode::NOT_FOUND,
            "there is no such pipeline\n".to_owned(),
        ),
    }
}

fn readiness_answer(readiness: Readiness) -> (StatusCode, String) {
    let (status, head) = match readiness.is_ready {
        true => (StatusCode::OK, "ready"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready"),
    };
    let lines = readiness.lines.iter().map(|line| format!("{line}\n"));
    (status, format!("{head}\n{}", lines.collect::<String>()))
}
