//! How far a long command is.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often it is drawn anew.
const TICK: Duration = Duration::from_millis(200);

/// A line of standard error, written over while the command runs, and gone when this is dropped. Where that is no terminal nothing is written.
pub struct Progress(ProgressBar);

impl Progress {
    /// Begins with this text.
    pub fn begin(text: &'static str) -> Self {
        let bar = ProgressBar::new_spinner().with_message(text);
        // The template is a constant; if it were wrong, the default would do.
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// What goes on now.
    pub fn says(&self, text: impl Into<String>) {
        self.0.set_message(text.into());
    }

    /// Prints something else, which stays.
    pub fn beside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
