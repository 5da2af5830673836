//! What is wrong with a configuration, where, and what to do; never a secret.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// A line and a column, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub line: u64,
    pub column: u64,
}

/// Where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// In a file.
    File {
        /// The file's name, as the user gave it.
        name: Arc<str>,
        /// From 1.
        line: u64,
        /// From 1.
        column: u64,
    },
    /// In a file that could not be read.
    WholeFile(Arc<str>),
    /// By an environment variable.
    Env(String),
    /// Nowhere: the default.
    Default,
}

impl Origin {
    /// The origin of what is at `position` in the value that this one is of.
    pub(super) fn inside(&self, position: Position) -> Self {
        match self {
            Self::File { name, .. } => Self::File {
                name: Arc::clone(name),
                line: position.line,
                column: position.column,
            },
            other => other.clone(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { name, line, column } => write!(f, "{}:{line}:{column}", line_of(name)),
            Self::WholeFile(name) => f.write_str(&line_of(name)),
            Self::Env(name) => write!(f, "environment variable {}", variable(name)),
            Self::Default => f.write_str("default"),
        }
    }
}

/// `text` as a part of one line: keys, values and names come from the user, who may have put anything into them.
fn line_of(text: &str) -> Cow<'_, str> {
    match text.contains(char::is_control) {
        true => text.escape_debug().to_string().into(),
        false => text.into(),
    }
}

/// The name of a variable, up to what no name has: `NAME:VALUE` sets a variable of that name, and the value may be secret.
fn variable(name: &str) -> Cow<'_, str> {
    match name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        Some(end) => format!("{}…", &name[..end]).into(),
        None => name.into(),
    }
}

/// One thing that is wrong, on one line: `sluicegate.yaml:12:3: rate-limiter.window-size: is 0; …`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {message}")]
pub struct Problem {
    origin: Origin,
    message: String,
}

impl Problem {
    pub(super) fn new(origin: Origin, message: impl Into<String>) -> Self {
        let message = line_of(&message.into()).into_owned();
        Self { origin, message }
    }

    pub(super) fn of(origin: &Origin, key: &str, message: impl fmt::Display) -> Self {
        Self::new(origin.clone(), format!("{key}: {message}"))
    }

    /// The same, with `prefix` before the key that it names first.
    pub(super) fn within(mut self, prefix: &str) -> Self {
        self.message.insert_str(0, prefix);
        self
    }

    /// Where it is wrong.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }
}

/// Everything that is wrong with a configuration, in the order of the file; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(Vec<Problem>);

impl ConfigErrors {
    /// Keeps `problems`, those of the file first and in its order.
    pub(super) fn new(mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| match problem.origin {
            Origin::File { line, column, .. } => (0, line, column),
            Origin::WholeFile(_) => (0, 0, 0),
            Origin::Env(_) => (1, 0, 0),
            Origin::Default => (2, 0, 0),
        });
        Self(problems)
    }

    /// One for each line of the output.
    #[doc(hidden)]
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// A value for an error's text: quoted, cut, and hidden when it may hold a password.
pub(super) fn shown(text: &str) -> String {
    const LONGEST: usize = 60;
    if text.contains("://") || text.contains('@') {
        return "a text that is not shown, since it may hold a password".to_owned();
    }
    if text.chars().count() > LONGEST {
        let start: String = text.chars().take(LONGEST).collect();
        return format!("{start:?}…");
    }
    format!("{text:?}")
}
