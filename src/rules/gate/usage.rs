//! Usage: the units that limits have counted. Admission depends on usage alone.
//!
//! The [algorithms](crate::algorithms) define how units count. The files in `lua/` are the
//! same functions over Redis.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::algorithms::{
    KeyLayout, LimitState, PartitionContext, ReportedCall, SteppedBack, Usage,
};
use crate::calendar::Calendar;
pub use crate::clock::Clock;
use crate::decision::{End, LEASE_MS, StartSettlement};
use crate::limit::{Algorithm, Limit, Unit};

/// The usage of one partition: its starts, as far as limits still count them.
///
/// All sliding windows, those of other jobs included, share one log that reaches as far back as the
/// longest of them. Every other limit has a state of its own ([`Limit::shares_state`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionUsage {
    states: BTreeMap<LimitIdentity, LimitState>,
    /// The start of the newest fixed window seen. It is stored in the waitlist's hash: a clock that
    /// is stepped back must not open a window whose count was forgotten.
    newest: u64,
    /// Stored in the waitlist's hash as well.
    stepped: SteppedBack,
}

/// The limit that is in force once an operator's override has ended.
#[derive(Debug, Clone)]
pub struct NextLimit {
    /// When the override ends, in milliseconds since the epoch.
    pub from_ms: u64,
    /// The limit without the override.
    pub limit: Limit,
}

/// Next limits, by the indexes of the limits that they replace.
pub type NextLimits = BTreeMap<usize, NextLimit>;

/// Identifies the state of one limit, or the shared log if the name is `None`.
type LimitIdentity = (
    Algorithm,
    Option<Arc<str>>,
    (u64, u64),
    Option<(u64, u64)>,
    Unit,
    Option<Calendar>,
);

fn own(limit: &Limit) -> LimitIdentity {
    let algorithm = limit.algorithm();
    if has_log(limit) {
        return shared_log(algorithm);
    }
    let name = Some(Arc::clone(limit.shared_name()));
    let (span, bucket) = (limit.state_ms(), limit.state_bucket());
    let calendar = limit.calendar().copied();
    (algorithm, name, span, bucket, limit.unit(), calendar)
}

/// Returns true if the limit's algorithm keeps one log for all its limits.
fn has_log(limit: &Limit) -> bool {
    limit.algorithm().facts().keys == KeyLayout::Log
}

/// Returns true if the limit has a key for each of its windows.
fn has_windows(limit: &Limit) -> bool {
    limit.algorithm().facts().keys == KeyLayout::Windows
}

fn shared_log(algorithm: Algorithm) -> LimitIdentity {
    (algorithm, None, (0, 0), None, Unit::Cost, None)
}

impl PartitionUsage {
    /// Advances the state of all `limits` to `clock`: drops units that no longer count, and repairs
    /// times that lie in the future because the clock was stepped back. `usual` is how long a call
    /// holds a lease. Returns true if the newest fixed window changed, which the waitlist's hash
    /// stores.
    pub fn load(&mut self, limits: &[Limit], clock: Clock, usual: u64) -> bool {
        self.note_span(limits, clock);
        self.load_states(limits, clock, usual, |_| true)
    }

    /// Records the longest span among those `limits` that share a log.
    fn note_span(&mut self, limits: &[Limit], clock: Clock) {
        let longest = limits.iter().filter(|limit| has_log(limit));
        if let Some(longest) = longest.max_by_key(|limit| limit.span())
            && let LimitState::SlidingWindow(log) = self.state_mut(longest)
        {
            log.note(longest.span(), clock);
        }
    }

    /// Loads like [`Self::load`], for a [`Self::settle`]: leaves the shared log as it is, because
    /// other limits may be enforced by now that look back further than the limits of the start.
    pub fn load_own(&mut self, limits: &[Limit], clock: Clock, usual: u64) -> bool {
        self.load_states(limits, clock, usual, |limit| !has_log(limit))
    }

