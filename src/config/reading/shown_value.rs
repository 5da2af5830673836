//! The effective configuration as a file: each key with its value, without secrets.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::key::ConfigKey;
use super::yaml::{Raw, YamlField};
use rules::job::{TenantField, ValueField};
use rules::named::Named;
use rules::text::show_duration;

/// Value of a key, as written in a file. Two values are equal only if their secrets are, too.
#[derive(Clone, PartialEq)]
pub(crate) enum ShownValue {
    /// A value that needs no quotes in YAML: a number, a duration, a name.
    Bare(String),
    /// A text, which is quoted.
    Text(String),
    /// A text that is shown as another one.
    Secret { shown: String, secret: String },
    /// A mapping of keys, as written, to values.
    Map(Vec<(String, ShownValue)>),
    /// A list.
    List(Vec<ShownValue>),
}

impl ShownValue {
    /// Creates the name of `value`.
    pub(crate) fn named(value: &impl Named) -> Self {
        Self::bare(value.name())
    }

    /// Creates a number or a name.
    pub fn bare(value: impl fmt::Display) -> Self {
        Self::Bare(value.to_string())
    }

    /// Creates a text.
    pub fn text(value: impl fmt::Display) -> Self {
        Self::Text(value.to_string())
    }

    /// Creates a duration.
    pub fn duration(value: Duration) -> Self {
        Self::Bare(show_duration(value))
    }

    /// Creates a duration of `ms` milliseconds.
    pub fn millis(ms: u64) -> Self {
        Self::duration(Duration::from_millis(ms))
    }

    /// Creates a path.
    pub fn path(path: &Path) -> Self {
        Self::text(path.display())
    }

    /// Creates a text that is not shown.
    pub fn hidden(secret: &str) -> Self {
        Self::Secret {
            shown: "***".to_owned(),
            secret: secret.to_owned(),
        }
    }

    /// Creates a list of texts.
    pub fn texts(texts: &[String]) -> Self {
        let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
        Self::Bare(format!("[{}]", texts.join(", ")))
    }

    /// Creates a mapping with our own keys.
    pub fn map(entries: impl IntoIterator<Item = (&'static str, Self)>) -> Self {
        let entries = entries.into_iter();
        Self::Map(
            entries
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
        )
    }

    /// Creates a mapping with the user's names, which are quoted.
    pub fn names<N: fmt::Display>(entries: impl IntoIterator<Item = (N, Self)>) -> Self {
        let entries = entries.into_iter();
        Self::Map(
            entries
                .map(|(name, value)| (quoted(&name.to_string()), value))
                .collect(),
        )
    }

    /// Creates a mapping of the user's names to weights.
    pub fn weights<N: fmt::Display, W: fmt::Display>(
        entries: impl IntoIterator<Item = (N, W)>,
    ) -> Self {
        let entries = entries.into_iter();
        Self::names(entries.map(|(name, weight)| (name, Self::bare(weight))))
    }

    /// Writes the value behind its key, which is indented by `indent`.
    fn write(&self, f: &mut fmt::Formatter<'_>, indent: usize) -> fmt::Result {
        match self {
            Self::Bare(text) => writeln!(f, " {text}"),
            Self::Text(text) | Self::Secret { shown: text, .. } => {
                writeln!(f, " {}", quoted(text))
            }
            Self::Map(entries) => {
                writeln!(f)?;
                entries.iter().try_for_each(|(key, value)| {
                    write!(f, "{:indent$}  {key}:", "")?;
                    value.write(f, indent + 2)
                })
            }
            Self::List(items) => {
                writeln!(f)?;
                items
                    .iter()
                    .try_for_each(|item| item.write_item(f, indent + 2))
            }
        }
    }

    /// Writes an item of a list, whose `-` is indented by `indent`.
    fn write_item(&self, f: &mut fmt::Formatter<'_>, indent: usize) -> fmt::Result {
        let Self::Map(entries) = self else {
            write!(f, "{:indent$}-", "")?;
            return self.write(f, indent);
        };
        for (index, (key, value)) in entries.iter().enumerate() {
            let dash = if index == 0 { "-" } else { " " };
            write!(f, "{:indent$}{dash} {key}:", "")?;
            value.write(f, indent + 2)?;
        }
        Ok(())
    }
}

/// A value of a key, as it is written in a file.
pub(crate) trait Show {
    /// Returns the written value, or `None` if the key is not set.
    fn shown(&self) -> Option<ShownValue>;
}

/// Implements [`Show`] for types that `$show` turns into a [`ShownValue`].
macro_rules! show {
    ($show:expr => $($type:ty),+) => {
        $(impl $crate::reading::shown_value::Show for $type {
            fn shown(&self) -> Option<$crate::reading::shown_value::ShownValue> {
                Some($show(self))
            }
        })+
    };
}
pub(crate) use show;

show!(ShownValue::bare => bool, u16, u32, usize);
show!(ShownValue::text => String, SocketAddr, TenantField, ValueField);
show!(ShownValue::clone => ShownValue);
show!(|path: &Path| ShownValue::path(path) => PathBuf);
show!(|value: &Duration| ShownValue::duration(*value) => Duration);

impl<T: Show> Show for Option<T> {
    fn shown(&self) -> Option<ShownValue> {
        self.as_ref()?.shown()
    }
}

impl Show for Vec<String> {
    fn shown(&self) -> Option<ShownValue> {
        (!self.is_empty()).then(|| ShownValue::texts(self))
    }
}

impl Show for Raw {
    fn shown(&self) -> Option<ShownValue> {
        Some(match self {
            // No valid value has a fraction.
            Self::Null | Self::Float => ShownValue::bare("null"),
            Self::Bool(value) => ShownValue::bare(value),
            Self::Int(value) => ShownValue::bare(value),
            Self::Text(text) => ShownValue::text(text),
            Self::List(items) if items.is_empty() => ShownValue::bare("[]"),
            Self::List(items) => {
                ShownValue::List(items.iter().filter_map(|item| item.raw.shown()).collect())
            }
            Self::Map(fields) if fields.is_empty() => ShownValue::bare("{}"),
            Self::Map(fields) => {
                let field = |field: &YamlField| Some((field.name.clone(), field.raw.shown()?));
                ShownValue::names(fields.iter().filter_map(field))
            }
        })
    }
}

/// Returns `text` as a double-quoted YAML scalar.
fn quoted(text: &str) -> String {
    let escape = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        // YAML parsers may not accept characters that Rust escapes.
        c if !c.is_ascii() && c.escape_debug().count() > 1 => format!("\\U{:08x}", u32::from(c)),
        c => c.to_string(),
    };
    let text: String = text.chars().map(escape).collect();
    format!("\"{text}\"")
}

