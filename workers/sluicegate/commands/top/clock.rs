//! Formats times of the running screen: remaining times and times of day.

/// Formats the rest of a wait: `0:42`, `12:04`, `3:12:04`, `2d 3h`.
pub fn left(ms: u64) -> String {
    // Rounded up, since a clock at 0:00 has ended.
    let s = ms.div_ceil(1_000);
    let (days, hours, minutes, s) = (s / 86_400, s / 3_600 % 24, s / 60 % 60, s % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes}:{s:02}"),
        (0, hours) => format!("{hours}:{minutes:02}:{s:02}"),
        (days, hours) => format!("{days}d {hours}h"),
    }
}

/// Formats the time of day in UTC: `14:02:11`.
pub fn time(epoch_ms: u64) -> String {
    let s = epoch_ms / 1_000 % 86_400;
    format!("{:02}:{:02}:{:02}", s / 3_600, s / 60 % 60, s % 60)
}

/// Formats an age: `now`, `14s`, `5m 0s`, `3h 20m`, `4d 1h`.
pub fn age(ms: u64) -> String {
    let s = ms / 1_000;
    match s {
        0 => "now".to_owned(),
        1..60 => format!("{s}s"),
        60..3_600 => format!("{}m {}s", s / 60, s % 60),
        3_600..86_400 => format!("{}h {}m", s / 3_600, s / 60 % 60),
        _ => format!("{}d {}h", s / 86_400, s / 3_600 % 24),
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
    }
}
