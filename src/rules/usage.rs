//! Usage: what limits have counted. It alone decides who is admitted.
//!
//! How they count is said by the [algorithms](crate::rules::algorithms). The files in `lua/` are the same functions over Redis.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::rules::algorithms::{Around, Ended, Keys, State, SteppedBack, Usage};
pub use crate::rules::clock::Clock;
use crate::rules::decision::{End, LEASE_MS, Settled};
use crate::rules::limit::{Algorithm, Limit, Unit};

/// The usage of one partition: what it has started, as far as its limits still count it.
///
/// All sliding windows share one log, which is as long as the longest of them needs, those of other jobs included; every
/// other limit has a state of its own ([`Limit::shares_state`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionUsage {
    states: BTreeMap<Own, State>,
    /// The start of the newest fixed window that was seen. The waitlist's hash keeps it: a clock that is stepped back
    /// must not open a window whose count is forgotten.
    newest: u64,
    /// The waitlist's hash keeps it, too.
    stepped: SteppedBack,
}

/// Names a limit's own state; without a name: that of all limits that have a log.
type Own = (
    Algorithm,
    Option<Arc<str>>,
    (u64, u64),
    Option<(u32, u32)>,
    Unit,
);

fn own(limit: &Limit) -> Own {
    let algorithm = limit.algorithm();
    if has_log(limit) {
        return log_of_all(algorithm);
    }
    let name = Some(Arc::clone(limit.shared_name()));
    let (span, bucket) = (limit.state_ms(), limit.state_bucket());
    (algorithm, name, span, bucket, limit.unit())
}

/// All limits of the algorithm have one log.
fn has_log(limit: &Limit) -> bool {
    limit.algorithm().rules().keys() == Keys::Log
}

fn log_of_all(algorithm: Algorithm) -> Own {
    (algorithm, None, (0, 0), None, Unit::Cost)
}

impl PartitionUsage {
    /// Brings the state of all of `limits` to `clock`: forgets what no longer counts, and repairs what a clock that
    /// was stepped back left in the future. True when the newest fixed window changed, which the waitlist's hash keeps.
    /// `usual`: how long a call holds a lease.
    pub fn load(&mut self, limits: &[Limit], clock: Clock, usual: u64) -> bool {
        self.note_span(limits, clock);
        self.load_states(limits, clock, usual, |_| true)
    }

    /// Somebody counts with those of `limits` that share a log.
    fn note_span(&mut self, limits: &[Limit], clock: Clock) {
        let longest = limits.iter().filter(|limit| has_log(limit));
        if let Some(longest) = longest.max_by_key(|limit| limit.span())
            && let State::SlidingWindow(log) = self.state_mut(longest)
        {
            log.note(longest.span(), clock);
        }
    }

