//! Reads a job's dedupe key, which its publisher sets.

use super::{Envelope, Field};
use crate::headers;

/// Header with the dedupe key: of a tenant's jobs with the same key, only one is called within a
/// period.
pub const DEDUPE_KEY: &str = "x-dedupe-key";
/// Header with the period in milliseconds, if it is to be shorter than the configured one; 0
/// disables deduplication of the job.
pub const DEDUPE_FOR: &str = "x-dedupe-for";
/// Maximum length of a key in bytes. A longer one makes the job a dead letter.
const MAX_KEY_BYTES: usize = 255;

/// A dedupe key and its period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dedupe {
    /// The key.
    pub key: String,
    /// The period in milliseconds.
    pub lasts_ms: u64,
    /// Whether a worker may have had the job before.
    pub seen_before: bool,
}

/// Reads the dedupe key of `message`. The period is at most `max_ms`; if that is 0, the headers are
/// ignored. `returned` means that the message came from one of our own queues.
///
/// # Errors
/// Returns a text that says which header is invalid, and why.
pub(super) fn read(
    message: &impl Envelope,
    returned: bool,
    max_ms: u64,
) -> Result<Option<Dedupe>, String> {
    if max_ms == 0 {
        return Ok(None);
    }
    let number;
    let key = match message.header(DEDUPE_KEY) {
        Field::Missing => return Ok(None),
        Field::Text(text) => text,
        Field::Int(n) => {
            number = n.to_string();
            &number
        }
        other => {
            let kind = other.kind();
            return Err(format!(
                "header {DEDUPE_KEY} is {kind}; it must be a string or a 64-bit integer"
            ));
        }
    };
    if key.is_empty() || key.len() > MAX_KEY_BYTES || key.contains(char::is_control) {
        return Err(format!(
            "header {DEDUPE_KEY} has {} bytes; it must have 1 to {MAX_KEY_BYTES}, and no control \
            characters",
            key.len()
        ));
    }
    let lasts_ms = read_time(message.header(DEDUPE_FOR), max_ms)?;
    let dedupe = || Dedupe {
        key: key.to_owned(),
        lasts_ms,
        seen_before: returned,
    };
    Ok((lasts_ms > 0).then(dedupe))
}

fn read_time(found: Field<'_>, max_ms: u64) -> Result<u64, String> {
    let ms = match found {
        Field::Missing => return Ok(max_ms),
        Field::Int(ms) => u64::try_from(ms).ok(),
        // Digits only: no sign, no space, no fraction. A number out of range is too long.
        Field::Text(text) if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) => {
            Some(text.parse().unwrap_or(u64::MAX))
        }
        _ => None,
    };
    match ms {
        Some(ms) if ms <= max_ms => Ok(ms),
        Some(ms) => Err(format!(
            "header {DEDUPE_FOR} is {ms}; the maximum is {max_ms} ms (job.dedupe-for)"
        )),
        None => Err(format!(
            "header {DEDUPE_FOR} is {}; it must be a whole number of milliseconds",
            super::start::shown(found)
        )),
    }
}

/// Returns true if the job was marked as the first before it came to one of our own queues.
pub(super) fn is_first(message: &impl Envelope) -> bool {
    message.header(headers::FIRST) != Field::Missing
}

#[cfg(test)]
mod tests {
    use super::super::read::tests::Fake;
    use super::*;

    fn read(
        headers: &[(&'static str, Field<'static>)],
        max_ms: u64,
    ) -> Result<Option<Dedupe>, String> {
        super::read(&Fake::of(headers), false, max_ms)
    }

    #[test]
    fn a_key_counts_for_the_configured_time_or_less() {
        let key = (DEDUPE_KEY, Field::Text("k"));
        let lasts = |more: &[(&'static str, Field<'static>)]| {
            let headers = [&[key], more].concat();
            read(&headers, 600)
                .expect("it can be used")
                .map(|it| it.lasts_ms)
        };
        assert_eq!(lasts(&[]), Some(600));
        assert_eq!(lasts(&[(DEDUPE_FOR, Field::Int(5))]), Some(5));
        assert_eq!(lasts(&[(DEDUPE_FOR, Field::Text("600"))]), Some(600));
        assert_eq!(lasts(&[(DEDUPE_FOR, Field::Int(0))]), None, "for no time");
        assert_eq!(read(&[key], 0), Ok(None), "the operator wants none");
        assert_eq!(
            read(&[(DEDUPE_FOR, Field::Int(-5))], 600),
            Ok(None),
            "no key"
        );
        let number = read(&[(DEDUPE_KEY, Field::Int(-7))], 600).expect("it can be used");
        assert_eq!(number.map(|it| it.key).as_deref(), Some("-7"));
    }

    #[test]
    fn unusable_values_are_reported_with_their_header() {
        let long: &'static str = "k".repeat(256).leak();
        for (name, field, why) in [
            (
                DEDUPE_KEY,
                Field::Text(""),
                "header x-dedupe-key has 0 bytes; ",
            ),
            (
                DEDUPE_KEY,
                Field::Text(long),
                "header x-dedupe-key has 256 bytes; ",
            ),
            (
                DEDUPE_KEY,
                Field::Text("a\nb"),
                "header x-dedupe-key has 3 bytes; ",
            ),
            (
                DEDUPE_KEY,
                Field::Other("a table"),
                "header x-dedupe-key is a table; ",
            ),
            (
                DEDUPE_KEY,
                Field::Time(1),
                "header x-dedupe-key is a timestamp; ",
            ),
            (
                DEDUPE_FOR,
                Field::Int(-1),
                "header x-dedupe-for is -1; it must be",
            ),
            (
                DEDUPE_FOR,
                Field::Int(601),
                "header x-dedupe-for is 601; the maximum is 600 ms",
            ),
            (
                DEDUPE_FOR,
                Field::Text("10m"),
                "header x-dedupe-for is \"10m\"; it must be",
            ),
            (
                DEDUPE_FOR,
                Field::Text("99999999999999999999999"),
                "header x-dedupe-for is 18446744073709551615; ",
            ),
        ] {
            let key = (DEDUPE_KEY, Field::Text("k"));
            let headers = match name {
                DEDUPE_KEY => vec![(name, field)],
                _ => vec![key, (name, field)],
            };
            let error = read(&headers, 600).expect_err(why);
            assert!(error.starts_with(why), "{error}");
        }
    }
}