    fn load_states(
        &mut self,
        limits: &[Limit],
        clock: Clock,
        usual: u64,
        loads: impl Fn(&Limit) -> bool,
    ) -> bool {
        let mut newest = self.newest;
        // The store drops expired windows of all limits, not only of those in the question.
        for state in self.states.values_mut() {
            state.get_mut().forget(clock.now_ms);
        }
        for limit in limits.iter().filter(|limit| loads(limit)) {
            if has_windows(limit) && !limit.is_shadow() {
                newest = newest.max(clock.now_ms / limit.span() * limit.span());
            }
            // A shadow must not record a window for the enforced limits that only the shadow has
            // seen.
            let mut unknown = SteppedBack::default();
            let mut around = match limit.is_shadow() {
                true => PartitionContext {
                    usual,
                    newest: 0,
                    stepped: &mut unknown,
                },
                false => PartitionContext {
                    usual,
                    newest: self.newest,
                    stepped: &mut self.stepped,
                },
            };
            let state = (self.states.entry(own(limit)))
                .or_insert_with(|| LimitState::new(limit.algorithm()));
            state.get_mut().load(limit.terms(), clock, &mut around);
        }
        let newer = newest > self.newest;
        self.newest = newest;
        newer
    }

    /// Returns the number of units that count against `limit`.
    ///
    /// # Panics
    /// Panics if the limit was not loaded with [`PartitionUsage::load`] before. So do the methods
    /// that follow.
    pub fn count(&self, limit: &Limit, clock: Clock) -> u64 {
        self.state(limit).count(limit.terms(), clock.now_ms)
    }

    /// Returns the number of calls that count now, or `None` if the algorithm counts only units.
    pub fn calls(&self, limit: &Limit, clock: Clock) -> Option<u64> {
        let knows = limit.unit() == Unit::Calls || has_log(limit);
        knows.then(|| self.count(&limit.clone().with_unit(Unit::Calls), clock))
    }

    /// Returns when the `k`-th next unit (from 1) may start if nothing starts before `base`, which
    /// is now or later.
    pub fn nth(&self, limit: &Limit, base: u64, k: u64) -> u64 {
        self.state(limit).nth(limit.terms(), base, k)
    }

    /// Returns the same as [`Self::nth`], but with the limit that replaces this one at some time, if
    /// any: a unit that this limit would let start later starts as the other one lets it, but not
    /// before that time.
    pub fn nth_with(&self, limit: &Limit, next: Option<&NextLimit>, base: u64, k: u64) -> u64 {
        let at = self.nth(limit, base, k);
        match next {
            Some(next) if at > next.from_ms => {
                at.min(self.nth(&next.limit, base, k).max(next.from_ms))
            }
            _ => at,
        }
    }

    /// Returns the number of units that may start at once at `now`.
    pub fn free(&self, limit: &Limit, now: u64) -> u64 {
        let (mut free, mut max) = (0, limit.capacity());
        while free < max {
            let middle = (free + max).div_ceil(2);
            if self.nth(limit, now, middle) == now {
                free = middle;
            } else {
                max = middle - 1;
            }
        }
        free
    }

    /// Charges the start of a job of `cost` units under its permit's name. Returns its number in
    /// the sliding log, or 0 if there is no log.
    pub fn take(&mut self, limits: &[Limit], clock: Clock, cost: u64, permit: &str) -> u64 {
        let mut sequence = 0;
        for limit in once_for_a_log(limits) {
            let state = self.state_mut(limit).get_mut();
            sequence = sequence.max(state.take(limit.terms(), clock, cost, permit));
        }
        sequence
    }

    /// Lets nothing start before `until_ms`, and lets no quota accumulate meanwhile if the
    /// algorithm [saves up](crate::algorithms::AlgorithmFacts::saves_up). The first of the limits
    /// was in force until now, the second is from now on.
    pub fn hold(
        &mut self,
        (before, limit): (&Limit, &Limit),
        clock: Clock,
        usual: u64,
        until_ms: u64,
    ) {
        if limit.algorithm().facts().saves_up {
            self.load_states(std::slice::from_ref(before), clock, usual, |_| true);
            let state = self.state_mut(limit).get_mut();
            state.hold(limit.terms(), until_ms);
        }
    }

