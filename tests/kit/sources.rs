//! The repository's own files, for tests that read them.

use std::fs;
use std::path::PathBuf;

use crate::root;

/// A file of the repository.
#[derive(Debug, Clone)]
pub struct File {
    /// The path from the repository's root, with `/`.
    pub path: String,
    /// The complete text.
    pub text: String,
}

impl File {
    /// Creates a file for tests of the rules themselves.
    pub fn new(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    /// Returns the Rust code without comment lines and unit tests, with line numbers.
    pub fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut tests = TestItems::default();
        self.text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line))
            .filter(|(_, line)| !line.trim().is_empty() && !line.trim_start().starts_with("//"))
            .filter(move |(_, line)| !tests.have(line))
    }
}

/// Tracks items with `#[cfg(test)]`. By rustfmt's indentation, an item ends in its first line, or
/// in the next line that closes something and begins in the item's column.
#[derive(Default, Clone, Copy)]
enum TestItems {
    #[default]
    Outside,
    /// After the attribute, which begins at this column, and before the item's first line or more
    /// attributes.
    Before(usize),
    /// In an item that begins at this column.
    Inside(usize),
}

impl TestItems {
    /// Returns true if the next line belongs to such an item.
    fn have(&mut self, line: &str) -> bool {
        let column = line.len() - line.trim_start().len();
        let line = line.trim();
        *self = match *self {
            Self::Outside if line == "#[cfg(test)]" => Self::Before(column),
            Self::Outside => return false,
            Self::Before(from) if line.starts_with("#[") => Self::Before(from),
            Self::Before(_) if line.ends_with([';', '}', ',']) => Self::Outside,
            Self::Before(from) => Self::Inside(from),
            Self::Inside(from)
                if column == from
                    && line.starts_with(['}', ')', ']'])
                    && !line.ends_with(['{', '(', '[']) =>
            {
                Self::Outside
            }
            inside => inside,
        };
        true
    }
}

/// Returns every file under `folders` whose name ends with `end`.
/// # Panics
/// If there are none.
pub fn files(folders: &[&str], end: &str) -> Vec<File> {
    let root = root();
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).expect("the folder is there") {
            let path = entry.expect("the folder can be read").path();
            let name = path.strip_prefix(root).expect("it is below the root");
            let name = name.to_str().expect("our names are UTF-8").to_owned();
            if path.is_dir() {
                open.push(path);
            } else if name.ends_with(end) {
                let text = fs::read_to_string(&path).expect("it is text");
                found.push(File { path: name, text });
            }
        }
    }
    assert!(!found.is_empty(), "no {end} files under {folders:?}");
    found
}

/// Returns the current text of a page. It is read at run time, so a changed page requires no
/// compilation.
///
/// # Panics
/// If it does not exist.
pub fn page(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// Returns the section of a page with this heading.
///
/// # Panics
/// If there is none.
pub fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let begin = format!("\n## {heading}\n");
    let (_, rest) = page.split_once(&begin).expect("the section");
    rest.split_once("\n## ")
        .map_or(rest, |(section, _)| section)
}

/// Returns the texts in backticks in `text`.
pub fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the words of the rule for Redis in docs/DEPLOYMENT.md, after the password.
///
/// # Panics
/// If the rule is missing.
pub fn documented_rule() -> Vec<&'static str> {
    let document: &str = page("docs/DEPLOYMENT.md").leak();
    let rule = document
        .lines()
        .find(|line| line.starts_with("ACL SETUSER"));
    let words = rule.expect("a rule").split(' ').skip(5).collect::<Vec<_>>();
    assert_eq!(words[..3], ["resetkeys", "~rlaas:rate_limit:*", "-@all"]);
    words
}
