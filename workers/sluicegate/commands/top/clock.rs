//! Formats times of the running screen: remaining times and times of day.

use operator::times::span;

/// Formats the rest of a wait: `0:42`, `12:04`, `3:12:04`, `2d 3h`.
pub fn left(ms: u64) -> String {
    // Rounded up, since a clock at 0:00 has ended.
    let s = ms.div_ceil(1_000);
    match s {
        0..3_600 => format!("{}:{:02}", s / 60, s % 60),
        3_600..86_400 => format!("{}:{:02}:{:02}", s / 3_600, s / 60 % 60, s % 60),
        _ => span(s * 1_000),
    }
}

/// Formats the time of day in UTC: `14:02:11`.
pub fn time(epoch_ms: u64) -> String {
    let s = epoch_ms / 1_000 % 86_400;
    format!("{:02}:{:02}:{:02}", s / 3_600, s / 60 % 60, s % 60)
}

/// Formats the rest of a wait and its end: `12:04 (22:25:24 UTC)`.
pub fn end(at_ms: u64, now_ms: u64) -> String {
    let left = left(at_ms.saturating_sub(now_ms));
    format!("{left} ({} UTC)", time(at_ms))
}

/// Formats an age: `now`, `14s`, `5m 0s`, `3h 20m`, `4d 1h`.
pub fn age(ms: u64) -> String {
    match ms / 1_000 {
        0 => "now".to_owned(),
        s @ 1..60 => format!("{s}s"),
        _ => span(ms),
    }
}

/// Formats the time since an event: `now`, `14s ago`.
pub fn ago(ms: u64) -> String {
    match ms / 1_000 {
        0 => age(ms),
        _ => format!("{} ago", age(ms)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_runs_down_to_zero() {
        let shown = [0, 1, 1_000, 42_000, 724_000, 11_524_000, 184_324_000].map(left);
        assert_eq!(
            shown,
            ["0:00", "0:01", "0:01", "0:42", "12:04", "3:12:04", "2d 3h"]
        );
        assert_eq!(time(1_700_000_000_000), "22:13:20");
        let ages = [999, 59_000, 61_000, 3_700_000, 90_000_000].map(age);
        assert_eq!(ages, ["now", "59s", "1m 1s", "1h 1m", "1d 1h"]);
        assert_eq!([999, 59_000].map(ago), ["now", "59s ago"]);
    }
}
