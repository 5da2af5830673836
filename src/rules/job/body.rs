//! Finds values in a JSON body by their pointers (RFC 6901). The body is read as a stream: other
//! values are validated and skipped, but not kept. So the time is proportional to the size of the
//! body, and the memory to the values found.

use std::fmt;

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{BadMessage, Field, Fields, TenantField, ValueField};

/// Maximum length of a text that is kept, in bytes. No longer value is usable.
const MAX_TEXT: usize = 1024;

/// The value at a pointer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FoundValue {
    /// No value, or null.
    #[default]
    Missing,
    /// A text of at most 1,024 bytes.
    Text(String),
    /// A signed 64-bit integer. A larger number becomes a text of its digits, so that different
    /// numbers stay different.
    Int(i64),
    /// Another type; the text names it, such as `a fraction`.
    Other(&'static str),
}

impl FoundValue {
    /// Returns the value as a field of a message.
    pub fn field(&self) -> Field<'_> {
        match self {
            Self::Missing => Field::Missing,
            Self::Text(text) => Field::Text(text),
            Self::Int(n) => Field::Int(*n),
            Self::Other(kind) => Field::Other(kind),
        }
    }
}

/// The values in a body: the tenant, the cost, the deadline, and those for its call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InBody(Result<Vec<FoundValue>, String>);

/// Number of values before those for calls: the tenant, the cost and the deadline.
const BEFORE_CALLS: usize = 3;

impl InBody {
    /// Reads the values that `fields` need from the body.
    pub fn read(body: &[u8], fields: &Fields) -> Self {
        match Self::is_needed(fields) {
            true => Self::at(body, &pointers(fields).collect::<Vec<_>>()),
            false => Self(Ok(Vec::new())),
        }
    }

    /// Reads only the tenant.
    pub fn tenant(body: &[u8], field: &TenantField) -> Self {
        Self::at(body, &[tenant_pointer(field)])
    }

    /// Returns true if `fields` need any value from the body.
    pub fn is_needed(fields: &Fields) -> bool {
        pointers(fields).any(|pointer| pointer.is_some())
    }

    fn at(body: &[u8], pointers: &[Option<&str>]) -> Self {
        let wanted: Vec<&str> = pointers.iter().copied().flatten().collect();
        if wanted.is_empty() {
            return Self(Ok(Vec::new()));
        }
        Self(find(body, &wanted).map(|found| {
            let mut found = found.into_iter();
            let next = |pointer: &Option<&str>| pointer.and_then(|_| found.next());
            let all = pointers.iter().map(next);
            all.map(Option::unwrap_or_default).collect()
        }))
    }

    /// Returns the value with the index `place`. `what` names it in errors.
    pub(super) fn found(&self, place: usize, what: &str) -> Result<Field<'_>, BadMessage> {
        match &self.0 {
            Ok(found) => Ok(found.get(place).map_or(Field::Missing, FoundValue::field)),
            Err(why) => Err(BadMessage(format!(
                "no {what}: the body is not JSON: {why}"
            ))),
        }
    }

    /// Returns the value with the index `number` among the values for calls.
    pub(super) fn carried(&self, number: usize) -> Result<Field<'_>, String> {
        match &self.0 {
            Ok(found) => Ok(found
                .get(BEFORE_CALLS + number)
                .map_or(Field::Missing, FoundValue::field)),
            Err(why) => Err(format!("can't be read: the body is not JSON: {why}")),
        }
    }
}

/// Returns the pointers of the tenant, the cost, the deadline and the values for calls.
fn pointers(fields: &Fields) -> impl Iterator<Item = Option<&str>> {
    let own = [
        tenant_pointer(&fields.tenant),
        pointer(&fields.cost),
        fields.deadline.as_ref().and_then(pointer),
    ];
    own.into_iter().chain(fields.call.pointers().map(Some))
}

fn pointer(field: &ValueField) -> Option<&str> {
    match field {
        ValueField::Json(pointer) => Some(pointer),
        ValueField::Header(_) => None,
    }
}

fn tenant_pointer(field: &TenantField) -> Option<&str> {
    match field {
        TenantField::Json(pointer) => Some(pointer),
        TenantField::Header(_) | TenantField::RoutingKey | TenantField::All => None,
    }
}

