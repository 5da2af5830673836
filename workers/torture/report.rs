//! The verdict as text, and the throughput.

pub mod pace;

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::checker::HistoryVerdict;
use crate::faults::FaultKind;
use pace::Run;

/// Maximum number of findings that are shown; the history has all.
const SHOWN: usize = 20;

/// Formats the table. `left` is the number of messages that were still in queues at the end.
pub fn table(verdict: &HistoryVerdict, run: &Run, left: u64) -> String {
    let mut table = ReportTable::default();
    table.add_faults(verdict);
    table.add_jobs(verdict, left);
    table.add_calls(verdict);
    table.add_limits(verdict);
    table.add_throughput(run);
    table.add_findings(verdict);
    table.0
}

/// The text of the table so far.
#[derive(Default)]
struct ReportTable(String);

impl ReportTable {
    fn line(&mut self, name: &str, value: String) {
        let _ = writeln!(self.0, "{name:26} {value}");
    }

    fn add_faults(&mut self, verdict: &HistoryVerdict) {
        let faults: usize = verdict.faults.values().sum();
        self.line("faults", format!("{faults}: {}", list(&verdict.faults)));
        let (moments, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            (verdict.missed.clone().into_iter()).partition(|(kind, _)| kind.has_moment());
        for (name, missed) in [
            // The worker was struck at another moment.
            ("missed their moment", moments),
            ("without effect", others),
        ] {
            if !missed.is_empty() {
                self.line(name, list(&missed));
            }
        }
    }

    fn add_jobs(&mut self, verdict: &HistoryVerdict, left: u64) {
        self.line(
            "jobs confirmed",
            format!(
                "{} ({} more were published without an answer from RabbitMQ)",
                verdict.confirmed, verdict.unsure
            ),
        );
        self.line(
            "done / dead",
            format!("{} / {}", verdict.done, verdict.dead),
        );
        self.line("left in queues", left.to_string());
    }

    /// Adds the calls, and the features that jobs used.
    fn add_calls(&mut self, verdict: &HistoryVerdict) {
        self.line(
            "calls",
            format!(
                "{}, {} of them not answered with 2xx; the highest attempt was {}",
                verdict.calls, verdict.refused, verdict.attempts
            ),
        );
        self.line("results", verdict.results.to_string());
        self.line(
            "delayed / duplicates",
            format!("{} / {}", verdict.delayed, verdict.dropped),
        );
        let (canceled, asked) = verdict.canceled;
        self.line("canceled", format!("{canceled} of {asked} requested"));
        let repeated: usize = verdict.repeated.values().sum();
        self.line(
            "ran again after the end",
            format!("{repeated} calls, after: {}", list(&verdict.repeated)),
        );
    }

    /// Adds how the limits were kept and shared.
    fn add_limits(&mut self, verdict: &HistoryVerdict) {
        self.line(
            "windows",
            format!(
                "{} overfull; the fullest had {} of {}",
                verdict.overfull, verdict.fullest.0, verdict.fullest.1
            ),
        );
        let (closings, ignored) = verdict.closings;
        self.line(
            "closed by 429",
            format!("{closings} times; {ignored} late calls"),
        );
        if let Some((done, allowed)) = verdict.neighbors {
            self.line(
                "next to rude neighbors",
                format!("at least {done} of {allowed} jobs of a tenant done in 10 s"),
            );
        }
    }

    fn add_throughput(&mut self, run: &Run) {
        let used = run.used();
        self.line(
            "used without faults",
            match used.seconds {
                0 => "no such second".to_owned(),
                seconds => format!(
                    "{:.1} % of the limits, in {seconds} s",
                    100.0 * used.calls as f64 / used.allowed
                ),
            },
        );
        let recoveries = run.recoveries();
        if !recoveries.is_empty() {
            self.line("back to 95 %, at worst", worst(&recoveries));
        }
        let takeovers = run.takeovers();
        if !takeovers.is_empty() {
            self.line("takeover, at worst", worst(&takeovers));
        }
    }

    fn add_findings(&mut self, verdict: &HistoryVerdict) {
        for finding in verdict.findings.iter().take(SHOWN) {
            let _ = writeln!(self.0, "FAIL {finding}");
        }
        if verdict.findings.len() > SHOWN {
            let more = verdict.findings.len() - SHOWN;
            let _ = writeln!(self.0, "... and {more} more");
        }
    }
}

fn list(counts: &BTreeMap<FaultKind, usize>) -> String {
    if counts.is_empty() {
        return "none".to_owned();
    }
    let all: Vec<String> = counts
        .iter()
        .map(|(kind, count)| format!("{kind} {count}"))
        .collect();
    all.join(", ")
}

/// Formats the longest recovery after each kind of fault.
fn worst(recoveries: &BTreeMap<FaultKind, Vec<f64>>) -> String {
    let longest = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
    let all: Vec<String> = (recoveries.iter())
        .map(|(kind, all)| format!("{kind} {:.1} s of {}", longest(all), all.len()))
        .collect();
    all.join(", ")
}
