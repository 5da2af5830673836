//! What the hash of an epoch holds, and how it is read.

use std::collections::BTreeMap;

use crate::rules::slots::Claims;

/// A worker's pulse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulse {
    /// How many pulses there were.
    pub number: u64,
    /// Redis's time of the last one, in milliseconds.
    pub at: u64,
    /// The memory that the worker found whole since then; empty: it did not look.
    pub vouched: String,
}

/// Another memory that is being looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Its text.
    pub memory: String,
    /// When it was first seen.
    pub since: u64,
    /// When it counts as whole even if not all have vouched: what it may have lost no longer counts.
    pub until: u64,
}

/// The hash.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stored {
    /// Which epoch it is; empty: there is none.
    pub id: String,
    /// The memory that was last found whole.
    pub run: String,
    /// Nothing may be admitted before this.
    pub cold: u64,
    /// What `cold` is about.
    pub why: String,
    /// Set while another memory than `run` is being looked at.
    pub pending: Option<Pending>,
    /// In a cluster: the slots that the epoch speaks for.
    pub claims: Claims,
    /// In a cluster: since when nothing was lost.
    pub sure: Option<u64>,
    /// What the memory had thrown away when that was last made good ([`Memory::evicted_text`](super::Memory::evicted_text)).
    pub evicted: String,
    /// Everybody who asked lately.
    pub workers: BTreeMap<String, Pulse>,
}

impl Stored {
    /// From the fields of the hash. What can't be read counts as missing, which is the careful way.
    pub fn parse<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut stored = Self::default();
        for (name, value) in fields {
            match name {
                "id" => value.clone_into(&mut stored.id),
                "run" => value.clone_into(&mut stored.run),
                "why" => value.clone_into(&mut stored.why),
                // Not a number: closed until somebody mends it.
                "cold" => stored.cold = value.parse().unwrap_or(u64::MAX),
                "next" => stored.pending = Pending::parse(value),
                "slots" => stored.claims = Claims::parse(value),
                "evicted" => value.clone_into(&mut stored.evicted),
                "sure" => stored.sure = value.parse().ok(),
                _ => {
                    let worker = name.strip_prefix("w:").zip(Pulse::parse(value));
                    if let Some((worker, pulse)) = worker {
                        stored.workers.insert(worker.to_owned(), pulse);
                    }
                }
            }
        }
        stored
    }
}

impl Pulse {
    /// Reads `NUMBER:AT` or `NUMBER:AT:MEMORY`.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        Some(Self {
            number: parts.next()?.parse().ok()?,
            at: parts.next()?.parse().ok()?,
            vouched: parts.next().unwrap_or_default().to_owned(),
        })
    }
}

impl Pending {
    /// Reads `SINCE:UNTIL:MEMORY`.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        Some(Self {
            since: parts.next()?.parse().ok()?,
            until: parts.next()?.parse().ok()?,
            memory: parts.next()?.to_owned(),
        })
    }
}
