//! Handles SIGTERM and SIGINT: the first stops the worker gracefully, the second at once.

use std::convert::Infallible;

use tokio::signal::unix::{SignalKind, signal};
use tracing::warn;

use engine::Stop;
use runtime::tasks::WatchedTask;

/// Listens for signals until the returned task is aborted.
///
/// # Errors
/// The handlers can't be installed.
pub(super) fn listen(stop: &Stop) -> std::io::Result<WatchedTask> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let stop = stop.clone();
    Ok(WatchedTask::spawn(async move {
        for token in [&stop.soft, &stop.hard] {
            let name = tokio::select! {
                _ = term.recv() => "SIGTERM",
                _ = int.recv() => "SIGINT",
            };
            warn!(signal = name, "received a signal to stop");
            token.cancel();
        }
        // Further signals change nothing, and the task must not end.
        std::future::pending::<Infallible>().await
    }))
}
