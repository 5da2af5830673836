//! What was set, by whom: a value by its key, from the environment, the file or the defaults, or from the file that it names.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::{Origin, Problem, shown};
use super::form::{Wrong, show};
use super::key::{Key, Setting};
use super::yaml::Raw;
use crate::rules::text;

/// The largest file with a secret, in bytes.
const LONGEST_SECRET: u64 = 16 << 10;

/// A known key that somebody set.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub path: &'static str,
    /// What the user calls it: its path, or the one that it had before.
    pub name: &'static str,
    pub raw: Raw,
    pub at: Origin,
}

impl Entry {
    /// A warning, if the key has another name by now.
    pub fn renamed(&self) -> Option<String> {
        (self.name != self.path).then(|| {
            let (at, name, path) = (&self.at, self.name, self.path);
            format!("{at}: {name} is called {path} now; the old name will go")
        })
    }
}

/// Keys that stand in `entries` by both of their names.
pub(super) fn named_twice(entries: &[Entry]) -> Vec<Problem> {
    let old = entries.iter().filter(|entry| entry.name != entry.path);
    let twice = old.filter(|old| entries.iter().any(|entry| entry.name == old.path));
    let words = |old: &Entry| format!("{} is set too; keep one of them", old.path);
    twice
        .map(|old| Problem::of(&old.at, old.name, words(old)))
        .collect()
}

/// What was set, by whom, and what was found wrong so far.
pub(super) struct Input {
    /// The environment's and the file's, and behind those of a pipeline what it takes from the top level: the first that sets a key
    /// counts.
    pub layers: Vec<Vec<Entry>>,
    pub folder: PathBuf,
    pub problems: Vec<Problem>,
}

impl Input {
    /// All that is set, the strongest last.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.layers.iter().rev().flatten()
    }

    pub(super) fn entry(&self, key: &Key) -> Option<&Entry> {
        let mut all = self.layers.iter().flatten();
        all.find(|entry| entry.path == key.path)
    }

    pub(super) fn wrong<T>(&mut self, key: &Key, words: impl std::fmt::Display) -> Option<T> {
        let problem = match self.entry(key) {
            Some(entry) => Problem::of(&entry.at, entry.name, words),
            None => Problem::of(&Origin::Default, key.path, words),
        };
        self.problems.push(problem);
        None
    }

    /// What the user calls `key`.
    fn name_of(&self, key: &Key) -> &'static str {
        self.entry(key).map_or(key.path, |entry| entry.name)
    }

    /// The value of `setting`, or of its default; `None` after a problem, which is kept.
    pub(super) fn get<T>(&mut self, setting: &Setting<T>) -> Option<T> {
        let parsed = match self.entry(&setting.key) {
            Some(entry) => (setting.read)(&entry.raw),
            None => (setting.read)(&Raw::Text(setting.key.default?.to_owned())),
        };
        match parsed {
            Ok(value) => Some(value),
            Err(words) => self.wrong(&setting.key, words),
        }
    }

    /// The value of `setting`, which has no default; `Some(None)`: it is not set.
    pub(super) fn optional<T>(&mut self, setting: &Setting<T>) -> Option<Option<T>> {
        match self.entry(&setting.key) {
            Some(_) => self.get(setting).map(Some),
            None => Some(None),
        }
    }

    /// `value` of `setting` is not its default: somebody means something by it.
    pub(super) fn is_meant<T: PartialEq>(&self, setting: &Setting<T>, value: &T) -> bool {
        let default = setting.key.default.map(|text| Raw::Text(text.to_owned()));
        default.and_then(|raw| (setting.read)(&raw).ok()).as_ref() != Some(value)
    }

    /// The values of two settings, of which `high` must be at least `low`.
    pub(super) fn pair(
        &mut self,
        low: &Setting<Duration>,
        high: &Setting<Duration>,
    ) -> Option<(Duration, Duration)> {
        let (least, most) = (self.get(low), self.get(high));
        let (least, most) = (least?, most?);
        if least <= most {
            return Some((least, most));
        }
        let (low, high) = (&low.key, &high.key);
        // The one of them that was set is wrong.
        if self.entry(high).is_none() {
            let words = format!(
                "is {}; it must be at most {}, which is {}",
                show(least),
                self.name_of(high),
                show(most)
            );
            return self.wrong(low, words);
        }
        let words = format!(
            "is {}; it must be at least {}, which is {}",
            show(most),
            self.name_of(low),
            show(least)
        );
        self.wrong(high, words)
    }

    /// The secret of `setting`, or the one in the file that `file` names; `Some(None)`: neither is set and there is no
    /// default. The pair of the first layer that has one counts.
    pub(super) fn secret<T>(
        &mut self,
        setting: &Setting<T>,
        file: &Setting<String>,
    ) -> Option<Option<T>> {
        let pair = |entries: &[Entry]| {
            let of = |key: &Key| entries.iter().find(|entry| entry.path == key.path).cloned();
            match (of(&setting.key), of(&file.key)) {
                (None, None) => None,
                pair => Some(pair),
            }
        };
        let path = setting.key.path;
        let (at, key, parsed) = match self.layers.iter().find_map(|entries| pair(entries)) {
            Some((Some(_), Some(entry))) => {
                let words = format!("{path} is set too; keep one of them");
                (entry.at, &file.key, Err(words))
            }
            Some((Some(entry), _)) => (entry.at, &setting.key, (setting.read)(&entry.raw)),
            Some((None, Some(entry))) => {
                let text = self.named_file(&entry, file);
                let parsed = text.and_then(|text| {
                    (setting.read)(&Raw::Text(text))
                        .map_err(|words| format!("the text of the file {words}"))
                });
                (entry.at, &file.key, parsed)
            }
            Some((None, None)) | None => {
                let default = setting.key.default.map(|text| Raw::Text(text.to_owned()));
                return Some(default.and_then(|raw| (setting.read)(&raw).ok()));
            }
        };
        match parsed {
            Ok(value) => Some(Some(value)),
            Err(words) => {
                self.problems.push(Problem::of(&at, key.path, words));
                None
            }
        }
    }

    /// The one of two settings that is set; the first, if none is.
    pub(super) fn set_of<'s, A, B>(&self, one: &'s Setting<A>, other: &'s Setting<B>) -> &'s Key {
        match (self.entry(&one.key), self.entry(&other.key)) {
            (None, Some(_)) => &other.key,
            _ => &one.key,
        }
    }

    /// The file that `entry` of `setting` names. A path in the file starts from the file's folder, one in a variable from
    /// the working directory.
    pub(super) fn path_of(
        &self,
        entry: &Entry,
        setting: &Setting<String>,
    ) -> Result<PathBuf, Wrong> {
        let name = (setting.read)(&entry.raw)?;
        Ok(match entry.at {
            Origin::Env(_) => PathBuf::from(name),
            _ => self.folder.join(name),
        })
    }

    /// The text of the file that `entry` of `setting` names, without the newline at its end.
    pub(super) fn named_file(
        &self,
        entry: &Entry,
        setting: &Setting<String>,
    ) -> Result<String, Wrong> {
        let (name, path) = ((setting.read)(&entry.raw)?, self.path_of(entry, setting)?);
        let text = read_bounded(&path, LONGEST_SECRET)
            .map_err(|err| format!("{} can't be read: {err}", shown(&name)))?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
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
    let text = text::decode(&bytes).map_err(std::io::Error::other)?;
    Ok(text.to_owned())
}
