//! Reads a configuration within another file. Keeps the order of keys, which matters
//! (`rate-limiter.tenants`).

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;

/// A configuration of a case: a path, or the sections as JSON, which is also YAML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CaseConfig {
    /// The path of a file.
    Path(String),
    /// The sections themselves.
    Json(Json),
}

impl<'de> Deserialize<'de> for CaseConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Json::deserialize(deserializer)?;
        Ok(match serde_json::from_str(&json.text) {
            Ok(Value::String(path)) => Self::Path(path),
            _ => Self::Json(json),
        })
    }
}

/// Any value, written as JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Json {
    /// The JSON text. Each key and each list item begins a new line.
    pub text: String,
    /// The line in the other file for each line of `text` but the first, which holds no key.
    lines: Vec<u64>,
}

impl Json {
    fn one(text: String) -> Self {
        let lines = Vec::new();
        Self { text, lines }
    }

    /// Returns the line in the other file that corresponds to line `line` (from 1) of `text`;
    /// `None` for the first line, which holds no key.
    pub fn line(&self, line: u64) -> Option<u64> {
        let index = usize::try_from(line.checked_sub(2)?).ok()?;
        self.lines.get(index).copied()
    }

    /// Appends `begin` and `value`, which stand at line `line` of the other file.
    fn add(&mut self, line: u64, begin: &str, value: &Self) {
        if !self.lines.is_empty() {
            self.text.push(',');
        }
        self.text.push('\n');
        self.text.push_str(begin);
        self.text.push_str(&value.text);
        self.lines.push(line);
        self.lines.extend(&value.lines);
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a path or the sections of a configuration")
    }

    fn visit_unit<E: Error>(self) -> Result<Json, E> {
        Ok(Json::one("null".to_owned()))
    }

    fn visit_none<E: Error>(self) -> Result<Json, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        Json::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::one(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::one(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::one(value.to_string()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Json, E> {
        match value.is_finite() {
            true => Ok(Json::one(Value::from(value).to_string())),
            false => Err(E::custom(format_args!("{value} is not a number"))),
        }
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::one(Value::from(value).to_string()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut all = Json::one("[".to_owned());
        while let Some(item) = items.next_element::<Spanned<Json>>()? {
            all.add(item.referenced.line(), "", &item.value);
        }
        all.text.push(']');
        Ok(all)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut all = Json::one("{".to_owned());
        while let Some(key) = entries.next_key::<Spanned<String>>()? {
            let begin = format!("{}:", Value::from(key.value));
            all.add(key.referenced.line(), &begin, &entries.next_value()?);
        }
        all.text.push('}');
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_keep_order_and_types() {
        let read = |text: &str| serde_saphyr::from_str::<CaseConfig>(text).expect("it is YAML");
        let json = r#"{"b":{"trial-7":1,"trial-*":"1m","409":"retry"},"a":[true,null,"1"]}"#;
        let yaml = "b: {trial-7: 1, trial-*: 1m, 409: retry}\na: [true, ~, '1']";
        let CaseConfig::Json(read_json) = read(yaml) else {
            panic!("these are sections");
        };
        assert_eq!(read_json.text.replace('\n', ""), json);
        assert_eq!(read("a/b.yaml"), CaseConfig::Path("a/b.yaml".to_owned()));
    }

    #[test]
    fn each_item_knows_its_line() {
        let yaml = "# a\nb: &x\n  c: 1\n\n  d:\n    - \"two\\nlines\"\n    - {e: 2,\n       f: 3}\ng: *x\nh: 4";
        let CaseConfig::Json(json) = serde_saphyr::from_str(yaml).expect("it is YAML") else {
            panic!("these are sections");
        };
        let lines = json.text.lines().zip(1..);
        let known: Vec<_> = lines.map(|(text, line)| (text, json.line(line))).collect();
        let before = [
            ("{", None),
            ("\"b\":{", Some(2)),
            ("\"c\":1,", Some(3)),
            ("\"d\":[", Some(5)),
            ("\"two\\nlines\",", Some(6)),
            ("{", Some(7)),
            ("\"e\":2,", Some(7)),
            ("\"f\":3}]},", Some(8)),
            ("\"g\":{", Some(9)),
        ];
        assert_eq!(known[..before.len()], before);
        assert_eq!(known.last(), Some(&("\"h\":4}", Some(10))));
        assert_eq!((json.line(0), json.line(99)), (None, None));
    }
}
