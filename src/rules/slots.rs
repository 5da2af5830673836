//! Sets of a Redis Cluster's hash slots, and the times from which all starts in them are known.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

/// Number of hash slots in a cluster.
pub const SLOTS: u16 = 16_384;
const WORDS: usize = SLOTS as usize / 64;

/// Returns the part of `key` that determines its slot in a Redis Cluster, if there is one: the text
/// between its first opening brace and the next closing brace, unless it is empty.
pub fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

/// A set of hash slots.
#[derive(Clone, PartialEq, Eq)]
pub struct Slots(Box<[u64; WORDS]>);

impl Default for Slots {
    fn default() -> Self {
        Self(Box::new([0; WORDS]))
    }
}

impl Slots {
    /// Returns the slots from `first` to `last`. Slots above the highest are left out.
    pub fn range(first: u16, last: u16) -> Self {
        let mut slots = Self::default();
        slots.add(first, last);
        slots
    }

    /// Adds the slots from `first` to `last`.
    pub fn add(&mut self, first: u16, last: u16) {
        for slot in first..=last.min(SLOTS - 1) {
            self.0[usize::from(slot / 64)] |= 1 << (slot % 64);
        }
    }

    /// Returns true if `slot` is in the set.
    pub fn contains(&self, slot: u16) -> bool {
        slot < SLOTS && self.0[usize::from(slot / 64)] >> (slot % 64) & 1 == 1
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Returns the highest slot in the set.
    pub fn highest(&self) -> Option<u16> {
        (0..SLOTS).rev().find(|slot| self.contains(*slot))
    }

    /// Returns the slots that are in both sets.
    pub fn both(&self, other: &Self) -> Self {
        self.with(other, |one, two| one & two)
    }

    /// Returns the slots that are in one or both of the sets.
    pub fn either(&self, other: &Self) -> Self {
        self.with(other, |one, two| one | two)
    }

    /// Returns the slots that are not in `other`.
    pub fn without(&self, other: &Self) -> Self {
        self.with(other, |one, two| one & !two)
    }

    fn with(&self, other: &Self, word: impl Fn(u64, u64) -> u64) -> Self {
        let mut result = Self::default();
        for (at, into) in result.0.iter_mut().enumerate() {
            *into = word(self.0[at], other.0[at]);
        }
        result
    }

    /// Returns the first and the last slot of each run of neighboring slots.
    pub fn runs(&self) -> Vec<(u16, u16)> {
        let mut runs: Vec<(u16, u16)> = Vec::new();
        for slot in (0..SLOTS).filter(|slot| self.contains(*slot)) {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == slot => *last = slot,
                _ => runs.push((slot, slot)),
            }
        }
        runs
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.runs()).finish()
    }
}

/// The slots whose starts an epoch knows, each from a time on (in milliseconds of its primary's
/// clock; 0 means always). Before that time jobs may have started in the slot without the epoch's
/// knowledge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotOwnership(BTreeMap<u64, Slots>);

impl SlotOwnership {
    /// Claims all of `slots` for all time.
    pub fn always(slots: Slots) -> Self {
        let mut claims = Self::default();
        claims.set(&slots, 0);
        claims
    }

    /// Parses the text that [`SlotOwnership::text`] writes: `0-99 100-120@1700000000000`. Ranges
    /// that cannot be parsed are not claimed.
    pub fn parse(text: &str) -> Self {
        let mut claims = Self::default();
        for word in text.split_whitespace() {
            let (range, from) = word.split_once('@').unwrap_or((word, "0"));
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            if let (Ok(first), Ok(last), Ok(from)) = (first.parse(), last.parse(), from.parse()) {
                claims.set(&Slots::range(first, last), from);
            }
        }
        claims
    }

    /// Returns the claims as they are stored in the epoch. Equal claims have equal texts.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (from, slots) in &self.0 {
            for (first, last) in slots.runs() {
                let space = if text.is_empty() { "" } else { " " };
                // Writing to a String does not fail.
                let _ = match (first == last, *from) {
                    (true, 0) => write!(text, "{space}{first}"),
                    (true, from) => write!(text, "{space}{first}@{from}"),
                    (false, 0) => write!(text, "{space}{first}-{last}"),
                    (false, from) => write!(text, "{space}{first}-{last}@{from}"),
                };
            }
        }
        text
    }

    /// Returns the time from which `slot` is claimed, or `None` if it is not.
    pub fn from(&self, slot: u16) -> Option<u64> {
        let found = self.0.iter().find(|(_, slots)| slots.contains(slot));
        found.map(|(from, _)| *from)
    }

    /// Returns all claimed slots.
    pub fn slots(&self) -> Slots {
        let all = self.0.values();
        all.fold(Slots::default(), |all, slots| all.either(slots))
    }

    /// Claims `slots` from the time `from` on.
    pub fn set(&mut self, slots: &Slots, from: u64) {
        for known in self.0.values_mut() {
            *known = known.without(slots);
        }
        let into = self.0.entry(from).or_default();
        *into = into.either(slots);
        self.0.retain(|_, slots| !slots.is_empty());
    }

    /// Gives up all claims except for `slots`.
    pub fn keep(&mut self, slots: &Slots) {
        for known in self.0.values_mut() {
            *known = known.both(slots);
        }
        self.0.retain(|_, slots| !slots.is_empty());
    }

    /// Iterates over the claimed slots and their times, the earliest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Slots)> {
        self.0.iter().map(|(from, slots)| (*from, slots))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_match_their_text() {
        for text in ["", "0-16383", "5", "0-5460 6000 7000-7001@1700000000000"] {
            assert_eq!(SlotOwnership::parse(text).text(), text);
        }
        let odd = SlotOwnership::parse("9-7 x 3-4@soon 1@7 20000 16383-40000");
        assert_eq!(odd.text(), "16383 1@7");
    }

    #[test]
    fn a_slot_has_one_claim() {
        let mut claims = SlotOwnership::always(Slots::range(0, 99));
        claims.set(&Slots::range(50, 120), 7);
        assert_eq!(claims.text(), "0-49 50-120@7");
        assert_eq!(
            [49, 50, 121].map(|slot| claims.from(slot)),
            [Some(0), Some(7), None]
        );
        claims.set(&Slots::range(60, 60), 0);
        claims.keep(&Slots::range(40, 60));
        assert_eq!(claims.text(), "40-49 60 50-59@7");
        assert_eq!(claims.slots(), Slots::range(40, 60));
        assert_eq!(claims.slots().highest(), Some(60));
        assert!(!claims.slots().contains(SLOTS) && Slots::default().highest().is_none());
    }
}
