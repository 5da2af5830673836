//! The waitlist: a few counters, the same for every algorithm.
//!
//! A ticket only determines when a job asks again; usage decides whether it starts. So duplicate
//! jobs, vanished jobs and an expired waitlist can waste quota briefly, but can never exceed a
//! limit.

use std::collections::VecDeque;

use crate::decision::Ticket;
use crate::limit::Limit;

/// How long before its turn a waiting job may be admitted if quota is available, so that the quota
/// of a late job is not wasted.
pub const AHEAD_MS: u64 = 500;
/// Time after which available quota that no job has claimed goes to the next job that asks, because
/// the jobs ahead have vanished.
pub const GRACE_MS: u64 = 2000;
/// How long a waitlist is kept after the turn of its last ticket.
pub const KEEP_MS: u64 = 3_600_000;
/// Maximum distance behind the newest admitted ticket at which a ticket is still kept.
pub const MAX_REACH: u64 = 1024;
/// The highest ticket, so that the scripts' doubles hold every ticket exactly. A waitlist that never
/// gets empty reaches it after 4,500 windows of the highest limit.
pub const MAX_TICKET: u64 = 1 << 52;

/// The waitlist of one partition. A ticket stands for one unit: a job takes as many as it costs if
/// a limit counts cost, else one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waitlist {
    /// Identifies this waitlist; 0 before the first one. No generation is used twice, so tickets of
    /// an older waitlist are not valid in a newer one.
    pub generation: u64,
    /// The last ticket up to which all tickets were claimed or given up.
    pub now_serving: u64,
    /// The last ticket that was issued.
    pub last_issued: u64,
    /// Number of jobs that got tickets.
    pub jobs: u64,
    /// Whether each ticket was claimed, from the one after `now_serving` to the newest claimed one.
    pub claimed_ahead: VecDeque<bool>,
    /// Since when quota has been available without being claimed; 0 if there is none.
    pub seen: u64,
    /// When quota becomes available for the first of the waitlist.
    pub room: u64,
    /// The recent average time that a call holds a lease, in milliseconds; 0 before the first call
    /// has ended.
    pub usual: u64,
    /// The largest cost in the waitlist. Quota for this cost suffices for the first job, whatever
    /// it costs.
    pub widest: u64,
}

impl Waitlist {
    /// Returns the number of tickets that were claimed or given up.
    pub fn served(&self) -> u64 {
        self.now_serving
            + self
                .claimed_ahead
                .iter()
                .filter(|claimed| **claimed)
                .count() as u64
    }

    /// Returns the number of units that wait.
    pub fn waiting(&self) -> u64 {
        self.last_issued.saturating_sub(self.served())
    }

    /// Returns true if this waitlist issued `ticket`.
    pub fn waits(&self, ticket: &Ticket) -> bool {
        ticket.generation == self.generation && (1..=self.last_issued).contains(&ticket.number)
    }

    /// Issues the next `cost` tickets and returns the last, which is the job's. Begins a new
    /// waitlist if the tickets are used up.
    pub fn issue(&mut self, now: u64, cost: u64) -> u64 {
        if self.last_issued + cost > MAX_TICKET {
            self.reset(now);
        }
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

    /// Claims the tickets of a job of `cost` units that started at `ticket`. A ticket counts once.
    /// Gives up tickets that are more than `reach` behind this one.
    pub fn claim(&mut self, ticket: u64, cost: u64, reach: u64) {
        if ticket <= self.now_serving {
            return;
        }
        let now_serving = self.now_serving.max(ticket.saturating_sub(reach));
        let given_up = usize::try_from(now_serving - self.now_serving).unwrap_or(usize::MAX);
        self.claimed_ahead
            .drain(..given_up.min(self.claimed_ahead.len()));
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

    /// Returns the estimated number of jobs in the first `units` units of the waitlist, if the last
    /// of them costs `own`. The jobs in front are assumed to have the average cost, and their
    /// number is reduced by its square root, because a sum of many costs varies by about that much:
    /// a job that returns too early waits a little longer, but a job that returns late leaves quota
    /// unused. Units up to `own` are one job.
    pub fn jobs_in(&self, units: u64, own: u64) -> u64 {
        match units.saturating_sub(own) {
            0 => 1,
            front => {
                // The script's operations: the product may exceed an integer.
                let average = front as f64 * self.jobs as f64 / self.last_issued.max(1) as f64;
                let average = average as u64;
                let doubt = if self.widest > 1 { average.isqrt() } else { 0 };
                1 + (average - doubt).max(1)
            }
        }
    }

    /// Replaces the waitlist with a new, empty one, in which old tickets are not valid.
    pub fn reset(&mut self, now: u64) {
        *self = Self {
            generation: now.max(self.generation + 1),
            usual: self.usual,
            ..Self::default()
        };
    }
}

/// Returns the distance behind the newest admitted ticket beyond which tickets are given up: the
/// number of tickets whose turns come within [`AHEAD_MS`].
pub fn reach(limits: &[Limit]) -> u64 {
    let tickets = |limit: &Limit| limit.max() * AHEAD_MS / limit.span().max(1);
    let max = limits.iter().map(tickets).max().unwrap_or(0);
    max.clamp(2, MAX_REACH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::MAX_REQUESTS;

    /// Its numbers stay exact in the scripts. Jobs of the old waitlist wait in the new one when they
    /// return.
    #[test]
    fn a_waitlist_without_tickets_begins_anew() {
        let mut waitlist = Waitlist::default();
        let jobs = MAX_TICKET / MAX_REQUESTS;
        let old = Ticket {
            generation: 7,
            number: (1..=jobs)
                .map(|_| waitlist.issue(7, MAX_REQUESTS))
                .last()
                .unwrap_or(0),
        };
        assert!(waitlist.waits(&old) && old.number == jobs * MAX_REQUESTS);
        let found = waitlist.jobs_in(old.number, MAX_REQUESTS);
        assert!((jobs - 70..jobs).contains(&found), "{found} of {jobs}");
        assert_eq!(waitlist.issue(7, MAX_REQUESTS), MAX_REQUESTS);
        assert!(!waitlist.waits(&old));
        assert_eq!((waitlist.generation, waitlist.waiting()), (8, MAX_REQUESTS));
    }
}
