//! The jobs in the worker's memory by tenant. Decides whose turn it is to ask, and counts the jobs
//! that are held and that run. It knows only the jobs' keys.

mod callers;
mod slot_shares;
mod slots;
mod state;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use foldhash::fast::RandomState;

use self::callers::RecentCallers;
use self::slots::SlotCandidate;
use self::state::{ShardSum, ShardSums, TenantState};
use crate::action::JobKey;
use crate::shards::Shards;
use gate::ShardId;
use rules::tenant::Tenant;

/// All tenants together may have at most the prefetch divided by this in held jobs.
const HELD_SHARE: usize = 2;
/// One tenant may have at most the prefetch divided by this in held jobs, and as many that wait for
/// a slot.
const HELD_SHARE_OF_TENANT: usize = 8;
/// Minimum interval between checks of jobs that lack a slot.
const SURPLUS_PAUSE: Duration = Duration::from_millis(100);

/// The position at which a job joins the ready jobs of its tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueuePosition {
    /// Before all others: a job that has a slot and asked before.
    FrontPrepared,
    /// Behind other jobs with a slot, before all jobs without one.
    Prepared,
    /// Before all others without a slot: a job that asked before.
    Front,
    /// Behind the jobs that asked before or became due earlier, before new ones.
    Due,
    /// Behind all others.
    Fresh,
}

/// One tenant's part of a round trip.
#[derive(Debug, PartialEq, Eq)]
pub struct TenantShare {
    /// The tenant.
    pub tenant: Tenant,
    /// Number of its jobs that may get a worker slot, in addition to those that have one.
    pub slots: u32,
    /// The jobs that ask, those with a slot first.
    pub keys: Vec<JobKey>,
}

/// All tenants with a job in memory.
#[derive(Debug)]
pub struct Queues {
    concurrency: usize,
    prefetch: usize,
    tenants: HashMap<Tenant, TenantState, RandomState>,
    /// Tenants with ready jobs, each once.
    rotation: VecDeque<Tenant>,
    shards: Shards,
    /// Sums over all queued tenants.
    sums: ShardSums,
    held: usize,
    running: usize,
    slots: usize,
    callers: RecentCallers,
    /// Average duration of recent calls.
    usual_call: Duration,
    /// When jobs that lack a slot are checked next.
    next_surplus: Duration,
}

impl Queues {
    /// Creates empty queues.
    pub fn new(concurrency: usize, prefetch: usize) -> Self {
        Self {
            concurrency,
            prefetch,
            tenants: HashMap::default(),
            rotation: VecDeque::new(),
            shards: Shards::default(),
            sums: ShardSums::default(),
            held: 0,
            running: 0,
            slots: 0,
            callers: RecentCallers::default(),
            usual_call: Duration::ZERO,
            next_surplus: Duration::ZERO,
        }
    }

    /// Sets how many jobs may run at once from now on.
    pub fn set_concurrency(&mut self, concurrency: usize) {
        self.concurrency = concurrency;
    }

    /// Sets the mapping of tenants to shards.
    pub fn shard_by(&mut self, shards: Shards) {
        self.shards = shards;
    }

    /// Returns the current shard of `tenant`.
    pub fn shard_of(&self, tenant: &Tenant) -> ShardId {
        self.shards.of(tenant)
    }

    /// Returns the number of jobs in open shards that are ready to ask.
    pub fn ready(&self, is_open: impl Fn(ShardId) -> bool) -> usize {
        self.sums.of(is_open).ready
    }

    /// Returns the number of jobs that are held until their time.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Returns the number of running jobs.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Returns the number of slots in use, by jobs that run or are about to.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Returns true if a job of `tenant` could get a slot.
    pub fn has_slot(&self, tenant: &Tenant) -> bool {
        self.slots < self.concurrency && self.may_have_more(tenant)
    }

    /// Adds a job that is ready to ask.
    pub fn join(&mut self, tenant: &Tenant, key: JobKey, end: QueuePosition) {
        let state = self.tenants.entry(tenant.clone()).or_default();
        if !state.queued {
            state.queued = true;
            state.shard = self.shards.of(tenant);
            self.rotation.push_back(tenant.clone());
        }
        self.sums.change(state, |state| match end {
            QueuePosition::FrontPrepared => state.prepared.push_front(key),
            QueuePosition::Prepared => state.prepared.push_back(key),
            QueuePosition::Front => state.due.push_front(key),
            QueuePosition::Due => state.due.push_back(key),
            QueuePosition::Fresh => state.fresh.push_back(key),
        });
    }

