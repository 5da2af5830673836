//! Parses times and numbers in answers. Times without a form are distinguished by their size.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::fmt::temporal::Pieces;
use jiff::tz::Offset;
use strum::{IntoStaticStr, VariantArray};

use crate::named::Named;

/// A bare number above this is a time in milliseconds since the epoch (the year 2001), not a delay.
const EPOCH_MS: u64 = 1_000_000_000_000;
/// A bare number above this is a time in seconds since the epoch, not a delay of 31 years.
const EPOCH_S: u64 = 1_000_000_000;

pub(in crate::answers) const SECOND: Duration = Duration::from_secs(1);

/// A wait as in a header, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(in crate::answers) enum HeaderWait {
    /// This long from now.
    In(u64),
    /// Until this time since the epoch.
    At(u64),
}

/// A wait, ordered by its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::answers) struct Wait {
    pub(in crate::answers) time: Duration,
    /// How much sooner it may be over, because the API and the `Date` of its answer count whole
    /// seconds.
    pub(in crate::answers) rounding: Duration,
}

impl Wait {
    /// Returns a wait that is named in whole seconds.
    pub(in crate::answers) fn seconds(time: Duration) -> Self {
        Self {
            time,
            rounding: SECOND,
        }
    }
}

impl HeaderWait {
    /// Returns the wait from `now_ms`, or 0 if the time has passed. The true time may be up to
    /// `now_rounding` later than `now_ms`.
    pub(in crate::answers) fn wait(self, now_ms: u64, now_rounding: Duration) -> Wait {
        let of_value = |ms: u64| match ms.is_multiple_of(1_000) {
            true => SECOND,
            false => Duration::ZERO,
        };
        let (ms, rounding) = match self {
            Self::In(ms) => (ms, of_value(ms)),
            Self::At(ms) => (ms.saturating_sub(now_ms), of_value(ms) + now_rounding),
        };
        Wait {
            time: Duration::from_millis(ms),
            rounding,
        }
    }
}

/// The form of a time in an answer: `as` in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum TimeForm {
    /// `seconds`
    Seconds,
    /// `milliseconds`
    Milliseconds,
    /// `epoch`: seconds since 1970.
    Epoch,
    /// `epoch-milliseconds`
    EpochMilliseconds,
    /// `date`: as in HTTP, ISO 8601 or RFC 3339.
    Date,
    /// `duration`: numbers with units, such as `6m0s`.
    Duration,
}

impl Named for TimeForm {}

impl TimeForm {
    /// Parses a time of this form.
    pub(in crate::answers) fn read(self, value: &[u8]) -> Option<HeaderWait> {
        let thousandths = || number_ms(value);
        let millis = || thousandths().map(|number| number.div_ceil(1_000));
        match self {
            Self::Seconds => thousandths().map(HeaderWait::In),
            Self::Milliseconds => millis().map(HeaderWait::In),
            Self::Epoch => thousandths().map(HeaderWait::At),
            Self::EpochMilliseconds => millis().map(HeaderWait::At),
            Self::Date => any_date(value),
            Self::Duration => duration_ms(value).map(HeaderWait::In),
        }
    }
}

/// Parses a time of any form. A bare number is a delay in seconds or a time since the epoch.
pub(in crate::answers) fn any_time(value: &[u8]) -> Option<HeaderWait> {
    when(value).or_else(|| duration_ms(value).map(HeaderWait::In))
}

