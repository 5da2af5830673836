//! Every decision of the gate, for one tenant: the specification that the Lua scripts are held to.
//!
//! `lua/acquire.lua`, `lua/inspect.lua`, `lua/block.lua`, `lua/change.lua` and `lua/quota.lua` are [`State::ask`],
//! [`State::inspect`], [`State::block`], [`State::change`] and [`State::advertised`]; property tests demand equal answers.

use std::collections::BTreeMap;

use crate::rules::decision::{Answer, Ask, Change, End, Inspection, Settled, Ticket, Usage};
use crate::rules::limit::{Limit, Unit};
use crate::rules::line::{AHEAD_MS, GRACE_MS, KEEP_MS, Line, reach};
use crate::rules::log::{Clock, Logs};
use crate::rules::quota::Quotas;

/// How long a call of [`State::settle`] is remembered, in milliseconds.
const MARK_MS: u64 = 60_000;

/// What the store keeps of one tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// What started.
    pub logs: Logs,
    /// Who waits.
    pub line: Line,
    blocked_until: u64,
    blocked_by: String,
    paused_until: u64,
    /// What an operator set: the `max` and until when, by the limit's name.
    overrides: BTreeMap<String, (u32, u64)>,
    /// What the downstream says of its own limits, and since when.
    quotas: (Quotas, u64),
    /// Until when each call of [`State::settle`] is remembered.
    marks: BTreeMap<String, u64>,
    /// When the line, with all that its hash keeps, is forgotten; 0: there is nothing to forget.
    line_expires: u64,
}

impl State {
    /// When the line is forgotten, in milliseconds since the epoch; 0: there is none.
    pub fn line_expires(&self) -> u64 {
        self.line_expires
    }

    /// Forgets what the store would have let expire. True when nothing is left.
    pub fn expire(&mut self, limits: &[Limit], now: u64) -> bool {
        if self.line_expires <= now {
            self.forget_line();
        }
        self.marks.retain(|_, until| *until > now);
        self.line_expires == 0 && self.marks.is_empty() && self.logs.is_over(limits, now)
    }

    /// Forgets all that the line's hash keeps: who waits, what is closed or changed, and the newest window.
    pub fn forget_line(&mut self) {
        self.logs.forget_newest_window();
        *self = Self {
            logs: std::mem::take(&mut self.logs),
            marks: std::mem::take(&mut self.marks),
            ..Self::default()
        };
    }

    /// Decides for `asks` in order, as if they came one after the other; at most `budget` of them start. Also
    /// returns until when the tenant is closed (milliseconds since the epoch, 0: it is not).
    pub fn ask(
        &mut self,
        limits: &[Limit],
        clock: Clock,
        budget: u32,
        permits: &str,
        asks: &[Ask],
    ) -> (Vec<Answer>, u64) {
        let now = clock.now_ms;
        let limits = self.in_force(limits, now);
        let before = self.line.clone();
        let newer_window = self.logs.load(&limits, clock, self.line.usual);
        self.line.seen = self.line.seen.min(now);
        let mut call = Call {
            limits: &limits,
            clock,
            base: now.max(self.closed_until()),
            budget,
            full: false,
        };
        let decide = |(number, ask)| self.decide(&mut call, ask, &format!("{permits}:{number}"));
        let answers = asks.iter().enumerate().map(decide).collect();
        if newer_window || self.line != before {
            let end = match self.line.waiting() {
                0 => now,
                waiting => self.turn(&call, waiting, 1).0,
            };
            let newest = self.logs.newest_window_end(&limits);
            self.line_expires = end.max(self.kept_until()).max(newest) + KEEP_MS;
        }
        (answers, self.closed(now))
    }

