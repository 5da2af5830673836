//! What was set, by whom: a value by its key, from the environment, the file or the defaults, or from the file that it names.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::error::{Origin, Problem, shown};
use super::file::Entry;
use super::form::{self, Wrong};
use super::keys;
use super::yaml::{self, Raw};

/// The largest file with a secret, in bytes.
pub(super) const LONGEST_SECRET: u64 = 16 << 10;

/// What was set, by whom, and what was found wrong so far.
pub(super) struct Values {
    pub file: Vec<Entry>,
    pub env: Vec<Entry>,
    pub folder: PathBuf,
    pub problems: Vec<Problem>,
}

impl Values {
    pub(super) fn entry(&self, key: &str) -> Option<&Entry> {
        let find = |entries: &'_ [Entry]| entries.iter().position(|entry| entry.path == key);
        match find(&self.env) {
            Some(at) => self.env.get(at),
            None => self.file.get(find(&self.file)?),
        }
    }

    pub(super) fn origin(&self, key: &str) -> Origin {
        self.entry(key)
            .map_or(Origin::Default, |entry| entry.at.clone())
    }

    pub(super) fn wrong<T>(&mut self, key: &str, words: impl std::fmt::Display) -> Option<T> {
        let problem = Problem::of(&self.origin(key), key, words);
        self.problems.push(problem);
        None
    }

    /// The value of `key`, or of its default; `None` after a problem, which is kept.
    pub(super) fn get<T>(
        &mut self,
        key: &str,
        parse: impl FnOnce(&Raw) -> Result<T, Wrong>,
    ) -> Option<T> {
        let parsed = match self.entry(key) {
            Some(entry) => parse(&entry.raw),
            None => {
                let default = keys::find(key)?.default?;
                parse(&Raw::Text(default.to_owned()))
            }
        };
        match parsed {
            Ok(value) => Some(value),
            Err(words) => self.wrong(key, words),
        }
    }

    /// What `read` makes of the secret at `key`, or in the file that `file_key` names; `Some(None)`: neither is set and
    /// there is no default. The environment's pair wins over the file's. With `several` a list may stand there, which
    /// is read with commas between its urls. `must` says what it must be, and nothing says what it is.
    pub(super) fn secret<T>(
        &mut self,
        key: &'static str,
        file_key: &'static str,
        must: &str,
        several: bool,
        read: impl Fn(&str) -> Result<T, Wrong>,
    ) -> Option<Option<T>> {
        let pair = |entries: &[Entry]| {
            let of = |key| entries.iter().find(|entry| entry.path == key).cloned();
            match (of(key), of(file_key)) {
                (None, None) => None,
                pair => Some(pair),
            }
        };
        let (url, file) = match pair(&self.env).or_else(|| pair(&self.file)) {
            Some((Some(_), Some(file))) => {
                let words = format!("{key} is set too; keep one of them");
                self.problems.push(Problem::of(&file.at, file_key, words));
                return None;
            }
            Some(pair) => pair,
            None => (None, None),
        };
        let (at, name, parsed) = match (url, file) {
            (Some(entry), _) => {
                let text = match &entry.raw {
                    Raw::Text(text) => Ok(text.clone()),
                    Raw::List(urls) if several => yaml::joined(urls)
                        .ok_or_else(|| format!("holds no urls alone; each must be {must}")),
                    Raw::List(_) => Err(format!("is a list; it must be {must}")),
                    Raw::Null => Err(format!("is empty; it must be {must}")),
                    _ => Err(format!(
                        "is no text (numbers need quotes); it must be {must}"
                    )),
                };
                let parsed = text.and_then(|text| read(&text));
                (entry.at, key, parsed)
            }
            (None, Some(entry)) => {
                let what = "the path of a file that holds it";
                let text = self.named_file(&entry, what, LONGEST_SECRET);
                let parsed = text.and_then(|(_, text)| {
                    read(&text).map_err(|words| format!("the text of the file {words}"))
                });
                (entry.at, file_key, parsed)
            }
            (None, None) => {
                let default = keys::find(key)?.default;
                return Some(default.and_then(|url| read(url).ok()));
            }
        };
        match parsed {
            Ok(url) => Some(Some(url)),
            Err(words) => {
                self.problems.push(Problem::of(&at, name, words));
                None
            }
        }
    }

    /// The file that `entry` names. A path in the file starts from the file's folder, one in a variable from
    /// the working directory.
    pub(super) fn path_of(&self, entry: &Entry, must: &str) -> Result<PathBuf, Wrong> {
        let name = form::text(&entry.raw, must)?;
        Ok(match entry.at {
            Origin::Env(_) => PathBuf::from(name),
            _ => self.folder.join(name),
        })
    }

    /// The name of the file that `entry` names, and its text without the newline at its end.
    pub(super) fn named_file(
        &self,
        entry: &Entry,
        must: &str,
        longest: u64,
    ) -> Result<(String, String), Wrong> {
        let (name, path) = (form::text(&entry.raw, must)?, self.path_of(entry, must)?);
        let text = read_bounded(&path, longest)
            .map_err(|err| format!("{} can't be read: {err}", shown(name)))?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let text = line.strip_suffix('\r').unwrap_or(line).to_owned();
        Ok((name.to_owned(), text))
    }
}

/// The text of the file at `path`; an error above `limit` bytes.
pub(super) fn read_bounded(path: &Path, limit: u64) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(std::io::Error::other(format!(
            "it is larger than {limit} bytes"
        )));
    }
    String::from_utf8(bytes).map_err(|_| std::io::Error::other("it is not UTF-8 text"))
}
