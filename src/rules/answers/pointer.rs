//! JSON pointers into the bodies of answers.

use std::borrow::Cow;
use std::fmt;

use serde_json::Value as Json;

/// Maximum number of tokens of a pointer.
const MAX_TOKENS: usize = 16;

/// A JSON pointer (RFC 6901) in which `*` stands for any element of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyPointer {
    text: String,
    /// Tokens with `~1` and `~0` resolved.
    tokens: Vec<String>,
}

impl BodyPointer {
    /// Parses `/errors/*/code`. Returns `None` if the text does not begin with `/` or has more than
    /// 16 tokens.
    pub fn parse(text: &str) -> Option<Self> {
        let tokens = text.strip_prefix('/')?.split('/');
        let tokens: Vec<String> = tokens
            .map(|token| token.replace("~1", "/").replace("~0", "~"))
            .collect();
        (tokens.len() <= MAX_TOKENS).then(|| Self {
            text: text.to_owned(),
            tokens,
        })
    }

    /// Returns the values at this place, one unless the pointer has a `*`.
    pub(super) fn values<'j>(&self, json: &'j Json) -> Vec<&'j Json> {
        let mut found = vec![json];
        for token in &self.tokens {
            let inner = found
                .into_iter()
                .flat_map(|value| match (value, token.as_str()) {
                    (Json::Array(items), "*") => items.iter().collect(),
                    (Json::Array(items), index) => index
                        .parse()
                        .ok()
                        .and_then(|index: usize| items.get(index))
                        .into_iter()
                        .collect(),
                    (Json::Object(fields), name) => fields.get(name).into_iter().collect(),
                    _ => Vec::new(),
                });
            found = inner.collect();
        }
        found
    }
}

impl fmt::Display for BodyPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Returns a text, a number or a truth value as text. Returns `None` for other values.
pub(super) fn scalar(json: &Json) -> Option<Cow<'_, str>> {
    match json {
        Json::String(text) => Some(Cow::Borrowed(text)),
        Json::Number(number) => Some(Cow::Owned(number.to_string())),
        Json::Bool(value) => Some(Cow::Owned(value.to_string())),
        Json::Null | Json::Array(_) | Json::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pointer_finds_each_value_that_it_can_mean() {
        let body = json!({"a": [{"b": 1}, {"b": "x"}, {"c": 2}, 7], "d/e~": true, "*": null});
        for (pointer, expected) in [
            ("/a/*/b", &[json!(1), json!("x")][..]),
            ("/a/0/b", &[json!(1)]),
            ("/a/3", &[json!(7)]),
            ("/a/-1", &[]),
            ("/a/9", &[]),
            ("/a/b", &[]),
            ("/d~1e~0", &[json!(true)]),
            ("/*", &[json!(null)]),
            ("/a/*/b/*", &[]),
            ("/", &[]),
        ] {
            let parsed = BodyPointer::parse(pointer).expect(pointer);
            let found: Vec<Json> = parsed.values(&body).into_iter().cloned().collect();
            assert_eq!(found, expected, "{pointer}");
            assert_eq!(parsed.to_string(), pointer);
        }
        for pointer in ["", "a", "#/a", &"/a".repeat(17)] {
            assert_eq!(BodyPointer::parse(pointer), None, "{pointer}");
        }
    }
}
