//! Logs the lines that programs write to their standard error, up to a maximum rate.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::TryStreamExt as _;
use tokio::process::ChildStderr;
use tokio::time::Instant;
use tokio_util::codec::FramedRead;
use tracing::{info, warn};

use crate::lines::LineDecoder;

/// Maximum length of a line in bytes; a longer one is left out.
const MAX_LINE_BYTES: usize = 4 << 10;
/// Maximum number of lines of all programs that are logged per [`WINDOW`].
const MAX_LINES: u32 = 100;
const WINDOW: Duration = Duration::from_secs(10);

/// Counts logged lines.
#[derive(Debug)]
pub(super) struct LogRateLimit(Mutex<LogWindow>);

#[derive(Debug)]
struct LogWindow {
    since: Instant,
    lines: u32,
}

impl LogRateLimit {
    pub fn new() -> Self {
        Self(Mutex::new(LogWindow {
            since: Instant::now(),
            lines: 0,
        }))
    }

    /// Counts a line. Returns whether to log it, and whether it is the first line not to be logged.
    fn has_room(&self) -> (bool, bool) {
        let mut span = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if span.since.elapsed() >= WINDOW {
            *span = LogWindow {
                since: Instant::now(),
                lines: 0,
            };
        }
        span.lines = span.lines.saturating_add(1);
        (span.lines <= MAX_LINES, span.lines == MAX_LINES + 1)
    }
}

/// Logs the lines that the program `pid` writes, until it ends.
pub(super) async fn log(errors: ChildStderr, pid: i32, limit: std::sync::Arc<LogRateLimit>) {
    let mut lines = FramedRead::new(errors, LineDecoder::new(MAX_LINE_BYTES));
    while let Ok(Some(line)) = lines.try_next().await {
        let text = match line {
            Ok(line) => printable(&line),
            Err(_) => format!("(a line of more than {MAX_LINE_BYTES} bytes)"),
        };
        let (logged, is_first) = limit.has_room();
        if logged {
            info!(pid, "program: {text}");
        } else if is_first {
            warn!("programs write more than is logged: {MAX_LINES} lines per {WINDOW:?}");
        }
    }
}

/// Replaces control characters, so that the text stays on its line of the log.
fn printable(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let shown = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stderr_lines_are_bounded_and_the_bound_is_logged_once() {
        let limit = LogRateLimit::new();
        let all: Vec<_> = (0..MAX_LINES + 5).map(|_| limit.has_room()).collect();
        assert_eq!(all.iter().filter(|(logged, _)| *logged).count(), 100);
        assert_eq!(all.iter().filter(|(_, first)| *first).count(), 1);
        tokio::time::advance(WINDOW).await;
        assert_eq!(limit.has_room(), (true, false));
    }

    #[test]
    fn a_line_stays_one() {
        assert_eq!(printable(b"a\x1b[1m\rb\xff"), "a [1m b\u{fffd}");
    }
}
