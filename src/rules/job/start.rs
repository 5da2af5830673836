//! When a job may be called at the earliest, according to its publisher: [`DELAY`], which counts
//! from publishing, and [`NOT_BEFORE`].
//!
//! All times are by the store's clock, in milliseconds since the epoch.

use std::time::Duration;

use super::{Envelope, Field};
use crate::headers;
use crate::job::expiry;
use crate::text::show_duration;

/// Header with the delay after publishing, in milliseconds, as for RabbitMQ's plugin for delayed
/// messages. The plugin makes it negative when the delay is over.
pub const DELAY: &str = "x-delay";
/// Header with the time from which on the job may be called.
pub const NOT_BEFORE: &str = "x-not-before";

/// The earliest start that a publisher set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelayedStart {
    delay: Option<DelayHeader>,
    not_before_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DelayHeader {
    ms: u64,
    /// The latest time at which the job can have been published, if known.
    published_ms: Option<u64>,
}

impl DelayedStart {
    /// Returns the time of the start for a job that was first seen at `seen_ms`: the later one of
    /// both headers. A delay counts from there, or from publishing if that was earlier.
    pub fn at_ms(&self, seen_ms: u64) -> u64 {
        let delayed = self.delay.map(|DelayHeader { ms, published_ms }| {
            let from = published_ms.map_or(seen_ms, |published| published.min(seen_ms));
            from.saturating_add(ms)
        });
        delayed.max(self.not_before_ms).unwrap_or(seen_ms)
    }

    /// Returns why the start is too far ahead at `now_ms`, if it is more than `max_ms` away.
    pub fn too_far(&self, now_ms: u64, max_ms: u64) -> Option<String> {
        let ahead = self.not_before_ms?.saturating_sub(now_ms);
        (ahead > max_ms).then(|| too_long(&format!("header {NOT_BEFORE}"), ahead, max_ms))
    }
}

/// Reads the delayed start of `message`, or `None` if it may start at once. The delay may be at
/// most `max_ms`; if that is 0, the headers are ignored.
///
/// # Errors
/// Returns a text that says which header is invalid, and why.
pub fn read(message: &impl Envelope, max_ms: u64) -> Result<Option<DelayedStart>, String> {
    if max_ms == 0 {
        return Ok(None);
    }
    let delay = match message.header(DELAY) {
        Field::Missing => None,
        found => read_delay(found, max_ms)?,
    };
    let not_before_ms = match message.header(NOT_BEFORE) {
        Field::Missing => None,
        found => Some(read_time(found)?),
    };
    let delay = delay.map(|ms| DelayHeader {
        ms,
        published_ms: message.published_ms(),
    });
    let says_so = delay.is_some() || not_before_ms.is_some();
    Ok(says_so.then_some(DelayedStart {
        delay,
        not_before_ms,
    }))
}

/// Reads a delay. Returns `None` if it is 0 or negative, which the plugin writes when it is over.
fn read_delay(found: Field<'_>, max_ms: u64) -> Result<Option<u64>, String> {
    let ms = match found {
        Field::Int(ms) => Some(ms),
        Field::Text(text) => whole_number(text),
        _ => None,
    };
    match ms.map(u64::try_from) {
        Some(Ok(0) | Err(_)) => Ok(None),
        Some(Ok(ms)) if ms <= max_ms => Ok(Some(ms)),
        Some(Ok(ms)) => Err(too_long(&format!("header {DELAY}"), ms, max_ms)),
        None => Err(format!(
            "header {DELAY} is {}; it must be a whole number of milliseconds",
            shown(found)
        )),
    }
}

/// Parses digits, optionally after a minus sign. Numbers out of range are clamped.
fn whole_number(text: &str) -> Option<i64> {
    let (digits, sign) = match text.strip_prefix('-') {
        Some(digits) => (digits, -1),
        None => (text, 1),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| sign * digits.parse().unwrap_or(i64::MAX))
}

fn read_time(found: Field<'_>) -> Result<u64, String> {
    let ms = match found {
        Field::Text(text) => expiry::deadline_ms(text),
        Field::Int(n) => u64::try_from(n).ok().map(expiry::epoch_ms),
        Field::Time(seconds) => Some(seconds.saturating_mul(1000)),
        _ => None,
    };
    ms.ok_or_else(|| {
        format!(
            "header {NOT_BEFORE} is {}; it must be a time of RFC 3339, such as \
            2026-01-31T12:00:00Z, or seconds or milliseconds since 1970",
            shown(found)
        )
    })
}

fn too_long(what: &str, ms: u64, max_ms: u64) -> String {
    let [ms, max_ms] = [ms, max_ms].map(|ms| show_duration(Duration::from_millis(ms)));
    format!("{what} delays it by {ms}; the maximum is {max_ms} (job.max-delayed-start)")
}

/// Returns an invalid value for an error, cut to a maximum length.
pub(super) fn shown(found: Field<'_>) -> String {
    match found {
        Field::Text(text) => format!("{:?}", text.chars().take(40).collect::<String>()),
        Field::Int(n) => n.to_string(),
        other => other.kind().to_owned(),
    }
}

