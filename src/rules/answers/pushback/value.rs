//! Parses numbers and dates in these headers, distinguished by their size.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A bare number above this is a time in milliseconds since the epoch (the year 2001), not a delay.
const EPOCH_MS: u64 = 1_000_000_000_000;
/// A bare number above this is a time in seconds since the epoch, not a delay of 31 years.
const EPOCH_S: u64 = 1_000_000_000;

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// A wait as in a header, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) enum HeaderWait {
    /// This long from now.
    In(u64),
    /// Until this time since the epoch.
    At(u64),
}

/// A wait, ordered by its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wait {
    pub(super) time: Duration,
    /// How much sooner it may be over, because the API and the `Date` of its answer count whole
    /// seconds.
    pub(super) rounding: Duration,
}

impl Wait {
    /// Returns a wait that is named in whole seconds.
    pub(super) fn seconds(time: Duration) -> Self {
        Self {
            time,
            rounding: SECOND,
        }
    }
}

impl HeaderWait {
    /// Returns the wait from `now_ms`, or 0 if the time has passed. The true time may be up to
    /// `now_rounding` later than `now_ms`.
    pub(super) fn wait(self, now_ms: u64, now_rounding: Duration) -> Wait {
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

/// Parses a number or a date.
pub(super) fn when(value: &[u8]) -> Option<HeaderWait> {
    let Some(ms) = number_ms(value) else {
        return date_ms(value).map(HeaderWait::At);
    };
    Some(match ms / 1_000 {
        n if n > EPOCH_MS => HeaderWait::At(n),
        n if n > EPOCH_S => HeaderWait::At(ms),
        _ => HeaderWait::In(ms),
    })
}

/// Returns a decimal number times 1000, rounded up and saturating. No standard has fractions, but
/// some APIs send them.
pub(super) fn number_ms(value: &[u8]) -> Option<u64> {
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
pub(super) fn date_ms(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    httpdate::parse_http_date(text.trim()).ok().map(epoch_ms)
}

/// Returns `time` in milliseconds since the epoch, or 0 if it is earlier.
pub(super) fn epoch_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Parses a count: digits only, within the range of `N`.
pub(super) fn count<N: std::str::FromStr>(value: &[u8]) -> Option<N> {
    let value = value.trim_ascii();
    // `parse` would take a sign.
    if !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}
