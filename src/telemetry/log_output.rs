//! The log's output. A reader of a pipe or socket that stalls must not stop the worker: a thread
//! that waited for it would hold up calls, heartbeats, probes and signals. Terminals do not tell how
//! much they take, so they can still hold up a worker.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use config::LogFormat;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// The longest time in [`PERIOD`] that lines wait for a reader. Afterwards, lines are lost for which
/// there is no room.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// The time after which the patience is whole again.
const PERIOD: Duration = Duration::from_secs(60);
/// A pipe that is ready takes this many bytes at once (`PIPE_BUF`).
const CHUNK: usize = 4_096;
/// The message about lost lines.
const LOST: &str = "log lines are lost: the reader of standard error stalled";

/// Writes the log's lines. If the reader takes nothing for a while, it drops lines. Once the reader
/// takes some again, it writes how many were dropped.
pub(crate) struct LogOutput<W> {
    to: W,
    patience: Duration,
    /// When the current period began, and the patience that it still has.
    period: (Instant, Duration),
    format: LogFormat,
    /// Number of lines that were dropped and not reported yet.
    lost: u64,
    /// Whether the last line was written in part.
    is_cut: bool,
}

impl<W: Write + AsFd> LogOutput<W> {
    pub(crate) fn new(to: W, patience: Duration, format: LogFormat) -> Self {
        Self {
            to,
            patience,
            period: (Instant::now(), patience),
            format,
            lost: 0,
            is_cut: false,
        }
    }

    /// Waits until the output takes a chunk. Returns false if the patience ends before.
    fn is_ready(&mut self) -> bool {
        if self.period.0.elapsed() >= PERIOD {
            self.period = (Instant::now(), self.patience);
        }
        let (began, left) = (Instant::now(), Timespec::try_from(self.period.1).ok());
        let mut fds = [PollFd::new(&self.to, PollFlags::OUT)];
        let ready = loop {
            match poll(&mut fds, left.as_ref()) {
                Ok(ready) => break ready > 0,
                Err(rustix::io::Errno::INTR) => {}
                // The write fails, too, and names the cause.
                Err(_) => break true,
            }
        };
        self.period.1 = self.period.1.saturating_sub(began.elapsed());
        ready
    }

    /// Writes as much of `line` as the output takes. Returns false if it does not take all of it.
    fn write_line(&mut self, line: &[u8]) -> io::Result<bool> {
        for (index, chunk) in line.chunks(CHUNK).enumerate() {
            if !self.is_ready() {
                self.is_cut |= index > 0;
                return Ok(false);
            }
            self.to.write_all(chunk)?;
        }
        Ok(true)
    }

    /// Returns the line that reports `lost` lines.
    fn report(&self) -> String {
        let mut at = String::new();
        // A line without its time is still useful.
        let _ = SystemTime.format_time(&mut Writer::new(&mut at));
        let (target, lines) = (module_path!(), self.lost);
        let end = if self.is_cut { "\n" } else { "" };
        match self.format {
            LogFormat::Text => format!("{end}{at}  WARN {target}: {LOST} lines={lines}\n"),
            LogFormat::Json => format!(
                "{end}{{\"timestamp\":\"{at}\",\"level\":\"WARN\",\"message\":\"{LOST}\",\
                \"lines\":{lines},\"target\":\"{target}\"}}\n"
            ),
        }
    }
}

impl<W: Write + AsFd> Write for LogOutput<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lost > 0 && self.write_line(self.report().as_bytes())? {
            self.lost = 0;
            self.is_cut = false;
        }
        if self.lost > 0 || !self.write_line(line)? {
            self.lost += 1;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeReader, Read, pipe};

    /// Returns an output to a pipe that is full, and the pipe's end.
    fn full(format: LogFormat) -> (PipeReader, LogOutput<std::io::PipeWriter>) {
        let (reader, writer) = pipe().expect("a pipe");
        let mut output = LogOutput::new(writer, Duration::from_millis(20), format);
        while output.lost == 0 {
            output.write_all(&[b'x'; 1_000]).expect("written");
        }
        (reader, output)
    }

    /// Returns the text after the first lines.
    fn rest(mut reader: PipeReader, output: LogOutput<std::io::PipeWriter>) -> String {
        drop(output);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("text");
        text.trim_start_matches('x').to_owned()
    }

    #[test]
    fn a_stalled_reader_costs_lines_and_then_learns_how_many() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let (mut reader, mut output) = full(format);
            output.write_all(b"lost\n").expect("dropped");
            assert_eq!(output.lost, 2);
            reader.read_exact(&mut [0; 10_000]).expect("there is more");
            output.write_all(b"next\n").expect("written");
            output.write_all(b"last\n").expect("written");
            let text = rest(reader, output);
            let (report, lines) = text.split_once('\n').expect("lines");
            assert_eq!(lines, "next\nlast\n");
            let number = match format {
                LogFormat::Text => "lines=2",
                LogFormat::Json => "\"lines\":2,",
            };
            assert!(report.contains(LOST) && report.contains(number), "{report}");
            assert!(report.contains("WARN"), "{report}");
        }
    }

    #[test]
    fn a_line_that_is_cut_is_ended() {
        let (mut reader, mut output) = full(LogFormat::Text);
        // One page for the report, and one for a part of the line.
        reader
            .read_exact(&mut [0; 2 * CHUNK])
            .expect("there is more");
        output.write_all(&[b'y'; 60_000]).expect("cut");
        assert!(output.is_cut);
        reader.read_exact(&mut [0; 40_000]).expect("there is more");
        output.write_all(b"next\n").expect("written");
        let text = rest(reader, output);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("lines=1"), "{text}");
        assert_eq!(lines[1].trim_matches('y'), "");
        assert!(lines[2].ends_with("lines=1"), "{text}");
        assert_eq!(lines[3..], ["next"]);
    }
}
