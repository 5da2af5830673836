//! `sluicegate test`: test cases of configurations, for their authors' CI.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use operator::text::{count, plain};
use rules::text;
use simulator::cases::{self, Case, MAX_FILE_BYTES};
use tokio::task::spawn_blocking;

use super::Failure;
use super::progress::Progress;

/// Maximum number of characters of a case's name that are shown.
const MAX_NAME_CHARS: usize = 200;

/// Test configurations: simulate jobs and compare their start times with expectations
///
/// A file contains cases. A case has a configuration (a path, or its sections), jobs, and
/// expectations. Cases run in simulated time, so each takes only moments. A case ends one simulated
/// day after its last job (or as `within` says), or earlier if no job can end any more. Environment
/// variables are ignored, so a case has the same result everywhere.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate test sluicegate.test.yaml
  sluicegate test limits/*.test.yaml
  make-cases | sluicegate test -

A case:
  cases:
    - name: the fourth job of a second waits
      config: {rate-limiter: {use-algo: sliding-window-algo, max-requests: 3, window-size: 1s, guard: 0ms}}
      jobs:
        - {at: 0, count: 4, tenant: acme}
      expect:
        starts: [0, 0, 0, 1s]

A case can also have pipeline, workers, api (latency, errors, throttles, limit, limiter),
redis-latency, within and seed.
Expectations:
  starts, start, order                  start times and order, within the tolerance (100ms)
  waits-at-most, done-after-at-most     p50, p99, max
  makespan-at-most, deliveries-at-most  maximum
  fullest-window, would-have-waited     by name of the limit or shadow limit
  dead-letters (0), throttled           number of jobs
docs/SIMULATE.md explains all of them.

Exit status: 0 all cases passed, 1 a case failed, 2 a file is invalid.")]
pub struct TestArgs {
    /// Case files (`-`: standard input)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Plays all cases of all files. `pipeline` is the default for cases with several pipelines.
pub async fn run(args: TestArgs, pipeline: Option<&str>) -> Result<ExitCode, Failure> {
    // All files are read first, so that an invalid one does not follow partial results.
    let mut all: Vec<(String, Vec<Case>)> = Vec::new();
    for file in &args.files {
        let name = match is_stdin(file) {
            true => "standard input".to_owned(),
            false => file.display().to_string(),
        };
        let cases = cases::read(&name, &text(file)?, pipeline);
        all.push((name, cases.map_err(|why| Failure::Usage(why.to_string()))?));
    }
    let (mut passed, mut failed) = (0, 0);
    for (file, cases) in all {
        for case in cases {
            let progress = Progress::begin("testing");
            let (place, name) = (
                format!("{file}:{}", case.line),
                plain(&case.name, MAX_NAME_CHARS),
            );
            progress.show(name.clone());
            let found = spawn_blocking(move || case.differences()).await;
            drop(progress);
            let found = found.map_err(|_| {
                Failure::Failed(format!(
                    "{place}: {name}: the simulation crashed; please report it"
                ))
            })?;
            let mut out = io::stdout().lock();
            if found.is_empty() {
                passed += 1;
                writeln!(out, "ok      {name}")?;
                continue;
            }
            failed += 1;
            writeln!(out, "FAILED  {name} ({place})")?;
            for difference in found {
                for line in difference.lines() {
                    writeln!(out, "    {line}")?;
                }
            }
        }
    }
    let mut out = io::stdout().lock();
    let cases = count(passed, "case");
    if failed == 0 {
        writeln!(out, "{cases} passed")?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "{cases} passed, {failed} failed (- expected, + actual)"
    )?;
    Ok(ExitCode::FAILURE)
}

fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

fn text(file: &Path) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let max = MAX_FILE_BYTES + 1;
    let read = match is_stdin(file) {
        true => io::stdin().lock().take(max).read_to_end(&mut bytes),
        false => File::open(file).and_then(|file| file.take(max).read_to_end(&mut bytes)),
    };
    read.map_err(|why| Failure::Usage(format!("{} can't be read: {why}", file.display())))?;
    match text::decode(&bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(why) => Err(Failure::Usage(format!("{}: {why}", file.display()))),
    }
}