    fn decide(&mut self, call: &mut Call<'_>, ask: &Ask, permit: &str) -> Answer {
        let now = call.clock.now_ms;
        let cost = u64::from(ask.cost).max(1);
        // An operator's lower limit lets a job that costs more start alone; it is charged all the same.
        let units = match call.counts_cost() {
            true => cost.min(call.most()),
            false => 1,
        };
        let ticket = ask.ticket.filter(|t| {
            t.generation == self.line.generation && (1..=self.line.issued).contains(&t.place)
        });
        if call.full && ticket.is_none() {
            return self.capacity(call);
        }

        let open = call.base == now;
        let room = open && self.has_room(call, units);
        let stale = open
            && self.line.waiting() > 0
            && self.has_room(call, self.widest(call))
            && self.line.seen > 0
            && now - self.line.seen > GRACE_MS;
        let mut turn = None;
        let due = match ticket {
            None => self.line.waiting() == 0,
            Some(ticket) => {
                let (at, limit) = self.turn_of(call, ticket.place, units);
                turn = Some((ticket.place, at, limit));
                // Beside jobs of several units nobody goes ahead: small ones would take what a large one waits for.
                let ahead = if self.line.widest > 1 { 0 } else { AHEAD_MS };
                at <= now + ahead
            }
        };

        if room && (due || stale) {
            if call.budget == 0 {
                call.full = true;
                return self.capacity(call);
            }
            call.budget -= 1;
            let sequence = self.logs.take(call.limits, call.clock, cost, permit);
            self.start(call, ticket, units, due);
            return Answer::Start {
                count: self.logs.count(&call.limits[0], call.clock),
                sequence,
            };
        }

        let (place, at, limit) = turn.unwrap_or_else(|| {
            let place = self.line.issue(now, units);
            let (at, limit) = self.turn_of(call, place, units);
            (place, at, limit)
        });
        let at = self.watch(call, open, at);
        Answer::Wait {
            limit,
            count: self.logs.count(&call.limits[limit], call.clock),
            ttl_ms: at.saturating_sub(now).max(1),
            ticket: Ticket {
                generation: self.line.generation,
                place,
            },
        }
    }

    /// Moves the line on.
    fn start(&mut self, call: &Call<'_>, ticket: Option<Ticket>, units: u64, due: bool) {
        let now = call.clock.now_ms;
        if !due {
            self.line.reset(now);
        } else if let Some(ticket) = ticket {
            self.line.claim(ticket.place, units, reach(call.limits));
        }
        self.line.seen = 0;
        if self.line.waiting() > 0 {
            self.line.room = self.earliest(call, now, self.widest(call), 1).0;
        }
    }

    /// After an ask that must wait until `at`: notes since when room has been there and nobody of the line came for
    /// it. Once that is longer than the grace, the ask is to come back when it can be told whether they vanished.
    fn watch(&mut self, call: &Call<'_>, open: bool, at: u64) -> u64 {
        let now = call.clock.now_ms;
        let widest = self.widest(call);
        if !(open && self.has_room(call, widest)) {
            // Only a start takes room away: in the guard at a fixed window's end there may be none without.
            if !open || self.is_taken(call, widest) {
                self.line.seen = 0;
                self.line.room = self.earliest(call, call.base, widest, 1).0;
            }
            return at;
        }
        if self.line.seen == 0 {
            self.line.seen = now;
        }
        if now.saturating_sub(self.line.room) > GRACE_MS {
            at.min(self.line.seen + GRACE_MS + 1)
        } else {
            at
        }
    }

    /// When `place` may start, if its job of so many units comes in time, and which limit says so.
    fn turn_of(&self, call: &Call<'_>, place: u64, units: u64) -> (u64, usize) {
        let k = units.max(place.saturating_sub(self.line.served()));
        self.turn(call, k, units)
    }

    /// When the `k`-th unit of the line may start, the last of a job of so many units, and which limit says so.
    fn turn(&self, call: &Call<'_>, k: u64, units: u64) -> (u64, usize) {
        self.earliest(call, call.base, k, self.line.jobs_in(k, units))
    }

    fn has_room(&self, call: &Call<'_>, units: u64) -> bool {
        let now = call.clock.now_ms;
        self.earliest(call, now, units, 1).0 == now
    }

    /// A limit that has no room for so many units has let something start.
    fn is_taken(&self, call: &Call<'_>, units: u64) -> bool {
        let now = call.clock.now_ms;
        call.limits.iter().any(|limit| {
            self.logs.nth(limit, now, limit.unit().of(units)) > now
                && self.logs.count(limit, call.clock) > 0
        })
    }

