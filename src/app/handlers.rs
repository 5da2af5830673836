//! Selects the handler of `sluicegate run`: an API, a program, or the queue of other workers.

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
        return work_later(config, shared_state, fresh, move |_, metrics| {
            let handler = ExecHandler::new(&exec, move || _ = metrics.exec_restarts.inc());
            let closing = handler.closer();
            Ok((AnyHandler::Exec(handler), closing))
        });
    }
    if let Some(forward) = dispatch.forward.clone() {
        return work_later(config, shared_state, fresh, move |config, _| {
            let handler = ForwardHandler::new(config, &forward)?;
            let closing = handler.closer();
            Ok((AnyHandler::Forward(handler), closing))
        });
    }
    let http = dispatch.http.as_ref().ok_or(AppError::NoHandler)?;
    let handler = HttpHandler::in_environment(http, dispatch.concurrency)
        .map_err(|why| AppError::Http(why.to_string()))?
        .with_results(&dispatch.results);
    let worker = Worker::with(config, AnyHandler::Http(handler), shared_state)?;
    Ok(if fresh { worker.fresh() } else { worker }.work())
}

/// Works like [`work`], for a handler that begins to work as soon as it is made. `make` returns the
/// handler and a future that closes it; it is called when the pipeline's jobs begin to move.
fn work_later<End: Future<Output = ()> + Send + 'static>(
    config: Config,
    shared_state: &SharedState,
    fresh: bool,
    make: impl FnOnce(&Config, Arc<Metrics>) -> Result<(AnyHandler, End), AppError> + Send + 'static,
) -> Result<Work, AppError> {
    let mut worker = Worker::with(config, (), shared_state)?;
    worker.fresh = fresh;
    Ok(Work {
        config: worker.config.clone(),
        seen: worker.seen.clone(),
        moves: Box::new(move |tasks, reload, stop| {
            Box::pin(async move {
                let metrics = Arc::clone(&worker.seen.metrics);
                let (handler, closing) = make(&worker.config, metrics)?;
                let ended = worker
                    .with_handler(handler)
                    .move_jobs(tasks, reload, stop)
                    .await;
                closing.await;
                ended
            })
        }),
    })
}

impl Worker<()> {
    fn with_handler(self, handler: AnyHandler) -> Worker<AnyHandler> {
        Worker {
            config: self.config,
            handler: Arc::new(handler),
            seen: self.seen,
            gate: self.gate,
            own: self.own,
            fresh: self.fresh,
            source: self.source,
            recording: self.recording,
            signals: self.signals,
        }
    }
}
