//! The gate's decisions for one tenant. This is the specification of the Lua scripts; property
//! tests require equal answers.
//!
//! - `lua/acquire.lua`: [`Scopes::ask`]
//! - `lua/settle.lua`: [`Scopes::settle`]
//! - `lua/inspect.lua`: [`Scopes::inspect`]
//! - `lua/forecast.lua`: [`Scopes::schedule`]
//! - `lua/learn.lua`: [`Scopes::learn`]
//! - `lua/block.lua`: [`State::block`]
//! - `lua/change.lua`: [`State::change`]
//! - `lua/quota.lua`: [`State::advertised`]
//! - `lua/report.lua`: [`State::report`]

mod call;
mod learn;
mod scopes;

use std::collections::{BTreeMap, HashMap};

pub use self::scopes::Scopes;
use crate::answers::Quotas;
use crate::decision::Change;
use crate::failures::breaker::{Breaker, BreakerEvent, Rule, Standing};
use crate::gate::fair_queue::FairQueue;
use crate::gate::shadow::ShadowTrial;
use crate::gate::usage::{Clock, PartitionUsage};
use crate::gate::waitlist::{KEEP_MS, Waitlist};
use crate::layout::Layout;
use crate::learned::LearnedStates;
use crate::limit::Limit;

/// How long a settled call is remembered, in milliseconds. See [`Scopes::settle`].
pub const MARK_MS: u64 = 60_000;
/// Minimum time that a reset is remembered, in milliseconds: a day plus an hour. Jobs that waited
/// before the reset return within minutes, or once workers run again.
pub const RESET_MS: u64 = 90_000_000;
/// Maximum time for which an earlier call's need is respected, in milliseconds: a year. It ends what
/// a clock that was years ahead, or a mistaken limit, asked for.
pub const NEEDED_MS: u64 = 366 * 86_400_000;

/// The stored state of one partition: of a tenant, of a part of its jobs, or of the quota that all
/// tenants share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// Units counted by the partition's limits.
    pub usage: PartitionUsage,
    /// Tickets of the jobs that wait in this partition.
    pub waitlist: Waitlist,
    /// The waitlists that take turns in this partition, if several share it.
    pub fair_queue: FairQueue,
    /// Closed by the API, with the reason in `blocked_by`.
    blocked: Closing,
    blocked_by: String,
    /// Closed by an operator.
    paused: Closing,
    breaker: Breaker,
    /// Operator overrides: limit name to `max` and end, in milliseconds.
    overrides: BTreeMap<String, (u64, u64)>,
    /// Values learned for the adaptive limits.
    learned: LearnedStates,
    /// The API's advertised limits, and when they were stored.
    quotas: (Quotas, u64),
    /// Trials of shadow limits. The key is the whole limit, so changing any number of a limit
    /// begins a new trial.
    trials: HashMap<Limit, ShadowTrial>,
    /// The generation that an operator's reset gave this waitlist; 0 without a reset. Waitlists of
    /// the tenant's parts with a lower one are void. The generation alone does not show a reset: the
    /// tenant's jobs without labels wait in this waitlist.
    reset: u64,
    /// Settled calls, and until when each is remembered. See [`Scopes::settle`].
    marks: BTreeMap<String, u64>,
    /// When the hash of the waitlist and the fair queue expires; 0 if it does not exist.
    expires: u64,
    /// When the flows of the fair queue expire, which is no later.
    flows_expire: u64,
    /// The latest end that any call gave the waitlist. A call of another plan may need it for a
    /// shorter time.
    kept_until: u64,
}

/// A state that moves between the store and a script call. A move copies a pointer.
pub type HeldState = Box<State>;

/// A period in which the tenant is closed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Closing {
    until: u64,
    since: u64,
}

impl Closing {
    fn at(now: u64, duration_ms: u64) -> Self {
        Self {
            until: now + duration_ms,
            since: now,
        }
    }

    /// If the clock was stepped back and the period would start in the future, moves it to start
    /// now. Its duration stays the same.
    fn pull_back(&mut self, now: u64) {
        let step = self.since.saturating_sub(now);
        self.until = self.until.saturating_sub(step);
        self.since -= step;
    }
}

impl State {
    /// Returns when everything except the usage expires, in milliseconds since the Unix epoch; 0 if
    /// nothing is stored.
    pub fn expires(&self) -> u64 {
        self.expires
    }

    /// Removes everything that has expired. Returns true if nothing is left.
    pub fn expire(&mut self, now: u64) -> bool {
        if (1..=now).contains(&self.expires) {
            self.forget_waitlist();
        }
        if (1..=now).contains(&self.flows_expire) {
            self.fair_queue = FairQueue::default();
        }
        self.marks.retain(|_, until| *until > now);
        self.trials.retain(|_, trial| !trial.is_over(now));
        let is_empty = self.marks.is_empty() && self.trials.is_empty();
        self.expires == 0 && is_empty && self.usage.is_over(now)
    }

