//! What an operator's systems ask a worker over HTTP: `/metrics`, `/livez`, `/readyz`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::config::Admin;
use crate::metrics::Metrics;

/// Stopping waits so long for answers that are being written.
const STOP_WITHIN: Duration = Duration::from_secs(1);

/// What a worker needs to be ready; set by the engine.
#[derive(Debug, Default)]
pub struct Health {
    rabbitmq: AtomicBool,
    redis: AtomicBool,
    consuming: AtomicBool,
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
    /// Jobs are being taken, or not.
    pub fn set_consuming(&self, consuming: bool) {
        self.consuming.store(consuming, Ordering::Relaxed);
    }

    /// What is missing for being ready; empty: nothing.
    pub fn missing(&self) -> Vec<&'static str> {
        let parts = [
            (&self.rabbitmq, "RabbitMQ does not answer"),
            (&self.redis, "Redis does not answer"),
            (&self.consuming, "no jobs are being taken"),
        ];
        let missing = |(up, what): (&AtomicBool, _)| (!up.load(Ordering::Relaxed)).then_some(what);
        parts.into_iter().filter_map(missing).collect()
    }
}

/// Why the admin port can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Somebody else listens there.
    #[error("admin.listen: {0} is in use; name another address, or port 0 for any free one")]
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
    task: JoinHandle<()>,
}

impl AdminServer {
    /// Ends it.
    pub async fn stop(self) {
        self.stop.cancel();
        // A client that reads slowly does not keep the worker from ending.
        let _ = tokio::time::timeout(STOP_WITHIN, self.task).await;
    }
}

#[derive(Clone)]
struct Shown {
    metrics: Arc<Metrics>,
    health: Arc<Health>,
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
    let routes = Router::new()
        .route("/metrics", get(show_metrics))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(Shown { metrics, health });
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    let task = tokio::spawn(async move {
        // `serve` retries failed accepts by itself and ends only when told.
        let _ = axum::serve(listener, routes)
            .with_graceful_shutdown(stopped)
            .await;
    });
    Ok(AdminServer { listen, stop, task })
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
    if missing.is_empty() {
        return (StatusCode::OK, "ready\n".to_owned());
    }
    let mut text = "not ready\n".to_owned();
    for what in missing {
        // Writing to a String can't fail.
        let _ = writeln!(text, "{what}");
    }
    (StatusCode::SERVICE_UNAVAILABLE, text)
}
