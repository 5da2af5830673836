//! Every decision of the gate, for one tenant: the specification that the Lua scripts are held to.
//!
//! `lua/acquire.lua`, `lua/inspect.lua` and `lua/block.lua` are [`State::ask`], [`State::inspect`] and
//! [`State::block`]; property tests demand equal answers.

use crate::rules::decision::{Answer, Ask, Inspection, Ticket};
use crate::rules::limit::{Algorithm, Limit};
use crate::rules::line::{AHEAD_MS, GRACE_MS, KEEP_MS, Line, reach};
use crate::rules::window::{Clock, Log};

/// What the store keeps of one tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// What started.
    pub log: Log,
    /// Who waits.
    pub line: Line,
    blocked_until: u64,
    blocked_by: String,
    /// When the line, with the block and the newest window, is forgotten; 0: there is nothing to forget.
    line_expires: u64,
}

impl State {
    /// Nothing started, nobody waits.
    pub fn new(algorithm: Algorithm) -> Self {
        Self {
            log: Log::new(algorithm),
            line: Line::default(),
            blocked_until: 0,
            blocked_by: String::new(),
            line_expires: 0,
        }
    }

    /// When the line is forgotten, in milliseconds since the epoch; 0: there is none.
    pub fn line_expires(&self) -> u64 {
        self.line_expires
    }

    /// Forgets what the store would have let expire. True when nothing is left.
    pub fn expire(&mut self, limit: &Limit, now: u64) -> bool {
        if self.line_expires <= now {
            self.forget_line();
        }
        self.line_expires == 0 && self.log.end(limit) <= now
    }

    /// Forgets all that the line's hash keeps: who waits, the block, and the newest window.
    pub fn forget_line(&mut self) {
        self.line = Line::default();
        self.blocked_until = 0;
        self.blocked_by.clear();
        self.line_expires = 0;
        self.log.forget_newest_window();
    }

    /// Decides for `asks` in order, as if they came one after the other; at most `budget` of them start. Also
    /// returns until when the tenant is closed (milliseconds since the epoch, 0: it is not).
    pub fn ask(
        &mut self,
        limit: &Limit,
        clock: Clock,
        budget: u32,
        asks: &[Ask],
    ) -> (Vec<Answer>, u64) {
        let now = clock.now_ms;
        let before = self.line.clone();
        let newer_window = self.log.load(limit, clock);
        self.line.seen = self.line.seen.min(now);
        let mut call = Call {
            limit,
            clock,
            base: now.max(self.blocked_until),
            budget,
            full: false,
        };
        let answers = asks.iter().map(|ask| self.decide(&mut call, ask)).collect();
        if newer_window || self.line != before {
            let end = match self.line.waiting() {
                0 => now,
                waiting => self.log.nth(limit, call.base, waiting),
            };
            self.line_expires = end
                .max(self.blocked_until)
                .max(self.log.newest_window_end(limit))
                + KEEP_MS;
        }
        (answers, self.closed(now))
    }

    fn decide(&mut self, call: &mut Call<'_>, ask: &Ask) -> Answer {
        let (limit, now) = (call.limit, call.clock.now_ms);
        let cost = u64::from(ask.cost.clamp(1, limit.max()));
        let ticket = ask.ticket.filter(|t| {
            t.generation == self.line.generation && (1..=self.line.issued).contains(&t.place)
        });
        if call.full && ticket.is_none() {
            return self.capacity(limit);
        }

        let open = call.base == now;
        let room = open && self.has_room(call, cost);
        let stale = open
            && self.line.waiting() > 0
            && self.has_room(call, self.widest(limit))
            && self.line.seen > 0
            && now - self.line.seen > GRACE_MS;
        let mut at = None;
        let due = match ticket {
            None => self.line.waiting() == 0,
            Some(ticket) => {
                let turn = self.turn(call, ticket.place, cost);
                at = Some(turn);
                // Beside jobs of several units nobody goes ahead: small ones would take what a large one waits for.
                let ahead = if self.line.widest > 1 { 0 } else { AHEAD_MS };
                turn <= now + ahead
            }
        };

        if room && (due || stale) {
            if call.budget == 0 {
                call.full = true;
                return self.capacity(limit);
            }
            call.budget -= 1;
            self.start(call, ticket, cost, due);
            return Answer::Start {
                count: self.log.count(limit),
            };
        }

        let (place, at) = match (ticket, at) {
            (Some(ticket), Some(at)) => (ticket.place, at),
            _ => {
                let place = self.line.issue(now, cost);
                (place, self.turn(call, place, cost))
            }
        };
        let at = self.watch(call, open, at);
        Answer::Wait {
            count: self.log.count(limit),
            ttl_ms: at.saturating_sub(now).max(1),
            ticket: Ticket {
                generation: self.line.generation,
                place,
            },
        }
    }

