//! Bounds the worker slots of each tenant, and divides the free ones among tenants.

use std::time::Duration;

use super::Queues;
use crate::engine::scheduler::slot_shares;
use crate::rules::tenant::Tenant;

/// Share of the slots, as a divisor, that stays free for tenants with few slots that had one lately.
const RESERVED_SHARE: usize = 4;
/// Maximum number of slots that a tenant gets in a row, before the next tenant's turn.
const MAX_RUN: usize = 8;
/// A run has as many slots as usual calls fit into this time one after another. Longer calls make
/// shorter runs.
const RUN_TIME: Duration = Duration::from_millis(20);

/// A tenant that may ask in the next round trip.
#[derive(Debug)]
pub(super) struct SlotCandidate {
    pub(super) tenant: Tenant,
    /// Number of slots that it could use.
    pub(super) demand: usize,
    /// How many more slots it may have until it has few no longer.
    pub(super) few: usize,
    /// Whether a part of the slots stays free beside it.
    pub(super) is_reserved: bool,
    /// Number of slots that it gets before the tenants behind it get one.
    pub(super) run: usize,
    /// Number of slots that it gets.
    pub(super) slots: u32,
}

impl Queues {
    pub(super) fn slots_of(&self, tenant: &Tenant) -> usize {
        self.tenants.get(tenant).map_or(0, |state| state.slots)
    }

    pub(super) fn free(&self) -> usize {
        self.concurrency.saturating_sub(self.slots)
    }

    /// Returns the maximum number of slots of `tenant` now.
    pub(super) fn max_slots(&self, tenant: &Tenant) -> usize {
        let most = self.max_slots_beside(self.rotation.len());
        match self.keeps_reserve_from(tenant) {
            true => most.min(self.few().max(self.slots_of(tenant) + self.unreserved())),
            false => most,
        }
    }

    /// Returns the maximum number of slots of a tenant if `waiting` tenants wait: half of all if
    /// there are others.
    pub(super) fn max_slots_beside(&self, waiting: usize) -> usize {
        match waiting {
            0 | 1 => self.concurrency,
            _ => self.concurrency.div_ceil(2),
        }
    }

    /// Returns the number of slots up to which a tenant has few: a run, at most half of the reserve.
    pub(super) fn few(&self) -> usize {
        self.run().min(self.reserve() / 2).max(1)
    }

    fn reserve(&self) -> usize {
        self.concurrency / RESERVED_SHARE
    }

    /// Returns the number of free slots beyond the reserve.
    pub(super) fn unreserved(&self) -> usize {
        self.free().saturating_sub(self.reserve())
    }

    /// Returns true if a part of the slots must stay free, because another tenant had a slot lately
    /// and has few now. Otherwise tenants with long calls would take all of them between two jobs of
    /// the others.
    pub(super) fn keeps_reserve_from(&self, tenant: &Tenant) -> bool {
        let mut others = self.callers.tenants().filter(|other| *other != tenant);
        others.any(|other| self.slots_of(other) < self.few())
    }

    /// Returns the number of slots that a tenant gets in a row. A long run lets its jobs share a
    /// question, but makes other tenants wait. A run is a single slot if calls usually take
    /// [`RUN_TIME`] or longer, and until their duration is known.
    pub(super) fn run(&self) -> usize {
        let calls = RUN_TIME.as_nanos().checked_div(self.usual_call.as_nanos());
        let calls = usize::try_from(calls.unwrap_or(1)).unwrap_or(MAX_RUN);
        calls.clamp(1, MAX_RUN)
    }

    /// Divides the free slots among `tenants`. If a part of the slots is reserved, each first gets
    /// slots until it has few, then all share the rest beyond the reserve.
    pub(super) fn share(&self, tenants: &[SlotCandidate]) -> Vec<u32> {
        let of =
            |get: fn(&SlotCandidate) -> usize| -> Vec<usize> { tenants.iter().map(get).collect() };
        let (demands, runs) = (of(|it| it.demand), of(|it| it.run));
        if !tenants.iter().any(|it| it.is_reserved) {
            return slot_shares::share(self.free(), &demands, &runs);
        }
        let first = slot_shares::share(self.free(), &of(|it| it.demand.min(it.few)), &runs);
        let given: u32 = first.iter().sum();
        let rest = demands
            .iter()
            .zip(&first)
            .map(|(demand, slots)| demand - *slots as usize);
        let left = self.unreserved().saturating_sub(given as usize);
        let more = slot_shares::share(left, &rest.collect::<Vec<_>>(), &vec![1; demands.len()]);
        first
            .iter()
            .zip(more)
            .map(|(first, more)| first + more)
            .collect()
    }
}
