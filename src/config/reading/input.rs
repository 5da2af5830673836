//! The raw values by key, from the environment, the file, files that it names, or the defaults.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::{ConfigProblem, Origin, shown};
use super::key::{ConfigKey, Setting, ValueKind};
use super::parse::{self, ValueError};
use super::shown_value::{Show, ShownValues};
use super::yaml::Raw;
use rules::text::{self, show_duration};

/// Maximum size of a file with a secret, in bytes.
const MAX_SECRET_BYTES: u64 = 16 << 10;

/// A known key that is set.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KeyEntry {
    pub path: &'static str,
    pub raw: Raw,
    pub at: Origin,
}

/// A raw value and its origin, if it is set.
pub(crate) type Tree = Option<(Raw, Origin)>;

/// Everything that is set, and the problems found so far.
#[derive(Default)]
pub(crate) struct ConfigInput {
    /// Layers of entries: the environment's and the file's, and for a pipeline also the keys taken
    /// from the top level. The first layer that sets a key wins.
    pub layers: Vec<Vec<KeyEntry>>,
    pub folder: PathBuf,
    pub problems: Vec<ConfigProblem>,
    /// The values that were read so far, as they are shown.
    pub shown: ShownValues,
    /// The keys that were read so far and have other values than their defaults.
    pub changed: Vec<(&'static str, Origin)>,
}

impl ConfigInput {
    /// Iterates over all entries. Layers that win come last.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &KeyEntry> {
        self.layers.iter().rev().flatten()
    }

    pub(crate) fn entry(&self, key: &ConfigKey) -> Option<&KeyEntry> {
        let mut all = self.layers.iter().flatten();
        all.find(|entry| entry.path == key.path)
    }

    /// Returns the list or mapping at `key`, with its origin.
    pub(crate) fn tree(&self, key: &ConfigKey) -> Tree {
        let entry = self.entry(key)?;
        Some((entry.raw.clone(), entry.at.clone()))
    }

    /// Reports a problem of the value of `key`, at the key or at the key of its file.
    pub(crate) fn wrong<T>(&mut self, key: &ConfigKey, words: impl std::fmt::Display) -> Option<T> {
        let entry = self
            .entry(key)
            .or_else(|| self.entry(&key.file.as_ref()?.key));
        let problem = match entry {
            Some(entry) => ConfigProblem::of(&entry.at, entry.path, words),
            None => ConfigProblem::of(&Origin::Default, key.path, words),
        };
        self.problems.push(problem);
        None
    }

    /// Reports a problem of the value of `key` and returns `None`, if there are `words` for one.
    pub(crate) fn check<W: std::fmt::Display>(
        &mut self,
        key: &ConfigKey,
        words: Option<W>,
    ) -> Option<()> {
        match words {
            Some(words) => self.wrong(key, words),
            None => Some(()),
        }
    }

