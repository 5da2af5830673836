//! Any YAML as a tree, with the position of each key and each item.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, MessageFormatter, Spanned, UserMessageFormatter};

use super::error::{Position, shown};

/// A value in the file or the environment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Raw {
    Null,
    Bool(bool),
    Int(i128),
    Float,
    Text(String),
    List(Vec<Item>),
    Map(Vec<YamlField>),
}

/// An item of a list.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Item {
    pub at: Position,
    pub raw: Raw,
}

/// A key of a mapping, with its value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct YamlField {
    pub name: String,
    pub at: Position,
    pub raw: Raw,
}

impl From<Location> for Position {
    fn from(location: Location) -> Self {
        Self {
            line: location.line(),
            column: location.column(),
        }
    }
}

/// Joins the texts in `items` with commas. Returns `None` if there are none, or other items.
pub(crate) fn joined(items: &[Item]) -> Option<String> {
    let text = |item: &Item| match &item.raw {
        Raw::Text(text) => Some(text.clone()),
        _ => None,
    };
    let texts: Vec<String> = items.iter().map(text).collect::<Option<_>>()?;
    (!texts.is_empty()).then(|| texts.join(","))
}

/// The reason why a text is not YAML, and where.
pub(crate) struct SyntaxError {
    pub at: Option<Position>,
    pub message: String,
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E: Error>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }
    fn visit_none<E: Error>(self) -> Result<Raw, E> {
        self.visit_unit()
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Raw, D::Error> {
        Raw::deserialize(deserializer)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Bool(value))
    }
    fn visit_i64<E: Error>(self, value: i64) -> Result<Raw, E> {
        self.visit_i128(value.into())
    }
    fn visit_u64<E: Error>(self, value: u64) -> Result<Raw, E> {
        self.visit_i128(value.into())
    }
    fn visit_i128<E: Error>(self, value: i128) -> Result<Raw, E> {
        Ok(Raw::Int(value))
    }
    fn visit_u128<E: Error>(self, value: u128) -> Result<Raw, E> {
        let value = i128::try_from(value).map_err(|_| E::custom("a number that is too large"))?;
        self.visit_i128(value)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Raw, E> {
        Ok(Raw::Float)
    }
    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Raw, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<Spanned<Raw>>()? {
            list.push(Item {
                at: item.referenced.into(),
                raw: item.value,
            });
        }
        Ok(Raw::List(list))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Raw, A::Error> {
        let mut map: Vec<YamlField> = Vec::new();
        // A set finds duplicates quickly: a map of tenants may be long.
        let mut known = HashSet::new();
        while let Some(key) = entries.next_key::<Spanned<String>>()? {
            if !known.insert(key.value.clone()) {
                return Err(A::Error::custom(format_args!(
                    "{} is set twice",
                    shown(&key.value)
                )));
            }
            map.push(YamlField {
                name: key.value,
                at: key.referenced.into(),
                raw: entries.next_value()?,
            });
        }
        Ok(Raw::Map(map))
    }
}

/// Parses `text`. Returns `None` if it is empty.
///
/// # Errors
/// The problem that makes `text` invalid YAML.
pub(crate) fn read(text: &str) -> Result<Option<Raw>, SyntaxError> {
    // A configuration needs neither the depth nor the aliases that YAML allows.
    let options = serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_depth: 32,
            max_nodes: 100_000,
            max_documents: 1,
            max_aliases: 100,
        },
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|err| syntax_error(text, &err))
}

/// Returns the message of the YAML parser without the text, since the line may contain a password.
fn syntax_error(text: &str, err: &serde_saphyr::Error) -> SyntaxError {
    let Some(location) = err.location() else {
        return SyntaxError {
            at: None,
            message: "is not a readable YAML document".to_owned(),
        };
    };
    let message_text = UserMessageFormatter.format_message(err.without_snippet());
    let line = usize::try_from(location.line()).unwrap_or(usize::MAX);
    // Parsers report a broken quote or bracket some lines late, so earlier lines count, too.
    let secret = text
        .lines()
        .take(line)
        .skip(line.saturating_sub(3))
        .any(|line| line.contains("url") || line.contains("token") || line.contains('@'));
    // A header's secret may follow any name.
    let secret = secret || text.contains("headers");
    let is_secret = secret || message_text.contains("://") || message_text.contains('@');
    let indent = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    let indent = &indent[..indent.len() - indent.trim_start().len()];
    let message = if !is_secret {
        format!("is not valid YAML: {message_text}")
    } else if indent.contains('\t') {
        "is not valid YAML: indent with spaces instead of tabs".to_owned()
    } else if let serde_saphyr::Error::DuplicateMappingKey { .. } = err.without_snippet() {
        "is not valid YAML: a key appears twice".to_owned()
    } else {
        "is not valid YAML (quote texts with special characters; details may contain a secret and \
        are not shown)"
            .to_owned()
    };
    SyntaxError {
        at: Some(location.into()),
        message,
    }
}
