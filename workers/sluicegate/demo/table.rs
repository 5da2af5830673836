//! The figures as text: a table of the tenants, then one line per promise, which are the last lines
//! of the demo.

use std::fmt;

use super::report::{CombinedFigures, DemoFigures, Promise};

/// Maximum number of tenants in the table. The figures below it count all of them.
const ROWS: usize = 20;

impl fmt::Display for DemoFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_tenants(f)?;
        writeln!(f)?;
        self.promises.iter().try_for_each(|it| write!(f, "{it}"))
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

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.holds { "PASS" } else { "FAIL" };
        writeln!(f, "{:32} {verdict}  {}", self.title, self.text)
    }
}

impl fmt::Display for CombinedFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, figures) in &self.pipelines {
            writeln!(f, "pipeline {name}\n{figures}")?;
        }
        write!(f, "{}", self.pipelines_apart)
    }
}
