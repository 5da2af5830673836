//! The commands and their failures: one line on standard error and an exit status.

mod answer;
mod audit;
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
pub mod input_lines;
pub mod inspect;
mod interrupts;
pub mod job;
pub mod jobs;
pub mod labels;
pub mod man;
pub mod per_pipeline;
mod progress;
pub mod publish;
pub mod run;
pub mod schema;
pub mod simulate;
mod start_time;
pub mod steer;
mod table;
pub mod tenant;
pub mod tenants;
pub mod test;
pub mod top;
pub mod workers;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use broker::BrokerError;
use config::ConfigErrors;
use gate::GateError;
use operator::NotDone;
use operator::text::{count, plain, plain_json};
use operator::{letters, limits, rate, recovery, times};
use serde::Serialize;
use serde_json::Value;

/// The reason why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The configuration is invalid: exit status 2.
    Config(ConfigErrors),
    /// The arguments are invalid: exit status 2.
    Usage(String),
    /// The attempt failed: exit status 1.
    Failed(String),
    /// The attempt failed and was reported already: exit status 1.
    AlreadyReported,
}

impl Failure {
    /// Reports the failure to the user and returns the exit status.
    pub fn report(self) -> ExitCode {
        for line in self.words().lines() {
            eprintln!("error: {line}");
        }
        ExitCode::from(match self {
            Self::Config(_) | Self::Usage(_) => 2,
            Self::Failed(_) | Self::AlreadyReported => 1,
        })
    }

    /// Returns the text that is still to be shown, or an empty text.
    pub fn words(&self) -> String {
        match self {
            Self::Config(errors) => errors.to_string(),
            Self::Usage(line) | Self::Failed(line) => line.clone(),
            Self::AlreadyReported => String::new(),
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

/// Returns the text of `error`, with advice if Redis can't be reached.
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
            // A reader that closed the output wants no more of it, as in `sluicegate dead list |
            // head`.
            ErrorKind::BrokenPipe => Self::AlreadyReported,
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

/// Prints `json` or, without `as_json`, the text, with one newline at its end.
pub fn print(
    as_json: bool,
    json: impl FnOnce() -> Value,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    match as_json {
        true => print_json(&json()),
        false => Ok(writeln!(io::stdout().lock(), "{}", text().trim_end())?),
    }
}
