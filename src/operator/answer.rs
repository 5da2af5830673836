//! The answers of `/api/v1` and of `--json`. The fields of one type define the JSON of an answer,
//! its schema in docs/openapi.json, and the values that the page reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A type with a JSON schema.
pub trait Schema {
    /// Whether a field of this type is left out if it has no value.
    const IS_OPTIONAL: bool = false;

    /// Returns the schema of a field of this type.
    fn schema() -> Value;

    /// Returns true if the field is left out.
    fn is_absent(&self) -> bool {
        false
    }
}

/// A field of an object: its name, its schema, and whether it can be absent.
pub type Field = (&'static str, Value, bool);

/// An object with fixed fields.
pub trait Answer: Serialize {
    /// Returns the answer as JSON.
    fn as_json(&self) -> Value {
        serde_json::to_value(self).expect("each field can be written")
    }

    /// Returns all fields, also shared ones.
    fn fields() -> Vec<Field>;

    /// Returns the schema of an object with these fields and no others.
    fn definition() -> Value {
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for (name, schema, is_optional) in Self::fields() {
            properties.insert(name.to_owned(), schema);
            if !is_optional {
                required.push(name);
            }
        }
        required.sort_unstable();
        json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        })
    }
}

/// Defines answers as structs. `pub struct A: B` has the fields of `B` as well. `as "NAME"` names
/// the schema, so that other schemas can refer to it.
#[macro_export]
macro_rules! answers {
    ($(
        $(#[$attribute:meta])*
        pub struct $name:ident $(as $component:literal)? $(: $base:ident)? {
            $($(#[doc = $about:literal])* pub $field:ident: $type:ty,)*
        }
    )+) => {$(
        $(#[$attribute])*
        #[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
        pub struct $name {
            $(
                /// The fields that it shares with others.
                #[serde(flatten)]
                pub base: $base,
            )?
            $(
                $(#[doc = $about])*
                #[serde(skip_serializing_if = "operator::answer::Schema::is_absent")]
                pub $field: $type,
            )*
        }

        impl $crate::answer::Answer for $name {
            fn fields() -> Vec<$crate::answer::Field> {
                use $crate::answer::Schema;
                let own = [$((
                    stringify!($field),
                    <$type as Schema>::schema(),
                    <$type as Schema>::IS_OPTIONAL,
                )),*];
                [$(<$base as $crate::answer::Answer>::fields(),)? own.to_vec()].concat()
            }
        }

        impl $crate::answer::Schema for $name {
            fn schema() -> serde_json::Value {
                let name: Option<&str> = None $(.or(Some($component)))?;
                match name {
                    Some(name) => serde_json::json!({
                        "$ref": format!("#/components/schemas/{name}"),
                    }),
                    None => <Self as $crate::answer::Answer>::definition(),
                }
            }
        }

        $(
            impl std::ops::Deref for $name {
                type Target = $base;

                fn deref(&self) -> &$base {
                    &self.base
                }
            }
        )?
    )+};
}
pub use answers;

/// Defines string types with a few possible values, or with a single one.
#[macro_export]
macro_rules! words {
    ($($(#[doc = $doc:literal])* pub struct $name:ident = $words:expr;)+) => {$(
        $(#[doc = $doc])*
        #[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl From<&'static str> for $name {
            fn from(word: &'static str) -> Self {
                Self(word.to_owned())
            }
        }

        impl $crate::answer::Schema for $name {
            fn schema() -> serde_json::Value {
                match $words.as_slice() {
                    [only] => serde_json::json!({"const": only}),
                    words => serde_json::json!({"enum": words}),
                }
            }
        }
    )+};
}
pub use words;

/// A field that is always `true`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AlwaysTrue(pub bool);

impl Schema for AlwaysTrue {
    fn schema() -> Value {
        json!({"const": true})
    }
}

/// A value that is left out if there is none. An `Option` is `null` instead.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Omittable<T>(pub Option<T>);

impl<T: Schema> Schema for Omittable<T> {
    const IS_OPTIONAL: bool = true;

    fn schema() -> Value {
        T::schema()
    }

    fn is_absent(&self) -> bool {
        self.0.is_none()
    }
}

impl<T: Schema> Schema for Option<T> {
    fn schema() -> Value {
        let mut schema = T::schema();
        let is_bare = schema.as_object().is_some_and(|schema| schema.len() == 1);
        if is_bare && let Some(name) = schema["type"].as_str() {
            return json!({"type": [name, "null"]});
        }
        if let Some(words) = schema.get_mut("enum").and_then(Value::as_array_mut) {
            words.push(Value::Null);
            return schema;
        }
        json!({"anyOf": [schema, {"type": "null"}]})
    }
}

impl<T: Schema> Schema for Vec<T> {
    fn schema() -> Value {
        json!({"type": "array", "items": T::schema()})
    }
}

impl<T> Schema for BTreeMap<String, T> {
    fn schema() -> Value {
        json!({"type": "object"})
    }
}

/// Implements [`Schema`] for types whose schema is only the name of a JSON type.
macro_rules! simple {
    ($($type:ty: $name:literal,)+) => {$(
        impl Schema for $type {
            fn schema() -> Value {
                json!({"type": $name})
            }
        }
    )+};
}
simple! {
    String: "string",
    bool: "boolean",
    u32: "integer",
    u64: "integer",
    i64: "integer",
    f64: "number",
    Map<String, Value>: "object",
}
