//! One tenant in the worker's memory, and sums over all, which are asked for after each event.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::engine::action::Key;
use crate::gate::ShardId;

/// The jobs of one tenant, and what is known of it.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Jobs that have a slot: they ask before all others.
    pub(super) prepared: VecDeque<Key>,
    /// Jobs that came back, or that wait for a slot: they ask before the fresh ones.
    pub(super) due: VecDeque<Key>,
    pub(super) fresh: VecDeque<Key>,
    pub(super) held: usize,
    pub(super) running: usize,
    /// Slots of the concurrency that its jobs have: those that run, and those whose call is prepared.
    pub(super) slots: usize,
    /// By its last answer a job of it must wait: the others ask without a slot, too, to learn for how long.
    pub(super) limited: bool,
    /// When the next of its jobs that are sent round for want of a slot may have one.
    pub(super) next_slot: Duration,
    /// It stands in the rotation,
    pub(super) queued: bool,
    /// among the tenants of this shard.
    pub(super) shard: ShardId,
}

impl State {
    /// Jobs that are ready to ask.
    pub(super) fn ready(&self) -> usize {
        self.prepared.len() + self.without_slot()
    }

    /// Those of them that have no slot.
    pub(super) fn without_slot(&self) -> usize {
        self.due.len() + self.fresh.len()
    }

    /// So many may ask if so many of them get a slot.
    pub(super) fn asking(&self, slots: usize) -> usize {
        match self.limited {
            true => self.ready(),
            false => self.prepared.len() + slots.min(self.without_slot()),
        }
    }

    /// What it adds to the sums.
    fn sum(&self) -> Sum {
        Sum {
            ready: self.ready(),
            at_once: self.asking(0),
        }
    }

    /// The next that asks, which is not ready any more.
    pub(super) fn pop(&mut self) -> Option<Key> {
        let Self {
            prepared,
            due,
            fresh,
            ..
        } = self;
        let mut queues = [prepared, due, fresh].into_iter();
        queues.find_map(VecDeque::pop_front)
    }
}

/// Jobs of the tenants of one shard, or of several.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sum {
    /// They are ready to ask,
    pub(super) ready: usize,
    /// and these need no free slot for it.
    pub(super) at_once: usize,
}

/// A sum for each shard with jobs that are ready to ask.
#[derive(Debug, Default)]
pub(super) struct Sums(BTreeMap<ShardId, Sum>);

impl Sums {
    /// Of each of these shards.
    pub(super) fn each(&self) -> impl Iterator<Item = (ShardId, Sum)> {
        self.0.iter().map(|(shard, sum)| (*shard, *sum))
    }

    /// Of the open shards together.
    pub(super) fn of(&self, is_open: impl Fn(ShardId) -> bool) -> Sum {
        let open = self.each().filter(|(it, _)| is_open(*it));
        open.fold(Sum::default(), |all, (_, sum)| Sum {
            ready: all.ready + sum.ready,
            at_once: all.at_once + sum.at_once,
        })
    }

    /// Changes what is ready of a tenant, and its shard's sum with it.
    pub(super) fn change<T>(
        &mut self,
        state: &mut State,
        change: impl FnOnce(&mut State) -> T,
    ) -> T {
        let before = state.sum();
        let done = change(state);
        let after = state.sum();
        let sum = self.0.entry(state.shard).or_default();
        sum.ready = sum.ready + after.ready - before.ready;
        sum.at_once = sum.at_once + after.at_once - before.at_once;
        if sum.ready == 0 {
            self.0.remove(&state.shard);
        }
        done
    }

    /// Nothing is ready any more.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