/// Values of a configuration by the paths of their keys. A key that is not set has none.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct ShownValues(BTreeMap<&'static str, ShownValue>);

impl fmt::Debug for ShownValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShownValues")
    }
}

impl ShownValues {
    /// Sets `key` to `value`, or to none. A secret is hidden, unless its type shows a part of it.
    pub fn set(&mut self, key: &ConfigKey, value: &impl Show) {
        match value.shown() {
            Some(ShownValue::Bare(text) | ShownValue::Text(text)) if key.secret => {
                self.0.insert(key.path, ShownValue::hidden(&text))
            }
            Some(value) => self.0.insert(key.path, value),
            None => self.0.remove(key.path),
        };
    }

    /// Removes the keys whose paths begin with `begin`, for a section that is not used.
    pub fn drop_section(&mut self, begin: &str) {
        self.0.retain(|path, _| !path.starts_with(begin));
    }

    /// Takes the values that `new` has for `keys`.
    pub fn take<'k>(&mut self, keys: impl Iterator<Item = &'k &'static ConfigKey>, new: &Self) {
        keys.for_each(|key| self.set(key, &new.get(key).cloned()));
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &ConfigKey) -> Option<&ShownValue> {
        self.0.get(key.path)
    }

    /// Writes the set keys among `keys` as a file, indented by `indent`.
    pub fn write(
        &self,
        f: &mut fmt::Formatter<'_>,
        keys: &[&ConfigKey],
        indent: usize,
    ) -> fmt::Result {
        let mut open: Vec<&str> = Vec::new();
        for key in keys {
            let Some(value) = self.get(key) else {
                continue;
            };
            let mut sections: Vec<&str> = key.path.split('.').collect();
            sections.pop();
            let same = open.iter().zip(&sections).take_while(|(a, b)| a == b);
            let same = same.count();
            for (depth, section) in sections.iter().enumerate().skip(same) {
                writeln!(f, "{:1$}{section}:", "", indent + depth * 2)?;
            }
            let indent = indent + sections.len() * 2;
            write!(f, "{:indent$}{}:", "", key.name())?;
            value.write(f, indent)?;
            open = sections;
        }
        Ok(())
    }
}
