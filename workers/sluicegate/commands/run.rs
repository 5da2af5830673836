//! `sluicegate run`: the worker.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use sluicegate::config::{DEFAULT_FILE, Pipelines, Source};

use super::Failure;

/// Take jobs from the queue, and send each on when its tenant's limit allows it
///
/// SIGHUP, or a change of the file: applies the changed configuration; a wrong one is refused, and the old one stays.
/// SIGTERM or Ctrl-C: takes no more jobs, and finishes the calls in flight within dispatch.shutdown-timeout.
/// A second signal ends at once; the calls in flight then are made again elsewhere.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate run --config /etc/sluicegate.yaml
  sluicegate run --pipeline orders")]
pub struct RunArgs {
    /// Skip the recovery wait, after Redis was emptied on purpose (formerly --fresh)
    ///
    /// Safe only if no job ran within the longest window. For one start.
    #[arg(long, alias = "fresh")]
    skip_recovery_wait: bool,
}

/// Runs until a signal: all pipelines, or the one of that name. The configuration was read from the file; `None`: the default one.
pub async fn run(
    args: RunArgs,
    pipelines: Pipelines,
    (file, only): (Option<PathBuf>, Option<String>),
) -> Result<ExitCode, Failure> {
    let source = Source::new(file.clone());
    let (source, pipelines) = match only {
        Some(name) => {
            let (name, _) = pipelines.one(Some(&name)).map_err(Failure::Usage)?;
            let narrowed = pipelines.clone().narrowed(name);
            (source.of(name.clone()), narrowed)
        }
        None => (source, pipelines),
    };
    for (name, config) in pipelines.each() {
        let dispatch = &config.dispatch;
        if dispatch.http.is_none() && dispatch.exec.is_none() && dispatch.forward.is_none() {
            let begin = match pipelines.are_named() {
                true => format!("pipelines.{name}."),
                false => String::new(),
            };
            let file = file.unwrap_or_else(|| DEFAULT_FILE.into());
            return Err(Failure::Usage(format!(
                "{}: {begin}dispatch.http.url: is not set; run needs to know where jobs go: there, to dispatch.exec.command or by dispatch.forward",
                file.display()
            )));
        }
    }
    let failed = |error: &dyn std::fmt::Display| Failure::Failed(error.to_string());
    sluicegate::telemetry::init(&pipelines.log).map_err(|error| failed(&error))?;
    (sluicegate::app::run(pipelines, source, args.skip_recovery_wait).await)
        .map_err(|error| failed(&error))?;
    Ok(ExitCode::SUCCESS)
}