    /// [`Self::load`] for a [`Self::settle`]: the log of all sliding limits stays as it is, since other limits may be in
    /// force by now, which look back further than those of the start.
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
        // The store forgets a window that is over, whoever asks.
        for state in self.states.values_mut() {
            state.get_mut().forget(clock.now_ms);
        }
        for limit in limits.iter().filter(|limit| loads(limit)) {
            if limit.algorithm().rules().is_aligned() && !limit.is_shadow() {
                newest = newest.max(clock.now_ms / limit.span() * limit.span());
            }
            // A shadow must not tell what is enforced of a window that nobody else has seen.
            let mut unknown = SteppedBack::default();
            let mut around = match limit.is_shadow() {
                true => Around {
                    usual,
                    newest: 0,
                    stepped: &mut unknown,
                },
                false => Around {
                    usual,
                    newest: self.newest,
                    stepped: &mut self.stepped,
                },
            };
            let state =
                (self.states.entry(own(limit))).or_insert_with(|| State::new(limit.algorithm()));
            state.get_mut().load(limit.terms(), clock, &mut around);
        }
        let newer = newest > self.newest;
        self.newest = newest;
        newer
    }

    /// Units that count against `limit`.
    ///
    /// # Panics
    /// Without a [`PartitionUsage::load`] of the limit before, as all that follow.
    pub fn count(&self, limit: &Limit, clock: Clock) -> u64 {
        self.state(limit).count(limit.terms(), clock.now_ms)
    }

    /// Calls that count now; `None`: the algorithm counts units alone.
    pub fn calls(&self, limit: &Limit, clock: Clock) -> Option<u64> {
        let knows = limit.unit() == Unit::Calls || has_log(limit);
        knows.then(|| self.count(&limit.clone().with_unit(Unit::Calls), clock))
    }

    /// When the `k`-th next unit (from 1) may start if nobody starts before `base`, which is now or later.
    pub fn nth(&self, limit: &Limit, base: u64, k: u64) -> u64 {
        self.state(limit).nth(limit.terms(), base, k)
    }

    /// Units that may start at once at `now`.
    pub fn free(&self, limit: &Limit, now: u64) -> u64 {
        let (mut free, mut most) = (0, u64::from(limit.capacity()));
        while free < most {
            let middle = (free + most).div_ceil(2);
            if self.nth(limit, now, middle) == now {
                free = middle;
            } else {
                most = middle - 1;
            }
        }
        free
    }

    /// Writes down the start of a job of `cost` units, under its permit's name. Returns its number in the sliding log;
    /// 0 without one.
    pub fn take(&mut self, limits: &[Limit], clock: Clock, cost: u64, permit: &str) -> u64 {
        let mut sequence = 0;
        for limit in once_for_a_log(limits) {
            let state = self.state_mut(limit).get_mut();
            sequence = sequence.max(state.take(limit.terms(), clock, cost, permit));
        }
        sequence
    }

    /// Nothing starts before `until_ms`: where the algorithm [saves up](Rules::saves_up), it does not so meanwhile. So far the limit was
    /// `before`, and from now on it is the other one.
    pub fn hold(
        &mut self,
        (before, limit): (&Limit, &Limit),
        clock: Clock,
        usual: u64,
        until_ms: u64,
    ) {
        if limit.algorithm().rules().saves_up() {
            self.load_states(std::slice::from_ref(before), clock, usual, |_| true);
            let state = self.state_mut(limit).get_mut();
            state.hold(limit.terms(), until_ms);
        }
    }

    /// A call of `cost` has ended: what it used in fact is set against what it was charged.
    /// `sequence` is its number in the sliding log.
    pub fn settle(
        &mut self,
        limits: &[Limit],
        clock: Clock,
        settled: &Settled,
        sequence: u64,
        cost: u64,
    ) {
        let Settled { receipt, end } = settled;
        let mut ended = Ended {
            started_ms: receipt.started_ms,
            sequence,
            permit: &receipt.permit,
            cost,
            used: None,
        };
        match end {
            End::Cost(used) => ended.used = Some((*used).into()),
            End::Unused => {}
            End::Running => return self.keep(limits, clock, &ended, LEASE_MS),
            End::Abandoned { for_ms } => return self.keep(limits, clock, &ended, *for_ms),
            End::Late => {
                ended.cost = u64::from(receipt.cost).max(1);
                return self.late(limits, clock, &ended);
            }
        }
        for limit in once_for_a_log(limits) {
            let state = self.state_mut(limit).get_mut();
            state.settle(limit.terms(), clock, &ended);
        }
    }

    /// A call came later than the guard covers.
    fn late(&mut self, limits: &[Limit], clock: Clock, ended: &Ended<'_>) {
        let mut in_log = false;
        for limit in once_for_a_log(limits) {
            let state = self.state_mut(limit).get_mut();
            in_log |= state.late(limit.terms(), clock, ended) && has_log(limit);
        }
        if in_log {
            self.note_span(limits, clock);
        }
    }

    /// A call may be in flight for so long.
    fn keep(&mut self, limits: &[Limit], clock: Clock, ended: &Ended<'_>, for_ms: u64) {
        for limit in limits {
            if limit.algorithm().holds_leases() {
                let state = self.state_mut(limit).get_mut();
                state.keep(limit.terms(), clock, ended, for_ms);
            }
        }
    }

    /// The end of the newest fixed window of any of `limits`, until which the waitlist's hash must remember it; 0
    /// without one.
    pub fn newest_window_end(&self, limits: &[Limit]) -> u64 {
        let is_aligned = |limit: &Limit| limit.algorithm().rules().is_aligned();
        let aligned = (limits.iter()).filter(|limit| is_aligned(limit) && !limit.is_shadow());
        aligned.map(|l| self.newest + l.span()).max().unwrap_or(0)
    }

    /// The newest window is kept with the waitlist, and goes with it.
    pub fn forget_newest_window(&mut self) {
        self.newest = 0;
        self.stepped = SteppedBack::default();
    }

    /// Another writer's entry in the sliding log at `score`: one unit.
    pub fn add_foreign(&mut self, score: u64) {
        let algorithm = Algorithm::SlidingWindow;
        let log = self.states.entry(log_of_all(algorithm));
        if let State::SlidingWindow(log) = log.or_insert_with(|| State::new(algorithm)) {
            log.add_foreign(score);
        }
    }

    /// True when none of it says anything any more, whatever the limits are.
    pub fn is_over(&self, now: u64) -> bool {
        self.states.values().all(|state| state.get().end() <= now)
    }

    fn state(&self, limit: &Limit) -> &dyn Usage {
        self.states[&own(limit)].get()
    }

    fn state_mut(&mut self, limit: &Limit) -> &mut State {
        let state = self.states.entry(own(limit));
        state.or_insert_with(|| State::new(limit.algorithm()))
    }
}

/// The limits, but of those that share a log the first alone.
fn once_for_a_log(limits: &[Limit]) -> impl Iterator<Item = &Limit> {
    let mut logged = false;
    limits
        .iter()
        .filter(move |limit| !has_log(limit) || !std::mem::replace(&mut logged, true))
}
