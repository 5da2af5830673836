//! `sluicegate run`: the worker.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use sluicegate::app::{Recording, RecordingOptions};
use sluicegate::config::{ConfigSource, DEFAULT_FILE, Pipelines};

use super::Failure;

/// Take jobs from the queue, and send each on when its tenant's limit allows it
///
/// SIGHUP, or a change of the file: applies the changed configuration; a wrong one is refused, and the old one stays.
/// SIGTERM or Ctrl-C: takes no more jobs, and finishes the calls in flight within dispatch.shutdown-timeout.
/// A second signal ends at once; the calls in flight then are made again elsewhere.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate run --config /etc/sluicegate.yaml
  sluicegate run --pipeline orders
  sluicegate run --record jobs.jsonl")]
pub struct RunArgs {
    /// Skip the recovery wait, after Redis was emptied on purpose
    ///
    /// Safe only if no job ran within the longest window. For one start.
    #[arg(long)]
    skip_recovery_wait: bool,
    /// Records new jobs in this new file, for `simulate --jobs`: their times, costs, priorities and labels
    ///
    /// Without ids and bodies, and with made-up names in place of tenants and labels. It never slows the worker: what there is no time to
    /// write is left out. Only the file's owner may read it. Where it is there already it stays as it is, and FILE.1, FILE.2, … FILE.9
    /// is made: the log says which. Where none can be made, the log warns, and the worker runs without.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Records tenants and labels by their names
    #[arg(long, requires = "record")]
    record_names: bool,
    /// Ends the recording, not the worker, when the file has so many MiB
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
        let mut all = pipelines.each().values();
        let (Some(config), None) = (all.next(), all.next()) else {
            let words = format!(
                "--record records one pipeline; say which with --pipeline NAME: {}",
                pipelines.names()
            );
            return Err(Failure::Usage(words));
        };
        let recorded = RecordingOptions {
            max_bytes: self.record_max << 20,
            with_names: self.record_names,
        };
        Ok(Recording::begin(file, recorded, config))
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
    let recording = args.recording(&pipelines)?;
    let skips = args.skip_recovery_wait;
    let ended = sluicegate::app::run(pipelines, source, skips, recording.clone()).await;
    if let Some(recording) = recording {
        recording.end();
    }
    ended.map_err(|error| failed(&error))?;
    Ok(ExitCode::SUCCESS)
}
