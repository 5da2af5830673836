//! Tests of configurations, as users write them: these jobs at these times under this configuration, and what is expected of it
//! (`sluicegate test`).

mod file;
mod judge;
mod sections;
mod written;

use std::sync::Arc;
use std::time::Duration;

use sluicegate::config::Config;

pub use self::file::{CasesError, MOST_FILE, read, read_with};
use self::written::Expected;
use crate::api::Api;
use crate::jobs::Job;
use crate::run::{Setup, Watched, simulate};

/// A case that can be played.
#[derive(Debug)]
pub struct Case {
    /// What it says of itself.
    pub name: String,
    /// Where it stands in its file.
    pub line: u64,
    config: Config,
    workers: usize,
    api: Api,
    redis: Duration,
    most: Duration,
    work: u64,
    seed: u64,
    jobs: Arc<Vec<Job>>,
    /// What its jobs are called.
    names: Vec<String>,
    expected: Expected,
}

impl Case {
    /// Plays it: what is not as it is expected, a text for each.
    pub fn differences(&self) -> Vec<String> {
        let setup = Setup {
            config: &self.config,
            workers: self.workers,
            api: self.api,
            redis: self.redis,
            seed: self.seed,
            most: self.most,
            work: self.work,
        };
        let history = simulate(&setup, &self.jobs, &Watched::default());
        judge::differences(self, &history)
    }
}

#[cfg(test)]
mod tests;