    /// Corrects the charge of a call of `cost` that has ended, renews its leases, or counts it as
    /// late. `sequence` is its number in the sliding log.
    pub fn settle(
        &mut self,
        limits: &[Limit],
        clock: Clock,
        settled: &StartSettlement,
        sequence: u64,
        cost: u64,
    ) {
        let StartSettlement { receipt, end } = settled;
        let mut ended = ReportedCall {
            started_ms: receipt.started_ms,
            sequence,
            permit: &receipt.permit,
            cost,
            used: None,
        };
        match end {
            End::Cost(used) => ended.used = Some(*used),
            End::Unused => {}
            End::Running => return self.keep(limits, clock, &ended, LEASE_MS),
            End::Abandoned { for_ms } => return self.keep(limits, clock, &ended, *for_ms),
            End::Late => {
                ended.cost = receipt.cost.max(1);
                return self.late(limits, clock, &ended);
            }
        }
        for limit in once_for_a_log(limits) {
            let state = self.state_mut(limit).get_mut();
            state.settle(limit.terms(), clock, &ended);
        }
    }

    /// Counts a call that arrived later than the guard covers.
    fn late(&mut self, limits: &[Limit], clock: Clock, ended: &ReportedCall<'_>) {
        let mut in_log = false;
        for limit in once_for_a_log(limits) {
            let state = self.state_mut(limit).get_mut();
            in_log |= state.late(limit.terms(), clock, ended) && has_log(limit);
        }
        if in_log {
            self.note_span(limits, clock);
        }
    }

    /// Renews the leases of a call that may be in flight for another `for_ms`.
    fn keep(&mut self, limits: &[Limit], clock: Clock, ended: &ReportedCall<'_>, for_ms: u64) {
        for limit in limits {
            if limit.algorithm().holds_leases() {
                let state = self.state_mut(limit).get_mut();
                state.keep(limit.terms(), clock, ended, for_ms);
            }
        }
    }

    /// Returns the end of the newest fixed window of any of `limits`; 0 if none has fixed windows.
    /// The waitlist's hash must store the window until then.
    pub fn newest_window_end(&self, limits: &[Limit]) -> u64 {
        let aligned = (limits.iter()).filter(|limit| has_windows(limit) && !limit.is_shadow());
        aligned.map(|l| self.newest + l.span()).max().unwrap_or(0)
    }

    /// Forgets the newest window, which is stored with the waitlist and expires with it.
    pub fn forget_newest_window(&mut self) {
        self.newest = 0;
        self.stepped = SteppedBack::default();
    }

    /// Adds another writer's entry of one unit at `score` to the sliding log.
    pub fn add_foreign(&mut self, score: u64) {
        let algorithm = Algorithm::SlidingWindow;
        let log = self.states.entry(shared_log(algorithm));
        if let LimitState::SlidingWindow(log) = log.or_insert_with(|| LimitState::new(algorithm)) {
            log.add_foreign(score);
        }
    }

    /// Returns true if no state affects a decision any more, under any limits.
    pub fn is_over(&self, now: u64) -> bool {
        self.states.values().all(|state| state.get().end() <= now)
    }

    fn state(&self, limit: &Limit) -> &dyn Usage {
        self.states[&own(limit)].get()
    }

    fn state_mut(&mut self, limit: &Limit) -> &mut LimitState {
        let state = self.states.entry(own(limit));
        state.or_insert_with(|| LimitState::new(limit.algorithm()))
    }
}

/// Yields the limits, but of several that share a log only the first.
fn once_for_a_log(limits: &[Limit]) -> impl Iterator<Item = &Limit> {
    let mut logged = false;
    limits
        .iter()
        .filter(move |limit| !has_log(limit) || !std::mem::replace(&mut logged, true))
}