/// Returns the tokens of a pointer, with `~1` and `~0` resolved.
fn tokens(pointer: &str) -> Vec<String> {
    let tokens = pointer.split('/').skip(1);
    tokens
        .map(|token| token.replace("~1", "/").replace("~0", "~"))
        .collect()
}

/// Returns the value in `body` at each of `pointers`. Of duplicate keys the last one counts.
///
/// # Errors
/// Returns why the body is not JSON.
pub fn find(body: &[u8], pointers: &[&str]) -> Result<Vec<FoundValue>, String> {
    let paths: Vec<Vec<String>> = pointers.iter().map(|pointer| tokens(pointer)).collect();
    let mut found = vec![FoundValue::Missing; paths.len()];
    let wanted = paths
        .iter()
        .enumerate()
        .map(|(index, path)| PendingPointer { index, path });
    let mut reader = serde_json::Deserializer::from_slice(body);
    Seek {
        wanted: wanted.collect(),
        found: &mut found,
    }
    .deserialize(&mut reader)
    .and_then(|()| reader.end())
    .map_err(|why| why.to_string())?;
    Ok(found)
}

/// A pointer, and the rest of its tokens at the current value.
#[derive(Clone, Copy)]
struct PendingPointer<'p> {
    index: usize,
    path: &'p [String],
}

/// Reads a value that is on the path to a wanted value, or is wanted itself.
struct Seek<'p, 'f> {
    wanted: Vec<PendingPointer<'p>>,
    found: &'f mut [FoundValue],
}

impl<'p> Seek<'p, '_> {
    /// Sets `value` for the pointers that end here. The value has no parts, so other pointers find
    /// nothing.
    fn is(self, value: &FoundValue) {
        for PendingPointer { index, path } in self.wanted {
            self.found[index] = match path {
                [] => value.clone(),
                _ => FoundValue::Missing,
            };
        }
    }

    /// Returns the pointers whose next token satisfies `here`.
    fn within(&self, here: impl Fn(&str) -> bool) -> Vec<PendingPointer<'p>> {
        let next = |wanted: &PendingPointer<'p>| match wanted.path {
            [token, path @ ..] if here(token) => Some(PendingPointer {
                index: wanted.index,
                path,
            }),
            _ => None,
        };
        self.wanted.iter().filter_map(next).collect()
    }

    /// Prepares for the parts of a list or an object, which is itself no usable value for any
    /// pointer.
    fn enter(&mut self, kind: &'static str) {
        for PendingPointer { index, path } in &self.wanted {
            self.found[*index] = match path {
                [] => FoundValue::Other(kind),
                _ => FoundValue::Missing,
            };
        }
    }
}

impl<'de> DeserializeSeed<'de> for Seek<'_, '_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seek<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.is(&FoundValue::Missing);
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        self.is(&FoundValue::Other("true or false"));
        Ok(())
    }

    fn visit_i64<E>(self, number: i64) -> Result<(), E> {
        self.is(&FoundValue::Int(number));
        Ok(())
    }

    fn visit_u64<E>(self, number: u64) -> Result<(), E> {
        self.is(&match i64::try_from(number) {
            Ok(number) => FoundValue::Int(number),
            Err(_) => FoundValue::Text(number.to_string()),
        });
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        self.is(&FoundValue::Other("a fraction, or beyond 64 bits"));
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.is(&match text.len() {
            0..=MAX_TEXT => FoundValue::Text(text.to_owned()),
            _ => FoundValue::Other("a text of more than 1,024 bytes"),
        });
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut parts: A) -> Result<(), A::Error> {
        self.enter("a list");
        let last = self.wanted.iter().filter_map(|wanted| {
            let token = wanted.path.first()?;
            // RFC 6901 allows no leading zeros.
            let index = token.parse::<usize>().ok()?;
            (index.to_string() == *token).then_some(index)
        });
        let end = last.max().map_or(0, |last| last.saturating_add(1));
        for index in 0..end {
            let wanted = self.within(|token| *token == index.to_string());
            let more = if wanted.is_empty() {
                parts.next_element::<IgnoredAny>()?.is_some()
            } else {
                let found = &mut *self.found;
                parts.next_element_seed(Seek { wanted, found })?.is_some()
            };
            if !more {
                return Ok(());
            }
        }
        while parts.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut parts: A) -> Result<(), A::Error> {
        self.enter("an object");
        while let Some(wanted) = parts.next_key_seed(KeyReader(&self))? {
            if wanted.is_empty() {
                parts.next_value::<IgnoredAny>()?;
            } else {
                let found = &mut *self.found;
                parts.next_value_seed(Seek { wanted, found })?;
            }
        }
        Ok(())
    }
}

