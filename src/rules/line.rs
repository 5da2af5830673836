//! The line of waiting jobs: a few counters, the same for every algorithm.
//!
//! A place only says when to come back; the log admits. So whatever happens to a line (duplicates, jobs that
//! vanish, a line that expires) can waste room for a moment, but never exceeds a limit.

use std::collections::VecDeque;

use crate::rules::limit::Limit;

/// A waiting job may start this much before its turn, if the log has room: a late neighbour's room is not wasted.
pub const AHEAD_MS: u64 = 500;
/// Room that was seen and left unclaimed for longer than this belongs to jobs that vanished.
pub const GRACE_MS: u64 = 2000;
/// A line is kept this long after its last place's turn.
pub const KEEP_MS: u64 = 3_600_000;
/// No place further behind the newest start is kept.
pub const MAX_REACH: u64 = 1024;

/// The places of one tenant, counted in units: a job of cost c has c of them where a limit counts cost, else one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line {
    /// Which line this is; 0: there was none yet. Never the same twice, so that an old place is not honoured by a
    /// newer line.
    pub generation: u64,
    /// All places up to this one were claimed or given up.
    pub front: u64,
    /// The last place that was given out.
    pub issued: u64,
    /// Jobs that were given places.
    pub jobs: u64,
    /// The places beyond `front` up to the newest claimed one: whether each was claimed.
    pub past: VecDeque<bool>,
    /// Since when room has been seen unclaimed; 0: it has not.
    pub seen: u64,
    /// From when on the log has room for the first of the line.
    pub room: u64,
    /// How long a call has a place that it holds, on average lately, in milliseconds; 0: none has ended yet.
    pub usual: u64,
    /// The largest cost in the line: with room for it, the first could start, whatever it costs.
    pub widest: u64,
}

impl Line {
    /// Places that were claimed or given up.
    pub fn served(&self) -> u64 {
        self.front + self.past.iter().filter(|claimed| **claimed).count() as u64
    }

    /// Units that wait.
    pub fn waiting(&self) -> u64 {
        self.issued.saturating_sub(self.served())
    }

    /// Gives out the next `cost` places; the last of them is the job's.
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
        self.issued += cost;
        self.issued
    }

    /// A job of `cost` units at `place` started. A place counts once, and places more than `reach` behind this one
    /// are given up.
    pub fn claim(&mut self, place: u64, cost: u64, reach: u64) {
        if place <= self.front {
            return;
        }
        let front = self.front.max(place.saturating_sub(reach));
        for _ in self.front..front {
            self.past.pop_front();
        }
        let first = place.saturating_sub(cost).max(front);
        for index in (first - front) as usize..(place - front) as usize {
            if self.past.len() <= index {
                self.past.resize(index + 1, false);
            }
            self.past[index] = true;
        }
        self.front = front;
        while self.past.front() == Some(&true) {
            self.past.pop_front();
            self.front += 1;
        }
    }

    /// How many jobs have the first `units` units of the line, where the last of them has `own`. Those in front are
    /// taken to cost what all of them do on average, with a root less for how far a sum of many costs may be from it:
    /// a job that is back too early waits a little longer, one that is late leaves room unused. The first in line is
    /// one job, whatever it costs.
    pub fn jobs_in(&self, units: u64, own: u64) -> u64 {
        match units.saturating_sub(own) {
            0 => 1,
            front => {
                let average = front * self.jobs / self.issued.max(1);
                let doubt = if self.widest > 1 { average.isqrt() } else { 0 };
                1 + (average - doubt).max(1)
            }
        }
    }

    /// Whoever was waiting is gone: a new line, with nobody in it.
    pub fn reset(&mut self, now: u64) {
        *self = Self {
            generation: now.max(self.generation + 1),
            usual: self.usual,
            ..Self::default()
        };
    }
}

/// How far behind the newest start a place is given up: the places that fit in [`AHEAD_MS`].
pub fn reach(limits: &[Limit]) -> u64 {
    let places = |limit: &Limit| u64::from(limit.max()) * AHEAD_MS / limit.span().max(1);
    let most = limits.iter().map(places).max().unwrap_or(0);
    most.clamp(2, MAX_REACH)
}
