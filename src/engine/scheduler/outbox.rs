//! Entries on their way to the gate: they queue, one batch is in flight at a time, and failed
//! entries go first in a later batch.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::shards::Shards;
use gate::ShardId;
use rules::tenant::Tenant;

/// A queue of entries of which at most one batch is in flight.
#[derive(Debug)]
pub struct Outbox<T> {
    waiting: VecDeque<T>,
    in_flight: Option<Vec<T>>,
    /// Earliest time of the next batch.
    not_before: Duration,
}

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            in_flight: None,
            not_before: Duration::ZERO,
        }
    }
}

impl<T> Outbox<T> {
    /// Adds an entry.
    pub fn push(&mut self, entry: T) {
        self.waiting.push_back(entry);
    }

    /// Returns the entries that wait for a later batch, in their order.
    pub fn waiting(&self) -> &VecDeque<T> {
        &self.waiting
    }

    /// Returns all entries that are not known to have arrived, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.in_flight.iter().flatten().chain(&self.waiting)
    }

    /// Returns true if nothing waits or is in flight.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.in_flight.is_none()
    }

    /// Returns true if a batch is in flight.
    pub fn is_sending(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Returns when [`Self::send`] returns a batch, or `None` if nothing waits or a batch is in
    /// flight.
    pub fn send_at(&self) -> Option<Duration> {
        (!self.is_sending() && !self.waiting.is_empty()).then_some(self.not_before)
    }

    /// Returns the next batch, of at most `max` entries, if one may be sent. It is in flight until
    /// [`Self::take_sent`].
    pub fn send(&mut self, now: Duration, max: usize) -> Option<&[T]> {
        self.send_at().filter(|at| *at <= now)?;
        let max = self.waiting.len().min(max);
        Some(self.in_flight.insert(self.waiting.drain(..max).collect()))
    }

    /// Ends the batch in flight, because its result is known or given up, and returns its entries.
    pub fn take_sent(&mut self) -> Vec<T> {
        self.in_flight.take().unwrap_or_default()
    }

    /// Queues entries that failed before all others, and sends nothing before `at`. Does nothing
    /// without entries.
    pub fn retry(&mut self, at: Duration, failed: Vec<T>) {
        if failed.is_empty() {
            return;
        }
        self.not_before = at;
        let mut failed = VecDeque::from(failed);
        failed.append(&mut self.waiting);
        self.waiting = failed;
    }

    /// Removes and returns the entries that wait and for which `is_taken` is true.
    pub fn take_waiting(&mut self, is_taken: impl Fn(&T) -> bool) -> Vec<T> {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (taken, left): (Vec<T>, Vec<T>) = waiting.partition(is_taken);
        self.waiting = left.into();
        taken
    }

    /// Forgets all entries. The result of a batch in flight is still awaited.
    pub fn clear(&mut self) {
        self.waiting.clear();
        if let Some(sent) = &mut self.in_flight {
            sent.clear();
        }
    }
}

/// An [`Outbox`] for each shard that has entries.
#[derive(Debug)]
pub struct ShardOutboxes<T> {
    shards: Shards,
    outboxes: BTreeMap<ShardId, Outbox<T>>,
}

impl<T> Default for ShardOutboxes<T> {
    fn default() -> Self {
        Self {
            shards: Shards::default(),
            outboxes: BTreeMap::new(),
        }
    }
}

impl<T> ShardOutboxes<T> {
    /// Sets the mapping of tenants to shards.
    pub fn shard_by(&mut self, shards: Shards) {
        self.shards = shards;
    }

    /// Returns the shard of `tenant`.
    pub fn shard_of(&self, tenant: &Tenant) -> ShardId {
        self.shards.of(tenant)
    }

    /// Adds an entry for `shard`.
    pub fn push(&mut self, shard: ShardId, entry: T) {
        self.outboxes.entry(shard).or_default().push(entry);
    }

    /// Returns the outbox of `shard`, unless it is empty.
    pub fn get_mut(&mut self, shard: ShardId) -> Option<&mut Outbox<T>> {
        self.outboxes.get_mut(&shard)
    }

    /// Returns the batches to send now, of at most `max` entries each. `message` converts an entry
    /// to the message that is sent.
    pub fn send<M>(
        &mut self,
        now: Duration,
        max: usize,
        message: impl Fn(&T) -> M,
    ) -> Vec<(ShardId, Vec<M>)> {
        self.outboxes.retain(|_, outbox| !outbox.is_empty());
        let outboxes = self.outboxes.iter_mut();
        let batches = outboxes.filter_map(|(shard, outbox)| {
            let batch = outbox.send(now, max)?;
            Some((*shard, batch.iter().map(&message).collect()))
        });
        batches.collect()
    }

    /// Returns when [`Self::send`] returns a batch.
    pub fn send_at(&self) -> Option<Duration> {
        self.outboxes.values().filter_map(Outbox::send_at).min()
    }

    /// Returns true if nothing waits or is in flight.
    pub fn is_empty(&self) -> bool {
        self.outboxes.values().all(Outbox::is_empty)
    }

    /// Removes and returns the entries that wait and for which `is_taken` is true, shard by shard.
    pub fn take_waiting(&mut self, is_taken: impl Fn(&T) -> bool) -> Vec<T> {
        let outboxes = self.outboxes.values_mut();
        outboxes
            .flat_map(|outbox| outbox.take_waiting(&is_taken))
            .collect()
    }

    /// Returns true if a batch is in flight.
    pub fn is_sending(&self) -> bool {
        self.outboxes.values().any(Outbox::is_sending)
    }

    /// Removes and returns all entries that are not known to have arrived, shard by shard.
    pub fn take_all(&mut self) -> Vec<T> {
        let outboxes = std::mem::take(&mut self.outboxes).into_values();
        let all = outboxes
            .flat_map(|outbox| outbox.in_flight.into_iter().flatten().chain(outbox.waiting));
        all.collect()
    }

    /// Forgets all entries. The results of batches in flight are still awaited.
    pub fn clear(&mut self) {
        self.outboxes.values_mut().for_each(Outbox::clear);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::SECOND;

    #[test]
    fn one_batch_is_in_flight_and_failed_entries_go_first() {
        let mut outbox = Outbox::default();
        (1..=3).for_each(|entry| outbox.push(entry));
        assert_eq!(outbox.send(SECOND, 2), Some(&[1, 2][..]));
        assert_eq!(outbox.send(SECOND, 2), None, "one at a time");
        assert_eq!(outbox.send_at(), None);
        assert_eq!(outbox.iter().copied().collect::<Vec<_>>(), [1, 2, 3]);
        let sent = outbox.take_sent();
        outbox.retry(2 * SECOND, sent.into_iter().skip(1).collect());
        assert_eq!(outbox.send_at(), Some(2 * SECOND));
        assert_eq!(outbox.send(SECOND, 9), None, "not yet");
        assert_eq!(outbox.send(2 * SECOND, 9), Some(&[2, 3][..]));
        outbox.take_sent();
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_cleared_outbox_still_awaits_its_result() {
        let mut outbox = Outbox::default();
        outbox.push(1);
        outbox.send(SECOND, 1);
        outbox.clear();
        outbox.push(2);
        assert_eq!(outbox.send(SECOND, 1), None);
        assert_eq!(outbox.take_sent(), [0; 0]);
        assert_eq!(outbox.send(SECOND, 1), Some(&[2][..]));
    }
}
