//! The waitlist: a few counters, the same for every algorithm.
//!
//! A ticket only says when to come back; usage decides. So whatever happens to a waitlist (duplicates, jobs that
//! vanish, a waitlist that expires) can waste quota for a moment, but never exceeds a limit.

use std::collections::VecDeque;

use crate::rules::decision::Ticket;
use crate::rules::limit::Limit;

/// A waiting job may be admitted this much before its turn, if quota is available: that of a late job is not wasted.
pub const AHEAD_MS: u64 = 500;
/// Quota that was seen and left unclaimed for longer than this belongs to jobs that vanished.
pub const GRACE_MS: u64 = 2000;
/// A waitlist is kept this long after its last ticket's turn.
pub const KEEP_MS: u64 = 3_600_000;
/// No ticket further behind the newest admitted one is kept.
pub const MAX_REACH: u64 = 1024;

/// The tickets of one tenant, counted in units: a job of cost c has c of them where a limit counts cost, else one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waitlist {
    /// Which waitlist this is; 0: there was none yet. Never the same twice, so that an old ticket is not honoured by a
    /// newer waitlist.
    pub generation: u64,
    /// All tickets up to this one were claimed or given up.
    pub now_serving: u64,
    /// The last ticket that was given out.
    pub last_issued: u64,
    /// Jobs that were given tickets.
    pub jobs: u64,
    /// The tickets beyond `now_serving` up to the newest claimed one: whether each was claimed.
    pub claimed_ahead: VecDeque<bool>,
    /// Since when quota has been seen unclaimed; 0: it has not.
    pub seen: u64,
    /// From when on quota is available for the first of the waitlist.
    pub room: u64,
    /// How long a call holds a lease, on average lately, in milliseconds; 0: none has ended yet.
    pub usual: u64,
    /// The largest cost in the waitlist: with quota for it, the first could be admitted, whatever it costs.
    pub widest: u64,
}

impl Waitlist {
    /// Tickets that were claimed or given up.
    pub fn served(&self) -> u64 {
        self.now_serving
            + self
                .claimed_ahead
                .iter()
                .filter(|claimed| **claimed)
                .count() as u64
    }

    /// Units that wait.
    pub fn waiting(&self) -> u64 {
        self.last_issued.saturating_sub(self.served())
    }

    /// It gave out this ticket.
    pub fn waits(&self, ticket: &Ticket) -> bool {
        ticket.generation == self.generation && (1..=self.last_issued).contains(&ticket.number)
    }

    /// Gives out the next `cost` tickets; the last of them is the job's.
    pub fn issue(&mut self, now: u64, cost: u64) -> u64 {
        if self.generation == 0 {
            self.generation = now.max(1);
        }
        self.widest = if self.waiting() == 0 {
            cost
        } else {
            self.widest.max(cost)
        };
        self.jobs += 1;
        self.last_issued += cost;
        self.last_issued
    }

    /// A job of `cost` units at `ticket` started. A ticket counts once, and tickets more than `reach` behind this one
    /// are given up.
    pub fn claim(&mut self, ticket: u64, cost: u64, reach: u64) {
        if ticket <= self.now_serving {
            return;
        }
        let now_serving = self.now_serving.max(ticket.saturating_sub(reach));
        for _ in self.now_serving..now_serving {
            self.claimed_ahead.pop_front();
        }
        let first = ticket.saturating_sub(cost).max(now_serving);
        for index in (first - now_serving) as usize..(ticket - now_serving) as usize {
            if self.claimed_ahead.len() <= index {
                self.claimed_ahead.resize(index + 1, false);
            }
            self.claimed_ahead[index] = true;
        }
        self.now_serving = now_serving;
        while self.claimed_ahead.front() == Some(&true) {
            self.claimed_ahead.pop_front();
            self.now_serving += 1;
        }
    }

    /// How many jobs have the first `units` units of the waitlist, where the last of them has `own`. Those in front are
    /// taken to cost what all of them do on average, with a root less for how far a sum of many costs may be from it:
    /// a job that is back too early waits a little longer, one that is late leaves quota unused. The first of the waitlist is
    /// one job, whatever it costs.
    pub fn jobs_in(&self, units: u64, own: u64) -> u64 {
        match units.saturating_sub(own) {
            0 => 1,
            front => {
                let average = front * self.jobs / self.last_issued.max(1);
                let doubt = if self.widest > 1 { average.isqrt() } else { 0 };
                1 + (average - doubt).max(1)
            }
        }
    }

    /// All that waited are gone: a new waitlist, and an empty one.
    pub fn reset(&mut self, now: u64) {
        *self = Self {
            generation: now.max(self.generation + 1),
            usual: self.usual,
            ..Self::default()
        };
    }
}

/// How far behind the newest admitted one a ticket is given up: the tickets that fit in [`AHEAD_MS`].
pub fn reach(limits: &[Limit]) -> u64 {
    let tickets = |limit: &Limit| u64::from(limit.max()) * AHEAD_MS / limit.span().max(1);
    let most = limits.iter().map(tickets).max().unwrap_or(0);
    most.clamp(2, MAX_REACH)
}