/// Parses numbers with units as Go writes them, such as `6m0s` or `1.5h`. Returns milliseconds,
/// rounded up.
fn duration_ms(value: &[u8]) -> Option<u64> {
    let mut rest = value.trim_ascii();
    let mut nanos = 0_u128;
    if rest.is_empty() {
        return None;
    }
    let is_number = |byte: &&u8| byte.is_ascii_digit() || **byte == b'.';
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.iter().take_while(is_number).count());
        let unit = after.iter().take_while(|byte| !is_number(byte)).count();
        let (unit, after) = after.split_at(unit);
        let unit: u128 = match unit {
            b"ns" => 1,
            b"us" | b"\xc2\xb5s" | b"\xce\xbcs" => 1_000,
            b"ms" => 1_000_000,
            b"s" => 1_000_000_000,
            b"m" => 60_000_000_000,
            b"h" => 3_600_000_000_000,
            b"d" => 86_400_000_000_000,
            _ => return None,
        };
        let part = (u128::from(number_ms(number)?) * unit).div_ceil(1_000);
        nanos = nanos.saturating_add(part);
        rest = after;
    }
    Some(u64::try_from(nanos.div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

/// Parses a date as in ISO 8601 and RFC 3339: `2026-11-26T12:00:00.5Z`, with or without seconds,
/// fraction and offset. Returns milliseconds since the epoch, rounded up. UTC is assumed without an
/// offset.
fn iso_ms(value: &[u8]) -> Option<u64> {
    let text = value.trim_ascii();
    // A year of four digits, minutes, and no name of a time zone: other forms are no dates of an API.
    let is_usual =
        text.get(4) == Some(&b'-') && text.get(13) == Some(&b':') && !text.contains(&b'[');
    let pieces = Pieces::parse(text).ok().filter(|_| is_usual)?;
    let offset = pieces.to_numeric_offset().unwrap_or(Offset::UTC);
    let time = pieces.date().to_datetime(pieces.time()?);
    // Timestamps end a day before the year 9999 does.
    let instant = offset.to_timestamp(time).unwrap_or(Timestamp::MAX);
    let nanos = instant.as_nanosecond();
    u64::try_from(u128::try_from(nanos).ok()?.div_ceil(1_000_000)).ok()
}

/// Parses an HTTP date, or one as in ISO 8601, which some APIs send.
fn any_date(value: &[u8]) -> Option<HeaderWait> {
    let date = date_ms(value).or_else(|| iso_ms(value));
    date.map(HeaderWait::At)
}

/// Parses a number or a date.
pub(in crate::answers) fn when(value: &[u8]) -> Option<HeaderWait> {
    let Some(ms) = number_ms(value) else {
        return any_date(value);
    };
    Some(match ms / 1_000 {
        n if n > EPOCH_MS => HeaderWait::At(n),
        n if n > EPOCH_S => HeaderWait::At(ms),
        _ => HeaderWait::In(ms),
    })
}

/// Returns a decimal number times 1000, rounded up and saturating. No standard has fractions, but
/// some APIs send them.
pub(in crate::answers) fn number_ms(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii();
    let (whole, fraction) = match value.iter().position(|byte| *byte == b'.') {
        Some(at) => (&value[..at], &value[at + 1..]),
        None => (value, &b"0"[..]),
    };
    if whole.is_empty()
        || fraction.is_empty()
        || !whole.iter().chain(fraction).all(u8::is_ascii_digit)
    {
        return None;
    }
    let digit = |byte: &u8| u64::from(byte - b'0');
    let seconds = whole.iter().fold(0u64, |n, byte| {
        n.saturating_mul(10).saturating_add(digit(byte))
    });
    let thousandths = (0..3).fold(0, |n, at| n * 10 + fraction.get(at).map_or(0, digit));
    let rest = fraction.iter().skip(3).any(|byte| *byte != b'0');
    Some(
        seconds
            .saturating_mul(1_000)
            .saturating_add(thousandths + u64::from(rest)),
    )
}

/// Returns an HTTP date in milliseconds since the epoch.
pub(in crate::answers) fn date_ms(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    httpdate::parse_http_date(text.trim()).ok().map(epoch_ms)
}

/// Returns `time` in milliseconds since the epoch, or 0 if it is earlier.
pub(in crate::answers) fn epoch_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Parses a count: digits only, within the range of `N`.
pub(in crate::answers) fn count<N: std::str::FromStr>(value: &[u8]) -> Option<N> {
    let value = value.trim_ascii();
    // `parse` would take a sign.
    if !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time with which dates are compared: 2026-11-26T12:00:00Z.
    const NOW_MS: u64 = 1_795_694_400_000;

    fn wait(read: Option<HeaderWait>) -> Option<u64> {
        let wait = read?.wait(NOW_MS, Duration::ZERO).time;
        u64::try_from(wait.as_millis()).ok()
    }

    #[test]
    fn each_form_of_a_time_is_read_without_its_name() {
        for (text, ms) in [
            ("5", 5_000),
            ("0.57", 570),
            ("1.0004", 1_001),
            ("1795694430", 30_000),
            ("1795694430.25", 30_250),
            ("1795694430250", 30_250),
            ("1795694300", 0),
            ("Thu, 26 Nov 2026 12:01:00 GMT", 60_000),
            ("2026-11-26T12:01:00Z", 60_000),
            ("2026-11-26T12:01Z", 60_000),
            ("2026-11-26 12:01:00.5", 60_500),
            ("2026-11-26T14:01:00+02:00", 60_000),
            ("2026-11-26T04:01:00-0800", 60_000),
            ("2026-11-26T13:01:00.123456789+01", 60_124),
            ("9999-12-31T23:59:59Z", 251_606_512_801_000),
            ("6m0s", 360_000),
            ("1.5s", 1_500),
            ("20ms", 20),
            ("1d2h", 93_600_000),
            ("34.074824224s", 34_075),
            ("1h1m1.5s", 3_661_500),
            ("300us", 1),
            ("999999999d", 86_399_999_913_600_000),
        ] {
            assert_eq!(wait(any_time(text.as_bytes())), Some(ms), "{text}");
        }
        for text in [
            "",
            "soon",
            "-5",
            "1e3",
            "5 s",
            "s",
            "1x",
            "1s2",
            ".5s",
            "1..5s",
            "NaN",
            "2026-13-01T00:00:00Z",
            "2026-02-30T00:00:00Z",
            "2026-11-26",
            "2026-11-26T25:00:00Z",
            "2026-11-26T12:00:00+2",
            "2026-11-26T12:00:00Zx",
            "2026-11-26T12Z",
            "20261126T120000Z",
            "+026-11-26T12:00:00Z",
            "2026-11-26T12:00:00+é",
            "2026-11-26T12:00:00[Europe/Berlin]",
        ] {
            assert_eq!(wait(any_time(text.as_bytes())), None, "{text}");
        }
    }

    #[test]
    fn a_named_form_reads_no_other() {
        use TimeForm as Form;
        for (form, text, ms) in [
            (Form::Seconds, "1795694430", Some(1_795_694_430_000)),
            (Form::Milliseconds, "1500.5", Some(1_501)),
            (Form::Epoch, "1795694430", Some(30_000)),
            (Form::EpochMilliseconds, "1795694430250", Some(30_250)),
            (Form::Date, "2026-11-26T12:00:01Z", Some(1_000)),
            (Form::Date, "Thu, 26 Nov 2026 12:01:00 GMT", Some(60_000)),
            (Form::Duration, "1m", Some(60_000)),
            (Form::Seconds, "1m", None),
            (Form::Duration, "60", None),
            (Form::Date, "60", None),
            (Form::Epoch, "2026-11-26T12:00:01Z", None),
        ] {
            assert_eq!(wait(form.read(text.as_bytes())), ms, "{form:?} {text}");
        }
    }
}
