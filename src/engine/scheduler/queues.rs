//! The jobs in the worker's memory by tenant: whose turn it is to ask, how many are held and how many run.
//! It knows jobs by their keys only.

mod state;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use foldhash::fast::RandomState;

use self::state::{State, Sum, Sums};
use super::budget;
use crate::engine::action::Key;
use crate::engine::shards::Shards;
use crate::gate::ShardId;
use crate::rules::tenant::Tenant;

/// So much of the prefetch may be held in memory, and so much of it for one tenant.
const HELD_SHARE: usize = 2;
const HELD_SHARE_OF_TENANT: usize = 8;
/// Jobs that lack a slot are looked at so often at most.
const SURPLUS_PAUSE: Duration = Duration::from_millis(100);

/// Where a job joins the jobs of its tenant that are ready to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It has a slot and asked already: before everything else.
    FrontPrepared,
    /// It has a slot: behind those that have one, too, before all others.
    Prepared,
    /// Before everything else that has no slot: it asked already.
    Front,
    /// Behind the jobs that came back, before the fresh ones.
    Due,
    /// Behind everything else.
    Fresh,
}

/// One tenant's part of a round trip.
#[derive(Debug, PartialEq, Eq)]
pub struct Turn {
    /// Whose.
    pub tenant: Tenant,
    /// How many of them may have a slot of the concurrency, beside those that have one.
    pub slots: u32,
    /// The jobs that ask, those that have a slot first.
    pub keys: Vec<Key>,
}

/// All tenants with a job in memory.
#[derive(Debug)]
pub struct Queues {
    concurrency: usize,
    prefetch: usize,
    tenants: HashMap<Tenant, State, RandomState>,
    /// Tenants with ready jobs, each once.
    rotation: VecDeque<Tenant>,
    shards: Shards,
    /// Of all tenants that are queued.
    sums: Sums,
    held: usize,
    running: usize,
    slots: usize,
    /// What a call takes, on average lately.
    usual_call: Duration,
    /// When jobs that lack a slot are looked at next.
    next_surplus: Duration,
}

impl Queues {
    /// Nobody yet.
    pub fn new(concurrency: usize, prefetch: usize) -> Self {
        Self {
            concurrency,
            prefetch,
            tenants: HashMap::default(),
            rotation: VecDeque::new(),
            shards: Shards::default(),
            sums: Sums::default(),
            held: 0,
            running: 0,
            slots: 0,
            usual_call: Duration::ZERO,
            next_surplus: Duration::ZERO,
        }
    }

    /// So many jobs may run at once from now on.
    pub fn set_concurrency(&mut self, concurrency: usize) {
        self.concurrency = concurrency;
    }

    /// Which shard each tenant is in.
    pub fn shard_by(&mut self, shards: Shards) {
        self.shards = shards;
    }

    /// The one that `tenant` is in now.
    pub fn shard_of(&self, tenant: &Tenant) -> ShardId {
        self.shards.of(tenant)
    }

    /// Jobs that are ready to ask, in shards that are open.
    pub fn ready(&self, is_open: impl Fn(ShardId) -> bool) -> usize {
        self.sums.of(is_open).ready
    }

    /// Jobs that are held until their time.
    pub fn held(&self) -> usize {
        self.held
    }
    /// Jobs that run.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Slots that are taken: by jobs that run, and those that are about to.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// A job of `tenant` could have a slot.
    pub fn has_slot(&self, tenant: &Tenant) -> bool {
        let has = self.tenants.get(tenant).map_or(0, |state| state.slots);
        self.slots < self.concurrency && has < self.most_slots()
    }

