//! What pipelines are called, and where a file has them.

use std::fmt;
use std::sync::Arc;

use super::error::shown;
use super::key::PREFIX;

/// The key of the map from names of pipelines to their sections.
pub(super) const PIPELINES: &str = "pipelines";
/// So many pipelines are in one file at most.
pub(super) const MOST_PIPELINES: usize = 64;
/// Sections of which a process has one.
pub(super) const SHARED: [&str; 2] = ["admin", "log"];
/// The pipeline that a file without `pipelines` is.
pub const DEFAULT_PIPELINE: &str = "default";
/// The longest name, in bytes.
const LONGEST: usize = 32;

/// A name of 1 to 32 lower-case letters, digits and single hyphens between them, so that it is a label, a part of a key in Redis and
/// a part of a variable's name as it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PipelineName(Arc<str>);

impl PipelineName {
    /// `None`: `text` is no name.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let word = |word: &str| {
            let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            !word.is_empty() && word.chars().all(fits)
        };
        let fits = text.len() <= LONGEST && text.split('-').all(word);
        fits.then(|| Self(text.into()))
    }

    /// That of a file without `pipelines`.
    pub fn default_one() -> Self {
        Self(DEFAULT_PIPELINE.into())
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// It is the one that a file without `pipelines` is.
    pub fn is_default(&self) -> bool {
        &*self.0 == DEFAULT_PIPELINE
    }

    /// What the names of the environment variables that set its keys begin with.
    pub(super) fn env_prefix(&self) -> String {
        let name = self.0.replace('-', "_").to_uppercase();
        format!("{PREFIX}PIPELINES__{name}__")
    }
}

impl fmt::Display for PipelineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a name must be.
const PATTERN: &str = "^[a-z0-9]+(-[a-z0-9]+)*$";

/// Why `text` is no name.
pub(super) fn wrong_name(text: &str) -> String {
    format!(
        "{} is no name of a pipeline; it must be 1 to {LONGEST} letters a-z and digits, with single hyphens between them, such as orders or orders-bulk",
        shown(text)
    )
}

/// The names as a JSON schema.
pub(super) fn names_schema() -> serde_json::Value {
    serde_json::json!({"pattern": PATTERN, "maxLength": LONGEST})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_as_a_label_a_key_and_a_variable() {
        for name in ["a", "orders", "orders-bulk", "3", "a-1-b", &"x".repeat(32)] {
            let parsed = PipelineName::parse(name).map(|name| name.to_string());
            assert_eq!(parsed.as_deref(), Some(name));
        }
        for name in [
            "",
            "-",
            "a-",
            "-a",
            "a--b",
            "A",
            "a_b",
            "a.b",
            "a:b",
            "a b",
            "ä",
            "%a",
            "{a}",
            &"x".repeat(33),
        ] {
            assert_eq!(PipelineName::parse(name), None, "{name}");
            assert!(wrong_name(name).contains("such as orders"));
        }
        let name = PipelineName::parse("orders-bulk").expect("a name");
        let begin = "SLUICEGATE_PIPELINES__ORDERS_BULK__";
        assert_eq!(name.env_prefix(), begin);
    }
}