    /// When all limits allow the next `units` units in `calls` calls, not before `base`, and the first of the limits
    /// that allow them last.
    fn earliest(&self, call: &Call<'_>, base: u64, units: u64, calls: u64) -> (u64, usize) {
        let mut latest = (0, 0);
        for (index, limit) in call.limits.iter().enumerate() {
            let k = match limit.unit() {
                Unit::Calls => calls,
                Unit::Cost => units,
            };
            let at = self.logs.nth(limit, base, k);
            if at > latest.0 {
                latest = (at, index);
            }
        }
        latest
    }

    fn widest(&self, call: &Call<'_>) -> u64 {
        self.line.widest.clamp(1, call.most())
    }

    fn capacity(&self, call: &Call<'_>) -> Answer {
        Answer::Capacity {
            count: self.logs.count(&call.limits[0], call.clock),
        }
    }

    /// The limits with what an operator set instead.
    fn in_force(&self, limits: &[Limit], now: u64) -> Vec<Limit> {
        let set = |limit: &Limit| match self.overrides.get(limit.name()) {
            Some(&(max, until)) if until > now => limit.clone().with_max(max),
            _ => limit.clone(),
        };
        limits.iter().map(set).collect()
    }

    fn closed_until(&self) -> u64 {
        self.blocked_until.max(self.paused_until)
    }

    fn closed(&self, now: u64) -> u64 {
        match self.closed_until() {
            until if until > now => until,
            _ => 0,
        }
    }

    /// Until when the line's hash has something to remember beside the line.
    fn kept_until(&self) -> u64 {
        let overrides = self.overrides.values().map(|&(_, until)| until).max();
        self.closed_until().max(overrides.unwrap_or(0))
    }

    /// Calls have ended: what they used in fact is set against what they were charged, and their places are free, or
    /// will be.
    /// A `call` that was settled before counts for nothing.
    pub fn settle(&mut self, limits: &[Limit], clock: Clock, call: &str, settled: &[Settled]) {
        let now = clock.now_ms;
        let limits = self.in_force(limits, now);
        self.marks.retain(|_, until| *until > now);
        if self.marks.contains_key(call) {
            return;
        }
        self.marks.insert(call.to_owned(), now + MARK_MS);
        let newer_window = self.logs.load_own(&limits, clock, self.line.usual);
        let before = self.line.clone();
        self.line.seen = self.line.seen.min(now);
        for one in settled {
            let cost = u64::from(one.receipt.cost).max(1);
            self.logs.settle(&limits, clock, one, cost);
            if limits.iter().any(|limit| limit.algorithm().holds_places())
                && matches!(one.end, End::Cost(_))
            {
                let took = now.saturating_sub(one.receipt.started_ms);
                self.line.usual = match self.line.usual {
                    0 => took.max(1),
                    usual => ((usual * 7 + took) / 8).max(1),
                };
            }
        }
        if newer_window || self.line != before {
            let newest = self.logs.newest_window_end(&limits);
            let end = now.max(self.kept_until()).max(newest);
            self.line_expires = self.line_expires.max(end + KEEP_MS);
        }
    }

    /// Closes the tenant until `now + duration_ms`; never shortens what is in force.
    pub fn block(&mut self, now: u64, duration_ms: u64, by: &str) {
        let until = now + duration_ms;
        if until <= self.blocked_until {
            return;
        }
        self.blocked_until = until;
        by.clone_into(&mut self.blocked_by);
        self.keep();
    }

    /// Notes what the downstream says of its own limits; it decides nothing.
    pub fn advertised(&mut self, now: u64, quotas: Quotas) {
        self.quotas = (quotas, now);
        self.line_expires = self.line_expires.max(now + KEEP_MS);
    }

