//! The registry of policies as a store implements an exchange with it. `lua/policies.lua` must
//! behave the same.

use std::collections::BTreeMap;

/// The registry in the store, by the policies' names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shelf(BTreeMap<String, PolicyEntry>);

/// One policy. Times are in milliseconds of the store's clock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyEntry {
    /// The policy's text.
    pub text: String,
    /// When it was first registered.
    pub since_ms: u64,
    /// When a worker last had it in force.
    pub used_ms: u64,
    /// How long it is kept after its last use.
    pub kept_ms: u64,
}

/// A policy that a worker reports as in force.
#[derive(Debug, Clone, Copy)]
pub struct PolicyClaim<'a> {
    /// The policy's name.
    pub id: &'a str,
    /// How long it is kept after its last use, in milliseconds.
    pub kept_ms: u64,
    /// The policy's text. Empty if the store should have it already.
    pub text: &'a str,
}

/// The reason why nothing was registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotRegistered {
    /// The store lacks the text of a policy.
    Text,
    /// The store has no room for one more policy.
    Full,
}

impl Shelf {
    /// Makes one exchange at `now_ms`. Registers `mine`, unless more than `most` policies would
    /// result, and drops policies that have expired or that are `superseded` and unused since the
    /// given time. With an empty `mine`, nothing changes. Returns all remaining policies.
    ///
    /// # Errors
    /// [`NotRegistered`] if nothing was registered.
    pub fn exchange(
        &mut self,
        now_ms: u64,
        most: usize,
        mine: &[PolicyClaim<'_>],
        superseded: &[(&str, u64)],
    ) -> Result<BTreeMap<String, PolicyEntry>, NotRegistered> {
        let mut left = self.0.clone();
        // A time later than now means that the clock was stepped back.
        for entry in left.values_mut() {
            entry.since_ms = entry.since_ms.min(now_ms);
            entry.used_ms = entry.used_ms.min(now_ms);
        }
        let kept = left.values().map(|entry| entry.kept_ms);
        let longest = kept.chain(mine.iter().map(|said| said.kept_ms)).max();
        let longest = longest.unwrap_or(0);
        left.retain(|id, entry| {
            entry.used_ms + longest >= now_ms && !superseded.contains(&(id, entry.used_ms))
        });
        if mine.is_empty() {
            return Ok(left);
        }
        self.0.retain(|id, _| left.contains_key(id));
        let new = mine.iter().filter(|said| !left.contains_key(said.id));
        if new.clone().any(|said| said.text.is_empty()) {
            return Err(NotRegistered::Text);
        }
        if new.clone().count() > 0 && left.len() + new.count() > most {
            return Err(NotRegistered::Full);
        }
        for said in mine {
            let entry = left
                .entry(said.id.to_owned())
                .or_insert_with(|| PolicyEntry {
                    since_ms: now_ms,
                    ..PolicyEntry::default()
                });
            (entry.used_ms, entry.kept_ms) = (now_ms, said.kept_ms);
            if !said.text.is_empty() {
                said.text.clone_into(&mut entry.text);
            }
        }
        self.0.clone_from(&left);
        Ok(left)
    }
}
