//! Which way the jobs of `sluicegate run` go: to an API, to a program, or to the queue of other workers.

use std::path::PathBuf;

use super::{AppError, Worker, install_tls_provider, signals};
use crate::config::Config;
use crate::engine::Stop;
use crate::handler::PreparingHandler;
use crate::handler::exec::ExecHandler;
use crate::handler::forward::ForwardHandler;
use crate::handler::http::HttpHandler;

/// Runs a worker that sends each job to `dispatch.http.url`, gives it to `dispatch.exec.command` or forwards it by `dispatch.forward`,
/// until SIGTERM or SIGINT. With `fresh`, an operator says that nothing was started within the longest window: see [`Worker::fresh`]. The
/// configuration was read from `file`, and is applied again when it changes: see [`Worker::reloading`].
///
/// # Errors
/// [`AppError`] when it can't start.
pub async fn run(config: Config, file: Option<PathBuf>, fresh: bool) -> Result<(), AppError> {
    install_tls_provider();
    let dispatch = &config.dispatch;
    if let Some(exec) = &dispatch.exec {
        let handler = ExecHandler::new(exec);
        let closing = handler.closer();
        let ended = run_handler(config, file, fresh, handler).await;
        closing.await;
        return ended;
    }
    if let Some(forward) = &dispatch.forward {
        let handler = ForwardHandler::new(&config, forward)?;
        let closing = handler.closer();
        let ended = run_handler(config, file, fresh, handler).await;
        closing.await;
        return ended;
    }
    let http = dispatch.http.as_ref().ok_or(AppError::NoHandler)?;
    let handler = HttpHandler::in_environment(http, dispatch.concurrency)
        .map_err(|why| AppError::Http(why.to_string()))?
        .with_results(&dispatch.results);
    run_handler(config, file, fresh, handler).await
}

async fn run_handler<H: PreparingHandler>(
    config: Config,
    file: Option<PathBuf>,
    fresh: bool,
    handler: H,
) -> Result<(), AppError> {
    let stop = Stop::default();
    let signals = signals::listen(&stop).map_err(AppError::Signals)?;
    let mut worker = Worker::new(config, handler)?.reloading(file);
    worker.signals = Some(signals);
    let worker = if fresh { worker.fresh() } else { worker };
    worker.run(stop).await
}
