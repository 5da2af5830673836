//! Lines of bounded length, from an input that may contain anything.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio_util::codec::Decoder;

/// Number of bytes for which a buffer has room again after a longer line.
const USUAL: usize = 8 << 10;

/// A line exceeds the bound. The rest of it is skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong;

/// Splits bytes into lines without their newlines. A last line without a newline counts, too. A
/// line that is too long is an item: after an error, `FramedRead` waits for more bytes, although it
/// may have whole lines.
#[derive(Debug)]
pub struct LineDecoder {
    max: usize,
    /// Number of bytes without a newline at the start of the buffer.
    searched: usize,
    skips: bool,
}

impl LineDecoder {
    /// Creates a decoder of lines with up to `max` bytes.
    pub fn new(max: usize) -> Self {
        Self {
            max,
            searched: 0,
            skips: false,
        }
    }
}

impl Decoder for LineDecoder {
    type Item = Result<Bytes, TooLong>;
    type Error = io::Error;

    fn decode(&mut self, buffer: &mut BytesMut) -> io::Result<Option<Self::Item>> {
        loop {
            let new = &buffer[self.searched..];
            let Some(at) = new.iter().position(|byte| *byte == b'\n') else {
                break;
            };
            let end = std::mem::take(&mut self.searched) + at;
            let mut line = buffer.split_to(end + 1);
            line.truncate(end);
            if end > USUAL && buffer.is_empty() {
                // The memory of a long line goes with it.
                *buffer = BytesMut::with_capacity(USUAL);
            }
            if !std::mem::take(&mut self.skips) {
                let is_short = end <= self.max;
                return Ok(Some(is_short.then(|| line.freeze()).ok_or(TooLong)));
            }
        }
        let is_new = !self.skips && buffer.len() > self.max;
        self.skips |= is_new;
        if self.skips {
            buffer.clear();
        }
        self.searched = buffer.len();
        Ok(is_new.then_some(Err(TooLong)))
    }

    fn decode_eof(&mut self, buffer: &mut BytesMut) -> io::Result<Option<Self::Item>> {
        Ok(match self.decode(buffer)? {
            None if !buffer.is_empty() => {
                self.searched = 0;
                Some(Ok(buffer.split().freeze()))
            }
            line => line,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_to_their_bound_however_the_bytes_arrive() {
        let text = b"one\n\nfour!\nsixsix\nnine-nine\nthree\nend";
        let whole = |text: &'static str| Ok(Bytes::from(text));
        for part in 1..=text.len() {
            let mut decoder = LineDecoder::new(5);
            let (mut buffer, mut lines) = (BytesMut::new(), Vec::new());
            for part in text.chunks(part) {
                buffer.extend_from_slice(part);
                while let Some(line) = decoder.decode(&mut buffer).expect("no failure") {
                    lines.push(line);
                }
            }
            lines.extend(decoder.decode_eof(&mut buffer).expect("no failure"));
            assert_eq!(decoder.decode_eof(&mut buffer).expect("no failure"), None);
            let expected = [
                whole("one"),
                whole(""),
                whole("four!"),
                Err(TooLong),
                Err(TooLong),
                whole("three"),
                whole("end"),
            ];
            assert_eq!(lines, expected, "{part}");
        }
    }

    #[test]
    fn an_input_may_be_empty_or_end_within_a_line_that_is_too_long() {
        for (text, expected) in [("", None), ("nine-nine", Some(Err(TooLong)))] {
            let (mut decoder, mut buffer) = (LineDecoder::new(5), BytesMut::from(text));
            let line = decoder.decode_eof(&mut buffer).expect("no failure");
            assert_eq!(line, expected);
            assert_eq!(decoder.decode_eof(&mut buffer).expect("no failure"), None);
        }
    }

    #[test]
    fn the_memory_of_a_long_line_is_not_kept() {
        let mut decoder = LineDecoder::new(1 << 20);
        let mut buffer = BytesMut::from(&*["a".repeat(500_000), "\n".to_owned()].concat());
        let line = decoder.decode(&mut buffer).expect("no failure");
        assert_eq!(line.expect("a line").expect("short enough").len(), 500_000);
        assert!(buffer.capacity() < 10_000, "{}", buffer.capacity());
    }
}