    /// Returns true if a job of an open shard may ask: it has a slot or may get one, or its tenant
    /// is limited.
    pub fn may_ask(&self, is_open: impl Fn(ShardId) -> bool) -> bool {
        let sum = self.sums.of(&is_open);
        if sum.at_once > 0 {
            return true;
        }
        if sum.ready == 0 || self.slots >= self.concurrency {
            return false;
        }
        self.rotation.iter().any(|tenant| {
            let may_ask = |state: &TenantState| {
                let is_open = is_open(state.shard) && state.suspensions == 0;
                is_open && self.may_have_more(tenant)
            };
            self.tenants.get(tenant).is_some_and(may_ask)
        })
    }

    /// Returns about how many jobs of open shards could ask at once.
    pub fn could_ask(&self, is_open: impl Fn(ShardId) -> bool) -> usize {
        let ShardSum { ready, at_once } = self.sums.of(is_open);
        let free = self.concurrency.saturating_sub(self.slots);
        at_once + free.min(ready - at_once)
    }

    /// Forgets tenants that had no slot lately.
    pub fn forget_callers(&mut self, now: Duration) {
        self.callers.forget_old(now);
    }

    /// Returns when a waiting tenant may get more slots, because others had none lately.
    pub fn callers_end_at(&self) -> Option<Duration> {
        let waits = !self.rotation.is_empty() && self.slots < self.concurrency;
        self.callers.ends_at().filter(|_| waits)
    }

    /// Moves the first tenant in the rotation that is one of `these` to the front, if there is one.
    /// The others keep their order.
    pub fn begin_with(&mut self, these: impl Fn(&Tenant) -> bool) {
        if let Some(at) = self.rotation.iter().position(these)
            && let Some(tenant) = self.rotation.remove(at)
        {
            self.rotation.push_front(tenant);
        }
    }

    /// Takes up to `max` jobs of the open shards for one round trip. Divides this number and the
    /// free slots among their tenants, but takes no slot yet. In the next round, tenants whose run
    /// was cut short come first, then tenants that were left out.
    ///
    /// `max_starts` returns how many jobs of a tenant its limits can admit at once, given its first
    /// job. If that many get slots, its other jobs ask as well. They will be denied, and learn
    /// their waits in the same question.
    pub fn take_round(
        &mut self,
        max: usize,
        is_open: impl Fn(ShardId) -> bool,
        mut max_starts: impl FnMut(&Tenant, JobKey) -> usize,
    ) -> Vec<(ShardId, TenantShare)> {
        let (mut tenants, mut passed) = self.candidates(is_open);
        let shares = self.share(&tenants);
        let mut asking = Vec::with_capacity(tenants.len());
        for (candidate, slots) in tenants.iter_mut().zip(shares) {
            candidate.slots = slots;
            let state = self.tenants.get(&candidate.tenant);
            asking.push(state.map_or(0, |state| {
                let asking = state.asking(usize::try_from(slots).unwrap_or(usize::MAX));
                let first = state
                    .first()
                    .filter(|_| asking > 0 && asking < state.ready());
                let takes_all = first.is_some_and(|it| max_starts(&candidate.tenant, it) <= asking);
                if takes_all { state.ready() } else { asking }
            }));
        }
        let rooms = slot_shares::share(max, &asking, &vec![1; asking.len()]);
        let (mut cut, mut unslotted, mut served) = (Vec::new(), Vec::new(), Vec::new());
        let mut turns = Vec::with_capacity(tenants.len());
        for (candidate, room) in tenants.into_iter().zip(rooms) {
            let SlotCandidate {
                tenant,
                demand,
                run,
                slots,
                ..
            } = candidate;
            let Some(state) = self.tenants.get_mut(&tenant) else {
                continue;
            };
            let shard = state.shard;
            let keys: Vec<JobKey> = self.sums.change(state, |state| {
                (0..room).map_while(|_| state.pop()).collect()
            });
            state.queued = state.ready() > 0;
            let given = usize::try_from(slots).unwrap_or(usize::MAX);
            // A tenant that could not use more slots begins its next turn anew.
            state.run_left = match state.queued && (1..demand).contains(&given) {
                true => run.saturating_sub(given),
                false => 0,
            };
            if state.queued {
                let list = match (keys.is_empty(), given) {
                    (true, _) => &mut passed,
                    (false, 0) if demand > 0 => &mut unslotted,
                    (false, _) if state.run_left > 0 => &mut cut,
                    (false, _) => &mut served,
                };
                list.push(tenant.clone());
            }
            if !keys.is_empty() {
                let turn = TenantShare {
                    tenant,
                    slots,
                    keys,
                };
                turns.push((shard, turn));
            }
        }
        for tenant in cut.into_iter().chain(passed).rev() {
            self.rotation.push_front(tenant);
        }
        self.rotation.extend(unslotted);
        self.rotation.extend(served);
        turns
    }