    /// Does what an operator asked for. Returns until when it is in force; 0 where it has no end.
    pub fn change(&mut self, now: u64, change: &Change) -> u64 {
        if let Change::Limit { .. } | Change::Unlimit { .. } = change {
            self.overrides.retain(|_, &mut (_, until)| until > now);
        }
        match change {
            Change::Pause { duration_ms } => self.paused_until = now + duration_ms,
            Change::Resume => {
                self.paused_until = 0;
                self.blocked_until = 0;
                self.blocked_by.clear();
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
            Change::Reset if self.line_expires > 0 => self.line.reset(now),
            Change::Reset => {}
        }
        if self.line_expires > 0 || self.kept_until() > now {
            self.line_expires = self.line_expires.max(now + KEEP_MS);
            self.keep();
        }
        match change {
            Change::Pause { duration_ms } | Change::Limit { duration_ms, .. } => now + duration_ms,
            Change::Resume | Change::Unlimit { .. } | Change::Reset => 0,
        }
    }

    /// Puts the line's expiry off: it may have to live longer than what it is to remember.
    fn keep(&mut self) {
        self.line_expires = self.line_expires.max(self.kept_until() + KEEP_MS);
    }

    /// What there is, without changing it.
    pub fn inspect(&self, limits: &[Limit], clock: Clock) -> Inspection {
        let now = clock.now_ms;
        let mut state = self.clone();
        let in_force = self.in_force(limits, now);
        state.logs.load(&in_force, clock, self.line.usual);
        let closed = self.closed(now);
        let call = Call {
            limits: &in_force,
            clock,
            base: now.max(closed),
            budget: 0,
            full: false,
        };
        let waiting = self.line.waiting();
        let usage = |limit: &Limit| Usage {
            max: limit.max(),
            override_until_ms: match self.overrides.get(limit.name()) {
                Some(&(_, until)) if until > now => until,
                _ => 0,
            },
            count: state.logs.count(limit, clock),
            free: match closed {
                0 => state.logs.free(limit, now),
                _ => 0,
            },
            next_ms: state.logs.nth(limit, call.base, 1) - now,
        };
        Inspection {
            now_ms: now,
            limits: in_force.iter().map(usage).collect(),
            waiting,
            line_end_ms: match waiting {
                0 => 0,
                waiting => state.turn(&call, waiting, 1).0 - now,
            },
            blocked_until_ms: closed,
            blocked_by: self.closed_by(now),
            quotas: self.quotas.0,
            quotas_at_ms: self.quotas.1,
        }
    }

    fn closed_by(&self, now: u64) -> String {
        if self.paused_until > now {
            "an operator (tenant pause)".to_owned()
        } else if self.blocked_until > now {
            self.blocked_by.clone()
        } else {
            String::new()
        }
    }
}

/// What stays the same during one call, and what its jobs share.
struct Call<'a> {
    limits: &'a [Limit],
    clock: Clock,
    /// Before this nobody starts: now, or when the tenant is open again.
    base: u64,
    /// How many more may start.
    budget: u32,
    /// One had room and no budget: fresh jobs after it must not come before it.
    full: bool,
}

impl Call<'_> {
    fn counts_cost(&self) -> bool {
        self.limits.iter().any(|limit| limit.unit() == Unit::Cost)
    }

    /// The highest cost that can start.
    fn most(&self) -> u64 {
        let costs = (self.limits.iter()).filter(|limit| limit.unit() == Unit::Cost);
        let capacities = costs.map(Limit::capacity);
        capacities.min().map_or(u64::from(u32::MAX), u64::from)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::rules::decision::Receipt;
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
        let ask = Ask {
            ticket: None,
            cost: 5,
        };
        let (answers, _) = state.ask(&limits, clock, 1, "permit", &[ask]);
        assert!(matches!(answers[..], [Answer::Start { .. }]), "{answers:?}");
        let later = Clock::from_micros(1_700_000_002_000_000);
        let receipt = Receipt {
            permit: "permit:0".to_owned(),
            started_ms: clock.now_ms,
            sequence: 0,
            cost: 5,
        };
        let end = End::Unused;
        state.settle(&limits, later, "call", &[Settled { receipt, end }]);
        let counts = state.inspect(&limits, later).limits;
        assert!(counts.iter().all(|usage| usage.count == 0), "{counts:?}");
    }
}