    /// Charges the log, and moves the line on.
    fn start(&mut self, call: &Call<'_>, ticket: Option<Ticket>, cost: u64, due: bool) {
        let (limit, now) = (call.limit, call.clock.now_ms);
        self.log.take(limit, call.clock, cost);
        if !due {
            self.line.reset(now);
        } else if let Some(ticket) = ticket {
            self.line.claim(ticket.place, cost, reach(limit));
        }
        self.line.seen = 0;
        if self.line.waiting() > 0 {
            self.line.room = self.log.nth(limit, now, self.widest(limit));
        }
    }

    /// After an ask that must wait until `at`: notes since when room has been there and nobody of the line came for
    /// it. Once that is longer than the grace, the ask is to come back when it can be told whether they vanished.
    fn watch(&mut self, call: &Call<'_>, open: bool, at: u64) -> u64 {
        let now = call.clock.now_ms;
        let widest = self.widest(call.limit);
        if !(open && self.has_room(call, widest)) {
            self.line.seen = 0;
            self.line.room = self.log.nth(call.limit, call.base, widest);
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

    /// When `place` may start, if its job of `cost` comes in time.
    fn turn(&self, call: &Call<'_>, place: u64, cost: u64) -> u64 {
        let k = cost.max(place.saturating_sub(self.line.served()));
        self.log.nth(call.limit, call.base, k)
    }

    fn has_room(&self, call: &Call<'_>, cost: u64) -> bool {
        self.log.free(call.limit, call.clock) >= cost
    }

    fn widest(&self, limit: &Limit) -> u64 {
        self.line.widest.clamp(1, u64::from(limit.max()))
    }

    fn capacity(&self, limit: &Limit) -> Answer {
        Answer::Capacity {
            count: self.log.count(limit),
        }
    }

    fn closed(&self, now: u64) -> u64 {
        if self.blocked_until > now {
            self.blocked_until
        } else {
            0
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
        self.line_expires = self.line_expires.max(until + KEEP_MS);
    }

    /// What there is, without changing it.
    pub fn inspect(&self, limit: &Limit, clock: Clock) -> Inspection {
        let now = clock.now_ms;
        let mut log = self.log.clone();
        log.load(limit, clock);
        let closed = self.closed(now);
        let base = now.max(closed);
        let waiting = self.line.waiting();
        Inspection {
            now_ms: now,
            count: log.count(limit),
            free: if closed > 0 {
                0
            } else {
                log.free(limit, clock)
            },
            next_ms: log.nth(limit, base, 1) - now,
            waiting,
            line_end_ms: match waiting {
                0 => 0,
                waiting => log.nth(limit, base, waiting) - now,
            },
            blocked_until_ms: closed,
            blocked_by: if closed > 0 {
                self.blocked_by.clone()
            } else {
                String::new()
            },
        }
    }
}

/// What stays the same during one call, and what its jobs share.
struct Call<'a> {
    limit: &'a Limit,
    clock: Clock,
    /// Before this nobody starts: now, or the end of the block.
    base: u64,
    /// How many more may start.
    budget: u32,
    /// One had room and no budget: fresh jobs after it must not come before it.
    full: bool,
}
