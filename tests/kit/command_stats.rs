//! The commands that a Redis has run.

use std::collections::BTreeMap;

/// The number of calls of each command since the statistics were reset, and their time.
#[derive(Debug, Clone)]
pub struct CommandStats(BTreeMap<String, (u64, u64)>);

impl CommandStats {
    /// Reads the answer of `INFO commandstats`.
    pub(crate) fn read(info: &str) -> Self {
        // cmdstat_NAME:calls=COUNT,usec=MICROS,…
        let command = |line: &str| {
            let (name, figures) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            let figure = |name: &str| {
                let named = figures.split(',').find_map(|it| it.strip_prefix(name));
                named?.strip_prefix('=')?.parse().ok()
            };
            Some((name.to_owned(), (figure("calls")?, figure("usec")?)))
        };
        Self(info.lines().filter_map(command).collect())
    }

    pub fn calls(&self, name: &str) -> u64 {
        self.0.get(name).map_or(0, |(calls, _)| *calls)
    }

    /// Returns the time of all calls of `name`, in microseconds.
    pub fn micros(&self, name: &str) -> u64 {
        self.0.get(name).map_or(0, |(_, micros)| *micros)
    }

    /// Returns all calls.
    pub fn all(&self) -> BTreeMap<&str, u64> {
        let calls = self
            .0
            .iter()
            .map(|(name, (calls, _))| (name.as_str(), *calls));
        calls.collect()
    }

    /// Returns the calls that scripts make, if no other client calls anything but scripts.
    pub fn in_scripts(&self) -> BTreeMap<&str, u64> {
        let outside = ["config", "eval", "info", "ping", "script"];
        let is_inside = |name: &str| !outside.iter().any(|other| name.starts_with(other));
        let mut calls = self.all();
        calls.retain(|name, _| is_inside(name));
        calls
    }
}
