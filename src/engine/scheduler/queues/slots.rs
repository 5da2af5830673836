//! Bounds the worker slots of each tenant, and divides the free ones among tenants.

use std::collections::HashSet;
use std::time::Duration;

use foldhash::fast::RandomState;

use super::{Queues, slot_shares};
use rules::tenant::Tenant;

/// The slots divided by this stay free at most, for tenants with few slots that had one lately.
const RESERVED_SHARE: usize = 4;
/// A tenant with fewer slots than all divided by this has few.
const FEW_SHARE: usize = 6;
/// Maximum number of slots that a tenant gets in a row, before the next tenant's turn.
const MAX_RUN: usize = 10;
/// A run has as many slots as usual calls fit into this time one after another. Longer calls make
/// shorter runs.
const RUN_TIME: Duration = Duration::from_millis(40);

/// A tenant that may ask in the next round trip.
#[derive(Debug)]
pub(super) struct SlotCandidate {
    pub(super) tenant: Tenant,
    /// Number of slots that it could use.
    pub(super) demand: usize,
    /// How many more slots it may have until it has few no longer.
    pub(super) few: usize,
    /// Whether it could use more than that.
    pub(super) is_large: bool,
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

    /// Returns true if `tenant` may have another slot, if one is free.
    pub(super) fn may_have_more(&self, tenant: &Tenant) -> bool {
        let has = self.slots_of(tenant);
        let is_below = has < self.max_slots_beside(self.rotation.len());
        is_below && (has < self.few() || self.unreserved(|other| other != tenant) > 0)
    }

    /// Returns the maximum number of slots of a tenant if `waiting` tenants wait: half of all if
    /// there are others.
    pub(super) fn max_slots_beside(&self, waiting: usize) -> usize {
        match waiting {
            0 | 1 => self.concurrency,
            _ => self.concurrency.div_ceil(2),
        }
    }

    /// Returns the number of slots up to which a tenant has few.
    pub(super) fn few(&self) -> usize {
        (self.concurrency / FEW_SHARE).max(1)
    }

    /// Returns the number of free slots without the reserve for `others`: tenants that had a slot
    /// lately and have few now. Otherwise tenants with long calls would take all slots between two
    /// jobs of the others.
    pub(super) fn unreserved(&self, others: impl Fn(&Tenant) -> bool) -> usize {
        let (most, mut reserve) = (self.concurrency / RESERVED_SHARE, 0);
        for tenant in self.callers.tenants().filter(|tenant| others(tenant)) {
            if reserve >= most {
                break;
            }
            reserve += self.few().saturating_sub(self.slots_of(tenant));
        }
        self.free().saturating_sub(reserve.min(most))
    }

    /// Returns the number of slots that a tenant gets in a row. A long run lets its jobs share a
    /// question, but makes other tenants wait. A run is a single slot if calls usually take
    /// [`RUN_TIME`] or longer, and until their duration is known.
    pub(super) fn run(&self) -> usize {
        let calls = RUN_TIME.as_nanos().checked_div(self.usual_call.as_nanos());
        let calls = usize::try_from(calls.unwrap_or(1)).unwrap_or(MAX_RUN);
        calls.clamp(1, MAX_RUN)
    }

    /// Divides the free slots among `tenants`. If some stay free for others, each first gets slots
    /// until it has few, then all share the rest.
    pub(super) fn share(&self, tenants: &[SlotCandidate]) -> Vec<u32> {
        let of =
            |get: fn(&SlotCandidate) -> usize| -> Vec<usize> { tenants.iter().map(get).collect() };
        let (demands, runs) = (of(|it| it.demand), of(|it| it.run));
        let unreserved = match tenants.iter().any(|it| it.is_large) {
            true => {
                let asking = tenants.iter().map(|it| &it.tenant);
                let asking: HashSet<_, RandomState> = asking.collect();
                self.unreserved(|other| !asking.contains(other))
            }
            false => self.free(),
        };
        if unreserved == self.free() {
            return slot_shares::share(unreserved, &demands, &runs);
        }
        let first = slot_shares::share(self.free(), &of(|it| it.demand.min(it.few)), &runs);
        let given: u32 = first.iter().sum();
        let rest = demands
            .iter()
            .zip(&first)
            .map(|(demand, slots)| demand - *slots as usize);
        let left = unreserved.saturating_sub(given as usize);
        let more = slot_shares::share(left, &rest.collect::<Vec<_>>(), &vec![1; demands.len()]);
        first
            .iter()
            .zip(more)
            .map(|(first, more)| first + more)
            .collect()
    }
}
