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
    /// Nothing that looks back for the longest span may be admitted before this.
    pub cold: u64,
    /// What was started before this may be missing, and the `cold` that it belongs to.
    pub lost: Option<(u64, u64)>,
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
                "lost" => {
                    let numbers = value.split_once(':');
                    let parse = |(at, cold): (&str, &str)| at.parse().ok().zip(cold.parse().ok());
                    stored.lost = numbers.and_then(parse);
                }
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

/// What a memory may lack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gap {
    /// Nothing of what was started since then; `None`: it is not known.
    pub since: Option<u64>,
    /// Nothing any more that counts from then on.
    pub until: u64,
}

impl Gap {
    /// From then on all is known that counts for limits that look back for `span_ms`.
    pub fn opens_at(&self, span_ms: u64) -> u64 {
        let over = self.since.map(|since| since.saturating_add(span_ms));
        over.map_or(self.until, |over| over.min(self.until))
    }

    /// It says already that what was started up to `at` may be missing, for `span_ms`.
    pub fn covers(&self, at: u64, span_ms: u64) -> bool {
        self.until >= at.saturating_add(span_ms) && self.since.is_none_or(|since| since >= at)
    }

    /// The same, where the clock was stepped back: what is missing was started before `latest`.
    pub fn pulled_back(self, latest: u64) -> Option<Self> {
        let since = self.since.filter(|since| *since > latest)?;
        Some(Self {
            since: Some(latest),
            until: self.until.saturating_sub(since - latest),
        })
    }

    /// The same, where what was started before `at` may be missing, too, and counts for `span_ms`. No two gaps that follow each
    /// other have the same end: by that a worker sees that there is another one.
    pub fn with(self, at: u64, span_ms: u64) -> Self {
        let another = match self.until {
            0 => 0,
            until => until.saturating_add(1),
        };
        Self {
            since: self.since.map(|since| since.max(at)),
            until: another.max(at.saturating_add(span_ms)),
        }
    }
}

impl Stored {
    /// What is known of `memory` that is being looked at. Of later than now: the clock was stepped back.
    pub fn pending_at(&self, memory: &str, now: u64) -> Option<&Pending> {
        (self.pending.as_ref()).filter(|it| it.memory == memory && it.since <= now)
    }

    /// What is missing that may count at `now`.
    pub fn gap(&self, now: u64) -> Gap {
        if self.cold <= now {
            return Gap {
                since: Some(0),
                until: 0,
            };
        }
        // Whoever closed it may be of a version that does not say since when all is known.
        let said = self.lost.filter(|(_, cold)| *cold == self.cold);
        Gap {
            since: said.map(|(at, _)| at),
            until: self.cold,
        }
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
