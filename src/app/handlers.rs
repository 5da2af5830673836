//! Selects the handler of `sluicegate run`: an API, a program, or the queue of other workers.

use std::future::ready;
use std::sync::Arc;

use super::any_handler::AnyHandler;
use super::{
    AppError, Recording, SharedState, Work, Worker, install_tls_provider, pipelines, signals,
};
use config::{Config, ConfigSource, Pipelines};
use engine::Stop;
use handler::exec::ExecHandler;
use handler::forward::ForwardHandler;
use handler::http::HttpHandler;
use telemetry::metrics::Metrics;

/// Runs a worker for each pipeline until SIGTERM or SIGINT. It sends jobs to `dispatch.http.url`,
/// passes them to `dispatch.exec.command` or forwards them as `dispatch.forward` says. `fresh`
/// asserts that no job was started within the longest window: see [`Worker::fresh`]. The
/// configuration was read from `source`, and is read again when it changes: see
/// [`Worker::reloading`]. New jobs are recorded in `recording`.
///
/// # Errors
/// [`AppError`] if it can't start or can't go on.
pub async fn run(
    pipelines: Pipelines,
    source: ConfigSource,
    fresh: bool,
    recording: Option<Recording>,
) -> Result<(), AppError> {
    install_tls_provider();
    let stop = Stop::default();
    let signals = signals::listen(&stop).map_err(AppError::Signals)?;
    let mut all = pipelines.each().values();
    match all.next() {
        Some(config) if !pipelines.are_named() => {
            let shared_state = SharedState {
                recording,
                ..SharedState::default()
            };
            let work = work(config.clone(), &shared_state, fresh)?;
            work.alone(Some(source), Some(signals), stop).await
        }
        _ => {
            let work = move |config, shared_state: &SharedState, fresh| {
                let shared_state = SharedState {
                    recording: recording.clone(),
                    ..shared_state.clone()
                };
                work(config, &shared_state, fresh)
            };
            pipelines::run(pipelines, source, fresh, work, (stop, signals)).await
        }
    }
}

/// Assembles the work of a pipeline with the handler that its configuration asks for. Contacts no
/// server and starts nothing yet.
pub(super) fn work(
    config: Config,
    shared_state: &SharedState,
    fresh: bool,
) -> Result<Work, AppError> {
    let dispatch = &config.dispatch;
    if let Some(exec) = dispatch.exec.clone() {
        return work_with(config, shared_state, fresh, move |_, metrics| {
            let handler = ExecHandler::new(&exec, move || _ = metrics.exec_restarts.inc());
            let closing = handler.closer();
            Ok((AnyHandler::Exec(handler), closing))
        });
    }
    if let Some(forward) = dispatch.forward.clone() {
        return work_with(config, shared_state, fresh, move |config, _| {
            let handler = ForwardHandler::new(config, &forward)?;
            let closing = handler.closer();
            Ok((AnyHandler::Forward(handler), closing))
        });
    }
    let http = dispatch.http.as_ref().ok_or(AppError::NoHandler)?;
    let handler = HttpHandler::in_environment(http, dispatch.concurrency)
        .map_err(|why| AppError::Http(why.to_string()))?
        .with_results(&dispatch.results);
    work_with(config, shared_state, fresh, |_, _| {
        Ok((AnyHandler::Http(handler), ready(())))
    })
}

/// Works like [`work`], with the handler that `make` returns: see [`Worker::work`]. A program and a
/// connection begin to work as soon as they are made.
fn work_with<End: Future<Output = ()> + Send + 'static>(
    config: Config,
    shared_state: &SharedState,
    fresh: bool,
    make: impl FnOnce(&Config, Arc<Metrics>) -> Result<(AnyHandler, End), AppError> + Send + 'static,
) -> Result<Work, AppError> {
    let mut worker = Worker::with(config, shared_state)?;
    worker.fresh = fresh;
    Ok(worker.work(make))
}
