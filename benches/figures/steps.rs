//! Shows the current step on standard error.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// The steps of one workload.
pub struct Steps {
    workload: &'static str,
    bar: ProgressBar,
}

impl Steps {
    pub fn new(workload: &'static str, turns: usize) -> Self {
        let style =
            ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed}, left {eta}  {msg}")
                .expect("a good template");
        let bar = ProgressBar::new(turns as u64).with_style(style);
        bar.enable_steady_tick(Duration::from_secs(1));
        Self { workload, bar }
    }

    /// Begins a turn.
    pub fn begin(&self, round: usize, what: &str) {
        let text = format!("{}, round {}: {what}", self.workload, round + 1);
        // A bar is not drawn into a file or a log.
        if !std::io::stderr().is_terminal() {
            eprintln!("{text}");
        }
        self.bar.set_message(text);
    }

    /// Ends the turn.
    pub fn end(&self) {
        self.bar.inc(1);
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
