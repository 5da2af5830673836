//! The state of one tenant, and sums over tenants, which are read after each event.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::action::JobKey;
use gate::ShardId;

/// The jobs of one tenant, and its counters.
#[derive(Debug, Default)]
pub(super) struct TenantState {
    /// Jobs that have a slot. They ask before all others.
    pub(super) prepared: VecDeque<JobKey>,
    /// Jobs that came back, or that wait for a slot. They ask before new jobs.
    pub(super) due: VecDeque<JobKey>,
    pub(super) fresh: VecDeque<JobKey>,
    pub(super) held: usize,
    pub(super) running: usize,
    /// Worker slots that its jobs have: running jobs, and jobs whose call is prepared.
    pub(super) slots: usize,
    /// Whether the last answer denied a job. Then the other jobs ask without a slot, too, to learn
    /// their waits.
    pub(super) limited: bool,
    /// Number of its throttles that are being stored. Its jobs do not ask until all are.
    pub(super) suspensions: usize,
    /// Slots that are left of its run, or 0 between its turns.
    pub(super) run_left: usize,
    /// When the next of its jobs that were delayed for lack of a slot may get one.
    pub(super) next_slot: Duration,
    /// Whether it is in the rotation.
    pub(super) queued: bool,
    /// Its shard while it is in the rotation.
    pub(super) shard: ShardId,
}

impl TenantState {
    /// Returns true if the tenant has state other than its ready jobs.
    pub(super) fn is_in_use(&self) -> bool {
        self.held > 0 || self.slots > 0 || self.suspensions > 0
    }

    /// Returns the number of jobs that are ready to ask.
    pub(super) fn ready(&self) -> usize {
        self.prepared.len() + self.without_slot()
    }

    /// Returns the number of ready jobs that have no slot.
    pub(super) fn without_slot(&self) -> usize {
        self.due.len() + self.fresh.len()
    }

    /// Returns the number of jobs that may ask if `slots` of them get a slot.
    pub(super) fn asking(&self, slots: usize) -> usize {
        match self.limited {
            true => self.ready(),
            false => self.prepared.len() + slots.min(self.without_slot()),
        }
    }

    /// Returns its contribution to the sums.
    fn sum(&self) -> ShardSum {
        if self.suspensions > 0 {
            return ShardSum::default();
        }
        ShardSum {
            ready: self.ready(),
            at_once: self.asking(0),
        }
    }

    /// Returns the next job that asks.
    pub(super) fn first(&self) -> Option<JobKey> {
        let mut queues = [&self.prepared, &self.due, &self.fresh].into_iter();
        queues.find_map(|queue| queue.front().copied())
    }

    /// Takes the next job that asks.
    pub(super) fn pop(&mut self) -> Option<JobKey> {
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

/// Counts of jobs of one shard, or of several.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct ShardSum {
    /// Jobs that are ready to ask.
    pub(super) ready: usize,
    /// Ready jobs that need no free slot to ask.
    pub(super) at_once: usize,
}

/// The sum of each shard with jobs that are ready to ask.
#[derive(Debug, Default)]
pub(super) struct ShardSums(BTreeMap<ShardId, ShardSum>);

impl ShardSums {
    /// Iterates over the sums of all shards.
    pub(super) fn each(&self) -> impl Iterator<Item = (ShardId, ShardSum)> {
        self.0.iter().map(|(shard, sum)| (*shard, *sum))
    }

    /// Returns the sum over the open shards.
    pub(super) fn of(&self, is_open: impl Fn(ShardId) -> bool) -> ShardSum {
        let open = self.each().filter(|(it, _)| is_open(*it));
        open.fold(ShardSum::default(), |all, (_, sum)| ShardSum {
            ready: all.ready + sum.ready,
            at_once: all.at_once + sum.at_once,
        })
    }

    /// Changes the ready jobs of a tenant, and the sum of its shard accordingly.
    pub(super) fn change<T>(
        &mut self,
        state: &mut TenantState,
        change: impl FnOnce(&mut TenantState) -> T,
    ) -> T {
        let before = state.sum();
        let done = change(state);
        let after = state.sum();
        if after == before {
            return done;
        }
        let sum = self.0.entry(state.shard).or_default();
        sum.ready = sum.ready + after.ready - before.ready;
        sum.at_once = sum.at_once + after.at_once - before.at_once;
        if sum.ready == 0 {
            self.0.remove(&state.shard);
        }
        done
    }

    /// Removes all sums.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
