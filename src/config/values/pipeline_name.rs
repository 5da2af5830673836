//! Names of pipelines, and their key in a file.

use std::fmt;
use std::sync::Arc;

use crate::reading::key::PREFIX;
use crate::reading::shown;

/// Key of the mapping from names of pipelines to their sections.
pub(crate) const PIPELINES: &str = "pipelines";
/// Maximum number of pipelines in a file.
pub(crate) const MAX_PIPELINES: usize = 64;
/// Sections that all pipelines of a process share.
pub(crate) const SHARED: [&str; 2] = ["admin", "log"];
/// Name of the pipeline in a file without `pipelines`.
pub const DEFAULT_PIPELINE: &str = "default";
/// Maximum length of a name in bytes.
const MAX_NAME_BYTES: usize = 32;

/// A name of 1 to 32 lower-case letters, digits and single hyphens between them. It can be used
/// unchanged as a label, in a Redis key, and in an environment variable's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PipelineName(Arc<str>);

impl PipelineName {
    /// Parses a name. Returns `None` if `text` is not a valid one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let word = |word: &str| {
            let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            !word.is_empty() && word.chars().all(fits)
        };
        let fits = text.len() <= MAX_NAME_BYTES && text.split('-').all(word);
        fits.then(|| Self(text.into()))
    }

    /// Returns the name of the pipeline in a file without `pipelines`.
    pub fn default_one() -> Self {
        Self(DEFAULT_PIPELINE.into())
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if this is the name of the pipeline in a file without `pipelines`.
    pub fn is_default(&self) -> bool {
        &*self.0 == DEFAULT_PIPELINE
    }

    /// Returns the prefix of environment variables that set this pipeline's keys.
    pub(crate) fn env_prefix(&self) -> String {
        let name = self.0.replace('-', "_").to_uppercase();
        format!("{PREFIX}PIPELINES__{name}__")
    }
}

impl fmt::Display for PipelineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Pattern of names.
const PATTERN: &str = "^[a-z0-9]+(-[a-z0-9]+)*$";

/// Returns why `text` is not a valid name.
pub(crate) fn wrong_name(text: &str) -> String {
    format!(
        "{} is not a valid pipeline name; it must be 1 to {MAX_NAME_BYTES} letters a-z and \
        digits, with single hyphens between them, such as orders or orders-bulk",
        shown(text)
    )
}

/// Returns the JSON schema of names.
pub(crate) fn names_schema() -> serde_json::Value {
    serde_json::json!({"pattern": PATTERN, "maxLength": MAX_NAME_BYTES})
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
