//! The commands, and how they end: with one line on standard error and an exit status.

mod answer;
pub mod check;
pub mod completions;
pub mod dead;
mod divert;
pub mod echo;
pub mod explain;
mod fleet;
mod headers;
pub mod health;
pub mod hold;
pub mod init;
pub mod inspect;
pub mod job;
pub mod jobs;
pub mod labels;
mod later;
pub mod lines;
pub mod man;
mod noted;
mod progress;
pub mod publish;
pub mod queues;
pub mod run;
pub mod schema;
pub mod simulate;
pub mod steer;
mod table;
pub mod tenant;
pub mod tenants;
pub mod test;
pub mod together;
pub mod top;
mod tried;
pub mod workers;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use serde::Serialize;
use sluicegate::broker::BrokerError;
use sluicegate::config::ConfigErrors;
use sluicegate::gate::GateError;
use sluicegate::operator::NotDone;
use sluicegate::operator::words::{count, plain, plain_json};
use sluicegate::operator::{letters, limits, pace, recovery, times};

/// Why a command did not do its work.
#[derive(Debug)]
pub enum Failure {
    /// The configuration is wrong: exit status 2.
    Config(ConfigErrors),
    /// The arguments make no sense: exit status 2.
    Usage(String),
    /// It was tried and did not work: exit status 1.
    Failed(String),
    /// It was tried and did not work, and that has been said: exit status 1.
    Said,
}

impl Failure {
    /// Tells the user, and says how to exit.
    pub fn report(self) -> ExitCode {
        for line in self.words().lines() {
            eprintln!("error: {line}");
        }
        ExitCode::from(match self {
            Self::Config(_) | Self::Usage(_) => 2,
            Self::Failed(_) | Self::Said => 1,
        })
    }

    /// What is still to be told; empty: nothing.
    pub fn words(&self) -> String {
        match self {
            Self::Config(errors) => errors.to_string(),
            Self::Usage(line) | Self::Failed(line) => line.clone(),
            Self::Said => String::new(),
        }
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        Self::Config(errors)
    }
}

impl From<BrokerError> for Failure {
    fn from(error: BrokerError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<GateError> for Failure {
    fn from(error: GateError) -> Self {
        Self::Failed(gate(&error))
    }
}

/// What `error` says, and what to do where Redis can't be reached.
pub fn gate(error: &GateError) -> String {
    NotDone::from(error.clone()).to_string()
}

impl From<NotDone> for Failure {
    fn from(error: NotDone) -> Self {
        match error {
            NotDone::Wrong(words) => Self::Usage(words),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // Whoever read our output has seen enough: `sluicegate dead list | head`.
            ErrorKind::BrokenPipe => Self::Said,
            _ => Self::Failed(format!("the output can't be written: {error}")),
        }
    }
}

/// Prints `value` as one line of JSON.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string(value).map_err(io::Error::from)?;
    writeln!(io::stdout().lock(), "{}", plain_json(&json))?;
    Ok(())
}
