//! Reads text that people write: files from any editor, names and durations. Writes durations as
//! they do. Has functions on texts that several rules need.

use std::fmt;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};
use serde::de::{Deserialize, Deserializer, Visitor};

/// The ASCII characters that a part of a URL must not contain bare: all but the unreserved ones
/// (RFC 3986).
pub const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Byte order mark with which some editors begin UTF-8 files.
const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";
/// Byte order marks of UTF-16 files, in either order of bytes.
const UTF16_MARKS: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];

/// The reason why bytes are not text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotText {
    /// The bytes begin with a byte order mark, or exactly one of the first two is 0.
    #[error("it is UTF-16 text; save it as UTF-8")]
    Utf16,
    /// The bytes have another encoding, or are not text.
    #[error("it is not UTF-8 text")]
    NotUtf8,
}

/// Returns the text of a file, or of its beginning, without a byte order mark.
///
/// # Errors
/// Returns [`NotText`] if the bytes are not UTF-8 text.
pub fn decode(bytes: &[u8]) -> Result<&str, NotText> {
    let bytes = bytes.strip_prefix(UTF8_MARK).unwrap_or(bytes);
    if is_utf16(bytes) {
        return Err(NotText::Utf16);
    }
    std::str::from_utf8(bytes).map_err(|_| NotText::NotUtf8)
}

/// Formats `duration` as in the configuration, in the largest unit that needs no fraction: `1h`.
pub fn show_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    for (unit, size) in [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
    ] {
        if millis > 0 && millis.is_multiple_of(size) {
            return format!("{}{unit}", millis / size);
        }
    }
    format!("{millis}ms")
}

/// Parses a whole number of seconds, or one with `ms`, `s`, `m`, `h` or `d`. Returns `None` for
/// other texts.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    match unit.trim() {
        "ms" => Some(Duration::from_millis(number)),
        "" | "s" => Some(Duration::from_secs(number)),
        "m" => number.checked_mul(60).map(Duration::from_secs),
        "h" => number.checked_mul(3_600).map(Duration::from_secs),
        "d" => number.checked_mul(86_400).map(Duration::from_secs),
        _ => None,
    }
}

/// Returns the first `max` characters of `text` on one line: control characters become spaces.
pub fn one_line(text: &str, max: usize) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(printable).take(max).collect()
}

/// Returns a hash of `text` that is the same on all machines and in all versions (FNV-1a).
pub fn stable_hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Returns true if the bytes begin like UTF-16: with a byte order mark, or with an ASCII character
/// in two bytes.
fn is_utf16(bytes: &[u8]) -> bool {
    let marked = UTF16_MARKS.iter().any(|mark| bytes.starts_with(mark));
    marked || matches!(bytes, [first, second, ..] if (*first == 0) != (*second == 0))
}

/// Reads a name, such as the name of a tenant, written as a string or a 64-bit integer.
///
/// # Errors
/// Returns an error if the value is of another type, such as a fraction or a boolean.
pub fn name<'de, D: Deserializer<'de>>(reader: D) -> Result<String, D::Error> {
    Name::deserialize(reader).map(|Name(name)| name)
}

/// Reads a [`name`] that may be missing or null.
///
/// # Errors
/// Returns the errors of [`name`].
pub fn name_if_any<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<String>, D::Error> {
    let name = Option::<Name>::deserialize(reader)?;
    Ok(name.map(|Name(name)| name))
}

struct Name(String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        reader.deserialize_any(NameVisitor)
    }
}

struct NameVisitor;

impl Visitor<'_> for NameVisitor {
    type Value = Name;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a 64-bit integer")
    }

    fn visit_i64<E>(self, number: i64) -> Result<Name, E> {
        Ok(Name(number.to_string()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Name, E> {
        Ok(Name(number.to_string()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Name, E> {
        Ok(Name(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_text_or_a_whole_number() {
        let read = |json: &str| {
            let mut reader = serde_json::Deserializer::from_str(json);
            name_if_any(&mut reader).map_err(|why| why.to_string())
        };
        for (json, name) in [
            ("\"a\"", "a"),
            ("\"007\"", "007"),
            ("42", "42"),
            ("-7", "-7"),
            ("18446744073709551615", "18446744073709551615"),
        ] {
            assert_eq!(read(json), Ok(Some(name.to_owned())));
        }
        assert_eq!(read("null"), Ok(None));
        for json in ["42.0", "1e3", "18446744073709551616", "true", "[1]", "{}"] {
            let why = read(json).expect_err(json);
            assert!(
                why.contains("expected a string or a 64-bit integer"),
                "{why}"
            );
        }
    }

    #[test]
    fn durations_are_seconds_or_have_a_unit_and_show_as_written() {
        for (text, millis, shown) in [
            ("60", 60_000, "1m"),
            ("0", 0, "0ms"),
            ("500ms", 500, "500ms"),
            ("1500ms", 1_500, "1500ms"),
            ("90s", 90_000, "90s"),
            ("5 m", 300_000, "5m"),
            ("1h", 3_600_000, "1h"),
            ("31d", 2_678_400_000, "31d"),
        ] {
            let parsed = parse_duration(text);
            assert_eq!(parsed, Some(Duration::from_millis(millis)), "{text}");
            assert_eq!(parsed.map(show_duration).as_deref(), Some(shown), "{text}");
        }
        for text in [
            "",
            "s",
            "-1",
            "1.5s",
            "1 week",
            "1m30s",
            "99999999999999999999s",
            "999999999999999999d",
        ] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn byte_order_marks_are_removed_and_utf_16_is_reported() {
        assert_eq!(decode(b"\xef\xbb\xbfa: 1\r\n"), Ok("a: 1\r\n"));
        assert_eq!(decode("ä".as_bytes()), Ok("ä"));
        assert_eq!(decode(b""), Ok(""));
        assert_eq!(decode(b"\xef\xbb\xbf"), Ok(""));
        let utf16 = |text: &str, bytes: fn(u16) -> [u8; 2]| -> Vec<u8> {
            text.encode_utf16().flat_map(bytes).collect()
        };
        for text in [
            "\u{feff}{",
            "{\"tenant\":\"a\"}",
            "a: 1\n",
            "\u{feff}\u{4e2d}",
        ] {
            for bytes in [utf16(text, u16::to_le_bytes), utf16(text, u16::to_be_bytes)] {
                assert_eq!(decode(&bytes), Err(NotText::Utf16), "{text:?}");
            }
        }
        assert_eq!(decode(b"caf\xe9"), Err(NotText::NotUtf8));
    }
}
