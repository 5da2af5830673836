//! The partitions of one call: the waitlist of its jobs, and the partitions that it shares with
//! other waitlists.

mod schedule;

use std::borrow::Cow;

use super::call::Call;
use super::{HeldState, MARK_MS, State};
use crate::decision::{
    Answer, End, Inspection, Question, StartSettlement, Tally, TrialStatus, UsageOfLimit,
};
use crate::gate::fair_queue::reach;
use crate::gate::usage::{Clock, NextLimit, NextLimits};
use crate::gate::waitlist::{KEEP_MS, Waitlist};
use crate::layout::Layout;
use crate::limit::Limit;

/// The states of the partitions in one [`Layout`].
pub struct Scopes<'a> {
    pub(super) layout: &'a Layout,
    pub(super) states: Vec<HeldState>,
    /// Counts that the last question added to each shadow limit.
    pub(super) tallies: Vec<Tally>,
}

/// The time of an inspection.
struct InspectionTime {
    clock: Clock,
    /// When the tenant opens; 0 if it is open.
    closed_until: u64,
    /// Earliest time of a start: now, or when the tenant opens.
    base: u64,
}

impl<'a> Scopes<'a> {
    /// Takes the stored states: `state(0)` is the waitlist, `state(n)` the n-th shared partition.
    pub fn take(layout: &'a Layout, state: impl FnMut(usize) -> HeldState) -> Self {
        let states = (0..layout.count()).map(state).collect();
        Self {
            layout,
            states,
            tallies: Vec::new(),
        }
    }

    /// Returns a copy that is loaded at `clock`.
    pub(super) fn loaded_copy(&self, limits: &[Limit], clock: Clock) -> Self {
        let mut copy = Self::take(self.layout, |index| self.states[index].clone());
        copy.load(limits, clock, State::load);
        copy
    }

    /// Returns the new states to store, in the same order.
    pub fn into_states(self) -> Vec<HeldState> {
        self.states
    }

    /// Returns the counts that the last question added to each shadow limit.
    pub fn tallies(&self) -> &[Tally] {
        &self.tallies
    }

    /// Decides `asks` in order, as if they arrived one after the other. At most `budget` of them
    /// start. Shadow limits come last in `limits` and deny nothing. Also returns until when the
    /// tenant is closed, in milliseconds since the Unix epoch; 0 if it is open.
    pub fn ask(
        &mut self,
        limits: &[Limit],
        clock: Clock,
        budget: u32,
        permits: &str,
        asks: &[Question],
    ) -> (Vec<Answer>, u64) {
        let now = clock.now_ms;
        self.states[self.layout.control].forget_overrides(now);
        let next = self.next_limits(limits, &[], now);
        let limits = self.in_force(limits, now);
        let shared_state = |state: &State| (state.waitlist.clone(), state.fair_queue.clone());
        let before: Vec<_> = self.states.iter().map(|it| shared_state(it)).collect();
        let newer = self.load(&limits, clock, State::load);
        self.forget_expired(&limits, now);
        let control = &mut self.states[self.layout.control];
        control.pull_back(now);
        let moved = control.breaker.pull_back(now);
        let base = now.max(control.closed_until(now));
        // While the breaker is half open, one call is the probe.
        let half_open = control.breaker.is_open();
        let budget = if half_open { budget.min(1) } else { budget };
        let charged = (&limits[..], &next);
        let mut call = Call::new(&mut self.states, self.layout, charged, clock, base, budget);
        self.tallies = Vec::new();
        let named = limits.iter().any(|limit| limit.algorithm().holds_leases());
        let decide = |(number, ask)| match named {
            true => call.decide(ask, &format!("{permits}:{number}")),
            // Permit names are used by leases only.
            false => call.decide(ask, ""),
        };
        let answers: Vec<Answer> = asks.iter().enumerate().map(decide).collect();
        let (end, tallies) = call.finish();
        self.tallies = tallies;
        for (index, (newer, (waitlist, fair_queue))) in newer.into_iter().zip(&before).enumerate() {
            let state = &self.states[index];
            if newer || state.waitlist != *waitlist || state.fair_queue != *fair_queue {
                let newest = self.newest_window_end(index, &limits);
                let state = &mut self.states[index];
                state.save(now, end.max(newest));
                state.flows_expire = state.expires;
            }
        }
        let closed = match base > now {
            true => base,
            false => 0,
        };
        let starts = |answer: &Answer| matches!(answer, Answer::Start { .. });
        let probes = half_open && answers.iter().any(starts);
        if moved || probes {
            let control = &mut self.states[self.layout.control];
            if probes {
                control.breaker.begin_probe(now);
            }
            let needed_until = now.max(control.breaker.needed_until());
            control.expires = control.expires.max(needed_until + KEEP_MS);
        }
        (answers, closed)
    }

