//! The keys: values, expiry, and the state before the last writes.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::FixedState;
use indexmap::IndexMap;

use crate::zset::Zset;

/// Fields in order of insertion, except that a deletion moves the last field to the free place. A
/// server's large hashes have no order.
pub type Hash = IndexMap<Vec<u8>, Vec<u8>, FixedState>;

/// The value of a key.
#[derive(Debug, Clone)]
pub enum Data {
    Text(Vec<u8>),
    Hash(Hash),
    Zset(Zset),
}

impl Data {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "string",
            Self::Hash(_) => "hash",
            Self::Zset(_) => "zset",
        }
    }

    /// Reports whether the value is empty. The key of an empty value does not exist.
    fn is_empty(&self) -> bool {
        match self {
            Self::Text(_) => false,
            Self::Hash(hash) => hash.is_empty(),
            Self::Zset(zset) => zset.is_empty(),
        }
    }
}

/// A type of value.
pub trait Kind: Default {
    fn of(data: &Data) -> Option<&Self>;
    fn of_mut(data: &mut Data) -> Option<&mut Self>;
    fn into_data(self) -> Data;
}

macro_rules! kind {
    ($type:ty, $variant:ident) => {
        impl Kind for $type {
            fn of(data: &Data) -> Option<&Self> {
                match data {
                    Data::$variant(it) => Some(it),
                    _ => None,
                }
            }

            fn of_mut(data: &mut Data) -> Option<&mut Self> {
                match data {
                    Data::$variant(it) => Some(it),
                    _ => None,
                }
            }

            fn into_data(self) -> Data {
                Data::$variant(self)
            }
        }
    };
}

kind!(Vec<u8>, Text);
kind!(Hash, Hash);
kind!(Zset, Zset);

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

#[derive(Debug, Clone)]
struct Entry {
    data: Data,
    expires_ms: Option<u64>,
}

type Entries = HashMap<Vec<u8>, Entry, FixedState>;
/// The changes of one write: each key once, with its entry before the write.
type Write = Vec<(Vec<u8>, Option<Entry>)>;

/// Minimum number of keys at which expired ones are swept.
const SWEEP_AT: usize = 1024;

/// All keys of a server.
#[derive(Default)]
pub struct Db {
    entries: Entries,
    now_us: u64,
    sweep_at: usize,
    may_lose: usize,
    /// The writes that may be lost, oldest first.
    past: VecDeque<Write>,
    write: Write,
}

impl Db {
    pub fn may_lose(&mut self, writes: usize) {
        self.may_lose = writes;
    }

    /// Begins a command or a script. The clock stands still until it ends.
    pub fn begin(&mut self, now_us: u64) {
        self.now_us = now_us;
        if self.entries.len() >= self.sweep_at.max(SWEEP_AT) {
            let now_ms = self.now_ms();
            self.entries.retain(|_, entry| !is_over(entry, now_ms));
            self.sweep_at = self.entries.len() * 2;
        }
    }

    /// Ends the command or script. All of its changes form one write, which is lost as a whole or
    /// not at all.
    pub fn end(&mut self) {
        if !self.write.is_empty() {
            self.past.push_back(std::mem::take(&mut self.write));
            if self.past.len() > self.may_lose {
                self.past.pop_front();
            }
        }
    }

    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    pub fn now_ms(&self) -> u64 {
        self.now_us / 1000
    }

    fn entry(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let now_ms = self.now_ms();
        if is_over(self.entries.get(key)?, now_ms) {
            self.entries.remove(key);
        }
        self.entries.get_mut(key)
    }

    pub fn data(&mut self, key: &[u8]) -> Option<&Data> {
        self.entry(key).map(|entry| &entry.data)
    }

    /// Returns the value of `key`, or `None` if the key does not exist.
    pub fn get<T: Kind>(&mut self, key: &[u8]) -> Result<Option<&T>, String> {
        match self.data(key) {
            None => Ok(None),
            Some(data) => T::of(data).map(Some).ok_or_else(|| WRONG_TYPE.to_owned()),
        }
    }

