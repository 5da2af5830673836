//! Rereads the configuration while the screen is open, when its file has changed, as a running
//! worker does.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use config::{Config, ConfigSource, PipelineName, Pipelines};
use tokio::sync::mpsc;

use crate::commands::Failure;
use crate::commands::per_pipeline::select;

/// Interval at which the file is checked, as in workers.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The result of a read: the shown pipelines, or the reason why the file can't be used.
pub type FileReading = Result<Vec<(PipelineName, Config)>, String>;

/// Returns the pipeline `name` of `all`, or all of them.
///
/// # Errors
/// There is no pipeline of this name.
pub fn selected(
    all: &Pipelines,
    name: Option<&str>,
) -> Result<Vec<(PipelineName, Config)>, Failure> {
    let own = |(name, config): (&PipelineName, &Config)| (name.clone(), config.clone());
    Ok(select(all, name)?.into_iter().map(own).collect())
}

/// Returns the reads after each change of the file, beginning with the first read. A separate
/// thread checks the file as long as the program runs, so that a hanging file system does not block
/// the screen.
pub fn reads(path: Option<PathBuf>, name: Option<String>) -> mpsc::Receiver<FileReading> {
    let (send, reads) = mpsc::channel(1);
    let mut source = ConfigSource::new(path);
    thread::spawn(move || {
        loop {
            if source.has_changed() {
                let read = source.load().map_err(|errors| errors.to_string());
                let read =
                    read.and_then(|all| selected(&all, name.as_deref()).map_err(|why| why.words()));
                if send.blocking_send(read).is_err() {
                    return;
                }
            }
            // A spurious wakeup only causes one more check.
            thread::park_timeout(CHECK_INTERVAL);
        }
    });
    reads
}
