//! Lines of a file or of standard input, of bounded length, read so that waiting can be given up.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// The longest line, in bytes: RabbitMQ 4 takes messages up to 16 MiB.
pub const LONGEST_LINE: usize = 16 << 20;

/// One line.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// From 1.
    pub number: u64,
    /// Its bytes without the newline; `None`: it is longer than [`LONGEST_LINE`] and was passed over.
    pub bytes: Option<Vec<u8>>,
}

/// Reads lines.
pub struct Lines<R> {
    reader: R,
    number: u64,
    part: Vec<u8>,
    began: bool,
    too_long: bool,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    /// Reads from `reader`.
    pub fn new(reader: R) -> Self {
        Self {
            reader,
            number: 0,
            part: Vec::new(),
            began: false,
            too_long: false,
        }
    }

    /// The next line; `None` at the end. Cancel safe: a line that was begun goes on at the next call.
    pub async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            let chunk = self.reader.fill_buf().await?;
            if chunk.is_empty() {
                return Ok(self.began.then(|| self.finish()));
            }
            self.began = true;
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let text = &chunk[..end.unwrap_or(chunk.len())];
            if self.part.len() + text.len() > LONGEST_LINE {
                self.too_long = true;
            }
            if self.too_long {
                self.part.clear();
            } else {
                self.part.extend_from_slice(text);
            }
            let used = text.len() + usize::from(end.is_some());
            self.reader.consume(used);
            if end.is_some() {
                return Ok(Some(self.finish()));
            }
        }
    }

    fn finish(&mut self) -> Line {
        self.number += 1;
        self.began = false;
        let bytes = std::mem::take(&mut self.part);
        let too_long = std::mem::take(&mut self.too_long);
        Line {
            number: self.number,
            bytes: (!too_long).then_some(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(text: &[u8]) -> Vec<Option<Vec<u8>>> {
        // A small buffer cuts lines at every place.
        let mut lines = Lines::new(tokio::io::BufReader::with_capacity(3, text));
        let mut found = Vec::new();
        while let Some(line) = lines.next().await.expect("memory can be read") {
            found.push(line.bytes);
            assert_eq!(line.number, found.len() as u64);
        }
        found
    }

    #[tokio::test]
    async fn lines_end_at_newlines_and_at_the_end() {
        let some = |text: &str| Some(text.as_bytes().to_vec());
        assert_eq!(read(b"").await, []);
        assert_eq!(read(b"a").await, [some("a")]);
        assert_eq!(read(b"\n").await, [some("")]);
        assert_eq!(
            read(b"abcdef\n\ng").await,
            [some("abcdef"), some(""), some("g")]
        );
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_passed_over() {
        let mut text = vec![b'x'; LONGEST_LINE + 1];
        text.extend_from_slice(b"\nnext\n");
        let lines = read(&text).await;
        assert_eq!(lines, [None, Some(b"next".to_vec())]);
    }
}
