//! The primaries and the keys of their epochs and policy registries. A plain Redis is one primary
//! without slots.
//!
//! A primary of a Redis Cluster keeps these keys in its highest slot, since tools that move slots
//! take the lowest first. The keys' hash tag is the smallest number that falls into that slot. A
//! replica that takes over has the same slots, so the same keys. After slots moved, the keys may be
//! in another slot.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::time::Instant;

use crate::keys::Keys;
use crate::link::{Link, PrimaryLink, Shards, slot_of};
use crate::{GateError, ShardId};
use rules::slots::{SLOTS, Slots};

/// One primary with the keys of its epoch and registry.
pub struct Primary {
    /// The primary, with the slots that can have keys with this prefix. Without a cluster it has no
    /// slots.
    pub shard: PrimaryLink,
    /// The key of the epoch.
    pub epoch: String,
    /// The key of the registry of policies.
    pub policies: String,
    /// The key of the board of instructions.
    pub board: String,
    /// The slot of these keys.
    slot: Option<u16>,
}

/// All primaries, as of the last known state of the cluster.
pub type AllPrimaries = Arc<Vec<Arc<Primary>>>;

/// Finds the primaries, and tracks at which of them workers agree on policies.
pub struct Finder {
    keys: Keys,
    /// The slot of all keys, if the prefix has a hash tag.
    only: Option<Slots>,
    last: Mutex<Option<(Shards, AllPrimaries)>>,
    /// Until when jobs may start at each primary, by its registry's key. `None` if agreements are
    /// not used.
    agreed: Mutex<Option<HashMap<String, Instant>>>,
}

impl Finder {
    pub fn new(keys: Keys) -> Self {
        let only = keys.hash_tag().map(slot_of);
        Self {
            only: only.map(|slot| Slots::range(slot, slot)),
            keys,
            last: Mutex::default(),
            agreed: Mutex::default(),
        }
    }

    /// Returns all primaries. `anew` accepts only a recent state of the cluster.
    pub async fn all(&self, link: &Link, anew: bool) -> Result<AllPrimaries, GateError> {
        let shards = link.shards(anew).await?;
        let mut last = lock(&self.last);
        if let Some((known, primaries)) = &*last
            && Arc::ptr_eq(known, &shards)
        {
            return Ok(Arc::clone(primaries));
        }
        let primaries = shards.iter().filter_map(|shard| {
            if !link.is_cluster() {
                return Some(self.primary(shard.clone(), None));
            }
            let slots = self.ours(&shard.slots);
            let slot = slots.highest()?;
            Some(self.primary(shard.with(slots), Some(slot)))
        });
        let primaries: AllPrimaries = Arc::new(primaries.map(Arc::new).collect());
        *last = Some((shards, Arc::clone(&primaries)));
        Ok(primaries)
    }

    /// Returns the shard of the primary that had `slot` at the last look.
    pub fn shard(&self, slot: u16) -> ShardId {
        let last = lock(&self.last);
        let primaries = last.as_ref().map(|(_, primaries)| primaries.iter());
        let mut primaries = primaries.into_iter().flatten();
        let primary = primaries.find(|primary| primary.shard.slots.contains(slot));
        primary.map_or_else(ShardId::default, |primary| {
            ShardId::named(primary.shard.name())
        })
    }

    /// Returns the slots among `slots` that can have keys with this prefix.
    pub fn ours(&self, slots: &Slots) -> Slots {
        (self.only.as_ref()).map_or_else(|| slots.clone(), |only| slots.both(only))
    }

    fn primary(&self, shard: PrimaryLink, slot: Option<u16>) -> Primary {
        let tag = slot.filter(|_| self.only.is_none()).map(tag);
        Primary {
            shard,
            epoch: self.keys.epoch(tag),
            policies: self.keys.policies(tag),
            board: self.keys.board(tag),
            slot,
        }
    }

    /// Records until when jobs may start at the primary with the registry `policies`, because all
    /// workers there know the limits in force; `None` if they don't. After the first call, jobs
    /// start only at primaries with an agreement.
    pub fn agree(&self, policies: &str, until: Option<Instant>) {
        let mut agreed = lock(&self.agreed);
        let agreed = agreed.get_or_insert_default();
        let now = Instant::now();
        agreed.retain(|_, until| *until > now);
        match until {
            Some(until) => agreed.insert(policies.to_owned(), until),
            None => agreed.remove(policies),
        };
    }

    /// Returns true if jobs may start at the primary with the registry `policies`.
    pub fn agreed(&self, policies: &str) -> bool {
        let agreed = lock(&self.agreed);
        let until = |agreed: &HashMap<_, Instant>| {
            agreed
                .get(policies)
                .is_some_and(|until| Instant::now() < *until)
        };
        agreed.as_ref().is_none_or(until)
    }
}

impl Primary {
    /// Returns true if `slots`, the primary's own report of its slots, place its epoch at this key.
    pub fn keeps_epoch_of(&self, slots: &Slots) -> bool {
        self.slot == slots.highest()
    }

    /// Returns the error while the primary's slots are unknown.
    pub fn moving(&self) -> GateError {
        GateError::Unreachable(format!(
            "{}: its slots are unknown, since they are moving",
            self.shard.name()
        ))
    }

    /// Returns true if the primary has the slot of `key`.
    pub fn has(&self, key: &str) -> bool {
        self.slot.is_none() || self.shard.slots.contains(slot_of(key))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds the lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the smallest number whose digits fall into `slot`.
fn tag(slot: u16) -> u32 {
    static TAGS: OnceLock<Vec<u32>> = OnceLock::new();
    let tags = TAGS.get_or_init(|| {
        let mut tags = vec![u32::MAX; usize::from(SLOTS)];
        let mut open = tags.len();
        for number in 0..u32::MAX {
            let tag = &mut tags[usize::from(slot_of(&number.to_string()))];
            if *tag == u32::MAX {
                *tag = number;
                open -= 1;
                if open == 0 {
                    break;
                }
            }
        }
        tags
    });
    tags[usize::from(slot % SLOTS)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_a_tag() {
        for slot in 0..SLOTS {
            let key = Keys::new("p").epoch(Some(tag(slot)));
            assert_eq!(slot_of(&key), slot, "{key}");
        }
    }
}