    /// A job is ready to ask.
    pub fn join(&mut self, tenant: &Tenant, key: Key, end: End) {
        let state = self.tenants.entry(tenant.clone()).or_default();
        if !state.queued {
            state.queued = true;
            state.shard = self.shards.of(tenant);
            self.rotation.push_back(tenant.clone());
        }
        self.sums.change(state, |state| match end {
            End::FrontPrepared => state.prepared.push_front(key),
            End::Prepared => state.prepared.push_back(key),
            End::Front => state.due.push_front(key),
            End::Due => state.due.push_back(key),
            End::Fresh => state.fresh.push_back(key),
        });
    }

    /// Somebody of an open shard has something to ask: a job that has a slot or may have one, or any of a tenant that is limited.
    pub fn may_ask(&self, is_open: impl Fn(ShardId) -> bool) -> bool {
        let sum = self.sums.of(&is_open);
        if sum.at_once > 0 {
            return true;
        }
        if sum.ready == 0 || self.slots >= self.concurrency {
            return false;
        }
        let most = self.most_slots();
        let eligible = |state: &State| is_open(state.shard) && state.slots < most;
        self.rotation
            .iter()
            .any(|tenant| self.tenants.get(tenant).is_some_and(eligible))
    }

    /// How many jobs of open shards could ask at once, about.
    pub fn could_ask(&self, is_open: impl Fn(ShardId) -> bool) -> usize {
        let Sum { ready, at_once } = self.sums.of(is_open);
        let free = self.concurrency.saturating_sub(self.slots);
        at_once + free.min(ready - at_once)
    }

    /// While others wait to run, one tenant has at most half of the concurrency.
    fn most_slots(&self) -> usize {
        if self.rotation.len() > 1 {
            self.concurrency.div_ceil(2)
        } else {
            self.concurrency
        }
    }

    /// The first tenant in turn that is one of `these` comes next, if there is one. The others keep their order.
    pub fn begin_with(&mut self, these: impl Fn(&Tenant) -> bool) {
        if let Some(at) = self.rotation.iter().position(these)
            && let Some(tenant) = self.rotation.remove(at)
        {
            self.rotation.push_front(tenant);
        }
    }

    /// Takes up to `most` jobs of the open shards for one round trip, and shares them, and the free slots, among their tenants.
    /// Who was left out comes first in the next round. No slot is taken yet.
    pub fn take_round(
        &mut self,
        most: usize,
        is_open: impl Fn(ShardId) -> bool,
    ) -> Vec<(ShardId, Turn)> {
        let free = self.concurrency.saturating_sub(self.slots);
        let most_slots = self.most_slots();
        // Where nobody asks without a slot, no more tenants can ask than there are slots: the others need not be looked at.
        let enough = match self.sums.of(&is_open).at_once {
            0 => free,
            _ => usize::MAX,
        };
        let (mut passed, mut tenants, mut demands) = (Vec::new(), Vec::new(), Vec::new());
        while tenants.len() < enough
            && let Some(tenant) = self.rotation.pop_front()
        {
            let Some(state) = self.tenants.get(&tenant) else {
                continue;
            };
            let may_have = most_slots.saturating_sub(state.slots);
            let demand = state.without_slot().min(may_have);
            if is_open(state.shard) && (demand > 0 || enough == usize::MAX) {
                tenants.push(tenant);
                demands.push(demand);
            } else {
                passed.push(tenant);
            }
        }
        let slots = budget::share(free, &demands);
        let asking = |(tenant, slots): (&Tenant, &u32)| {
            let state = self.tenants.get(tenant)?;
            Some(state.asking(usize::try_from(*slots).unwrap_or(usize::MAX)))
        };
        let asking = tenants.iter().zip(&slots).map(asking);
        let asking: Vec<usize> = asking.map(Option::unwrap_or_default).collect();
        let rooms = budget::share(most, &asking);
        let mut turns = Vec::new();
        let mut served = Vec::new();
        for ((tenant, slots), room) in tenants.into_iter().zip(slots).zip(rooms) {
            let Some(state) = self.tenants.get_mut(&tenant) else {
                continue;
            };
            let shard = state.shard;
            let keys: Vec<Key> = self.sums.change(state, |state| {
                (0..room).map_while(|_| state.pop()).collect()
            });
            state.queued = state.ready() > 0;
            match (state.queued, keys.is_empty()) {
                (true, true) => passed.push(tenant.clone()),
                (true, false) => served.push(tenant.clone()),
                (false, _) => {}
            }
            if !keys.is_empty() {
                let turn = Turn {
                    tenant,
                    slots,
                    keys,
                };
                turns.push((shard, turn));
            }
        }
        for tenant in passed.into_iter().rev() {
            self.rotation.push_front(tenant);
        }
        self.rotation.extend(served);
        turns
    }

