//! Tests of configurations, as users write them for `sluicegate test`: a configuration, jobs with
//! their times, and the expected result.

mod file;
mod judge;
mod keys;
mod sections;

use std::sync::Arc;
use std::time::Duration;

use config::Config;

pub use self::file::{CasesError, MAX_FILE_BYTES, read, read_with};
use self::keys::Expectations;
use crate::api::ApiModel;
use crate::jobs::SimulatedJob;
use crate::run::{RunProgress, RunSetup, simulate};

/// A case that can be run.
#[derive(Debug)]
pub struct Case {
    /// Its name from the file.
    pub name: String,
    /// Line of the file at which the case begins.
    pub line: u64,
    config: Config,
    workers: usize,
    api: ApiModel,
    redis: Duration,
    max: Duration,
    work: u64,
    seed: u64,
    jobs: Arc<Vec<SimulatedJob>>,
    /// Names of the jobs.
    names: Vec<String>,
    expected: Expectations,
}

impl Case {
    /// Runs the case and returns a text for each difference from the expectations.
    pub fn differences(&self) -> Vec<String> {
        let setup = RunSetup {
            config: &self.config,
            workers: self.workers,
            api: self.api.clone(),
            redis: self.redis,
            seed: self.seed,
            max: self.max,
            work: self.work,
        };
        let history = simulate(&setup, &self.jobs, &RunProgress::default());
        judge::differences(self, &history)
    }
}

#[cfg(test)]
mod tests;
