//! The results of all turns: medians and ranges, as a table and as JSON; and the mistakes, which
//! alone make the bench fail.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::json;

/// All samples, in the order in which their figures first appeared.
#[derive(Default)]
pub struct Report {
    rows: Vec<Row>,
    mistakes: Vec<String>,
}

/// A figure with one sample per round.
struct Row {
    workload: &'static str,
    who: String,
    figure: &'static str,
    samples: Vec<f64>,
}

impl Report {
    /// Adds a sample. `who` is the loop or the worker in this `workload`; `figure` includes the
    /// unit.
    pub fn add(&mut self, workload: &'static str, who: &str, figure: &'static str, sample: f64) {
        let is_it =
            |row: &&mut Row| (row.workload, &*row.who, row.figure) == (workload, who, figure);
        match self.rows.iter_mut().find(is_it) {
            Some(row) => row.samples.push(sample),
            None => self.rows.push(Row {
                workload,
                who: who.to_owned(),
                figure,
                samples: vec![sample],
            }),
        }
    }

    /// Checks that the last sample of a count that no machine increases is at most `max`.
    /// Otherwise it records a mistake.
    pub fn at_most(
        &mut self,
        (workload, who): (&'static str, &str),
        figure: &str,
        max: f64,
    ) -> bool {
        let is_it = |row: &&Row| (row.workload, &*row.who, row.figure) == (workload, who, figure);
        let row = self.rows.iter().find(is_it).expect("it was added");
        let last = row.samples.last().copied().unwrap_or_default();
        if last > max {
            self.mistake(format!(
                "{workload}, {who}: {last:.2} {figure}, at most {max}"
            ));
        }
        last <= max
    }

    /// Records a mistake: something that must not happen at any speed.
    pub fn mistake(&mut self, what: String) {
        eprintln!("mistake: {what}");
        self.mistakes.push(what);
    }

    /// Returns true if there was no mistake.
    pub fn is_right(&self) -> bool {
        self.mistakes.is_empty()
    }

    /// Prints the table.
    pub fn print(&self) {
        if self.rows.is_empty() {
            return;
        }
        let wide = |text: &dyn Fn(&Row) -> usize| self.rows.iter().map(text).max().unwrap_or(0);
        let name = |row: &Row| format!("{}: {}", row.workload, row.who);
        let (names, figures) = (wide(&|row| name(row).len()), wide(&|row| row.figure.len()));
        let heads = ["workload", "figure", "median", "least", "most"];
        let [workload, figure, median, min, max] = heads;
        println!("{workload:names$}  {figure:figures$}  {median:>10}  {min:>10}  {max:>10}");
        let mut last = String::new();
        for row in &self.rows {
            let (median, min, max) = row.summary();
            let [median, min, max] = [median, min, max].map(short);
            let name = name(row);
            let shown = if name == last { "" } else { &name };
            println!(
                "{shown:names$}  {:figures$}  {median:>10}  {min:>10}  {max:>10}",
                row.figure
            );
            last = name;
        }
    }

    /// Writes the figures with all samples as JSON.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn save(&self, file: &Path) -> io::Result<()> {
        let rows = self.rows.iter().map(|row| {
            let (median, min, max) = row.summary();
            json!({
                "workload": row.workload, "who": row.who, "figure": row.figure,
                "median": median, "least": min, "most": max, "samples": row.samples,
            })
        });
        let all = json!({"figures": rows.collect::<Vec<_>>(), "mistakes": self.mistakes});
        fs::write(file, format!("{all:#}\n"))
    }
}

impl Row {
    fn summary(&self) -> (f64, f64, f64) {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        let (first, last) = (sorted[0], sorted[sorted.len() - 1]);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
            _ => sorted[middle],
        };
        (median, first, last)
    }
}

/// Formats a value with its significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}