    /// What the last answer said: whether a job of `tenant` must wait for its limits.
    pub fn set_limited(&mut self, tenant: &Tenant, limited: bool) {
        if let Some(state) = self.tenants.get_mut(tenant) {
            self.sums.change(state, |state| state.limited = limited);
        }
        self.forget_idle(tenant);
    }

    /// A call took so long.
    pub fn call_took(&mut self, took: Duration) {
        self.usual_call = (self.usual_call * 15 + took) / 16;
    }

    /// When [`Queues::take_surplus`] may find anything.
    pub fn surplus_at(&self) -> Option<Duration> {
        // Whether they are one tenant's is looked at then: this is asked after each event.
        let keep = self.most_of_tenant();
        let may_have = |(_, sum): (_, Sum)| sum.ready - sum.at_once > keep;
        (self.sums.each().any(may_have)).then_some(self.next_surplus)
    }

    /// Whether it is time for [`Queues::take_surplus`]: once in `every`. If so, it counts as done.
    pub fn looks_for_surplus(&mut self, now: Duration, every: Duration) -> bool {
        let looks = now >= self.next_surplus;
        if looks {
            self.next_surplus = now + every.max(SURPLUS_PAUSE);
        }
        looks
    }

    fn most_of_tenant(&self) -> usize {
        (self.prefetch / HELD_SHARE_OF_TENANT).max(1)
    }

    /// Jobs that wait for a slot, are more than one tenant may keep in memory, and are `stale` (they have waited
    /// for long): taken out, so that they do not fill the prefetch. Each comes with the time when it may have a
    /// slot if each needs one for as long as calls usually take and the tenant has the share that it has while others wait; at the latest
    /// `farthest` from now, since runs that take long today may be short tomorrow.
    pub fn take_surplus(
        &mut self,
        now: Duration,
        farthest: Duration,
        stale: impl Fn(Key) -> bool,
    ) -> Vec<(Key, Duration)> {
        let (keep, took) = (self.most_of_tenant(), self.usual_call);
        let share = u32::try_from(self.concurrency.div_ceil(2)).unwrap_or(u32::MAX);
        let mut surplus = Vec::new();
        let too_many = |state: &State| !state.limited && state.without_slot() > keep;
        let crowded = self.tenants.iter_mut().filter(|(_, it)| too_many(it));
        let mut crowded: Vec<_> = crowded.collect();
        // In an order of its own, not the map's: with the same seed the same jobs take the same delay queues.
        crowded.sort_unstable_by_key(|(tenant, _)| tenant.as_str());
        for (_, state) in crowded {
            let mut keys = Vec::new();
            // The last to come are the first to go: who stays, stays in order.
            self.sums.change(state, |state| {
                while state.without_slot() > keep
                    && let Some(&key) = state.fresh.back().or(state.due.back())
                    && stale(key)
                {
                    if state.fresh.pop_back().is_none() {
                        state.due.pop_back();
                    }
                    keys.push(key);
                }
            });
            state.next_slot = state.next_slot.max(now);
            for key in keys.into_iter().rev() {
                state.next_slot = (state.next_slot + took / share).min(now + farthest);
                surplus.push((key, state.next_slot));
            }
        }
        surplus
    }