    /// Reports whether the tenant's last calls failed. If so, the next success must be reported,
    /// too.
    pub fn has_failures(&self) -> bool {
        self.control().breaker.failures() > 0
    }

    /// Settles calls that have ended: replaces their charges with actual costs, and ends or renews
    /// their leases. A `call` that was settled before is ignored.
    pub fn settle(
        &mut self,
        limits: &[Limit],
        clock: Clock,
        call: &str,
        settled: &[StartSettlement],
    ) {
        let now = clock.now_ms;
        self.states[self.layout.control].forget_overrides(now);
        let limits = self.in_force(limits, now);
        let marks = &mut self.states[0].marks;
        marks.retain(|_, until| *until > now);
        if marks.contains_key(call) {
            return;
        }
        marks.insert(call.to_owned(), now + MARK_MS);
        let before: Vec<_> = (self.states.iter())
            .map(|state| state.waitlist.clone())
            .collect();
        let newer = self.load(&limits, clock, State::load_own);
        let waitlist = &mut self.states[0].waitlist;
        let holds = limits.iter().any(|limit| limit.algorithm().holds_leases());
        for one in settled {
            // An abandoned call does not show how long calls take.
            if holds && matches!(one.end, End::Cost(_)) {
                let took = now.saturating_sub(one.receipt.started_ms);
                waitlist.usual = match waitlist.usual {
                    0 => took.max(1),
                    usual => ((usual * 7 + took) / 8).max(1),
                };
            }
        }
        for (index, state) in self.states.iter_mut().enumerate() {
            let limits = self.layout.limits_in(index, &limits);
            for one in settled {
                let cost = one.receipt.cost.max(1);
                let sequence = one.receipt.sequences.get(index);
                state.usage.settle(&limits, clock, one, sequence, cost);
            }
        }
        for (index, newer) in newer.into_iter().enumerate() {
            if newer || self.states[index].waitlist != before[index] {
                let newest = self.newest_window_end(index, &limits);
                self.states[index].save(now, now.max(newest));
            }
        }
    }

