//! Logs the lines that programs write to their standard error, up to a maximum rate.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::BufReader;
use tokio::process::ChildStderr;
use tokio::time::Instant;
use tracing::{info, warn};

use super::lines::{Line, Lines};

/// Maximum length of a line in bytes; a longer one is left out.
const LONGEST: usize = 4 << 10;
/// Maximum number of lines of all programs that are logged per [`SPAN`].
const MOST: u32 = 100;
const SPAN: Duration = Duration::from_secs(10);

/// Counts logged lines.
#[derive(Debug)]
pub(super) struct Told(Mutex<Span>);

#[derive(Debug)]
struct Span {
    since: Instant,
    lines: u32,
}

impl Told {
    pub fn new() -> Self {
        Self(Mutex::new(Span {
            since: Instant::now(),
            lines: 0,
        }))
    }

    /// Counts a line. Returns whether to log it, and whether it is the first line not to be logged.
    fn has_room(&self) -> (bool, bool) {
        let mut span = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if span.since.elapsed() >= SPAN {
            *span = Span {
                since: Instant::now(),
                lines: 0,
            };
        }
        span.lines = span.lines.saturating_add(1);
        (span.lines <= MOST, span.lines == MOST + 1)
    }
}

/// Logs the lines that the program `pid` writes, until it ends.
pub(super) async fn log(errors: ChildStderr, pid: i32, told: std::sync::Arc<Told>) {
    let mut lines = Lines::new(BufReader::new(errors), LONGEST);
    loop {
        let text = match lines.next().await {
            Ok(Line::Whole(line)) => printable(&line),
            Ok(Line::TooLong) if lines.skip().await.is_ok() => {
                format!("(a line of more than {LONGEST} bytes)")
            }
            Ok(Line::TooLong | Line::End) | Err(_) => return,
        };
        let (logged, is_first) = told.has_room();
        if logged {
            info!(pid, "program: {text}");
        } else if is_first {
            warn!("programs write more than is logged: {MOST} lines in {SPAN:?}");
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
    async fn the_log_has_room_for_so_many_lines_and_says_so_once() {
        let told = Told::new();
        let all: Vec<_> = (0..MOST + 5).map(|_| told.has_room()).collect();
        assert_eq!(all.iter().filter(|(logged, _)| *logged).count(), 100);
        assert_eq!(all.iter().filter(|(_, first)| *first).count(), 1);
        tokio::time::advance(SPAN).await;
        assert_eq!(told.has_room(), (true, false));
    }

    #[test]
    fn a_line_stays_one() {
        assert_eq!(printable(b"a\x1b[1m\rb\xff"), "a [1m b\u{fffd}");
    }
}
