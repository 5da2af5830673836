//! The fields of an epoch's hash, and how they are parsed.

use std::collections::BTreeMap;

use rules::slots::SlotOwnership;

/// A worker's pulse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulse {
    /// The number of pulses so far.
    pub number: u64,
    /// Redis's clock at the last pulse, in milliseconds.
    pub at: u64,
    /// The server identity that the worker vouches for since that pulse. Empty if it has not
    /// checked.
    pub vouched: String,
}

/// A changed server that workers are checking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// The text of its identity.
    pub memory: String,
    /// When it was first seen.
    pub since: u64,
    /// When it counts as complete even if some workers have not vouched, since lost starts no
    /// longer count.
    pub until: u64,
}

/// The contents of the hash.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EpochFields {
    /// The epoch's ID. Empty if there is no epoch.
    pub id: String,
    /// The server identity that was last confirmed.
    pub run: String,
    /// Questions with the longest look-back must not be admitted before this time.
    pub cold: u64,
    /// Starts before the first time may be missing. The second is the value of `cold` to which the
    /// first belongs.
    pub lost: Option<(u64, u64)>,
    /// The reason for `cold`.
    pub why: String,
    /// The changed server, while it is not confirmed.
    pub pending: Option<Pending>,
    /// The slots that the epoch covers, in a cluster.
    pub claims: SlotOwnership,
    /// Since when nothing was lost, in a cluster.
    pub sure: Option<u64>,
    /// The server's evictions when the loss was last handled
    /// ([`ServerIdentity::evicted_text`](super::ServerIdentity::evicted_text)).
    pub evicted: String,
    /// All workers that asked lately.
    pub workers: BTreeMap<String, Pulse>,
}

impl EpochFields {
    /// Parses the fields of the hash. Unreadable values count as missing, which is the safe choice.
    pub fn parse(fields: impl IntoIterator<Item = (impl AsRef<str>, impl AsRef<str>)>) -> Self {
        let mut stored = Self::default();
        for (name, value) in fields {
            let (name, value) = (name.as_ref(), value.as_ref());
            match name {
                "id" => value.clone_into(&mut stored.id),
                "run" => value.clone_into(&mut stored.run),
                "why" => value.clone_into(&mut stored.why),
                // Not a number: admissions stay closed until an operator repairs it.
                "cold" => stored.cold = value.parse().unwrap_or(u64::MAX),
                "lost" => {
                    let numbers = value.split_once(':');
                    let parse = |(at, cold): (&str, &str)| at.parse().ok().zip(cold.parse().ok());
                    stored.lost = numbers.and_then(parse);
                }
                "next" => stored.pending = Pending::parse(value),
                "slots" => stored.claims = SlotOwnership::parse(value),
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

/// The usage that a server may lack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gap {
    /// No start since this time is missing. `None` if the time is not known.
    pub since: Option<u64>,
    /// No missing start counts after this time.
    pub until: u64,
}

impl Gap {
    /// Returns the time from which no missing start counts for limits that look back by `span_ms`.
    pub fn opens_at(&self, span_ms: u64) -> u64 {
        let over = self.since.map(|since| since.saturating_add(span_ms));
        over.map_or(self.until, |over| over.min(self.until))
    }

    /// Returns true if the gap already covers starts up to `at` for `span_ms`.
    pub fn covers(&self, at: u64, span_ms: u64) -> bool {
        self.until >= at.saturating_add(span_ms) && self.since.is_none_or(|since| since >= at)
    }

    /// Adjusts the gap to a clock that was stepped back: missing starts were made before `latest`.
    /// Returns `None` if the clock was not stepped back.
    pub fn pulled_back(self, latest: u64) -> Option<Self> {
        let since = self.since.filter(|since| *since > latest)?;
        Some(Self {
            since: Some(latest),
            until: self.until.saturating_sub(since - latest),
        })
    }

    /// Extends the gap to starts before `at` that count for `span_ms`. Two successive gaps never
    /// have the same end, so a worker notices the change.
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

impl EpochFields {
    /// Returns the state of `memory` as the unconfirmed server. A first sighting later than `now`
    /// means that the clock was stepped back, and does not count.
    pub fn pending_at(&self, memory: &str, now: u64) -> Option<&Pending> {
        (self.pending.as_ref()).filter(|it| it.memory == memory && it.since <= now)
    }

    /// Returns the missing usage that may count at `now`.
    pub fn gap(&self, now: u64) -> Gap {
        if self.cold <= now {
            return Gap {
                since: Some(0),
                until: 0,
            };
        }
        // A worker of another version may have closed it without the time since which all usage is
        // known.
        let lost = self.lost.filter(|(_, cold)| *cold == self.cold);
        Gap {
            since: lost.map(|(at, _)| at),
            until: self.cold,
        }
    }
}

impl Pulse {
    /// Parses `NUMBER:AT` or `NUMBER:AT:MEMORY`.
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
    /// Parses `SINCE:UNTIL:MEMORY`.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        Some(Self {
            since: parts.next()?.parse().ok()?,
            until: parts.next()?.parse().ok()?,
            memory: parts.next()?.to_owned(),
        })
    }
}
