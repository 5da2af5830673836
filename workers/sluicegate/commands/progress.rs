//! How far a long command is.

use std::cell::Cell;
use std::io::{IsTerminal as _, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often it is drawn anew.
const TICK: Duration = Duration::from_millis(200);

/// Where standard error is no terminal, a command that takes long says so often how far it is.
const SELDOM: Duration = Duration::from_secs(30);

/// A line of standard error, written over while the command runs, and gone when this is dropped. Where that is no terminal it is a line now
/// and then, which stays.
pub struct Progress {
    bar: ProgressBar,
    /// When it was said last; `None`: it is drawn.
    said: Option<Cell<Instant>>,
}

impl Progress {
    /// Begins with this text.
    pub fn begin(text: &'static str) -> Self {
        let bar = ProgressBar::new_spinner().with_message(text);
        // The template is a constant; if it were wrong, the default would do.
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TICK);
        let said = (!stderr().is_terminal()).then(|| Cell::new(Instant::now()));
        Self { bar, said }
    }

    /// What goes on now.
    pub fn says(&self, text: impl Into<String>) {
        let text = text.into();
        if let Some(said) = self
            .said
            .as_ref()
            .filter(|said| said.get().elapsed() >= SELDOM)
        {
            said.set(Instant::now());
            eprintln!("{text}");
        }
        self.bar.set_message(text);
    }

    /// Prints something else, which stays.
    pub fn beside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