/// Reads a key, and returns the pointers that lead into its value.
struct KeyReader<'s, 'p, 'f>(&'s Seek<'p, 'f>);

impl<'de, 'p> DeserializeSeed<'de> for KeyReader<'_, 'p, '_> {
    type Value = Vec<PendingPointer<'p>>;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<'de, 'p> Visitor<'de> for KeyReader<'_, 'p, '_> {
    type Value = Vec<PendingPointer<'p>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.within(|token| token == key))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// Returns the value at `pointer` in a parsed tree.
    fn in_tree(tree: &Value, pointer: &str) -> FoundValue {
        match tree.pointer(pointer) {
            None | Some(Value::Null) => FoundValue::Missing,
            Some(Value::Bool(_)) => FoundValue::Other("true or false"),
            Some(Value::String(text)) => FoundValue::Text(text.clone()),
            Some(Value::Number(n)) if n.is_f64() => {
                FoundValue::Other("a fraction, or beyond 64 bits")
            }
            Some(Value::Number(n)) => match n.as_i64() {
                Some(n) => FoundValue::Int(n),
                None => FoundValue::Text(n.to_string()),
            },
            Some(Value::Array(_)) => FoundValue::Other("a list"),
            Some(Value::Object(_)) => FoundValue::Other("an object"),
        }
    }

    fn tree() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-1e9..1e9).prop_map(Value::from),
            "[a-c\"\\\\/~é]{0,4}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(("[ab01/~]{0,2}", inner), 0..4)
                    .prop_map(|all| Value::Object(all.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// The results equal those of a parsed tree of the whole body.
        #[test]
        fn found_values_match_a_parsed_tree(
            tree in tree(),
            pointers in prop::collection::vec("(/([ab01]|~0|~1|01){0,2}){0,3}", 1..4),
        ) {
            let body = serde_json::to_vec(&tree).expect("a tree is JSON");
            let pointers: Vec<&str> = pointers.iter().map(String::as_str).collect();
            let expected: Vec<FoundValue> = pointers.iter().map(|at| in_tree(&tree, at)).collect();
            prop_assert_eq!(find(&body, &pointers), Ok(expected));
        }

        #[test]
        fn invalid_json_is_detected(body in "[\\[\\]{}:,0a\"\\\\ -]{0,8}") {
            let tree = serde_json::from_str::<Value>(&body);
            prop_assert_eq!(find(body.as_bytes(), &["/a"]).is_ok(), tree.is_ok());
        }
    }

    #[test]
    fn the_last_of_two_values_counts_as_in_a_tree() {
        for body in [
            r#"{"a":{"b":1},"a":{"b":2}}"#,
            r#"{"a":{"b":1},"a":{}}"#,
            r#"{"a":{"b":1},"a":7}"#,
            r#"{"a":{"b":1},"a":[1]}"#,
        ] {
            let tree: Value = serde_json::from_str(body).expect("JSON");
            let found = find(body.as_bytes(), &["/a/b", "/a"]).expect("JSON");
            assert_eq!(
                found,
                [in_tree(&tree, "/a/b"), in_tree(&tree, "/a")],
                "{body}"
            );
        }
    }

    #[test]
    fn an_unusable_text_is_not_kept() {
        let long = |length| serde_json::to_vec(&"x".repeat(length)).expect("JSON");
        assert_eq!(
            find(&long(1024), &[""]),
            Ok(vec![FoundValue::Text("x".repeat(1024))])
        );
        let other = FoundValue::Other("a text of more than 1,024 bytes");
        assert_eq!(find(&long(1025), &[""]), Ok(vec![other]));
    }
}
