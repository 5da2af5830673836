//! Estimates of the memory that a partition with a used-up quota takes in Redis, for documentation
//! and advice. `tests/it/gate/memory.rs` compares them with a real Redis.

/// Bytes of a key with a name of usual length, and of the object behind it.
const KEY_BYTES: u64 = 104;
/// Maximum number of entries of a sorted set that Redis stores as one compact text (the default of
/// `zset-max-listpack-entries`).
const COMPACT: u64 = 128;
/// Bytes of the head of a skiplist and of the hash table next to it.
const SKIPLIST_BYTES: u64 = 800;

/// The data that Redis stores for a partition with a used-up quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredUsage {
    /// A text of at most this many bytes.
    Text(u64),
    /// A sorted set with an entry for each start.
    Entries {
        /// Maximum number of entries.
        max: u64,
        /// Bytes per entry while the set is small and stored as a compact text.
        compact: u64,
        /// Bytes per entry beyond that: its text, a node of the skiplist, and an entry of the hash
        /// table.
        linked: u64,
    },
}

impl StoredUsage {
    /// Returns true if the size grows with the limit.
    pub fn is_log(self) -> bool {
        matches!(self, Self::Entries { .. })
    }

    /// Returns the maximum number of bytes in Redis, keys included.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Text(bytes) => KEY_BYTES + allocated(bytes),
            Self::Entries { max, compact, .. } if max <= COMPACT => {
                2 * KEY_BYTES + allocated(max * compact)
            }
            Self::Entries { max, linked, .. } => {
                // The table has at least one slot of 8 bytes per entry, and half as much again
                // while it grows.
                let table = 12 * max.next_power_of_two();
                2 * KEY_BYTES + SKIPLIST_BYTES + max * linked + table
            }
        }
    }
}

/// Returns the bytes that Redis's allocator reserves for a text of this length: it has four sizes
/// per power of two.
fn allocated(bytes: u64) -> u64 {
    let step = (bytes.next_power_of_two() / 8).max(8);
    bytes.div_ceil(step) * step
}
