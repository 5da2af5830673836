//! Problems of a configuration: the mistake, its position, and how to fix it. They never contain a
//! secret.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// A line and a column, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line of the file.
    pub line: u64,
    /// Column of the line.
    pub column: u64,
}

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A place in a file.
    File {
        /// Name of the file as the user gave it.
        name: Arc<str>,
        /// The place.
        at: Position,
    },
    /// A file that could not be read.
    WholeFile(Arc<str>),
    /// An environment variable.
    Env(String),
    /// The key's default.
    Default,
}

impl Origin {
    /// Returns the origin of a nested value at `at`.
    pub(crate) fn inside(&self, at: Position) -> Self {
        match self {
            Self::File { name, .. } => Self::File {
                name: Arc::clone(name),
                at,
            },
            other => other.clone(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { name, at } => {
                write!(f, "{}:{}:{}", escape_line(name), at.line, at.column)
            }
            Self::WholeFile(name) => f.write_str(&escape_line(name)),
            Self::Env(name) => write!(f, "environment variable {}", variable(name)),
            Self::Default => f.write_str("default"),
        }
    }
}

/// Escapes `text` so that it stays on one line. Keys, values and names come from the user and may
/// contain anything.
fn escape_line(text: &str) -> Cow<'_, str> {
    match text.contains(char::is_control) {
        true => text.escape_debug().to_string().into(),
        false => text.into(),
    }
}

/// Returns the name of a variable up to the first character that no name has. A variable set as
/// `NAME:VALUE` has all of that as its name, and the value may be secret.
fn variable(name: &str) -> Cow<'_, str> {
    match name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        Some(end) => format!("{}…", &name[..end]).into(),
        None => name.into(),
    }
}

/// A problem, on one line: `sluicegate.yaml:12:3: rate-limiter.window-size: is 0; …`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {message}")]
pub struct ConfigProblem {
    origin: Origin,
    message: String,
}

impl ConfigProblem {
    pub(crate) fn new(origin: Origin, message: impl Into<String>) -> Self {
        let message = escape_line(&message.into()).into_owned();
        Self { origin, message }
    }

    pub(crate) fn of(origin: &Origin, key: &str, message: impl fmt::Display) -> Self {
        Self::new(origin.clone(), format!("{key}: {message}"))
    }

    /// Prepends `prefix` to the key at the start of the message.
    pub(crate) fn within(mut self, prefix: &str) -> Self {
        self.message.insert_str(0, prefix);
        self
    }

    /// Returns where the problem is.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }
}

/// All problems of a configuration, in the order of the file; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigProblem>);

impl ConfigErrors {
    /// Keeps `problems`, starting with those of the file in its order.
    pub(crate) fn new(mut problems: Vec<ConfigProblem>) -> Self {
        problems.sort_by_key(|problem| match problem.origin {
            Origin::WholeFile(_) => (0, None),
            Origin::File { at, .. } => (0, Some(at)),
            Origin::Env(_) => (1, None),
            Origin::Default => (2, None),
        });
        Self(problems)
    }

    /// Returns the problems, one for each line of the output.
    #[doc(hidden)]
    pub fn problems(&self) -> &[ConfigProblem] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(ConfigProblem::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

/// Formats a value for an error: quoted, shortened, and hidden if it may contain a password.
pub(crate) fn shown(text: &str) -> String {
    const MAX_SHOWN_CHARS: usize = 60;
    if text.contains("://") || text.contains('@') {
        return "a text that is not shown, since it may contain a password".to_owned();
    }
    if text.chars().count() > MAX_SHOWN_CHARS {
        let start: String = text.chars().take(MAX_SHOWN_CHARS).collect();
        return format!("{start:?}…");
    }
    format!("{text:?}")
}
