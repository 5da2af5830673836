//! Common parts of commands that act on all pipelines unless one is named.

use std::io::Write as _;
use std::process::ExitCode;

use config::{Config, PipelineName, Pipelines};
use serde_json::{Map, Value, json};

use super::{Failure, print_json};

/// Returns the pipeline `name`, or all of them.
///
/// # Errors
/// There is no pipeline of this name.
pub fn select<'a>(
    all: &'a Pipelines,
    name: Option<&str>,
) -> Result<Vec<(&'a PipelineName, &'a Config)>, Failure> {
    Ok(match name {
        Some(_) => vec![all.select(name).map_err(Failure::Usage)?],
        None => all.each().iter().collect(),
    })
}

/// One of the pipelines while a command acts on it.
#[derive(Clone, Copy)]
pub struct SelectedPipeline<'a> {
    name: &'a PipelineName,
    /// The pipeline's configuration.
    pub config: &'a Config,
    is_only: bool,
}

impl SelectedPipeline<'_> {
    /// Returns the prefix of its lines among those of other pipelines.
    pub fn prefix(&self) -> String {
        match self.is_only {
            true => String::new(),
            false => format!("{}: ", self.name),
        }
    }
}

/// The output for a pipeline at the end.
pub struct PipelineOutput {
    /// The output with `--json`.
    pub json: Value,
    /// The output without `--json`, in lines.
    pub text: String,
    /// The error, if it failed, which `json` includes.
    pub failure: Option<String>,
}

/// The progress of a command per pipeline. One that fails does not keep the command from the
/// others.
pub struct PerPipeline<'a, T>(Vec<(SelectedPipeline<'a>, Result<T, Failure>)>);

impl<'a> PerPipeline<'a, ()> {
    /// Creates the state before anything was done.
    ///
    /// # Errors
    /// There is no pipeline of this name.
    pub fn new(all: &'a Pipelines, name: Option<&str>) -> Result<Self, Failure> {
        let chosen = select(all, name)?;
        let is_only = chosen.len() == 1;
        let at = |(name, config)| SelectedPipeline {
            name,
            config,
            is_only,
        };
        Ok(Self(
            chosen.into_iter().map(|it| (at(it), Ok(()))).collect(),
        ))
    }
}

impl<'a, T> PerPipeline<'a, T> {
    /// Runs `act` for all pipelines at once, and returns when all have ended.
    pub async fn then<U>(
        self,
        act: impl AsyncFn(SelectedPipeline<'a>, T) -> Result<U, Failure>,
    ) -> PerPipeline<'a, U> {
        let acting = self.0.into_iter().map(async |(at, before)| {
            let after = match before {
                Ok(before) => act(at, before).await,
                Err(failure) => Err(failure),
            };
            (at, after)
        });
        PerPipeline(futures_util::future::join_all(acting).await)
    }

    /// Prints the known texts before the end, each under its pipeline's name.
    ///
    /// # Errors
    /// The output can't be written.
    pub fn say(&self, text: impl Fn(&T) -> &str) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        let known = self.0.iter().filter_map(|(at, known)| {
            let text = text(known.as_ref().ok()?);
            (!text.is_empty()).then_some((at, text))
        });
        for (at, text) in known {
            if !at.is_only {
                writeln!(out, "pipeline {}", at.name)?;
            }
            out.write_all(text.as_bytes())?;
        }
        Ok(())
    }
}

impl PerPipeline<'_, PipelineOutput> {
    /// Prints the output and returns the exit status: with several pipelines, 1 if any of them
    /// failed.
    ///
    /// # Errors
    /// The command failed.
    pub fn end(self, as_json: bool) -> Result<ExitCode, Failure> {
        if as_json {
            self.print_json()?;
        } else {
            self.say(|output| &output.text)?;
        }
        let mut failures = Vec::new();
        for (at, output) in self.0 {
            let failure = match output {
                Err(failure) if at.is_only => return Err(failure),
                Err(failure) => failure,
                Ok(output) => match output.failure {
                    Some(_) if as_json => Failure::AlreadyReported,
                    Some(words) => Failure::Failed(words),
                    None => continue,
                },
            };
            failures.push(match failure.words() {
                words if words.is_empty() => words,
                words => format!("{}{words}", at.prefix()),
            });
        }
        if failures.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        failures.retain(|words| !words.is_empty());
        Err(match failures.is_empty() {
            true => Failure::AlreadyReported,
            false => Failure::Failed(failures.join("\n")),
        })
    }

    fn print_json(&self) -> Result<(), Failure> {
        if let [(at, output)] = self.0.as_slice()
            && at.is_only
        {
            // The end of the command reports a failure.
            return output
                .as_ref()
                .map_or(Ok(()), |output| print_json(&output.json));
        }
        let each = self.0.iter().map(|(at, output)| {
            let value = match output {
                Ok(output) => output.json.clone(),
                Err(failure) => json!({"error": failure.words()}),
            };
            (at.name.to_string(), value)
        });
        print_json(&json!({"pipelines": each.collect::<Map<_, _>>()}))
    }
}
