//! Every decision of the gate, for one tenant: the specification that the Lua scripts are held to.
//!
//! `lua/acquire.lua`, `lua/settle.lua`, `lua/inspect.lua`, `lua/forecast.lua`, `lua/learn.lua`, `lua/block.lua`, `lua/change.lua`,
//! `lua/quota.lua` and `lua/report.lua` are [`Scopes::ask`], [`Scopes::settle`], [`Scopes::inspect`], [`Scopes::schedule`],
//! [`Scopes::learn`], [`State::block`],
//! [`State::change`], [`State::advertised`] and [`State::report`]; property tests demand equal answers.

mod call;
mod learn;
mod scopes;

use std::collections::{BTreeMap, HashMap};

pub use self::scopes::Scopes;
use crate::rules::answers::Quotas;
use crate::rules::breaker::{Breaker, BreakerEvent, Rule, Standing};
use crate::rules::decision::Change;
use crate::rules::fair_queue::FairQueue;
use crate::rules::layout::Layout;
use crate::rules::learned::AllLearned;
use crate::rules::limit::Limit;
use crate::rules::shadow::ShadowTrial;
use crate::rules::usage::{Clock, PartitionUsage};
use crate::rules::waitlist::{KEEP_MS, Waitlist};

/// How long a call of [`Scopes::settle`] is remembered, in milliseconds.
pub(crate) const MARK_MS: u64 = 60_000;
/// How long a reset is remembered at least, in milliseconds: jobs of before it come back within a day, the most that
/// `delay.max-delay` can be, and an hour.
pub(crate) const RESET_MS: u64 = 90_000_000;

/// What the store keeps of one partition: a tenant's, that of a part of its jobs, or what all tenants share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// What its limits have counted.
    pub usage: PartitionUsage,
    /// Who waits here.
    pub waitlist: Waitlist,
    /// Which waitlists wait for this partition, where it is one that they share.
    pub fair_queue: FairQueue,
    /// By what the API said, and what it was.
    blocked: Closing,
    blocked_by: String,
    /// By an operator.
    paused: Closing,
    breaker: Breaker,
    /// What an operator set: the `max` and until when, by the limit's name.
    overrides: BTreeMap<String, (u32, u64)>,
    /// What was learned of its limits.
    learned: AllLearned,
    /// What the API says of its own limits, and since when.
    quotas: (Quotas, u64),
    /// What shadows have seen; by their limits: with other numbers it is another trial.
    trials: HashMap<Limit, ShadowTrial>,
    /// Until when each call of [`Scopes::settle`] is remembered.
    marks: BTreeMap<String, u64>,
    /// When the waitlist and the fair queue, with all that their hash keeps, are forgotten; 0: there is nothing to forget.
    expires: u64,
}

/// Closes a tenant.
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

    /// Since later than now: the clock was stepped back. It lasts as long as it was to, from now on.
    fn pull_back(&mut self, now: u64) {
        let step = self.since.saturating_sub(now);
        self.until = self.until.saturating_sub(step);
        self.since -= step;
    }
}

impl State {
    /// When all but the usage is forgotten, in milliseconds since the epoch; 0: there is nothing.
    pub fn expires(&self) -> u64 {
        self.expires
    }

    /// Forgets what the store would have let expire. True when nothing is left.
    pub fn expire(&mut self, now: u64) -> bool {
        if self.expires <= now {
            self.forget_waitlist();
        }
        self.marks.retain(|_, until| *until > now);
        self.trials.retain(|_, trial| !trial.is_over(now));
        let is_empty = self.marks.is_empty() && self.trials.is_empty();
        self.expires == 0 && is_empty && self.usage.is_over(now)
    }

    /// Forgets all that the waitlist's hash keeps: who waits, what is closed or changed, and the newest window.
    pub fn forget_waitlist(&mut self) {
        self.usage.forget_newest_window();
        *self = Self {
            usage: std::mem::take(&mut self.usage),
            marks: std::mem::take(&mut self.marks),
            trials: std::mem::take(&mut self.trials),
            ..Self::default()
        };
    }

