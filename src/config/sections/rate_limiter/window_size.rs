//! The values of `rate-limiter.window-size`, `time-zone` and `starts`: the length of a window, or
//! the calendar period that forms it.

use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::reading::parse::{duration as parse_duration_of, text as parse_text};
use crate::reading::{Raw, ValueError, hint, shown, wrong};
use rules::calendar::{Calendar, Zone, zone_names};
use rules::limit::{MAX_WINDOW, MIN_WINDOW};
use rules::text::parse_duration;

/// `rate-limiter.window-size`
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WindowSize {
    /// A duration.
    Length(Duration),
    /// `day`, `week` or `month`.
    Calendar(&'static str),
}

/// Parses `rate-limiter.window-size`.
pub(crate) fn window_size(raw: &Raw) -> Result<WindowSize, ValueError> {
    const MUST: &str = "a duration, such as 500ms, 10s, 5m, 1h or 7d; day, week or month";
    let named = |name: &&&str| matches!(raw, Raw::Text(text) if text == **name);
    match raw {
        Raw::Int(_) => {}
        Raw::Text(text) if parse_duration(text).is_some() => {}
        raw => {
            let name = ["day", "week", "month"].iter().find(named);
            return name
                .map(|name| WindowSize::Calendar(name))
                .ok_or_else(|| wrong(raw, MUST));
        }
    }
    parse_duration_of(raw, MIN_WINDOW, MAX_WINDOW).map(WindowSize::Length)
}

/// Parses `rate-limiter.time-zone`.
pub(super) fn time_zone(raw: &Raw) -> Result<Zone, ValueError> {
    let name = parse_text(raw, "a time zone, such as America/Los_Angeles")?;
    Zone::find(name).ok_or_else(|| {
        format!(
            "is {}, an unknown time zone; use an IANA name, such as America/Los_Angeles{}",
            shown(name),
            hint(name, zone_names())
        )
    })
}

/// Parses `rate-limiter.starts`. Whether it fits the period is checked with the limit.
pub(crate) fn starts(raw: &Raw) -> Result<String, ValueError> {
    const MUST: &str = "a time of day, such as 08:00; for a week also a weekday, for a month a day \
                        from 1 to 31, alone or before the time: monday 08:00, 15";
    let text = match raw {
        Raw::Int(day) => day.to_string(),
        raw => parse_text(raw, MUST)?.to_owned(),
    };
    let mut periods = ["day", "week", "month"].into_iter();
    match periods.any(|period| Calendar::parse(period, Zone::UTC, Some(&text)).is_some()) {
        true => Ok(text),
        false => Err(wrong(raw, MUST)),
    }
}

/// Returns the schema of `rate-limiter.starts`.
pub(super) fn starts_schema() -> Json {
    let time = "([01][0-9]|2[0-3]):[0-5][0-9]";
    let day = "(0?[1-9]|[12][0-9]|3[01]|(mon|tues|wednes|thurs|fri|satur|sun)day)";
    json!({"anyOf": [
        {"type": "integer", "minimum": 1, "maximum": 31},
        {"type": "string", "pattern": format!("^({time}|{day}( {time})?)$")},
    ]})
}
