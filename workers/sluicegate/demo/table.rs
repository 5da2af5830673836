//! The figures as text: a table of the tenants, then one line per promise, which are the last lines
//! of the demo.

use std::fmt::{self, Write};

use super::report::{CombinedFigures, DemoFigures, NeverExceeded, NeverIdle, NeverLost};

/// Maximum number of tenants in the table. The figures below it count all of them.
const ROWS: usize = 20;

impl fmt::Display for DemoFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_tenants(f)?;
        writeln!(f)?;
        let mut line = |name, holds, text| line(f, name, holds, text);
        let (p1, p2) = (&self.never_lost, &self.never_exceeded);
        line("P1 never lost", p1.holds, lost(p1))?;
        line("P2 never exceeded", p2.holds, exceeded(p2)?)?;
        if let Some(p3) = &self.never_idle {
            line("P3 never idle", p3.holds, idle(p3)?)?;
        }
        if let Some(p4) = &self.cheap_waiting {
            let text = format!(
                "{:.2} deliveries per job (promised: {:.1})",
                p4.deliveries_per_job, p4.promised_per_job,
            );
            line("P4 cheap waiting", p4.holds, text)?;
        }
        if let Some(p6) = &self.throttling_is_not_failure {
            let text = format!(
                "{} calls used an attempt; {} dead letters have growing headers, the largest \
                headers have {} bytes",
                p6.attempts_used, p6.with_broker_headers, p6.header_bytes,
            );
            line("P6 throttling is not failure", p6.holds, text)?;
        }
        let Some(p9) = &self.answers_back else {
            return Ok(());
        };
        let calls: usize = (self.tenants.iter())
            .map(|tenant| tenant.done + tenant.dead)
            .sum();
        let text = format!(
            "{} results for {calls} calls: {} jobs have none, {} belong to another call, {} are \
            repeats",
            p9.results, p9.missing, p9.wrong, p9.again,
        );
        line("P9 answers come back", p9.holds, text)
    }
}

impl DemoFigures {
    /// Writes the table of the tenants.
    fn write_tenants(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "tenant        confirmed   done  dead  exceeded  fullest   429   used  makespan    ideal"
        )?;
        for t in self.tenants.iter().take(ROWS) {
            writeln!(
                f,
                "{:12} {:10} {:6} {:5} {:9} {:8} {:5} {:5.1}% {:7.2} s {:6.2} s",
                t.tenant,
                t.confirmed,
                t.done,
                t.dead,
                t.violations,
                t.fullest_windows.first().unwrap_or(&0),
                t.answered_429,
                t.used_share * 100.0,
                t.makespan_seconds,
                t.ideal_seconds,
            )?;
        }
        if self.tenants.len() > ROWS {
            writeln!(f, "... and {} more tenants", self.tenants.len() - ROWS)?;
        }
        Ok(())
    }
}

/// Writes the line of one promise.
fn line(f: &mut fmt::Formatter<'_>, name: &str, holds: bool, text: String) -> fmt::Result {
    let verdict = if holds { "PASS" } else { "FAIL" };
    writeln!(f, "{name:32} {verdict}  {text}")
}

/// Returns whether delays by the machine explain a figure outside its promise, as text.
fn explains(explained: bool) -> &'static str {
    if explained {
        "explains it"
    } else {
        "does not explain it"
    }
}

fn lost(p1: &NeverLost) -> String {
    format!(
        "{} confirmed = {} done + {} dead ({} of them not rejected by the API); {} lost, {} called twice, {} left in queues",
        p1.confirmed, p1.done, p1.dead, p1.dead_unasked, p1.lost, p1.duplicates, p1.left_in_queues,
    )
}

fn exceeded(p2: &NeverExceeded) -> Result<String, fmt::Error> {
    let fullest: Vec<String> = (p2.limits.iter())
        .map(|limit| match p2.limits.len() {
            1 => format!("{} of {}", limit.units, limit.max),
            _ => format!("{} of {} ({})", limit.units, limit.max, limit.name),
        })
        .collect();
    let mut exceeded = format!(
        "{} violations, tolerance zero; the fullest window held {}; {} calls answered 429",
        p2.violations,
        fullest.join(", "),
        p2.answered_429,
    );
    if p2.closings > 0 {
        write!(
            exceeded,
            "; the API throttled a tenant {} times, {} calls were in flight then, {} came later",
            p2.closings, p2.under_way, p2.while_closed
        )?;
    }
    if p2.strangers > 0 {
        write!(
            exceeded,
            "; {} calls named no job of the demo",
            p2.strangers
        )?;
    }
    if !p2.holds || p2.explained_by_delays {
        write!(
            exceeded,
            "; this machine kept the demo or a worker from running for up to {:.0} ms at once, \
            which {} (a guard tolerates less than half of its length)",
            p2.longest_delay_seconds * 1000.0,
            explains(p2.explained_by_delays),
        )?;
    }
    Ok(exceeded)
}

fn idle(p3: &NeverIdle) -> Result<String, fmt::Error> {
    let mut idle = format!(
        "{:.1} % used (promised: {:.0} %); makespan {:.2} s, ideal {:.2} s with the guard, ratio {:.3} (promised: at most {:.3})",
        p3.used_share * 100.0,
        p3.promised_share * 100.0,
        p3.makespan_seconds,
        p3.ideal_seconds,
        p3.makespan_to_ideal,
        p3.promised_ratio,
    );
    if !p3.holds || p3.explained_by_delays {
        write!(
            idle,
            "; this machine kept the demo or a worker from running for {:.3} s in all, which {}",
            p3.delayed_seconds,
            explains(p3.explained_by_delays),
        )?;
    }
    if let Some(seconds) = p3.ideal_corrected_seconds {
        write!(
            idle,
            "; {seconds:.2} s if the units that x-actual-cost returns were used at once"
        )?;
    }
    Ok(idle)
}

impl fmt::Display for CombinedFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, figures) in &self.pipelines {
            writeln!(f, "pipeline {name}\n{figures}")?;
        }
        let p10 = &self.pipelines_apart;
        let text = format!(
            "{} of {} calls of steady were made while the API of away refused connections ({} \
             calls failed) and the flood was running; {} were late by more than one period; {} \
             jobs of away were called after the API's return; {} calls of another pipeline's API, \
             {} restarts of a pipeline",
            p10.beside_both,
            p10.calls,
            p10.failed_calls,
            p10.late,
            p10.called_after_return,
            p10.astray,
            p10.restarts,
        );
        line(f, "P10 pipelines stay apart", p10.holds, text)
    }
}
