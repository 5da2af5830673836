//! Computes when units may start, from the limits, the waitlist and other flows' turns. Changes no
//! state.

use super::Call;
use crate::gate::forecast::ForecastTarget;
use crate::gate::waitlist::{AHEAD_MS, reach};
use crate::limit::{Limit, UNLIMITED, Unit};

impl Call<'_> {
    /// Returns the position of the job's last unit in the waitlist, counted from 1.
    pub(super) fn distance(&self, ticket: u64, units: u64) -> u64 {
        units.max(ticket.saturating_sub(self.waitlist().served()))
    }

    /// Returns when a job with `ticket` and `units` may start if it returns on time, and the limit
    /// that decides it.
    pub(super) fn turn_of(&mut self, ticket: u64, units: u64) -> (u64, usize) {
        self.turn(self.distance(ticket, units), units)
    }

    /// Reports whether the job of `ticket` may start before jobs in front of it. It may take a free
    /// lease, because the next holder of the lease can't be predicted: durations of calls are
    /// guesses. Its turn under every other limit must be about now.
    pub(super) fn may_overtake(&mut self, ticket: u64, units: u64) -> bool {
        if self.ahead() == 0 {
            return false;
        }
        let (now, limits) = (self.clock.now_ms, self.limits);
        let k = self.distance(ticket, units);
        let calls = self.waitlist().jobs_in(k, units);
        let mut guessed = false;
        for (index, limit) in limits.iter().enumerate() {
            let (rank, calls) = self.place_in(index, k, units, calls);
            let goes = if limit.algorithm().holds_leases() && limit.span() == 0 {
                guessed = true;
                rank <= reach(limits)
            } else {
                self.nth_of(index, self.base, rank, calls) <= now + AHEAD_MS
            };
            if !goes {
                return false;
            }
        }
        guessed
    }

    /// Returns when the first job of the waitlist may start, at the largest cost it can have.
    pub(super) fn first(&mut self) -> u64 {
        let widest = self.widest();
        self.turn(widest, widest).0
    }

    /// Returns when the `k`-th unit of the waitlist may start, and which limit allows it last (the
    /// first of several). The unit is the last one of a job with `own` units.
    pub(in crate::gate::model) fn turn(&mut self, k: u64, own: u64) -> (u64, usize) {
        let calls = self.waitlist().jobs_in(k, own);
        let mut latest = (0, 0);
        for index in 0..self.limits.len() {
            let at = self.turn_in(index, k, own, calls);
            if at > latest.0 {
                latest = (at, index);
            }
        }
        latest
    }

    /// Returns the number of units up to and including a place, and how many of them belong to the
    /// place itself.
    pub(in crate::gate::model) fn up_to(&self, target: ForecastTarget) -> (u64, u64) {
        let waitlist = self.waitlist();
        let ForecastTarget::Job(ticket, cost) = target else {
            return (waitlist.waiting(), 1);
        };
        let own = match self.counts_cost() {
            true => cost.clamp(1, self.highest_cost()),
            false => 1,
        };
        match ticket.filter(|ticket| waitlist.waits(ticket)) {
            Some(ticket) => (self.distance(ticket.number, own), own),
            None => (waitlist.waiting() + own, own),
        }
    }

    /// Returns the same as [`Self::turn`], but for each limit on its own.
    pub(in crate::gate::model) fn turn_by_limit(&mut self, k: u64, own: u64) -> Vec<u64> {
        let calls = self.waitlist().jobs_in(k, own);
        let all = 0..self.limits.len();
        all.map(|index| self.turn_in(index, k, own, calls))
            .collect()
    }

    fn turn_in(&mut self, index: usize, k: u64, own: u64, calls: u64) -> u64 {
        let (of_units, of_calls) = self.place_in(index, k, own, calls);
        self.nth_of(index, self.base, of_units, of_calls)
    }

    /// Returns the rank of the waitlist's `k`-th unit among all units that wait for one limit, and
    /// the number of calls up to it.
    fn place_in(&mut self, index: usize, k: u64, own: u64, calls: u64) -> (u64, u64) {
        match self.layout.partitions[index] {
            0 => (k, calls),
            partition => {
                let rank = self.rank(partition, k, own);
                (rank, calls + self.others_calls(rank - k))
            }
        }
    }

    /// Returns how many units start in this partition up to the waitlist's `k`-th unit, if all
    /// flows take turns. That unit is the last one of a job with `units`. A job's turn is that of
    /// its first unit. If each unit waited for other flows' units in between, two jobs of several
    /// units would wait for each other.
    pub(super) fn rank(&mut self, partition: usize, k: u64, units: u64) -> u64 {
        let k = match self.layout.shared[partition - 1].below {
            0 => k,
            below => self.rank(below, k, units),
        };
        let (view, started) = (&mut self.views[partition - 1], self.started);
        k + view.before(started + k + 1 - units) + view.whole(started)
    }

    /// Returns when the `k`-th unit may start under one partition's limits, or `None` if it has no
    /// limits.
    pub(super) fn nth(&self, partition: usize, k: u64) -> Option<u64> {
        let calls = self.others_calls(k).max(1);
        let here = self.partitions().filter(|(_, here)| *here == partition);
        here.map(|(index, _)| self.nth_of(index, self.base, k, calls))
            .max()
    }

    fn nth_of(&self, index: usize, base: u64, units: u64, calls: u64) -> u64 {
        let limit = &self.limits[index];
        let k = match limit.unit() {
            Unit::Calls => calls,
            Unit::Cost => units,
        };
        let usage = &self.states[self.layout.partitions[index]].usage;
        let next = self.next.get(&index).filter(|_| self.foresees);
        usage.nth_with(limit, next, base, k)
    }

    /// Estimates the number of jobs in `units`, assuming that other flows' jobs cost the same as
    /// those of the waitlist.
    fn others_calls(&self, units: u64) -> u64 {
        let waitlist = self.waitlist();
        let each = (waitlist.last_issued / waitlist.jobs.max(1)).max(1);
        units / each
    }

    pub(super) fn has_room(&self, units: u64) -> bool {
        let now = self.clock.now_ms;
        (0..self.limits.len()).all(|index| self.nth_of(index, now, units, 1) == now)
    }

    /// Returns when there is room for a job that costs more than one of its limits allows, and
    /// which limit has room last (the first of several). The exceeded limit must be entirely free.
    pub(super) fn whole(&self, cost: u64) -> (u64, usize) {
        let mut latest = (0, 0);
        for (index, limit) in self.limits.iter().enumerate() {
            let units = cost.min(limit.capacity());
            let at = self.nth_of(index, self.base, units, 1);
            if at > latest.0 {
                latest = (at, index);
            }
        }
        latest
    }

    /// Returns when a shared partition and the partitions behind it have room for the next unit, at
    /// the largest cost it can have.
    pub(super) fn room_at(&self, partition: usize) -> u64 {
        let now = self.clock.now_ms;
        let widest = self.states[partition]
            .fair_queue
            .widest
            .clamp(1, self.highest_cost());
        let is_behind = |(_, here): &(usize, usize)| self.layout.is_behind(*here, partition);
        let here = self.partitions().filter(is_behind);
        let latest = here
            .map(|(index, _)| self.nth_of(index, now, widest, 1))
            .max();
        latest.unwrap_or(now)
    }

    /// Reports whether a limit without room for `units` has admitted something.
    pub(super) fn is_taken(&self, units: u64) -> bool {
        (0..self.limits.len()).any(|index| self.takes_room(index, units))
    }

    pub(super) fn is_taken_at(&self, partition: usize) -> bool {
        let widest = self.states[partition]
            .fair_queue
            .widest
            .clamp(1, self.highest_cost());
        self.partitions().any(|(index, here)| {
            self.layout.is_behind(here, partition) && self.takes_room(index, widest)
        })
    }

    /// Returns each enforced limit's index and partition.
    fn partitions(&self) -> impl Iterator<Item = (usize, usize)> {
        let all = self.layout.partitions.iter().copied().enumerate();
        all.take(self.limits.len())
    }

    fn takes_room(&self, index: usize, units: u64) -> bool {
        let now = self.clock.now_ms;
        self.nth_of(index, now, units, 1) > now && self.count(index) > 0
    }

    /// Returns the largest cost that the first job of the waitlist can have.
    pub(super) fn widest(&self) -> u64 {
        self.waitlist().widest.clamp(1, self.highest_cost())
    }

    pub(super) fn count(&self, index: usize) -> u64 {
        let usage = &self.states[self.layout.partitions[index]].usage;
        usage.count(&self.limits[index], self.clock)
    }

    pub(super) fn counts_cost(&self) -> bool {
        self.limits.iter().any(|limit| limit.unit() == Unit::Cost)
    }

    /// Returns the highest cost that can start.
    pub(super) fn highest_cost(&self) -> u64 {
        highest_cost(self.limits)
    }
}

/// Returns the highest cost that can start under `limits`.
pub(super) fn highest_cost(limits: &[Limit]) -> u64 {
    let costs = limits.iter().filter(|limit| limit.unit() == Unit::Cost);
    let capacities = costs.map(|limit| limit.capacity());
    capacities.min().unwrap_or(UNLIMITED)
}
