//! When units may start, by the limits, the waitlist and the turns of the others. Nothing is changed here.

use super::Call;
use crate::rules::forecast::ForecastTarget;
use crate::rules::limit::{Limit, Unit};
use crate::rules::waitlist::{AHEAD_MS, reach};

impl Call<'_> {
    /// Up to which unit of the waitlist this job's are, from 1.
    pub(super) fn distance(&self, ticket: u64, units: u64) -> u64 {
        units.max(ticket.saturating_sub(self.waitlist().served()))
    }

    /// When `ticket` may start, if its job of so many units comes in time, and which limit says so.
    pub(super) fn turn_of(&mut self, ticket: u64, units: u64) -> (u64, usize) {
        self.turn(self.distance(ticket, units), units)
    }

    /// Whether the job of `ticket` may start in front of others: a lease is free, whose next holder can't be told by time, since how
    /// long calls take is a guess. Of the limits that can tell, each has its turn about now.
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

    /// When the first of the waitlist may start, whatever it costs.
    pub(super) fn first(&mut self) -> u64 {
        let widest = self.widest();
        self.turn(widest, widest).0
    }

    /// When the `k`-th unit of the waitlist may start, the last of a job of so many units, and the first of the limits
    /// that allow it last.
    pub(in crate::rules::model) fn turn(&mut self, k: u64, own: u64) -> (u64, usize) {
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

    /// How many units there are up to a place, and how many of them are its own.
    pub(in crate::rules::model) fn up_to(&self, place: ForecastTarget) -> (u64, u64) {
        let waitlist = self.waitlist();
        let ForecastTarget::Job(ticket, cost) = place else {
            return (waitlist.waiting(), 1);
        };
        let own = match self.counts_cost() {
            true => u64::from(cost).clamp(1, self.most()),
            false => 1,
        };
        match ticket.filter(|ticket| waitlist.waits(ticket)) {
            Some(ticket) => (self.distance(ticket.number, own), own),
            None => (waitlist.waiting() + own, own),
        }
    }

    /// [`Self::turn`] as far as each of the limits goes on its own.
    pub(in crate::rules::model) fn turn_by_limit(&mut self, k: u64, own: u64) -> Vec<u64> {
        let calls = self.waitlist().jobs_in(k, own);
        let all = 0..self.limits.len();
        all.map(|index| self.turn_in(index, k, own, calls))
            .collect()
    }

    fn turn_in(&mut self, index: usize, k: u64, own: u64, calls: u64) -> u64 {
        let (of_units, of_calls) = self.place_in(index, k, own, calls);
        self.nth_of(index, self.base, of_units, of_calls)
    }

    /// The rank of the `k`-th unit of the waitlist among all that wait for one limit, and how many calls there are up to it.
    fn place_in(&mut self, index: usize, k: u64, own: u64, calls: u64) -> (u64, u64) {
        match self.layout.partitions[index] {
            0 => (k, calls),
            partition => {
                let rank = self.rank(partition, k, own);
                (rank, calls + self.others_calls(rank - k))
            }
        }
    }

    /// How many units start from this partition up to the `k`-th of the waitlist, the last of a job of so many, if all take
    /// turns. A job's turn is that of its first unit: if each waited for the others' units between its own, two jobs of several
    /// units would wait for each other.
    pub(super) fn rank(&mut self, partition: usize, k: u64, units: u64) -> u64 {
        let k = match self.layout.shared[partition - 1].below {
            0 => k,
            below => self.rank(below, k, units),
        };
        let (view, started) = (&mut self.views[partition - 1], self.started);
        k + view.before(started + k + 1 - units) + view.whole(started)
    }

    /// When the `k`-th unit may start as far as one partition goes; `None`: it has no limit.
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
        self.states[self.layout.partitions[index]]
            .usage
            .nth(limit, base, k)
    }

    /// About how many jobs have so many units, if the others' cost what those of the waitlist do.
    fn others_calls(&self, units: u64) -> u64 {
        let waitlist = self.waitlist();
        let each = (waitlist.last_issued / waitlist.jobs.max(1)).max(1);
        units / each
    }

    pub(super) fn has_room(&self, units: u64) -> bool {
        let now = self.clock.now_ms;
        (0..self.limits.len()).all(|index| self.nth_of(index, now, units, 1) == now)
    }

    /// When there is room for all of a job that costs more than one of the limits allows, that one being free as a whole; and
    /// the first of the limits that have it last.
    pub(super) fn whole(&self, cost: u64) -> (u64, usize) {
        let mut latest = (0, 0);
        for (index, limit) in self.limits.iter().enumerate() {
            let units = cost.min(limit.capacity().into());
            let at = self.nth_of(index, self.base, units, 1);
            if at > latest.0 {
                latest = (at, index);
            }
        }
        latest
    }

    /// When a shared partition has room for its next unit, whatever it costs, and so have those behind it.
    pub(super) fn room_at(&self, partition: usize) -> u64 {
        let now = self.clock.now_ms;
        let widest = self.states[partition]
            .fair_queue
            .widest
            .clamp(1, self.most());
        let is_behind = |(_, here): &(usize, usize)| self.layout.is_behind(*here, partition);
        let here = self.partitions().filter(is_behind);
        let latest = here
            .map(|(index, _)| self.nth_of(index, now, widest, 1))
            .max();
        latest.unwrap_or(now)
    }

    /// A limit that has no room for so many units has let something start.
    pub(super) fn is_taken(&self, units: u64) -> bool {
        (0..self.limits.len()).any(|index| self.takes_room(index, units))
    }

    pub(super) fn is_taken_at(&self, partition: usize) -> bool {
        let widest = self.states[partition]
            .fair_queue
            .widest
            .clamp(1, self.most());
        self.partitions().any(|(index, here)| {
            self.layout.is_behind(here, partition) && self.takes_room(index, widest)
        })
    }

    /// The partition of each limit that is enforced, with its number.
    fn partitions(&self) -> impl Iterator<Item = (usize, usize)> {
        let all = self.layout.partitions.iter().copied().enumerate();
        all.take(self.limits.len())
    }

    fn takes_room(&self, index: usize, units: u64) -> bool {
        let now = self.clock.now_ms;
        self.nth_of(index, now, units, 1) > now && self.count(index) > 0
    }

    /// What the first of the waitlist may cost at most.
    pub(super) fn widest(&self) -> u64 {
        self.waitlist().widest.clamp(1, self.most())
    }

    pub(super) fn count(&self, index: usize) -> u64 {
        let usage = &self.states[self.layout.partitions[index]].usage;
        usage.count(&self.limits[index], self.clock)
    }

    pub(super) fn counts_cost(&self) -> bool {
        self.limits.iter().any(|limit| limit.unit() == Unit::Cost)
    }

    /// The highest cost that can start.
    pub(super) fn most(&self) -> u64 {
        most_of(self.limits)
    }
}

/// The highest cost that can start under `limits`.
pub(super) fn most_of(limits: &[Limit]) -> u64 {
    let costs = limits.iter().filter(|limit| limit.unit() == Unit::Cost);
    let capacities = costs.map(Limit::capacity);
    capacities.min().map_or(u64::from(u32::MAX), u64::from)
}