    /// Removes the content of the waitlist's hash: tickets, closings, breaker, overrides, learned
    /// values and the newest window.
    pub fn forget_waitlist(&mut self) {
        self.usage.forget_newest_window();
        *self = Self {
            usage: std::mem::take(&mut self.usage),
            marks: std::mem::take(&mut self.marks),
            trials: std::mem::take(&mut self.trials),
            ..Self::default()
        };
    }

    /// Calls `run` with the scopes of this partition alone, without shared partitions.
    pub fn alone<T>(&mut self, limits: &[Limit], run: impl FnOnce(&mut Scopes<'_>) -> T) -> T {
        let layout = Layout::alone(limits);
        let mut scopes = Scopes::take(&layout, |_| Box::new(std::mem::take(self)));
        let result = run(&mut scopes);
        *self = *scopes.into_states().remove(0);
        result
    }

    fn load(&mut self, limits: &[Limit], clock: Clock, usual: u64) -> bool {
        self.usage.load(limits, clock, usual)
    }

    fn load_own(&mut self, limits: &[Limit], clock: Clock, usual: u64) -> bool {
        self.usage.load_own(limits, clock, usual)
    }

    fn closed_until(&self, now: u64) -> u64 {
        self.named_until().max(self.breaker.closed_until(now))
    }

    /// Moves closings that lie in the future, because the clock was stepped back, to now.
    fn pull_back(&mut self, now: u64) {
        self.blocked.pull_back(now);
        self.paused.pull_back(now);
    }

    fn closed(&self, now: u64) -> u64 {
        match self.closed_until(now) {
            until if until > now => until,
            _ => 0,
        }
    }

    /// Returns until when the waitlist's hash must exist for data other than the waitlist.
    fn needed_until(&self) -> u64 {
        let overrides = self.overrides.values().map(|&(_, until)| until).max();
        self.named_until()
            .max(self.breaker.needed_until())
            .max(overrides.unwrap_or(0))
            .max(self.learned.needed_until())
    }

    /// Writes the waitlist, which a call at `now` needs until `end`.
    fn save(&mut self, now: u64, end: u64) {
        let earlier = self.kept_until.min(now + NEEDED_MS);
        self.kept_until = earlier.max(self.needed_until()).max(end);
        self.expires = self.kept_until + KEEP_MS;
    }

    /// Removes overrides and learned values once all of them have expired.
    fn forget_overrides(&mut self, now: u64) {
        let mut set = self.overrides.values();
        if set.all(|(_, until)| *until <= now) && self.learned.needed_until() <= now {
            self.overrides.clear();
            self.learned = LearnedStates::default();
        }
    }

    /// Reports the end of a call to the breaker, or requests the next probe.
    pub fn report(&mut self, now: u64, rule: &Rule, event: &BreakerEvent) -> Standing {
        let was_open = self.breaker.is_open();
        let mut standing = Standing::default();
        let closings = (self.blocked, self.paused);
        self.pull_back(now);
        if *event != BreakerEvent::Read {
            self.breaker.pull_back(now);
        }
        match event {
            BreakerEvent::Failed {
                started_ms,
                of,
                reason,
                jitter,
            } => {
                let whose = (*started_ms, of.as_str());
                standing.has_changed = self.breaker.failed(now, rule, whose, reason, *jitter);
            }
            BreakerEvent::Succeeded => standing.has_changed = self.breaker.reset(),
            BreakerEvent::Probe => {
                standing.is_granted = was_open && self.closed(now) == 0;
                if standing.is_granted {
                    self.breaker.begin_probe(now);
                }
            }
            BreakerEvent::Release { started_ms } => self.breaker.release(*started_ms),
            BreakerEvent::Read => {}
        }
        let writes = match event {
            BreakerEvent::Failed { .. } => true,
            BreakerEvent::Probe | BreakerEvent::Release { .. } => was_open,
            BreakerEvent::Succeeded | BreakerEvent::Read => false,
        };
        if writes {
            let needed_until = now.max(self.breaker.needed_until());
            self.expires = self.expires.max(needed_until + KEEP_MS);
        }
        let standing = Standing {
            now_ms: now,
            failures: self.breaker.failures(),
            is_open: self.breaker.is_open(),
            closed_until_ms: self.closed(now),
            named_until_ms: match self.named_until() {
                until if until > now => until,
                _ => 0,
            },
            reason: match self.named_until() > now {
                true => self.closed_by(now),
                false => self.breaker.reason(),
            },
            ..standing
        };
        if *event == BreakerEvent::Read {
            // A read writes nothing.
            (self.blocked, self.paused) = closings;
        }
        standing
    }

    /// Returns until when the API or an operator has closed the tenant.
    fn named_until(&self) -> u64 {
        self.blocked.until.max(self.paused.until)
    }

    /// Closes the tenant until `now + duration_ms`. Never shortens a longer closing.
    pub fn block(&mut self, now: u64, duration_ms: u64, reason: &str) {
        self.pull_back(now);
        let closing = Closing::at(now, duration_ms);
        if closing.until <= self.blocked.until {
            return;
        }
        self.blocked = closing;
        reason.clone_into(&mut self.blocked_by);
        self.keep();
    }

    /// Stores the API's advertised limits, for display only.
    pub fn advertised(&mut self, now: u64, quotas: Quotas) {
        self.quotas = (quotas, now);
        self.expires = self.expires.max(now + KEEP_MS);
    }

    /// Applies an operator's change. After a reset, the caller must also let the tenant
    /// [leave](FairQueue::leave) the global fair queue. Returns when the change ends; 0 if it has
    /// no end.
    pub fn change(&mut self, now: u64, change: &Change) -> u64 {
        if let Change::Limit { .. } | Change::Unlimit { .. } = change {
            self.overrides.retain(|_, &mut (_, until)| until > now);
        }
        match change {
            Change::Pause { duration_ms } => self.paused = Closing::at(now, *duration_ms),
            Change::Resume => {
                self.paused = Closing::default();
                self.blocked = Closing::default();
                self.blocked_by.clear();
                self.breaker.reset();
            }
            Change::Limit {
                name,
                max,
                duration_ms,
            } => {
                let set = (*max, now + duration_ms);
                self.overrides.insert(name.clone(), set);
            }
            Change::Unlimit { name } => {
                self.overrides.remove(name);
            }
            Change::Reset => {
                // A reset is stored even if the tenant's own waitlist was empty, because it also
                // resets the waitlists of the tenant's parts, when they are next read.
                self.save(now, now + RESET_MS - KEEP_MS);
                // The new waitlist must be newer than waitlists of the tenant's parts that began in
                // the same millisecond.
                self.waitlist.reset(now + 1);
                self.reset = self.waitlist.generation;
                self.fair_queue = FairQueue::default();
                self.learned = LearnedStates::default();
            }
        }
        let min = match change {
            Change::Pause { .. } | Change::Limit { .. } => KEEP_MS,
            Change::Resume | Change::Unlimit { .. } | Change::Reset => 0,
        };
        if self.expires > 0 || self.needed_until() > now {
            self.expires = self.expires.max(now + min);
            self.keep();
        }
        match change {
            Change::Pause { duration_ms } | Change::Limit { duration_ms, .. } => now + duration_ms,
            Change::Resume | Change::Unlimit { .. } | Change::Reset => 0,
        }
    }

    /// Extends the expiry of the waitlist's hash to cover closings, overrides, learned values and
    /// the breaker.
    fn keep(&mut self) {
        self.expires = self.expires.max(self.needed_until() + KEEP_MS);
    }

    fn closed_by(&self, now: u64) -> String {
        if self.paused.until > now {
            "an operator (tenant pause)".to_owned()
        } else if self.blocked.until > now {
            self.blocked_by.clone()
        } else if self.breaker.closed_until(now) > now {
            self.breaker.reason()
        } else {
            String::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{Answer, End, Question, Receipt, Sequences, StartSettlement};
    use crate::kit;
    use crate::limit::Algorithm;

    #[test]
    fn starts_under_an_operators_lower_limit_are_found_at_their_end() {
        let limit = |name, algorithm| kit::limit(name, algorithm, 5, 60 * kit::SECOND);
        let limits = [
            limit("strict", Algorithm::Strict),
            limit("fixed", Algorithm::FixedWindow),
        ];
        let clock = Clock::from_micros(1_700_000_000_000_000);
        let mut state = State::default();
        for name in ["strict", "fixed"] {
            let (name, max, duration_ms) = (name.to_owned(), 2, 1000);
            state.change(
                clock.now_ms,
                &Change::Limit {
                    name,
                    max,
                    duration_ms,
                },
            );
        }
        let ask = Question {
            ticket: None,
            cost: 5,
            readmitted: false,
        };
        let (answers, _) = state.alone(&limits, |scopes| {
            scopes.ask(&limits, clock, 1, "permit", &[ask])
        });
        assert!(matches!(answers[..], [Answer::Start { .. }]), "{answers:?}");
        let later = Clock::from_micros(1_700_000_002_000_000);
        let receipt = Receipt {
            permit: "permit:0".to_owned(),
            started_ms: clock.now_ms,
            sequences: Sequences::default(),
            cost: 5,
        };
        let end = End::Unused;
        let counts = state.alone(&limits, |scopes| {
            scopes.settle(&limits, later, "call", &[StartSettlement { receipt, end }]);
            scopes.inspect(&limits, later).limits
        });
        assert!(counts.iter().all(|usage| usage.count == 0), "{counts:?}");
    }
}