    /// Returns the current usage and waits. Changes nothing.
    pub fn inspect(&self, limits: &[Limit], clock: Clock) -> Inspection {
        let now = clock.now_ms;
        let in_force = self.in_force(limits, now);
        let next = self.next_limits(limits, &[], now);
        let mut states = self.loaded_copy(&in_force, clock);
        states.forget_reset_waitlist(now);
        states.states[self.layout.control].pull_back(now);
        let waiting = states.states[0].waitlist.waiting();
        let widest = widest_of(&states.states[0].waitlist);
        let closed = states.control().closed(now);
        let blocked_by = states.control().closed_by(now);
        let base = now.max(closed);
        let charged = (&in_force[..], &next);
        let call = Call::new(&mut states.states, self.layout, charged, clock, base, 0);
        let mut call = call.foreseeing();
        let at = InspectionTime {
            clock,
            closed_until: closed,
            base,
        };
        let partitions = self.layout.partitions.iter().copied();
        let mut usages: Vec<UsageOfLimit> = (in_force.iter().zip(limits))
            .zip(partitions.enumerate())
            .map(|(limit, (index, partition))| {
                let next = next.get(&index);
                self.usage_of(limit, next, partition, call.state(partition), &at)
            })
            .collect();
        let shadows = usages.split_off(call.enforced());
        for (usage, learned) in usages.iter_mut().zip(self.learned_of(limits, now)) {
            usage.learned = learned;
        }
        let tried = |(usage, (limit, partition)): (UsageOfLimit, (&Limit, &usize))| {
            let trial = self.states[*partition].trials.get(limit);
            (
                usage,
                trial.map_or_else(TrialStatus::default, |trial| trial.tried(now)),
            )
        };
        let of_shadows = limits
            .iter()
            .zip(&self.layout.partitions)
            .skip(call.enforced());
        Inspection {
            now_ms: now,
            limits: usages,
            shadows: shadows.into_iter().zip(of_shadows).map(tried).collect(),
            waiting,
            widest,
            waitlist_end_ms: match waiting {
                0 => 0,
                waiting => call.turn(waiting, 1).0 - now,
            },
            turn_ms: call.turn(waiting + 1, 1).0 - now,
            blocked_until_ms: closed,
            blocked_by,
            quotas: self.control().quotas.0,
            quotas_at_ms: self.control().quotas.1,
        }
    }

    /// Returns the usage of the effective `limit` in its partition. `state` is the partition's
    /// state at the time of the inspection.
    fn usage_of(
        &self,
        (limit, configured): (&Limit, &Limit),
        next: Option<&NextLimit>,
        partition: usize,
        state: &State,
        at: &InspectionTime,
    ) -> UsageOfLimit {
        let now = at.clock.now_ms;
        let (set, override_until_ms) =
            (self.override_of(limit, now)).unwrap_or((configured.max(), 0));
        let (waiting, widest) = match partition {
            _ if limit.is_shadow() => (0, 0),
            0 => (state.waitlist.waiting(), widest_of(&state.waitlist)),
            partition => match &self.states[partition].fair_queue {
                queue if queue.waiting > 0 => (queue.waiting, queue.widest),
                _ => (0, 0),
            },
        };
        UsageOfLimit {
            max: limit.max(),
            set,
            override_until_ms,
            count: state.usage.count(limit, at.clock),
            free: match at.closed_until {
                0 => state.usage.free(limit, now),
                _ => 0,
            },
            next_ms: state.usage.nth_with(limit, next, at.base, 1) - now,
            waiting,
            widest,
            calls: state.usage.calls(limit, at.clock),
            learned: None,
        }
    }

    /// Returns the state that holds the tenant's closings and overrides.
    fn control(&self) -> &State {
        &self.states[self.layout.control]
    }

