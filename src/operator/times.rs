//! Formats times and durations for people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Formats the time `in_ms` after `now_ms`: `in 2m 5s (Tue, 14 Nov 2023 22:15:25 GMT)`.
pub fn when(now_ms: u64, in_ms: u64) -> String {
    format!("in {} ({})", span(in_ms), at(now_ms.saturating_add(in_ms)))
}

/// Formats a duration: `350ms`, `12.3s`, `2m 5s`, `3h 20m`, `4d 1h`.
pub fn span(ms: u64) -> String {
    let s = ms / 1_000;
    match s {
        0 => format!("{ms}ms"),
        1..60 => format!("{s}.{}s", ms % 1_000 / 100),
        60..3_600 => format!("{}m {}s", s / 60, s % 60),
        3_600..86_400 => format!("{}h {}m", s / 3_600, s % 3_600 / 60),
        _ => format!("{}d {}h", s / 86_400, s % 86_400 / 3_600),
    }
}

/// Formats a time as an HTTP date, in UTC.
pub fn at(epoch_ms: u64) -> String {
    // The formatter's last year is 9999.
    const LAST: u64 = 253_402_300_799_000;
    let time: SystemTime = UNIX_EPOCH + Duration::from_millis(epoch_ms.min(LAST));
    httpdate::fmt_http_date(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_two_units_and_times_end_with_the_year_9999() {
        assert_eq!(at(u64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
        for (ms, text) in [
            (350, "350ms"),
            (12_300, "12.3s"),
            (125_000, "2m 5s"),
            (3_700_000, "1h 1m"),
            (90_000_000, "1d 1h"),
        ] {
            assert_eq!(span(ms), text);
        }
        assert_eq!(
            when(1_700_000_000_000, 125_000),
            "in 2m 5s (Tue, 14 Nov 2023 22:15:25 GMT)"
        );
    }
}
