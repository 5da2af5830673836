//! `sluicegate run`: the worker.

use std::path::PathBuf;
use std::process::ExitCode;

use app::{Recording, RecordingOptions};
use clap::Args;
use config::{ConfigSource, DEFAULT_FILE, Pipelines};

use super::Failure;

/// Run a worker: take jobs from the queue and call the API when the limits allow it
///
/// SIGHUP or a change of the file applies the new configuration. An invalid configuration is
/// rejected, and the old one stays in force. After SIGTERM or Ctrl-C the worker takes no more jobs
/// and finishes the calls in flight within dispatch.shutdown-timeout. A second signal ends it at
/// once; other workers then repeat the calls in flight.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate run --config /etc/sluicegate/sluicegate.yaml
  sluicegate run --pipeline orders
  sluicegate run --record jobs.jsonl")]
pub struct RunArgs {
    /// Skip the recovery wait after Redis was emptied on purpose
    ///
    /// Safe only if no job ran within the longest window. Use it for one start only.
    #[arg(long)]
    skip_recovery_wait: bool,
    /// Record the times, costs, priorities and labels of new jobs in this file, for `simulate
    /// --jobs`
    ///
    /// The file has no ids and bodies, and invented names for tenants and labels. Recording never
    /// slows the worker; jobs that it cannot write in time are left out. Only the file's owner can
    /// read it. An existing file is kept, and FILE.1 to FILE.9 is used instead; the log says which.
    /// If no file can be created, the worker logs a warning and runs without a recording.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Record the real names of tenants and labels
    #[arg(long, requires = "record")]
    record_names: bool,
    /// Stop the recording (not the worker) when the file has this size in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64, requires = "record", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    record_max: u64,
}

impl RunArgs {
    /// Returns the requested recording of the only pipeline, or `None` if none is requested, or
    /// none can be made, which is reported.
    fn recording(&self, pipelines: &Pipelines) -> Result<Option<Recording>, Failure> {
        let Some(file) = &self.record else {
            return Ok(None);
        };
        if pipelines.each().len() != 1 {
            let words = format!(
                "--record records one pipeline; select it with --pipeline NAME: {}",
                pipelines.names()
            );
            return Err(Failure::Usage(words));
        }
        let recorded = RecordingOptions {
            max_bytes: self.record_max << 20,
            with_names: self.record_names,
        };
        Ok(Recording::begin(file, recorded))
    }
}

/// Runs all pipelines, or the one of this name, until a signal. `file` is the configuration file,
/// or `None` for the default one.
pub async fn run(
    args: RunArgs,
    pipelines: Pipelines,
    (file, only): (Option<PathBuf>, Option<String>),
) -> Result<ExitCode, Failure> {
    let source = ConfigSource::new(file.clone());
    let (source, pipelines) = match only {
        Some(name) => {
            let (name, _) = pipelines.select(Some(&name)).map_err(Failure::Usage)?;
            let narrowed = pipelines.clone().restrict_to(name);
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
                "{}: {begin}dispatch.http.url: is not set; run needs a destination for jobs: set \
                dispatch.http.url, dispatch.exec.command or dispatch.forward",
                file.display()
            )));
        }
    }
    let failed = |error: &dyn std::fmt::Display| Failure::Failed(error.to_string());
    telemetry::init(&pipelines.log).map_err(|error| failed(&error))?;
    let recording = args.recording(&pipelines)?;
    let skips = args.skip_recovery_wait;
    let ended = app::run(pipelines, source, skips, recording.clone()).await;
    if let Some(recording) = recording {
        recording.end();
    }
    ended.map_err(|error| failed(&error))?;
    Ok(ExitCode::SUCCESS)
}
