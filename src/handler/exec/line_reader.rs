//! Reads lines of bounded length from a program that may write anything.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// Result of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReadLine {
    /// A line without its newline.
    Whole(Vec<u8>),
    /// The line exceeds the bound; the rest of it is not read.
    TooLong,
    /// The program has closed the stream.
    End,
}

/// Reads lines. Dropping the future of a read loses no bytes.
pub(super) struct LineReader<R> {
    reader: R,
    partial: Vec<u8>,
    longest: usize,
}

impl<R: AsyncBufRead + Unpin> LineReader<R> {
    /// Creates a reader of lines with up to `longest` bytes.
    pub fn new(reader: R, longest: usize) -> Self {
        Self {
            reader,
            partial: Vec::new(),
            longest,
        }
    }

    /// Reads the next line. A last line without a newline counts, too.
    pub async fn next(&mut self) -> io::Result<ReadLine> {
        loop {
            let read = self.reader.fill_buf().await?;
            if read.is_empty() {
                return Ok(match self.partial.is_empty() {
                    true => ReadLine::End,
                    false => ReadLine::Whole(std::mem::take(&mut self.partial)),
                });
            }
            let end = read.iter().position(|byte| *byte == b'\n');
            let part = end.unwrap_or(read.len());
            if self.partial.len() + part > self.longest {
                return Ok(ReadLine::TooLong);
            }
            self.partial.extend_from_slice(&read[..part]);
            self.reader.consume(part + usize::from(end.is_some()));
            if end.is_some() {
                return Ok(ReadLine::Whole(std::mem::take(&mut self.partial)));
            }
        }
    }

    /// Skips the rest of a line that was too long.
    pub async fn skip(&mut self) -> io::Result<()> {
        self.partial.clear();
        loop {
            let read = self.reader.fill_buf().await?;
            if read.is_empty() {
                return Ok(());
            }
            let end = read.iter().position(|byte| *byte == b'\n');
            let part = end.map_or(read.len(), |end| end + 1);
            self.reader.consume(part);
            if end.is_some() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_read_to_their_bound() {
        let text: &[u8] = b"one\n\nfour!\nthree\nend";
        let mut lines = LineReader::new(text, 5);
        let whole = |text: &str| ReadLine::Whole(text.as_bytes().to_vec());
        for expected in [
            whole("one"),
            whole(""),
            whole("four!"),
            whole("three"),
            whole("end"),
            ReadLine::End,
        ] {
            assert_eq!(lines.next().await.expect("read"), expected);
        }
        let mut lines = LineReader::new(&b"sixsix\nok\n"[..], 5);
        assert_eq!(lines.next().await.expect("read"), ReadLine::TooLong);
        lines.skip().await.expect("read");
        assert_eq!(lines.next().await.expect("read"), whole("ok"));
    }
}