    /// Lets `run` decide for a partition that shares nothing.
    pub fn alone<T>(&mut self, limits: &[Limit], run: impl FnOnce(&mut Scopes<'_>) -> T) -> T {
        let layout = Layout::alone(limits);
        let mut scopes = Scopes::take(&layout, |_| std::mem::take(self));
        let result = run(&mut scopes);
        *self = scopes.into_states().remove(0);
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

    /// What closes it since before the clock was stepped back does so from now on.
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

    /// Until when the waitlist's hash has something to remember beside the waitlist.
    fn kept_until(&self) -> u64 {
        let overrides = self.overrides.values().map(|&(_, until)| until).max();
        self.named_until()
            .max(self.breaker.kept_until())
            .max(overrides.unwrap_or(0))
            .max(self.learned.kept_until())
    }

    /// Forgets what an operator set and what was learned, once all of it is over.
    fn forget_overrides(&mut self, now: u64) {
        let mut set = self.overrides.values();
        if set.all(|(_, until)| *until <= now) && self.learned.kept_until() <= now {
            self.overrides.clear();
            self.learned = AllLearned::default();
        }
    }

    /// The breaker is told how a call ended, or asked for the next probe.
    pub fn report(&mut self, now: u64, rule: &Rule, event: &BreakerEvent) -> Standing {
        let was_open = self.breaker.is_open();
        let mut standing = Standing::default();
        let closings = (self.blocked, self.paused);
        self.pull_back(now);
        if *event != BreakerEvent::Look {
            self.breaker.pull_back(now);
        }
        match event {
            BreakerEvent::Failed {
                started_ms,
                of,
                by,
                jitter,
            } => {
                let whose = (*started_ms, of.as_str());
                standing.has_changed = self.breaker.failed(now, rule, whose, by, *jitter);
            }
            BreakerEvent::Sound => standing.has_changed = self.breaker.reset(),
            BreakerEvent::Probe => {
                standing.is_granted = was_open && self.closed(now) == 0;
                if standing.is_granted {
                    self.breaker.begin_probe(now);
                }
            }
            BreakerEvent::Release { started_ms } => self.breaker.release(*started_ms),
            BreakerEvent::Look => {}
        }
        let writes = match event {
            BreakerEvent::Failed { .. } => true,
            BreakerEvent::Probe | BreakerEvent::Release { .. } => was_open,
            BreakerEvent::Sound | BreakerEvent::Look => false,
        };
        if writes {
            let kept = now.max(self.breaker.kept_until());
            self.expires = self.expires.max(kept + KEEP_MS);
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
            by: match self.named_until() > now {
                true => self.closed_by(now),
                false => self.breaker.by(),
            },
            ..standing
        };
        if *event == BreakerEvent::Look {
            // It writes nothing.
            (self.blocked, self.paused) = closings;
        }
        standing
    }

    /// Until when the API itself, or an operator, has closed it.
    fn named_until(&self) -> u64 {
        self.blocked.until.max(self.paused.until)
    }

    /// Closes the tenant until `now + duration_ms`; never shortens what is enforced.
    pub fn block(&mut self, now: u64, duration_ms: u64, by: &str) {
        self.pull_back(now);
        let closing = Closing::at(now, duration_ms);
        if closing.until <= self.blocked.until {
            return;
        }
        self.blocked = closing;
        by.clone_into(&mut self.blocked_by);
        self.keep();
    }

    /// Notes what the API says of its own limits; it decides nothing.
    pub fn advertised(&mut self, now: u64, quotas: Quotas) {
        self.quotas = (quotas, now);
        self.expires = self.expires.max(now + KEEP_MS);
    }

    /// Does what an operator asked for; after a reset the tenant must also [leave](FairQueue::leave) what all tenants share.
    /// Returns until when it is enforced; 0 where it has no end.
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
                // Newer than the waitlists of its parts that began in this very millisecond.
                self.waitlist.reset(now + 1);
                self.fair_queue = FairQueue::default();
                self.learned = AllLearned::default();
            }
        }
        // Of a reset something is left even where there was nothing: it reaches the waitlists of the tenant's parts.
        let least = match change {
            Change::Reset => RESET_MS,
            _ => KEEP_MS,
        };
        if self.expires > 0 || self.kept_until() > now || *change == Change::Reset {
            self.expires = self.expires.max(now + least);
            self.keep();
        }
        match change {
            Change::Pause { duration_ms } | Change::Limit { duration_ms, .. } => now + duration_ms,
            Change::Resume | Change::Unlimit { .. } | Change::Reset => 0,
        }
    }

    /// Puts the waitlist's expiry off: it may have to live longer than what it is to remember.
    fn keep(&mut self) {
        self.expires = self.expires.max(self.kept_until() + KEEP_MS);
    }

    fn closed_by(&self, now: u64) -> String {
        if self.paused.until > now {
            "an operator (tenant pause)".to_owned()
        } else if self.blocked.until > now {
            self.blocked_by.clone()
        } else if self.breaker.closed_until(now) > now {
            self.breaker.by()
        } else {
            String::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::rules::decision::{Answer, End, Question, Receipt, Sequences, Settled};
    use crate::rules::limit::Algorithm;

    #[test]
    fn what_started_under_an_operators_lower_limit_is_found_when_it_has_ended() {
        let (window, guard) = (Duration::from_secs(60), Duration::ZERO);
        let limit = |name, algorithm| {
            Limit::new(name, algorithm, 5, window, guard).expect("this is a limit")
        };
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
            again: false,
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
            scopes.settle(&limits, later, "call", &[Settled { receipt, end }]);
            scopes.inspect(&limits, later).limits
        });
        assert!(counts.iter().all(|usage| usage.count == 0), "{counts:?}");
    }
}
