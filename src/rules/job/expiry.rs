//! The time until which a job may be called, according to its publisher: AMQP's `expiration`, which
//! counts from publishing, and a deadline.
//!
//! All times are by the store's clock, in milliseconds since the epoch.

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::temporal::Pieces;

use crate::text::show_duration;

/// Numbers from this on are milliseconds since the epoch (from 1973 on), smaller numbers are
/// seconds (until the year 5138).
const FROM_MS: u64 = 100_000_000_000;

/// The latest time that a header can carry.
const FOREVER_MS: u64 = i64::MAX as u64;

/// The time until which a job may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expiry {
    expiration: Option<Expiration>,
    deadline_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expiration {
    /// Ends `ms` after publishing, which was at `published_ms` at the latest. The end is not
    /// computed yet.
    Lasts { ms: u64, published_ms: Option<u64> },
    /// Ends at this time.
    Ends(u64),
}

impl Expiry {
    /// Returns the expiry of a job that may be called for `lasts_ms` after publishing, or forever
    /// if `None`.
    pub fn lasts(lasts_ms: Option<u64>, published_ms: Option<u64>) -> Self {
        Self {
            expiration: lasts_ms.map(|ms| Expiration::Lasts { ms, published_ms }),
            deadline_ms: None,
        }
    }

    /// Returns the expiry of a job whose end was computed when it was first seen.
    pub fn ends(ends_ms: u64) -> Self {
        Self {
            expiration: Some(Expiration::Ends(ends_ms)),
            deadline_ms: None,
        }
    }

    /// Returns the same expiry with a deadline: the job may not be called from `deadline_ms` on.
    #[must_use]
    pub fn with_deadline(self, deadline_ms: Option<u64>) -> Self {
        Self {
            deadline_ms,
            ..self
        }
    }

    /// Returns true if the job never expires.
    pub fn is_never(&self) -> bool {
        *self == Self::default()
    }

    /// Computes the end of the expiration when the job is first seen at `seen_ms`: it counts from
    /// there, or from publishing if that was earlier. Does nothing if the end is known.
    pub fn count_from(&mut self, seen_ms: u64) {
        if let Some(Expiration::Lasts { ms, published_ms }) = self.expiration {
            let from = published_ms.map_or(seen_ms, |published| published.min(seen_ms));
            self.expiration = Some(Expiration::Ends(from.saturating_add(ms).min(FOREVER_MS)));
        }
    }

    /// Returns when the expiration ends, or `None` if there is none or the end is not computed yet.
    pub fn ends_ms(&self) -> Option<u64> {
        match self.expiration {
            Some(Expiration::Ends(ms)) => Some(ms),
            _ => None,
        }
    }

    /// Returns when the job expires, or `None` if it never does or the end is not computed yet.
    pub fn at_ms(&self) -> Option<u64> {
        self.ends_ms().into_iter().chain(self.deadline_ms).min()
    }

    /// Returns true if the job may not be called at `now_ms`.
    pub fn is_over(&self, now_ms: u64) -> bool {
        self.at_ms().is_some_and(|at| at <= now_ms)
    }

    /// Returns the reason for the dead letter at `now_ms`.
    pub fn reason(&self, now_ms: u64) -> String {
        let at = self.at_ms();
        let what = match at == self.deadline_ms {
            true => "deadline",
            false => "expiration",
        };
        let ago = now_ms.saturating_sub(at.unwrap_or(now_ms));
        // Parts of a second would hide the length of a longer time.
        let ago = ago - if ago < 1000 { 0 } else { ago % 1000 };
        let ago = show_duration(Duration::from_millis(ago));
        format!("expired: its {what} was over {ago} before")
    }
}

/// Parses a deadline: RFC 3339, or the digits of a number as in [`epoch_ms`]. Times before 1970
/// are 0.
pub fn deadline_ms(text: &str) -> Option<u64> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(epoch_ms(text.parse().unwrap_or(u64::MAX)));
    }
    // RFC 3339 has only the forms with seconds, and with minutes of the offset.
    let bytes = text.as_bytes();
    let is_rfc3339 = bytes.get(4) == Some(&b'-')
        && bytes.get(16) == Some(&b':')
        && !bytes.contains(&b',')
        && matches!(
            bytes,
            [.., b'Z' | b'z'] | [.., b'+' | b'-', _, _, b':', _, _]
        );
    let pieces = Pieces::parse(text).ok().filter(|_| is_rfc3339)?;
    let time = pieces.date().to_datetime(pieces.time()?);
    // Timestamps end a day before the year 9999 does.
    let time = (pieces.to_numeric_offset()?.to_timestamp(time)).unwrap_or(Timestamp::MAX);
    Some(u64::try_from(time.as_millisecond()).unwrap_or(0))
}

/// Converts a number of seconds or milliseconds since the epoch, distinguished by its size, to
/// milliseconds.
pub fn epoch_ms(number: u64) -> u64 {
    match number {
        0..FROM_MS => number * 1000,
        _ => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiration_counts_from_the_publication_or_the_first_sight_whichever_is_earlier() {
        let ends = |published| {
            let mut expiry = Expiry::lasts(Some(3_000), published);
            assert_eq!((expiry.at_ms(), expiry.is_over(u64::MAX)), (None, false));
            expiry.count_from(10_000);
            // The end does not change once it is computed.
            expiry.count_from(20_000);
            expiry.at_ms()
        };
        assert_eq!(ends(None), Some(13_000));
        assert_eq!(ends(Some(8_999)), Some(11_999));
        // A publisher's clock that is ahead does not extend the time.
        assert_eq!(ends(Some(99_000)), Some(13_000));
        let mut always = Expiry::lasts(None, Some(1));
        always.count_from(2);
        assert!(always.is_never() && !always.is_over(u64::MAX));
    }

    #[test]
    fn the_first_of_expiration_and_deadline_ends_a_job_and_is_named() {
        for (ends, deadline, what) in [(5, 9, "expiration"), (9, 5, "deadline")] {
            let expiry = Expiry::ends(ends).with_deadline(Some(deadline));
            assert!(!expiry.is_over(4) && expiry.is_over(5));
            let reason = format!("expired: its {what} was over 2ms before");
            assert_eq!(expiry.reason(7), reason);
            assert!(expiry.reason(54_612).ends_with(" 54s before"));
        }
    }

    #[test]
    fn a_deadline_is_a_date_or_a_number_of_seconds_or_milliseconds() {
        for (text, ms) in [
            ("2026-01-31T12:00:00Z", Some(1_769_860_800_000)),
            ("2026-01-31T13:00:00.5+01:00", Some(1_769_860_800_500)),
            ("2026-01-31t12:00:00.0009z", Some(1_769_860_800_000)),
            ("1769860800", Some(1_769_860_800_000)),
            ("1769860800500", Some(1_769_860_800_500)),
            ("0", Some(0)),
            ("1960-01-01T00:00:00Z", Some(0)),
            ("99999999999999999999999", Some(u64::MAX)),
            ("", None),
            ("-1", None),
            ("1769860800.5", None),
            ("2026-01-31", None),
            ("2026-01-31 12:00", None),
            ("tomorrow", None),
        ] {
            assert_eq!(deadline_ms(text), ms, "{text:?}");
        }
    }
}
