//! JSON schemas of values.

use std::time::Duration;

use serde_json::{Map, Value as Json, json};

use super::reading::{AppliesAt, ConfigKey, ValueKind};
use rules::limit::floor_ms;

/// Returns the schema of the values of `key`, without descriptions.
pub(super) fn of(key: &ConfigKey) -> Json {
    match key.kind {
        ValueKind::Boolean => json!({"type": "boolean"}),
        ValueKind::Integer { min, max, .. } => {
            json!({"type": "integer", "minimum": min, "maximum": max})
        }
        ValueKind::Duration { min, max, .. } => duration(min, max, &[]),
        ValueKind::Choice(names) => json!({"enum": names()}),
        ValueKind::Url { schemes, several } => {
            let url = json!({
                "type": "string",
                "pattern": format!("^({}|{})://[^\\s]+$", schemes[0], schemes[1]),
            });
            match several {
                true => json!({"anyOf": [url, {"type": "array", "minItems": 1, "items": url}]}),
                false => url,
            }
        }
        ValueKind::File(_) => json!({"type": "string", "minLength": 1}),
        ValueKind::Other { schema, .. } => schema(),
    }
}

/// Returns the schema of texts that match `pattern`.
pub(super) fn pattern(pattern: &str) -> Json {
    json!({"type": "string", "pattern": pattern})
}

/// Returns the schema of a mapping with no other keys than `properties`, of which it has
/// `required`.
pub(super) fn closed(properties: Json, required: &[&str]) -> Json {
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

/// Returns the schema of `key`, with the description that editors show.
pub(super) fn property(key: &ConfigKey) -> Json {
    let mut schema = match of(key) {
        Json::Object(schema) => schema,
        _ => Map::new(),
    };
    let applied = match key.applies_at {
        AppliesAt::Live => "A change applies to a running worker.",
        AppliesAt::Restart => "A change requires a restart.",
    };
    let values = key.values();
    let description = format!("{} Value: {values}. {applied}", key.about).replace('`', "");
    schema.insert("description".into(), description.into());
    if let Some(default) = key.default {
        schema.insert("default".into(), value(key, default));
    }
    if key.secret {
        schema.insert("writeOnly".into(), true.into());
    }
    schema.into()
}

/// Returns `text` as YAML reads it for this key.
fn value(key: &ConfigKey, text: &str) -> Json {
    match key.kind {
        ValueKind::Boolean => (text == "true").into(),
        _ => text.parse::<u64>().map_or_else(|_| text.into(), Json::from),
    }
}

/// Returns the schema of a duration from `min` to `max`, or of one of `names`.
pub(super) fn duration(min: Duration, max: Duration, names: &[&str]) -> Json {
    let (min, max) = (floor_ms(min), floor_ms(max));
    let units = [
        ("ms", 1),
        ("s?", 1_000),
        ("m", 60_000),
        ("h", 3_600_000),
        ("d", 86_400_000),
    ];
    let forms: Vec<String> = (units.iter())
        .filter_map(|(unit, size)| {
            let numbers = numbers(min.div_ceil(*size), max / size)?;
            Some(format!("0*({numbers})\\s*{unit}"))
        })
        .chain(names.iter().map(|name| (*name).to_owned()))
        .collect();
    json!({
        "anyOf": [
            {"type": "integer", "minimum": min.div_ceil(1_000), "maximum": max / 1_000},
            {"type": "string", "pattern": format!("^({})$", forms.join("|"))},
        ],
    })
}

/// Returns a regular expression for the numbers from `min` to `max`, without leading zeros, or
/// `None` if there are none.
fn numbers(min: u64, max: u64) -> Option<String> {
    let mut forms = Vec::new();
    let mut from = min;
    while from <= max {
        // Find the largest block of numbers that starts at `from` and varies in its last digits
        // only.
        let mut any = 1;
        while from != 0 && from.is_multiple_of(any * 10) && from + any * 10 - 1 <= max {
            any *= 10;
        }
        // Add the following blocks that differ in one digit.
        let (start, digit) = (from / any / 10, from / any % 10);
        let last = (max - from + 1) / any + digit - 1;
        let last = last.min(9);
        let start = match start {
            0 => String::new(),
            start => start.to_string(),
        };
        let digits = match digit == last {
            true => digit.to_string(),
            false => format!("[{digit}-{last}]"),
        };
        let rest = "[0-9]".repeat(any.ilog10() as usize);
        forms.push(format!("{start}{digits}{rest}"));
        from += (last - digit + 1) * any;
    }
    (!forms.is_empty()).then(|| forms.join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns true if `text` matches one of the alternatives in `forms`, which consist of digits
    /// and `[a-b]`.
    fn fits(forms: &str, text: &str) -> bool {
        forms.split('|').any(|form| {
            let mut digits = text.bytes();
            let mut form = form.bytes();
            while let Some(byte) = form.next() {
                let (low, high) = match byte {
                    b'[' => {
                        let [low, _, high, _] = [(); 4].map(|()| form.next().expect("a range"));
                        (low, high)
                    }
                    digit => (digit, digit),
                };
                if !digits
                    .next()
                    .is_some_and(|digit| (low..=high).contains(&digit))
                {
                    return false;
                }
            }
            digits.next().is_none()
        })
    }

    #[test]
    fn an_expression_has_exactly_the_numbers_of_its_range() {
        for (min, max) in [
            (0, 0),
            (0, 60),
            (1, 9),
            (1, 65_535),
            (1, 10_000),
            (7, 1_234),
            (99, 101),
            (100, 2_678),
            (10, 10),
            (195, 1_005),
        ] {
            let forms = numbers(min, max).expect("some");
            for number in 0..=max.max(2_000) + 20 {
                let fits = fits(&forms, &number.to_string());
                assert_eq!(fits, (min..=max).contains(&number), "{number}: {forms}");
            }
        }
        assert_eq!(numbers(1, 0), None);
        let hours = duration(Duration::ZERO, Duration::from_secs(3_600), &["auto"]);
        let pattern = hours["anyOf"][1]["pattern"].as_str().expect("a text");
        assert!(pattern.ends_with("|0*(0)\\s*d|auto)$"), "{pattern}");
    }
}
