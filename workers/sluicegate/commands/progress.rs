//! The progress of a long command.

use std::io::{IsTerminal as _, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Interval at which the line is redrawn.
const TICK: Duration = Duration::from_millis(200);

/// Interval of progress lines if standard error is not a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(30);

/// A line on standard error that is updated while the command runs and removed when this is
/// dropped. Without a terminal, lines are printed from time to time and stay.
pub struct Progress {
    bar: ProgressBar,
    /// The printed lines, or `None` if a bar is drawn.
    lines: Option<ProgressLines>,
}

/// The occasional lines.
struct ProgressLines {
    text: Arc<Mutex<String>>,
    /// Dropping this ends them.
    _end: Sender<()>,
}

impl ProgressLines {
    fn begin(text: &str) -> Self {
        let text = Arc::new(Mutex::new(text.to_owned()));
        let (end, ends) = channel();
        let shared_text = Arc::clone(&text);
        let tells = move || {
            while ends.recv_timeout(LINE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                // No code panics while it holds the lock.
                let text = shared_text
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone();
                eprintln!("{text}");
            }
        };
        // Without a thread, the command still does its work.
        let _ = thread::Builder::new().spawn(tells);
        Self { text, _end: end }
    }
}

impl Progress {
    /// Begins with this text.
    pub fn begin(text: &'static str) -> Self {
        let bar = ProgressBar::new_spinner().with_message(text);
        // The template is a constant. If it was wrong, the default would do.
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TICK);
        let lines = (!stderr().is_terminal()).then(|| ProgressLines::begin(text));
        Self { bar, lines }
    }

    /// Shows what the command does now.
    pub fn show(&self, text: impl Into<String>) {
        let text = text.into();
        if let Some(lines) = &self.lines {
            let mut line = lines.text.lock().unwrap_or_else(PoisonError::into_inner);
            line.clone_from(&text);
        }
        self.bar.set_message(text);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