    /// Changes the value of `key`. A missing key begins with an empty value, and is deleted if the
    /// value is empty afterwards.
    pub fn change<T: Kind, R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut T) -> R,
    ) -> Result<R, String> {
        self.get::<T>(key)?;
        self.note(key);
        let Some(entry) = self.entries.get_mut(key) else {
            let mut data = T::default();
            let result = change(&mut data);
            let data = data.into_data();
            if !data.is_empty() {
                let entry = Entry {
                    data,
                    expires_ms: None,
                };
                self.entries.insert(key.to_owned(), entry);
            }
            return Ok(result);
        };
        let data = T::of_mut(&mut entry.data).ok_or_else(|| WRONG_TYPE.to_owned())?;
        let result = change(data);
        if entry.data.is_empty() {
            self.entries.remove(key);
        }
        Ok(result)
    }

    /// Replaces the value of `key`, of any type.
    pub fn set(&mut self, key: &[u8], text: &[u8], expires_ms: Option<u64>) {
        self.note(key);
        let entry = Entry {
            data: Data::Text(text.to_owned()),
            expires_ms,
        };
        self.entries.insert(key.to_owned(), entry);
        self.expire_if_over(key);
    }

    pub fn delete(&mut self, key: &[u8]) -> bool {
        if self.entry(key).is_none() {
            return false;
        }
        self.note(key);
        self.entries.remove(key).is_some()
    }

    /// Returns when `key` expires, in milliseconds since the Unix epoch. The outer `None` means
    /// that the key does not exist, the inner one that it does not expire.
    pub fn expires_ms(&mut self, key: &[u8]) -> Option<Option<u64>> {
        self.entry(key).map(|entry| entry.expires_ms)
    }

    /// Sets when `key` expires, in milliseconds since the Unix epoch. Returns whether the key
    /// exists.
    pub fn expire(&mut self, key: &[u8], at_ms: u64) -> bool {
        if self.entry(key).is_none() {
            return false;
        }
        self.note(key);
        if let Some(entry) = self.entries.get_mut(key) {
            entry.expires_ms = Some(at_ms);
        }
        self.expire_if_over(key);
        true
    }

    fn expire_if_over(&mut self, key: &[u8]) {
        self.entry(key);
    }

    pub fn flush(&mut self) {
        let entries = std::mem::take(&mut self.entries);
        if self.may_lose > 0 {
            self.write = entries
                .into_iter()
                .map(|(key, entry)| (key, Some(entry)))
                .collect();
            self.end();
        }
    }

    /// Reverts the last `lost` writes, at most as many as may be lost.
    pub fn lose(&mut self, lost: usize) {
        for write in (0..lost).map_while(|_| self.past.pop_back()) {
            for (key, before) in write {
                match before {
                    Some(entry) => _ = self.entries.insert(key, entry),
                    None => _ = self.entries.remove(&key),
                }
            }
        }
    }

    pub fn names(&mut self, now_us: u64) -> Vec<Vec<u8>> {
        self.now_us = now_us;
        let now_ms = self.now_ms();
        let there = self
            .entries
            .iter()
            .filter(|(_, entry)| !is_over(entry, now_ms));
        let mut names: Vec<_> = there.map(|(key, _)| key.clone()).collect();
        names.sort();
        names
    }

    /// Removes the keys that match `chosen`, as one write. Returns their number.
    pub fn evict(&mut self, chosen: impl Fn(&[u8]) -> bool) -> usize {
        let keys: Vec<_> = self
            .entries
            .keys()
            .filter(|key| chosen(key))
            .cloned()
            .collect();
        for key in &keys {
            self.note(key);
            self.entries.remove(key);
        }
        self.end();
        keys.len()
    }

    /// Records the entry of `key` before it changes.
    fn note(&mut self, key: &[u8]) {
        if self.may_lose > 0 && !self.write.iter().any(|(known, _)| known == key) {
            let before = self.entries.get(key).cloned();
            self.write.push((key.to_owned(), before));
        }
    }
}

fn is_over(entry: &Entry, now_ms: u64) -> bool {
    entry.expires_ms.is_some_and(|at| at <= now_ms)
}
