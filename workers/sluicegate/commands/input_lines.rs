//! Lines of a file or of standard input with a maximum length. Reading can be canceled.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// Maximum length of a line in bytes: RabbitMQ 4 accepts messages up to 16 MiB.
pub const MAX_INPUT_LINE_BYTES: usize = 16 << 20;

/// One line.
#[derive(Debug, PartialEq, Eq)]
pub struct InputLine {
    /// Counted from 1.
    pub number: u64,
    /// The line without its newline, or `None` if it exceeded [`MAX_INPUT_LINE_BYTES`] and was
    /// skipped.
    pub bytes: Option<Vec<u8>>,
}

/// A reader of lines.
pub struct InputLines<R> {
    reader: R,
    number: u64,
    part: Vec<u8>,
    began: bool,
    too_long: bool,
}

impl<R: AsyncBufRead + Unpin> InputLines<R> {
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

    /// Returns the number of the last line that was read completely.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the next line, or `None` at the end. Cancel safe: a partial line is continued by the
    /// next call.
    pub async fn next(&mut self) -> io::Result<Option<InputLine>> {
        loop {
            let chunk = self.reader.fill_buf().await?;
            if chunk.is_empty() {
                return Ok(self.began.then(|| self.finish()));
            }
            self.began = true;
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let text = &chunk[..end.unwrap_or(chunk.len())];
            if self.part.len() + text.len() > MAX_INPUT_LINE_BYTES {
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

    fn finish(&mut self) -> InputLine {
        self.number += 1;
        self.began = false;
        let bytes = std::mem::take(&mut self.part);
        let too_long = std::mem::take(&mut self.too_long);
        InputLine {
            number: self.number,
            bytes: (!too_long).then_some(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(text: &[u8]) -> Vec<Option<Vec<u8>>> {
        // A small buffer splits lines at every position.
        let mut lines = InputLines::new(tokio::io::BufReader::with_capacity(3, text));
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
    async fn a_line_that_is_too_long_is_skipped() {
        let mut text = vec![b'x'; MAX_INPUT_LINE_BYTES + 1];
        text.extend_from_slice(b"\nnext\n");
        let lines = read(&text).await;
        assert_eq!(lines, [None, Some(b"next".to_vec())]);
    }
}
