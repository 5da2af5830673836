//! The configuration while the screen is open: it is read again when its file has changed, as a running worker does.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use sluicegate::config::{Config, PipelineName, Pipelines, Source};
use tokio::sync::mpsc;

/// Workers look so often, too.
const EVERY: Duration = Duration::from_secs(1);

/// What was read: the pipelines that are shown, or why it can't be used.
pub type Read = Result<Vec<(PipelineName, Config)>, String>;

/// Which pipelines of a configuration are shown.
#[derive(Debug, Clone)]
pub struct Wanted(Option<String>);

impl Wanted {
    /// This one; `None`: all.
    pub fn new(name: Option<&str>) -> Self {
        Self(name.map(str::to_owned))
    }

    /// Those of `all`.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn of(&self, all: &Pipelines) -> Read {
        let own = |(name, config): (&PipelineName, &Config)| (name.clone(), config.clone());
        Ok(match &self.0 {
            Some(name) => vec![own(all.one(Some(name))?)],
            None => all.each().iter().map(own).collect(),
        })
    }
}

/// What is read each time the file has changed, its first look included. A thread of its own looks, which lives as long as the program: a
/// file system that hangs holds up no screen.
pub fn reads(path: Option<PathBuf>, wanted: Wanted) -> mpsc::Receiver<Read> {
    let (send, reads) = mpsc::channel(1);
    let mut source = Source::new(path);
    thread::spawn(move || {
        loop {
            if source.has_changed() {
                let read = source.load().map_err(|errors| errors.to_string());
                let read = read.and_then(|all| wanted.of(&all));
                if send.blocking_send(read).is_err() {
                    return;
                }
            }
            // Whoever wakes it early has it look once more.
            thread::park_timeout(EVERY);
        }
    });
    reads
}
