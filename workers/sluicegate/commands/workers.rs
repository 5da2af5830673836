//! `sluicegate workers`: the running workers and their load.

use std::process::ExitCode;

use clap::Args;
use config::Pipelines;
use gate::reports::Fleet;
use operator::answer::Answer as _;
use operator::fleet::{NO_WORKER, is_empty, workers};
use rules::report::view::ReportedWorker;

use super::per_pipeline::{PerPipeline, PipelineOutput};
use super::table::{Side, look_at, table};
use super::times::span;
use super::{Failure, fleet, plain};

/// Show the running workers: version, readiness, calls in flight and waiting jobs
///
/// Workers write a report to Redis every 2 s and disappear 10 s after the last one. Shows all
/// pipelines unless --pipeline names one.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate workers
  sluicegate workers --watch
  sluicegate workers --json | jq '.workers[] | select(.ready | not)'

CALLS: calls in flight, of the maximum. USED: share of the worker slots used in the last seconds. WAITING: jobs that wait in memory.
LATE: jobs that have been due for over a second; should be 0.")]
pub struct WorkersArgs {
    /// Refresh every 2 s until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Print JSON; with --watch, one line per refresh
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(
    args: WorkersArgs,
    all: &Pipelines,
    name: Option<&str>,
) -> Result<ExitCode, Failure> {
    look_at(args.watch, args.json, async || {
        let seen = PerPipeline::new(all, name)?.then(async |at, ()| {
            let seen = fleet::of(at, None).await?;
            Ok(PipelineOutput {
                json: workers(&seen.fleet).as_json(),
                text: fleet::notices(&seen) + &describe(&seen.fleet),
                failure: None,
            })
        });
        seen.await.end(args.json)
    })
    .await
}

/// The headers of [`cells`].
pub const HEADS: [(&str, Side); 8] = [
    ("WORKER", Side::Left),
    ("VERSION", Side::Left),
    ("UP", Side::Right),
    ("CALLS", Side::Right),
    ("USED", Side::Right),
    ("WAITING", Side::Right),
    ("LATE", Side::Right),
    ("STATE", Side::Left),
];

fn describe(fleet: &Fleet) -> String {
    if is_empty(fleet) {
        return format!("{NO_WORKER}\n{}", fleet::gaps(fleet));
    }
    let rows: Vec<_> = fleet.view.workers.iter().map(cells).collect();
    table(HEADS, &rows) + &fleet::gaps(fleet)
}

/// Returns the cells of a worker.
pub fn cells(worker: &ReportedWorker) -> [String; 8] {
    let report = &worker.report;
    let load = &report.load;
    let notes = plain(&report.notes.join("; "), 400);
    [
        format!("{}:{}", plain(&report.host, 40), report.pid),
        plain(&report.version, 20),
        span(report.up_ms),
        format!("{}/{}", load.running, load.slots),
        format!("{:.0} %", load.saturation * 100.0),
        report.waiting.to_string(),
        load.idle.to_string(),
        match (report.ready, notes.is_empty()) {
            (true, true) => "ready".to_owned(),
            (true, false) => format!("ready, but {notes}"),
            (false, true) => "not ready".to_owned(),
            (false, false) => format!("not ready: {notes}"),
        },
    ]
}

#[cfg(test)]
mod tests {
    use rules::report::view::{FleetReport, WorkerEntry};
    use rules::report::{Load, Report, ReportError};
    use serde_json::json;

    use super::*;
    use gate::GateError;

    fn fleet(reports: Vec<(&str, WorkerEntry)>) -> Fleet {
        let reports = reports
            .into_iter()
            .map(|(name, report)| (name.to_owned(), report));
        Fleet {
            view: FleetReport::of(1_700_000_000_000, reports.collect()),
            ..Fleet::default()
        }
    }

    #[test]
    fn each_worker_has_a_line_followed_by_unknown_ones() {
        let ready = Report {
            host: "a".to_owned(),
            pid: 7,
            version: "0.1.0".to_owned(),
            up_ms: 125_000,
            ready: true,
            waiting: 240,
            load: Load {
                running: 3,
                slots: 16,
                saturation: 0.1875,
                ..Load::default()
            },
            ..Report::default()
        };
        let ill = Report {
            host: "b\u{1b}[2J".to_owned(),
            pid: 8,
            version: "0.1.0".to_owned(),
            notes: vec!["Redis does not answer".to_owned(), "x\ny".to_owned()],
            ..Report::default()
        };
        let fleet = fleet(vec![
            ("1", Some(Ok(ill))),
            ("2", Some(Ok(ready))),
            ("3", None),
            ("4", Some(Err(ReportError::Format(2)))),
        ]);
        assert_eq!(
            describe(&fleet),
            "WORKER        VERSION     UP  CALLS  USED  WAITING  LATE  STATE\n\
             a:7           0.1.0    2m 5s   3/16  19 %      240     0  ready\n\
             b\\u{1b}[2J:8  0.1.0      0ms    0/0   0 %        0     0  not ready: Redis does not answer; x\\ny\n\
             1 more worker is alive but has no report: 3 has just started or stopped\n\
             the report of worker 4 can't be read: it has format 2, and this version of sluicegate reads 1\n"
        );
        let json = workers(&fleet).as_json();
        assert_eq!(json["workers"][0]["jobs_waiting"], 240);
        assert_eq!(json["not_known"]["silent_workers"], json!(["3"]));
    }

    #[test]
    fn an_empty_fleet_has_a_message() {
        let text = describe(&fleet(Vec::new()));
        assert_eq!(text, format!("{NO_WORKER}\n"));
        let lost = Fleet {
            failed: vec![GateError::Unreachable("b: no answer in time".to_owned())],
            ..fleet(Vec::new())
        };
        let text = describe(&lost);
        let gap = "some workers may be missing: Redis can't be reached: b: no answer in time";
        assert_eq!(text, format!("{NO_WORKER}\n{gap}\n"));
    }
}
