//! `sluicegate run`: the worker.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use sluicegate::config::{Config, DEFAULT_FILE};

use super::Failure;

/// Take jobs from the queue, and send each on when its tenant's limit allows it
///
/// SIGHUP, or a change of the file: applies the changed configuration; a wrong one is refused, and the old one stays.
/// SIGTERM or Ctrl-C: takes no more jobs, and finishes the calls in flight within dispatch.shutdown-timeout.
/// A second signal ends at once; the calls in flight then are made again elsewhere.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  sluicegate run --config /etc/sluicegate.yaml")]
pub struct RunArgs {
    /// Skip the recovery wait, after Redis was emptied on purpose (formerly --fresh)
    ///
    /// Safe only if no job ran within the longest window. For one start.
    #[arg(long, alias = "fresh")]
    skip_recovery_wait: bool,
}

/// Runs until a signal. The configuration was read from `file`; `None`: the default one.
pub async fn run(
    args: RunArgs,
    config: Config,
    file: Option<PathBuf>,
) -> Result<ExitCode, Failure> {
    let dispatch = &config.dispatch;
    if dispatch.http.is_none() && dispatch.exec.is_none() && dispatch.forward.is_none() {
        return Err(Failure::Usage(format!(
            "{}: dispatch.http.url: is not set; run needs to know where jobs go: there, to dispatch.exec.command or by dispatch.forward",
            file.unwrap_or_else(|| DEFAULT_FILE.into()).display()
        )));
    }
    let failed = |error: &dyn std::fmt::Display| Failure::Failed(error.to_string());
    sluicegate::init_log(&config).map_err(|error| failed(&error))?;
    (sluicegate::app::run(config, file, args.skip_recovery_wait).await)
        .map_err(|error| failed(&error))?;
    Ok(ExitCode::SUCCESS)
}
