//! Lines of a file or of standard input with their numbers. Reading can be canceled.

use std::io;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use handler::lines::{LineDecoder, TooLong};
use tokio::io::AsyncRead;
use tokio_util::codec::FramedRead;

/// Maximum length of a line in bytes: RabbitMQ 4 accepts messages up to 16 MiB.
pub const MAX_INPUT_LINE_BYTES: usize = 16 << 20;

/// One line.
#[derive(Debug, PartialEq, Eq)]
pub struct InputLine {
    /// Counted from 1.
    pub number: u64,
    /// The line without its newline, if it has at most [`MAX_INPUT_LINE_BYTES`].
    pub bytes: Result<Bytes, TooLong>,
}

/// A reader of lines.
pub struct InputLines<R> {
    lines: FramedRead<R, LineDecoder>,
    number: u64,
}

impl<R: AsyncRead + Unpin> InputLines<R> {
    /// Reads from `reader`.
    pub fn new(reader: R) -> Self {
        let decoder = LineDecoder::new(MAX_INPUT_LINE_BYTES);
        Self {
            lines: FramedRead::new(reader, decoder),
            number: 0,
        }
    }

    /// Returns the number of the last line that was returned.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the next line, or `None` at the end. Cancel safe: a partial line is continued by the
    /// next call.
    pub async fn next(&mut self) -> io::Result<Option<InputLine>> {
        let Some(bytes) = self.lines.try_next().await? else {
            return Ok(None);
        };
        self.number += 1;
        let number = self.number;
        Ok(Some(InputLine { number, bytes }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_that_is_too_long_is_skipped_and_counted() {
        let mut text = b"one\n".to_vec();
        text.extend(vec![b'x'; MAX_INPUT_LINE_BYTES + 1]);
        text.extend_from_slice(b"\nthree");
        let mut lines = InputLines::new(text.as_slice());
        for (number, bytes) in [
            (1, Ok("one".into())),
            (2, Err(TooLong)),
            (3, Ok("three".into())),
        ] {
            let line = lines.next().await.expect("memory can be read");
            assert_eq!(line, Some(InputLine { number, bytes }));
        }
        assert_eq!(lines.next().await.expect("memory can be read"), None);
    }
}
