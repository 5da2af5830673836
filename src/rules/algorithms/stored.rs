//! What a partition whose quota is used up takes of Redis, for documentation and advice: estimates, which `tests/it/gate_memory.rs` holds
//! against a real Redis.

/// A key with its name of usual length, and the object behind it.
const KEY_BYTES: u64 = 104;
/// Up to so many entries a sorted set is one compact text (`zset-max-listpack-entries`, as Redis comes).
const COMPACT: u64 = 128;
/// The head of a skiplist, and of the hash table next to it.
const SKIPLIST_BYTES: u64 = 800;

/// What is stored of a partition whose quota is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// A text of so many bytes at most.
    Text(u64),
    /// An entry for each start in a sorted set.
    Entries {
        /// So many at most.
        most: u64,
        /// Bytes of one while there are few, and the set is a compact text.
        compact: u64,
        /// Bytes of one beyond that: its text, a node of the skiplist, an entry of the hash table.
        linked: u64,
    },
}

impl Stored {
    /// It grows with the limit.
    pub fn is_log(self) -> bool {
        matches!(self, Self::Entries { .. })
    }

    /// Bytes of Redis at most, keys included.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Text(bytes) => KEY_BYTES + allocated(bytes),
            Self::Entries { most, compact, .. } if most <= COMPACT => {
                2 * KEY_BYTES + allocated(most * compact)
            }
            Self::Entries { most, linked, .. } => {
                // The table has at least a slot of 8 bytes for each entry, and half of that again while it grows.
                let table = 12 * most.next_power_of_two();
                2 * KEY_BYTES + SKIPLIST_BYTES + most * linked + table
            }
        }
    }
}

/// What Redis's allocator gives for a text of so many bytes: one of four sizes from each power of two to the next.
fn allocated(bytes: u64) -> u64 {
    let step = (bytes.next_power_of_two() / 8).max(8);
    bytes.div_ceil(step) * step
}