/// Returns true if a worker has moved the job before. Its delayed start was converted to a time
/// then, which is in [`headers::NOT_BEFORE`] as long as it is ahead. `message` must come from one
/// of our own queues.
pub fn is_counted(message: &impl Envelope) -> bool {
    message.header(headers::ATTEMPT) != Field::Missing
}

/// Returns the value of [`DELAY`] after the delay is over, as the plugin writes it, or `None` if no
/// positive delay is set.
pub fn over(message: &impl Envelope) -> Option<i64> {
    match message.header(DELAY) {
        Field::Int(ms) if ms > 0 => Some(-ms),
        Field::Text(text) => whole_number(text).filter(|ms| *ms > 0).map(|ms| -ms),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::read::tests::Fake;
    use super::*;

    const MAX: u64 = 1_000_000;

    fn at(headers: &[(&'static str, Field<'static>)], published: Option<u64>) -> u64 {
        let start = read(&Fake::published(headers, published), MAX).expect("it can be used");
        start.expect("it says so").at_ms(50_000)
    }

    #[test]
    fn a_delay_counts_from_the_publication_or_the_first_sight_whichever_is_earlier() {
        let delay = &[(DELAY, Field::Int(1_000))];
        assert_eq!(at(delay, None), 51_000);
        assert_eq!(at(delay, Some(49_500)), 50_500);
        // A publisher's clock that is ahead does not extend the delay.
        assert_eq!(at(delay, Some(99_000)), 51_000);
        assert_eq!(at(delay, Some(1)), 1_001, "long over");
    }

    #[test]
    fn the_later_of_a_delay_and_a_time_counts() {
        let both = &[(DELAY, Field::Int(7)), (NOT_BEFORE, Field::Text("99000"))];
        assert_eq!(at(both, None), 99_000_000, "seconds, by their size");
        let both = &[
            (DELAY, Field::Text("7")),
            (NOT_BEFORE, Field::Text("1970-01-01T00:00:50.001Z")),
        ];
        assert_eq!(at(both, None), 50_007);
        assert_eq!(at(&[(NOT_BEFORE, Field::Time(60))], None), 60_000);
        let ms = &[(NOT_BEFORE, Field::Int(1_700_000_000_123))];
        assert_eq!(at(ms, Some(3)), 1_700_000_000_123);
    }

    #[test]
    fn jobs_delayed_by_the_plugin_are_not_delayed_again() {
        for over in [
            Field::Int(-1_000),
            Field::Int(0),
            Field::Int(i64::MIN),
            Field::Text("-99999999999999999999"),
        ] {
            let message = Fake::published(&[(DELAY, over)], None);
            assert_eq!(read(&message, MAX), Ok(None), "{over:?}");
            assert_eq!(super::over(&message), None);
        }
        let delayed = [(DELAY, Field::Int(5)), (DELAY, Field::Text("5"))];
        for header in delayed {
            assert_eq!(super::over(&Fake::published(&[header], None)), Some(-5));
        }
        assert_eq!(read(&Fake::published(&delayed[..1], None), 0), Ok(None));
    }

    #[test]
    fn unusable_values_are_reported_with_their_header() {
        for (name, field, why) in [
            (
                DELAY,
                Field::Text("soon"),
                "header x-delay is \"soon\"; it must be",
            ),
            (DELAY, Field::Text(""), "header x-delay is \"\""),
            (DELAY, Field::Text("-"), "header x-delay is \"-\""),
            (DELAY, Field::Text("1.5"), "header x-delay is \"1.5\""),
            (
                DELAY,
                Field::Other("a fraction"),
                "header x-delay is a fraction",
            ),
            (DELAY, Field::Time(1), "header x-delay is a timestamp"),
            (
                DELAY,
                Field::Int(1_000_001),
                "header x-delay delays it by 1000001ms; the maximum is 1000s",
            ),
            (
                DELAY,
                Field::Text("99999999999999999999"),
                "header x-delay delays it by 9223372036854775807ms",
            ),
            (
                NOT_BEFORE,
                Field::Int(-1),
                "header x-not-before is -1; it must be a time",
            ),
            (
                NOT_BEFORE,
                Field::Text("tomorrow"),
                "header x-not-before is \"tomorrow\"",
            ),
            (
                NOT_BEFORE,
                Field::Other("a table"),
                "header x-not-before is a table",
            ),
        ] {
            let error = read(&Fake::published(&[(name, field)], None), MAX).expect_err(why);
            assert!(error.starts_with(why), "{error}");
        }
    }

    #[test]
    fn a_time_that_is_too_far_away_is_known_by_the_clock() {
        let far = Fake::published(&[(NOT_BEFORE, Field::Text("5000"))], None);
        let start = read(&far, MAX)
            .expect("it can be used")
            .expect("it says so");
        assert_eq!(start.too_far(4_000_000, MAX), None);
        let why = start.too_far(3_999_999, MAX).expect("one more");
        assert!(why.starts_with("header x-not-before delays it by 1000001ms; "));
    }
}
