//! How far a long command is.

use std::io::{IsTerminal as _, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often it is drawn anew.
const TICK: Duration = Duration::from_millis(200);

/// Where standard error is no terminal, a command that takes long says so often how far it is.
const SELDOM: Duration = Duration::from_secs(30);

/// A line of standard error, written over while the command runs, and gone when this is dropped. Where that is no terminal it is a line now
/// and then, which stays.
pub struct Progress {
    bar: ProgressBar,
    /// `None`: the bar is drawn.
    lines: Option<Lines>,
}

/// What is said now and then.
struct Lines {
    text: Arc<Mutex<String>>,
    /// It ends with this.
    _end: Sender<()>,
}

impl Lines {
    fn begin(text: &str) -> Self {
        let text = Arc::new(Mutex::new(text.to_owned()));
        let (end, ends) = channel();
        let said = Arc::clone(&text);
        let tells = move || {
            while ends.recv_timeout(SELDOM) == Err(RecvTimeoutError::Timeout) {
                // Nothing panics half-way with it.
                let text = said.lock().unwrap_or_else(PoisonError::into_inner).clone();
                eprintln!("{text}");
            }
        };
        // Without a thread the command does its work all the same.
        let _ = thread::Builder::new().spawn(tells);
        Self { text, _end: end }
    }
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
        let lines = (!stderr().is_terminal()).then(|| Lines::begin(text));
        Self { bar, lines }
    }

    /// What goes on now.
    pub fn says(&self, text: impl Into<String>) {
        let text = text.into();
        if let Some(lines) = &self.lines {
            let mut said = lines.text.lock().unwrap_or_else(PoisonError::into_inner);
            said.clone_from(&text);
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