    /// Returns the effective limits: operator overrides applied, then capped by learned values.
    /// Global limits have no overrides, because an operator's change is about one tenant.
    pub(super) fn in_force<'l>(&self, limits: &'l [Limit], now: u64) -> Cow<'l, [Limit]> {
        self.in_force_ignoring(limits, &[], now)
    }

    /// Returns the same as [`Self::in_force`], but ignores overrides of limits whose flag in
    /// `ignores_override` is true. A limit without a flag is overridden.
    fn in_force_ignoring<'l>(
        &self,
        limits: &'l [Limit],
        ignores_override: &[bool],
        now: u64,
    ) -> Cow<'l, [Limit]> {
        let changes_none = |state: &HeldState| state.learned.is_empty();
        if self.control().overrides.is_empty() && self.states.iter().all(changes_none) {
            return limits.into();
        }
        let set = |(index, limit): (usize, &Limit)| {
            let set = match ignores_override.get(index) {
                Some(true) => limit.clone(),
                _ => self.set(limit, now),
            };
            self.lowered(index, limit, set, now)
        };
        limits.iter().enumerate().map(set).collect()
    }

    /// Returns the limits that replace overridden ones once their overrides end, by index, with the
    /// flags of [`Self::in_force_ignoring`].
    pub(super) fn next_limits(
        &self,
        limits: &[Limit],
        ignores_override: &[bool],
        now: u64,
    ) -> NextLimits {
        let next = |(index, limit): (usize, &Limit)| {
            let (_, from_ms) = match ignores_override.get(index) {
                Some(true) => None,
                _ => self.override_of(limit, now),
            }?;
            let limit = self.lowered(index, limit, limit.clone(), now);
            Some((index, NextLimit { from_ms, limit }))
        };
        limits.iter().enumerate().filter_map(next).collect()
    }

    /// Returns `set`, capped by the learned value of the limit at `index`.
    fn lowered(&self, index: usize, limit: &Limit, set: Limit, now: u64) -> Limit {
        let learned = &self.states[self.layout.partitions[index]].learned;
        learned.lowered(limit, set, now)
    }

    /// Returns the limit with the operator's override applied.
    pub(super) fn set(&self, limit: &Limit, now: u64) -> Limit {
        let set = self.override_of(limit, now);
        set.map_or_else(|| limit.clone(), |(max, _)| limit.clone().with_max(max))
    }

    /// Returns the override's `max` for this limit, and when it ends.
    fn override_of(&self, limit: &Limit, now: u64) -> Option<(u64, u64)> {
        let set = self.control().overrides.get(limit.name()).copied();
        set.filter(|(_, until)| *until > now && !limit.is_global() && !limit.is_shadow())
    }

    /// Removes waitlists from before an operator's reset, and waiters that missed their turns.
    fn forget_expired(&mut self, limits: &[Limit], now: u64) {
        self.forget_reset_waitlist(now);
        for partition in 1..=self.layout.shared.len() {
            let behind = |(_, wider): &(&Limit, &usize)| self.layout.is_behind(**wider, partition);
            let enforced = limits.iter().filter(|limit| !limit.is_shadow());
            let limits = enforced.zip(&self.layout.partitions).filter(behind);
            let reach = reach(limits.map(|(limit, _)| limit));
            let queue = &mut self.states[partition].fair_queue;
            queue.seen = queue.seen.min(now);
            queue.purge(reach);
        }
    }

    /// Resets this part's waitlist if an operator reset the tenant after it was created.
    fn forget_reset_waitlist(&mut self, now: u64) {
        let reset = match self.layout.control {
            0 => 0,
            control => self.states[control].reset,
        };
        let waitlist = &mut self.states[0].waitlist;
        if (1..reset).contains(&waitlist.generation) {
            waitlist.reset(now.max(reset));
        }
    }

    /// Advances all states to `clock`, which may have been stepped back. Returns for each partition
    /// whether its newest fixed window has changed.
    pub(super) fn load(
        &mut self,
        limits: &[Limit],
        clock: Clock,
        load: fn(&mut State, &[Limit], Clock, u64) -> bool,
    ) -> Vec<bool> {
        let usual = self.states[0].waitlist.usual;
        let states = self.states.iter_mut().enumerate();
        let load = |(index, state): (usize, &mut HeldState)| {
            if index <= self.layout.shared.len() {
                state.waitlist.seen = state.waitlist.seen.min(clock.now_ms);
            }
            load(state, &self.layout.limits_in(index, limits), clock, usual)
        };
        states.map(load).collect()
    }

    fn newest_window_end(&self, index: usize, limits: &[Limit]) -> u64 {
        let limits = self.layout.limits_in(index, limits);
        self.states[index].usage.newest_window_end(&limits)
    }
}

/// Returns the largest cost in the waitlist; 0 if no job waits.
fn widest_of(waitlist: &Waitlist) -> u64 {
    match waitlist.waiting() {
        0 => 0,
        _ => waitlist.widest,
    }
}