    /// Returns a value that was read from that of `key`, or `None` after a problem, which is
    /// recorded.
    pub(crate) fn valid<T>(&mut self, key: &ConfigKey, read: Result<T, ValueError>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(words) => self.wrong(key, words),
        }
    }

    /// Returns the value of `setting` or of its default, which is shown. Returns `None` after a
    /// problem, which is recorded.
    pub(crate) fn get<T: Show>(&mut self, setting: &Setting<T>) -> Option<T> {
        if let Some(value) = self.optional(setting)? {
            return Some(value);
        }
        let value = setting.default_value()?;
        self.shown.set(&setting.key, &value);
        self.check_at_least(&setting.key).map(|()| value)
    }

    /// Returns the value of `setting`, or `Some(None)` if it is not set, and `None` after a problem.
    /// The first layer that has the key or the one of its file wins.
    pub(crate) fn optional<T: Show>(&mut self, setting: &Setting<T>) -> Option<Option<T>> {
        let file = setting.key.file;
        let pair = |entries: &Vec<KeyEntry>| {
            let of = |key: &ConfigKey| entries.iter().find(|entry| entry.path == key.path).cloned();
            (of(&setting.key), file.and_then(|file| of(&file.key)))
        };
        let mut pairs = self.layers.iter().map(pair);
        let (entry, parsed) = match pairs.find(|pair| *pair != (None, None)) {
            Some((Some(_), Some(entry))) => {
                let words = format!("{} is also set; keep one of them", setting.key.path);
                (entry, Err(words))
            }
            Some((Some(entry), None)) => {
                let parsed = (setting.read)(&entry.raw);
                (entry, parsed)
            }
            Some((None, Some(entry))) => {
                let parsed = self.named_file(&entry, file?).and_then(|text| {
                    (setting.read)(&Raw::Text(text))
                        .map_err(|words| format!("the file's text {words}"))
                });
                (entry, parsed)
            }
            Some((None, None)) | None => return Some(None),
        };
        match parsed {
            Ok(value) => {
                let default = setting.default_value();
                if default.and_then(|default| default.shown()) != value.shown() {
                    self.changed.push((entry.path, entry.at));
                }
                self.shown.set(&setting.key, &value);
                self.check_at_least(&setting.key).map(|()| Some(value))
            }
            Err(words) => {
                let problem = ConfigProblem::of(&entry.at, entry.path, words);
                self.problems.push(problem);
                None
            }
        }
    }

    /// Returns true if a problem of the value at `at` is reported already.
    pub(crate) fn has_problem(&self, at: &Origin) -> bool {
        self.problems.iter().any(|problem| problem.origin() == at)
    }

    /// Returns true if neither `key` nor the key of its file is set.
    pub(crate) fn lacks(&self, key: &ConfigKey) -> bool {
        let file = key.file.and_then(|file| self.entry(&file.key));
        self.entry(key).is_none() && file.is_none()
    }

    /// Returns `Some(None)` for a section that is not used, whose keys begin with `begin` and are
    /// not shown. A key that the user changed is a problem in `words`.
    pub(crate) fn unused<T>(&mut self, begin: &str, words: &str) -> Option<Option<T>> {
        let mut changed = self.changed.iter();
        if let Some((path, at)) = changed.find(|(path, _)| path.starts_with(begin)) {
            self.problems.push(ConfigProblem::of(at, path, words));
            return None;
        }
        self.shown.drop_section(begin);
        Some(None)
    }

    /// Checks that the duration at `key` is at least that of the key named by its `at_least`.
    /// Otherwise reports the one of the two that the user wrote, and returns `None`.
    fn check_at_least(&mut self, key: &ConfigKey) -> Option<()> {
        let low = key.at_least();
        let Some((low, least)) = low.and_then(|low| Some((low, self.duration(low)?))) else {
            return Some(());
        };
        let Some(value) = self.duration(key).filter(|value| *value < least) else {
            return Some(());
        };
        let (least, value) = (show_duration(least), show_duration(value));
        if self.entry(key).is_some() {
            let low = low.path;
            self.wrong(
                key,
                format_args!("is {value}; it must be at least {low}, which is {least}"),
            )
        } else {
            let high = key.path;
            self.wrong(
                low,
                format_args!("is {least}; it must be at most {high}, which is {value}"),
            )
        }
    }

    /// Returns the duration at `key`, or `None` if it is no valid duration.
    fn duration(&self, key: &ConfigKey) -> Option<Duration> {
        let ValueKind::Duration { min, max, .. } = key.kind else {
            return None;
        };
        match self.entry(key) {
            Some(entry) => parse::duration(&entry.raw, min, max).ok(),
            None => parse::duration(&Raw::Text(key.default?.to_owned()), min, max).ok(),
        }
    }

    /// Returns the setting of the two that is set, or the first if neither is.
    pub(crate) fn set_key_of<'s, A, B>(
        &self,
        one: &'s Setting<A>,
        other: &'s Setting<B>,
    ) -> &'s ConfigKey {
        match (self.entry(&one.key), self.entry(&other.key)) {
            (None, Some(_)) => &other.key,
            _ => &one.key,
        }
    }

    /// Returns the path in `setting`, if it is set and passes `check`.
    pub(crate) fn path(
        &mut self,
        setting: &Setting<String>,
        check: impl Fn(&Path) -> Result<(), &'static str>,
    ) -> Option<Option<PathBuf>> {
        let Some(entry) = self.entry(&setting.key) else {
            return Some(None);
        };
        let path = self.path_of(entry, setting);
        match path.and_then(|path| Ok(check(&path).map(|()| path)?)) {
            Ok(path) => {
                self.shown.set(&setting.key, &path);
                Some(Some(path))
            }
            Err(words) => self.wrong(&setting.key, words),
        }
    }

    /// Returns the path in `entry` of `setting`. A path from the file is relative to the file's
    /// folder, a path from a variable to the working directory.
    pub(crate) fn path_of(
        &self,
        entry: &KeyEntry,
        setting: &Setting<String>,
    ) -> Result<PathBuf, ValueError> {
        let name = (setting.read)(&entry.raw)?;
        Ok(match entry.at {
            Origin::Env(_) => PathBuf::from(name),
            _ => self.folder.join(name),
        })
    }

    /// Returns the text of the file named by `entry` of `setting`, without its final line break.
    pub(crate) fn named_file(
        &self,
        entry: &KeyEntry,
        setting: &Setting<String>,
    ) -> Result<String, ValueError> {
        let (name, path) = ((setting.read)(&entry.raw)?, self.path_of(entry, setting)?);
        let text = read_bounded(&path, MAX_SECRET_BYTES)
            .map_err(|err| format!("{} can't be read: {err}", shown(&name)))?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
    }
}

/// Reads the text of the file at `path`. It is an error if it has more than `limit` bytes.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> std::io::Result<String> {
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
