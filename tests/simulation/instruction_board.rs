//! The board of operators' instructions and of the versions that workers follow. Redis keeps it in
//! `lua/steer.lua`.

use std::collections::BTreeMap;

/// How long a silent worker is remembered, in milliseconds.
const SILENT_MS: u64 = 60_000;

#[derive(Debug, Default)]
pub struct Board {
    version: u64,
    /// The text and the end of each instruction, by name.
    instructions: BTreeMap<String, (String, u64)>,
    /// When each worker looked last, and the version that it follows.
    workers: BTreeMap<String, (u64, u64)>,
}

impl Board {
    fn change(&mut self, now_ms: u64) -> u64 {
        self.version = (self.version + 1).max(now_ms);
        self.version
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    /// Puts `text` in force under `name` until `until_ms`. Returns the new version.
    pub fn put(&mut self, now_ms: u64, name: &str, until_ms: u64, text: &str) -> u64 {
        self.instructions
            .insert(name.to_owned(), (text.to_owned(), until_ms));
        self.change(now_ms)
    }

    /// Ends an instruction.
    pub fn drop_one(&mut self, now_ms: u64, name: &str) {
        if self.instructions.remove(name).is_some() {
            self.change(now_ms);
        }
    }

    /// Records that the worker `name` follows this version.
    pub fn record_worker(&mut self, now_ms: u64, name: &str, follows: u64) {
        self.workers.insert(name.to_owned(), (now_ms, follows));
    }

    /// Returns the names and texts of the instructions in force at `now_ms`.
    pub fn instructions(&self, now_ms: u64) -> impl Iterator<Item = (&str, &str)> {
        let all = self.instructions.iter();
        let in_force = all.filter(move |(_, (_, until_ms))| *until_ms > now_ms);
        in_force.map(|(name, (text, _))| (name.as_str(), text.as_str()))
    }

    /// Returns the versions that the workers follow that looked within `within_ms`. Forgets silent
    /// workers.
    pub fn followed(&mut self, now_ms: u64, within_ms: u64) -> impl Iterator<Item = u64> {
        self.workers
            .retain(|_, (at_ms, _)| *at_ms + SILENT_MS >= now_ms);
        let live = self.workers.values();
        let live = live.filter(move |(at_ms, _)| at_ms + within_ms >= now_ms);
        live.map(|(_, follows)| *follows)
    }
}
