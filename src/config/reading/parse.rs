//! Parsers of values, independent of their keys: texts, whole numbers, durations, choices; and
//! suggestions for unknown names.

use std::fmt::Display;
use std::time::Duration;

use super::error::shown;
use super::yaml::Raw;
use rules::text::{parse_duration, show_duration};

/// An error as a sentence that follows the key: `is 0; it must be …`.
pub(crate) type ValueError = String;

/// Describes `raw` for an error.
pub(crate) fn describe_value(raw: &Raw) -> String {
    match raw {
        Raw::Null => "empty".to_owned(),
        Raw::Bool(value) => value.to_string(),
        Raw::Int(value) => value.to_string(),
        Raw::Float => "a number with a fraction".to_owned(),
        Raw::Text(text) => shown(text),
        Raw::List(_) => "a list".to_owned(),
        Raw::Map(_) => "a mapping".to_owned(),
    }
}

/// Returns the error for a value of the wrong type or range. `must` describes valid values.
pub(crate) fn wrong(raw: &Raw, must: impl Display) -> ValueError {
    format!("is {}; it must be {must}", describe_value(raw))
}

/// Parses a text. YAML reads some bare words and numbers as other types, so these need quotes.
pub(crate) fn text<'a>(raw: &'a Raw, must: &str) -> Result<&'a str, ValueError> {
    match raw {
        Raw::Text(text) if !text.is_empty() => Ok(text),
        Raw::Text(_) => Err(format!("is empty; it must be {must}")),
        Raw::Bool(_) | Raw::Int(_) | Raw::Float => Err(format!(
            "is read as {} by YAML; put it in quotes",
            describe_value(raw)
        )),
        Raw::Null | Raw::List(_) | Raw::Map(_) => Err(wrong(raw, must)),
    }
}

/// Parses a text that may be secret. No error shows any part of it.
pub(crate) fn secret<'a>(raw: &'a Raw, must: &str) -> Result<&'a str, ValueError> {
    match raw {
        Raw::Text(text) => Ok(text),
        Raw::List(_) => Err(format!("is a list; it must be {must}")),
        Raw::Null => Err(format!("is empty; it must be {must}")),
        _ => Err(format!(
            "is not text (numbers need quotes); it must be {must}"
        )),
    }
}

/// Parses `true` or `false`.
pub(crate) fn boolean(raw: &Raw) -> Result<bool, ValueError> {
    match raw {
        Raw::Bool(value) => Ok(*value),
        raw => choice(raw, &[("true", true), ("false", false)]),
    }
}

/// Parses a whole number from `min` to `max` that fits into `T`.
pub(crate) fn integer<T: TryFrom<u64>>(raw: &Raw, min: u64, max: u64) -> Result<T, ValueError> {
    let value = match raw {
        Raw::Int(value) => Some(*value),
        Raw::Text(text) => text.parse().ok(),
        _ => None,
    };
    value
        .and_then(|value| u64::try_from(value).ok())
        .filter(|value| (min..=max).contains(value))
        .and_then(|value| T::try_from(value).ok())
        .ok_or_else(|| wrong(raw, format_args!("a whole number from {min} to {max}")))
}

/// Parses a duration from `min` to `max`: a number of seconds, or a number with a unit.
pub(crate) fn duration(raw: &Raw, min: Duration, max: Duration) -> Result<Duration, ValueError> {
    let value = match raw {
        Raw::Int(seconds) => u64::try_from(*seconds).ok().map(Duration::from_secs),
        Raw::Text(text) => parse_duration(text),
        _ => None,
    };
    match value {
        Some(value) if (min..=max).contains(&value) => Ok(value),
        Some(_) => Err(wrong(
            raw,
            format_args!("from {} to {}", show_duration(min), show_duration(max)),
        )),
        None => Err(wrong(
            raw,
            "a number of seconds, or a whole number with a unit, such as 500ms, 10s, 5m, 1h or 7d",
        )),
    }
}

/// Parses one of `names`.
pub(crate) fn choice<T: Copy>(raw: &Raw, names: &[(&str, T)]) -> Result<T, ValueError> {
    let known = names.iter().map(|(name, _)| *name);
    let mut list = known.clone().collect::<Vec<_>>().join(", ");
    if let Some(last) = list.rfind(", ") {
        list.replace_range(last..last + 1, " or");
    }
    let text = text(raw, &list)?;
    if let Some((_, value)) = names.iter().find(|(name, _)| *name == text) {
        return Ok(*value);
    }
    Err(format!("{}{}", wrong(raw, list), hint(text, known)))
}

/// Returns the name in `names` that is a typing error away from `name`, ignoring case, `_` and `-`.
pub fn closest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace('_', "-");
    let wanted = plain(name);
    let length = wanted.chars().count();
    names
        .into_iter()
        .filter_map(|known| {
            let plain = plain(known);
            // A third of the letters may differ, so that short names do not match anything. The
            // distance is at least the difference in length, so a long name is not compared.
            let max = (known.len() / 3).clamp(1, 6);
            if length.abs_diff(plain.chars().count()) > max {
                return None;
            }
            let distance = strsim::damerau_levenshtein(&wanted, &plain);
            (distance <= max).then_some((distance, known))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// Returns the end of an error that suggests one of `names` for `name`; may be empty.
pub(crate) fn hint<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    closest(name, names)
        .map(|meant| format!("; did you mean {meant}?"))
        .unwrap_or_default()
}