    /// Takes out the jobs that are ready to ask and `stale`, in the order of their arrival.
    pub fn take_stale(&mut self, stale: impl Fn(Key) -> bool) -> Vec<Key> {
        let mut taken = Vec::new();
        for state in self.tenants.values_mut() {
            self.sums.change(state, |state| {
                for queue in [&mut state.prepared, &mut state.due, &mut state.fresh] {
                    queue.retain(|key| {
                        let goes = stale(*key);
                        taken.extend(goes.then_some(*key));
                        !goes
                    });
                }
            });
            state.queued &= state.ready() > 0;
        }
        let tenants = &self.tenants;
        (self.rotation).retain(|tenant| tenants.get(tenant).is_some_and(|state| state.queued));
        (self.tenants).retain(|_, state| state.queued || state.held > 0 || state.slots > 0);
        taken.sort_unstable();
        taken
    }

    /// Room to hold one more job of `tenant`? Held jobs are at most half of the prefetch, and an eighth for
    /// one tenant. `true`: it is counted as held.
    pub fn try_hold(&mut self, tenant: &Tenant) -> bool {
        let most = self.most_of_tenant();
        let state = self.tenants.entry(tenant.clone()).or_default();
        let room = self.held < (self.prefetch / HELD_SHARE).max(1) && state.held < most;
        if room {
            self.hold(tenant);
        }
        self.forget_idle(tenant);
        room
    }

    /// Counts one more job of `tenant` as held, room or not.
    pub fn hold(&mut self, tenant: &Tenant) {
        self.tenants.entry(tenant.clone()).or_default().held += 1;
        self.held += 1;
    }

    /// A held job's time has come.
    pub fn release(&mut self, tenant: &Tenant) {
        self.held -= 1;
        if let Some(state) = self.tenants.get_mut(tenant) {
            state.held -= 1;
        }
        self.forget_idle(tenant);
    }

    /// A slot for a job of `tenant`, unless all are taken, or as many as one tenant may have.
    pub fn try_slot(&mut self, tenant: &Tenant) -> bool {
        let free = self.has_slot(tenant);
        if free {
            self.take_slot(tenant);
        }
        free
    }

    /// A job of `tenant` has a slot from now on.
    pub fn take_slot(&mut self, tenant: &Tenant) {
        self.slots += 1;
        self.tenants.entry(tenant.clone()).or_default().slots += 1;
    }

    /// A job of `tenant` that does not run needs its slot no more.
    pub fn free_slot(&mut self, tenant: &Tenant) {
        self.slots -= 1;
        if let Some(state) = self.tenants.get_mut(tenant) {
            state.slots -= 1;
        }
        self.forget_idle(tenant);
    }

    /// A job that has a slot starts.
    pub fn start(&mut self, tenant: &Tenant) {
        self.running += 1;
        self.tenants.entry(tenant.clone()).or_default().running += 1;
    }

    /// A job has ended, and its slot is free.
    pub fn end(&mut self, tenant: &Tenant) {
        self.running -= 1;
        if let Some(state) = self.tenants.get_mut(tenant) {
            state.running -= 1;
        }
        self.free_slot(tenant);
    }

    /// Forgets all jobs but those that run.
    pub fn forget_waiting(&mut self) {
        self.rotation.clear();
        self.sums.clear();
        self.held = 0;
        self.slots = self.running;
        self.tenants.retain(|_, state| state.running > 0);
        for state in self.tenants.values_mut() {
            *state = State {
                running: state.running,
                slots: state.running,
                ..State::default()
            };
        }
    }

    fn forget_idle(&mut self, tenant: &Tenant) {
        let idle = |s: &State| s.ready() == 0 && s.held == 0 && s.slots == 0 && !s.queued;
        if self.tenants.get(tenant).is_some_and(idle) {
            self.tenants.remove(tenant);
        }
    }
}

#[cfg(test)]
mod tests;
