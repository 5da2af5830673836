//! A configuration that stands in another file, as it stands there: the order of its keys counts (`rate-limiter.tenants`).

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// The same as JSON, which is YAML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sections {
    /// A path to a file.
    Path(String),
    /// The sections themselves.
    Json(String),
}

impl<'de> Deserialize<'de> for Sections {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Json(json) = Json::deserialize(deserializer)?;
        Ok(match serde_json::from_str(&json) {
            Ok(Value::String(path)) => Self::Path(path),
            _ => Self::Json(json),
        })
    }
}

/// Any value as the JSON that it is.
struct Json(String);

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
        Ok(Json("null".to_owned()))
    }

    fn visit_none<E: Error>(self) -> Result<Json, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        Json::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json(value.to_string()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Json, E> {
        match value.is_finite() {
            true => Ok(Json(Value::from(value).to_string())),
            false => Err(E::custom(format_args!("{value} is no number here"))),
        }
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json(Value::from(value).to_string()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut all = Vec::new();
        while let Some(Json(item)) = items.next_element()? {
            all.push(item);
        }
        Ok(Json(format!("[{}]", all.join(","))))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut all = Vec::new();
        while let Some((key, Json(value))) = entries.next_entry::<String, Json>()? {
            all.push(format!("{}:{value}", Value::from(key)));
        }
        Ok(Json(format!("{{{}}}", all.join(","))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_there_keeps_its_order_and_its_types() {
        let read = |text: &str| serde_saphyr::from_str::<Sections>(text).expect("it is YAML");
        let json = r#"{"b":{"trial-7":1,"trial-*":"1m","409":"retry"},"a":[true,null,"1"]}"#;
        let yaml = "b: {trial-7: 1, trial-*: 1m, 409: retry}\na: [true, ~, '1']";
        assert_eq!(read(yaml), Sections::Json(json.to_owned()));
        assert_eq!(read("a/b.yaml"), Sections::Path("a/b.yaml".to_owned()));
    }
}