    /// Takes tenants out of the rotation, and returns the ones that may ask, and the ones that may
    /// not. Stops when the free slots are used up, unless some jobs may ask without a slot.
    fn candidates(
        &mut self,
        is_open: impl Fn(ShardId) -> bool,
    ) -> (Vec<SlotCandidate>, Vec<Tenant>) {
        let usual_run = self.run();
        // The loop empties the rotation.
        let most = self.max_slots_beside(self.rotation.len());
        let enough = match self.sums.of(&is_open).at_once {
            0 => self.free(),
            _ => usize::MAX,
        };
        let most_candidates = self.rotation.len().min(enough);
        let mut candidates = Vec::with_capacity(most_candidates);
        let (mut passed, mut taken) = (Vec::new(), 0);
        while taken < enough
            && let Some(tenant) = self.rotation.pop_front()
        {
            let Some(state) = self.tenants.get(&tenant) else {
                continue;
            };
            let few = self.few().saturating_sub(state.slots);
            let mut demand = state.without_slot().min(most.saturating_sub(state.slots));
            let is_large = demand > few;
            if is_large {
                let unreserved = self.unreserved(|other| *other != tenant);
                demand = demand.min(few.max(unreserved));
            }
            let may_ask = is_open(state.shard) && state.suspensions == 0;
            if may_ask && (demand > 0 || enough == usize::MAX) {
                let run = match state.run_left {
                    0 => usual_run,
                    left => left.min(usual_run),
                };
                taken += demand.min(run);
                candidates.push(SlotCandidate {
                    tenant,
                    demand,
                    few,
                    is_large,
                    run,
                    slots: 0,
                });
            } else {
                passed.push(tenant);
            }
        }
        (candidates, passed)
    }

    /// Sets whether jobs of `tenant` must wait for its limits, according to the last answer.
    pub fn set_limited(&mut self, tenant: &Tenant, limited: bool) {
        self.change(tenant, |state| state.limited = limited);
    }

    /// Keeps the jobs of `tenant` from asking until the matching [`Queues::end_suspension`].
    pub fn suspend(&mut self, tenant: &Tenant) {
        let state = self.tenants.entry(tenant.clone()).or_default();
        self.sums.change(state, |state| state.suspensions += 1);
    }

    /// Ends a suspension. The jobs of `tenant` may ask again once all its suspensions have ended.
    pub fn end_suspension(&mut self, tenant: &Tenant) {
        self.change(tenant, |state| state.suspensions -= 1);
    }

    /// Returns true if the jobs of `tenant` may not ask now.
    pub fn is_suspended(&self, tenant: &Tenant) -> bool {
        (self.tenants.get(tenant)).is_some_and(|state| state.suspensions > 0)
    }

    /// Records the duration of a call.
    pub fn record_call_duration(&mut self, took: Duration) {
        self.usual_call = (self.usual_call * 15 + took) / 16;
    }

    /// Returns the recent average duration of calls, or zero before the first.
    pub fn usual_call(&self) -> Duration {
        self.usual_call
    }

    /// Returns when [`Queues::take_surplus`] may find surplus jobs.
    pub fn surplus_at(&self) -> Option<Duration> {
        // This is called after each event, so it does not check whether the jobs belong to one
        // tenant. `take_surplus` does.
        let keep = self.max_held_per_tenant();
        let may_have = |(_, sum): (_, ShardSum)| sum.ready - sum.at_once > keep;
        (self.sums.each().any(may_have)).then_some(self.next_surplus)
    }

    /// Returns true if it is time for [`Queues::take_surplus`], and begins the next interval,
    /// `every`.
    pub fn should_check_surplus(&mut self, now: Duration, every: Duration) -> bool {
        let looks = now >= self.next_surplus;
        if looks {
            self.next_surplus = now + every.max(SURPLUS_PAUSE);
        }
        looks
    }

    fn max_held_per_tenant(&self) -> usize {
        (self.prefetch / HELD_SHARE_OF_TENANT).max(1)
    }

