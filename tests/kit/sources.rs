//! The repository's own files, for tests that read them.

use std::fs;
use std::path::PathBuf;

use crate::root;

/// A file of the repository.
pub struct File {
    /// From the repository's root, with `/`.
    pub path: String,
    /// Whole.
    pub text: String,
}

impl File {
    /// For tests of what is said of files.
    pub fn new(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    /// Rust without comment lines and without what is there for unit tests alone, with the lines' numbers.
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

/// The items behind `#[cfg(test)]`. Where one ends is seen by rustfmt's indentation: in its first line, or in the next one that
/// closes something and begins where the item did.
#[derive(Default, Clone, Copy)]
enum TestItems {
    #[default]
    Outside,
    /// Behind the attribute, which begins at this column: the item's first line comes, or more attributes.
    Before(usize),
    /// In an item that begins at this column.
    Inside(usize),
}

impl TestItems {
    /// Whether the next line belongs to one.
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

/// Every file under `folders` whose name ends with `end`.
/// # Panics
/// Where there are none.
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

/// The text of a page, as it is now: a page that was renewed compiles nothing anew.
///
/// # Panics
/// When it is not there.
pub fn page(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// The section of a page with this heading.
///
/// # Panics
/// When there is none.
pub fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let begin = format!("\n## {heading}\n");
    let (_, rest) = page.split_once(&begin).expect("the section");
    rest.split_once("\n## ")
        .map_or(rest, |(section, _)| section)
}

/// What stands in backticks in `text`.
pub fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The words of the rule for Redis in docs/DEPLOYMENT.md, after the password.
///
/// # Panics
/// When it is not there.
pub fn documented_rule() -> Vec<&'static str> {
    let document: &str = page("docs/DEPLOYMENT.md").leak();
    let rule = document
        .lines()
        .find(|line| line.starts_with("ACL SETUSER"));
    let words = rule.expect("a rule").split(' ').skip(5).collect::<Vec<_>>();
    assert_eq!(words[..3], ["resetkeys", "~rlaas:rate_limit:*", "-@all"]);
    words
}
