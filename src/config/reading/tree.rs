//! The values in a list or a mapping that is read as a whole.

use super::error::{ConfigProblem, Origin};
use super::yaml::Raw;

/// Maximum length in bytes of a name that is shown in a path.
const MAX_SHOWN_BYTES: usize = 256;

/// A value in the configuration, with its name, place, and path for errors.
#[derive(Debug, Clone)]
pub(crate) struct Node<'r> {
    /// Its name in a mapping, or empty.
    pub name: &'r str,
    pub raw: &'r Raw,
    pub at: Origin,
    pub path: String,
}

impl<'r> Node<'r> {
    /// Creates the node of a key or of a whole file.
    pub(crate) fn new(raw: &'r Raw, at: Origin, path: &str) -> Self {
        Self {
            name: "",
            raw,
            at,
            path: path.to_owned(),
        }
    }

    /// Returns the node with the name `name`.
    pub(crate) fn named(self, name: &'r str) -> Self {
        Self { name, ..self }
    }

    /// Returns a problem of the value.
    pub(crate) fn wrong(&self, words: impl std::fmt::Display) -> ConfigProblem {
        ConfigProblem::of(&self.at, &self.path, words)
    }

    /// Returns the fields of a mapping, or none of another value. A name that may contain a secret,
    /// such as a URL, is `…` in the path.
    pub(crate) fn fields(&self) -> Vec<Self> {
        let Raw::Map(fields) = self.raw else {
            return Vec::new();
        };
        let fields = fields.iter().map(|field| {
            let is_long = field.name.len() > MAX_SHOWN_BYTES;
            let shown = match is_long || field.name.contains("://") {
                true => "…",
                false => &field.name,
            };
            Self {
                name: &field.name,
                raw: &field.raw,
                at: self.at.inside(field.at),
                path: format!("{}.{shown}", self.path),
            }
        });
        fields.collect()
    }

    /// Returns the field called `name` of a mapping.
    pub(crate) fn field(&self, name: &str) -> Option<Self> {
        self.fields().into_iter().find(|field| field.name == name)
    }

    /// Returns the items of a list, or none of another value.
    pub(crate) fn items(&self) -> Vec<Self> {
        let Raw::List(items) = self.raw else {
            return Vec::new();
        };
        let items = items.iter().enumerate().map(|(index, item)| Self {
            name: "",
            raw: &item.raw,
            at: self.at.inside(item.at),
            path: format!("{}[{index}]", self.path),
        });
        items.collect()
    }
}