    /// Takes out surplus jobs, so that they do not fill the prefetch. A surplus job waits for a
    /// slot, exceeds the number that one tenant may keep in memory, and is `stale` (has waited for
    /// long). Returns each with an estimate of when it may get a slot, assuming that calls take as
    /// long as usual and that other tenants wait, too. The estimate is at most `farthest` from
    /// `now`, because calls may become shorter.
    pub fn take_surplus(
        &mut self,
        now: Duration,
        farthest: Duration,
        stale: impl Fn(JobKey) -> bool,
    ) -> Vec<(JobKey, Duration)> {
        let (keep, took) = (self.max_held_per_tenant(), self.usual_call);
        let share = u32::try_from(self.concurrency.div_ceil(2)).unwrap_or(u32::MAX);
        let mut surplus = Vec::new();
        let too_many = |state: &TenantState| !state.limited && state.without_slot() > keep;
        let crowded = self.tenants.iter_mut().filter(|(_, it)| too_many(it));
        let mut crowded: Vec<_> = crowded.collect();
        // Sorted, because the map has no stable order, and equal seeds must send equal jobs to
        // equal delay queues.
        crowded.sort_unstable_by_key(|(tenant, _)| tenant.as_str());
        for (_, state) in crowded {
            let mut keys = Vec::new();
            // The newest jobs leave first, so that the remaining ones stay in order.
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
    pub fn take_stale(&mut self, stale: impl Fn(JobKey) -> bool) -> Vec<JobKey> {
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
        (self.tenants).retain(|_, state| state.queued || state.is_in_use());
        taken.sort_unstable();
        taken
    }

    /// Counts one more job of `tenant` as held, if there is room: held jobs take at most half of
    /// the prefetch, and an eighth per tenant. Returns false if there is no room.
    pub fn try_hold(&mut self, tenant: &Tenant) -> bool {
        let max = self.max_held_per_tenant();
        let state = self.tenants.entry(tenant.clone()).or_default();
        let room = self.held < (self.prefetch / HELD_SHARE).max(1) && state.held < max;
        if room {
            self.hold(tenant);
        }
        self.change(tenant, |_| {});
        room
    }

    /// Counts one more job of `tenant` as held, even if there is no room.
    pub fn hold(&mut self, tenant: &Tenant) {
        self.tenants.entry(tenant.clone()).or_default().held += 1;
        self.held += 1;
    }

    /// Ends the hold of a job whose time has come.
    pub fn release(&mut self, tenant: &Tenant) {
        self.held -= 1;
        self.change(tenant, |state| state.held -= 1);
    }

    /// Takes a slot for a job of `tenant`. Returns false if all slots are taken, or as many as one
    /// tenant may have.
    pub fn try_slot(&mut self, tenant: &Tenant) -> bool {
        let free = self.has_slot(tenant);
        if free {
            self.take_slot(tenant);
        }
        free
    }

    /// Takes a slot for a job of `tenant`.
    pub fn take_slot(&mut self, tenant: &Tenant) {
        self.slots += 1;
        self.callers.record(tenant);
        self.tenants.entry(tenant.clone()).or_default().slots += 1;
    }

    /// Frees the slot of a job of `tenant` that does not run.
    pub fn free_slot(&mut self, tenant: &Tenant) {
        self.slots -= 1;
        self.change(tenant, |state| state.slots -= 1);
    }

    /// Records that a job with a slot starts.
    pub fn start(&mut self, tenant: &Tenant) {
        self.running += 1;
        self.tenants.entry(tenant.clone()).or_default().running += 1;
    }

    /// Records that a job has ended, and frees its slot.
    pub fn end(&mut self, tenant: &Tenant) {
        self.running -= 1;
        self.slots -= 1;
        self.change(tenant, |state| {
            state.running -= 1;
            state.slots -= 1;
        });
    }

    /// Forgets all jobs that are not running.
    pub fn forget_waiting(&mut self) {
        self.rotation.clear();
        self.sums.clear();
        self.held = 0;
        self.slots = self.running;
        (self.tenants).retain(|_, state| state.running > 0 || state.suspensions > 0);
        for state in self.tenants.values_mut() {
            *state = TenantState {
                running: state.running,
                slots: state.running,
                suspensions: state.suspensions,
                ..TenantState::default()
            };
        }
    }

    /// Changes the state of `tenant`, if it has one, and forgets an idle tenant.
    fn change(&mut self, tenant: &Tenant, change: impl FnOnce(&mut TenantState)) {
        let Some(state) = self.tenants.get_mut(tenant) else {
            return;
        };
        self.sums.change(state, change);
        if state.ready() == 0 && !state.queued && !state.is_in_use() {
            self.tenants.remove(tenant);
        }
    }
}

#[cfg(test)]
mod tests;
