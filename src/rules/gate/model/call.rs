//! Decides the questions of one script call: whether each job may start, and otherwise when its
//! turn is.

mod turns;

use self::turns::highest_cost;
use super::{HeldState, State};
use crate::decision::{Answer, Question, Sequences, Tally, Ticket};
use crate::gate::fair_queue::{FairQueue, FlowView, join};
use crate::gate::usage::{Clock, NextLimits};
use crate::gate::waitlist::{AHEAD_MS, GRACE_MS, Waitlist, reach};
use crate::layout::Layout;
use crate::limit::Limit;

/// Data of one script call, and the state that its jobs share.
pub(super) struct Call<'a> {
    /// The waitlist, then the shared partitions, narrow ones before wider ones.
    states: &'a mut [HeldState],
    layout: &'a Layout,
    /// The other flows in each shared partition, as this waitlist or tenant sees them.
    views: Vec<FlowView>,
    /// The enforced limits.
    limits: &'a [Limit],
    /// All limits that a start is charged to: enforced limits, then shadows.
    charged: &'a [Limit],
    /// The limits that replace some of them once their overrides end.
    next: &'a NextLimits,
    /// Whether turns follow these. Decisions do not foresee: such a turn may be early, and a job
    /// would overtake others.
    foresees: bool,
    /// Counts that this call added to each shadow.
    tallies: Vec<Tally>,
    clock: Clock,
    /// Earliest time of a start: now, or when the tenant opens.
    base: u64,
    /// Number of further jobs that may start.
    budget: u32,
    /// Whether a job had room but no budget. Fresh jobs after it must not start before it.
    full: bool,
    /// Units started by this call.
    started: u64,
}

impl<'a> Call<'a> {
    /// Prepares the call. The states' usage must be loaded.
    pub(super) fn new(
        states: &'a mut [HeldState],
        layout: &'a Layout,
        (charged, next): (&'a [Limit], &'a NextLimits),
        clock: Clock,
        base: u64,
        budget: u32,
    ) -> Self {
        let enforced = charged.partition_point(|limit| !limit.is_shadow());
        let (limits, shadows) = charged.split_at(enforced);
        let shared = layout.shared.iter().zip(&states[1..]).enumerate();
        let views = shared.map(|(index, (shared, state))| {
            let max = highest_cost(&layout.limits_in(index + 1, limits));
            state
                .fair_queue
                .view(&shared.flow, max, join(highest_cost(limits)))
        });
        Self {
            views: views.collect(),
            states,
            layout,
            limits,
            charged,
            next,
            foresees: false,
            tallies: vec![Tally::default(); shadows.len()],
            clock,
            base,
            budget,
            full: false,
            started: 0,
        }
    }

    /// Makes turns follow the limits that replace others once an operator's overrides end.
    pub(super) fn foreseeing(mut self) -> Self {
        self.foresees = true;
        self
    }

    /// Returns the number of enforced limits.
    pub(super) fn enforced(&self) -> usize {
        self.limits.len()
    }

    pub(super) fn state(&self, partition: usize) -> &State {
        &self.states[partition]
    }

    fn waitlist(&self) -> &Waitlist {
        &self.states[0].waitlist
    }

    fn waitlist_mut(&mut self) -> &mut Waitlist {
        &mut self.states[0].waitlist
    }

    fn fair_queue(&mut self, partition: usize) -> &mut FairQueue {
        &mut self.states[partition].fair_queue
    }

    fn shared(&self) -> std::ops::RangeInclusive<usize> {
        1..=self.layout.shared.len()
    }

    pub(super) fn decide(&mut self, ask: &Question, permit: &str) -> Answer {
        let now = self.clock.now_ms;
        let cost = ask.cost.max(1);
        let units = self.units_of(cost);
        let ticket = self.claimed(ask.ticket);
        if self.full && ticket.is_none() {
            return Answer::Capacity;
        }

        let open = self.base == now;
        if open {
            self.give_up_others();
        }
        let whole = match self.counts_cost() && cost > units {
            true => self.whole(cost),
            false => (now, 0),
        };
        let room = open && self.has_room(units) && whole.0 == now;
        let stale = open && self.is_front_missing();
        let mut turn = None;
        let due = match ticket {
            None => {
                let alone = self.layout.shared.is_empty();
                self.waitlist().waiting() == 0 && (alone || self.turn(units, units).0 <= now)
            }
            Some(ticket) => {
                let (at, limit) = self.turn_of(ticket.number, units);
                turn = Some((ticket.number, at, limit));
                at <= now + self.ahead() || self.may_overtake(ticket.number, units)
            }
        };

        if room && (due || stale) {
            if self.budget == 0 {
                self.full = true;
                return Answer::Capacity;
            }
            self.budget -= 1;
            // An unused permit makes this the same start again, so shadows do not count it twice. A
            // missed ticket alone does not show that.
            let readmitted = ask.readmitted || ask.ticket == Some(Ticket::HAD_ITS_TURN);
            let sequences = self.charge(cost, permit, readmitted);
            self.start(ticket, units, due);
            return Answer::Start { sequences };
        }

        let (number, at, limit) = turn.unwrap_or_else(|| {
            let number = self.waitlist_mut().issue(now, units);
            let (at, limit) = self.turn_of(number, units);
            (number, at, limit)
        });
        let at = self.watch(open, at, number, units);
        let (at, limit) = if whole.0 > at { whole } else { (at, limit) };
        let at = self.asks_at(at, (number, units), (whole.0 > now).then_some(cost));
        Answer::Wait {
            limit,
            count: self.count(limit),
            ttl_ms: at.saturating_sub(now).max(1),
            ticket: Ticket {
                generation: self.waitlist().generation,
                number: number.max(1),
            },
        }
    }

    /// Returns when a job with this ticket asks again: at its turn `at`, or as soon as it may start
    /// once an operator's override has ended. Its `whole` cost may need to be free.
    fn asks_at(&mut self, at: u64, (number, units): (u64, u64), whole: Option<u64>) -> u64 {
        if self.next.is_empty() {
            return at;
        }
        self.foresees = true;
        let (turn, _) = self.turn_of(number, units);
        let soonest = whole.map_or(turn, |cost| turn.max(self.whole(cost).0));
        self.foresees = false;
        at.min(soonest)
    }

    /// Returns the units of a job in the waitlist.
    fn units_of(&self, cost: u64) -> u64 {
        // If a limit was lowered by an operator or another worker's policy, a job that costs more
        // than the limit starts alone. It is charged in full, and needs room for its whole cost
        // under every higher limit.
        match self.counts_cost() {
            true => cost.min(self.highest_cost()),
            false => 1,
        }
    }

    /// Returns the ticket that a job with `ticket` claims, or `None` if it claims none.
    fn claimed(&self, ticket: Option<Ticket>) -> Option<Ticket> {
        let waitlist = self.waitlist();
        match ticket {
            // A job that had its turn claims no ticket.
            Some(Ticket::HAD_ITS_TURN) if waitlist.last_issued > 0 => Some(Ticket {
                generation: waitlist.generation,
                number: waitlist.now_serving,
            }),
            ticket => ticket.filter(|ticket| waitlist.waits(ticket)),
        }
    }

    /// Returns true if the front of the waitlist did not take its room within the grace period.
    fn is_front_missing(&mut self) -> bool {
        let (now, seen) = (self.clock.now_ms, self.waitlist().seen);
        self.waitlist().waiting() > 0 && seen > 0 && now - seen > GRACE_MS && self.first() == now
    }

    /// Updates the shared partitions' fair queues after the last decision. Returns when the last
    /// unit of the waitlist may start, and the counts added to each shadow.
    pub(super) fn finish(mut self) -> (u64, Vec<Tally>) {
        let waiting = self.waitlist().waiting();
        let end = match waiting {
            0 => self.clock.now_ms,
            waiting => self.turn(waiting, 1).0,
        };
        for partition in self.shared() {
            let below = self.layout.shared[partition - 1].below;
            let max = match below {
                0 => waiting,
                below => self.states[below].fair_queue.waiting,
            };
            let units = self.demand(partition, max);
            let waitlist = self.waitlist();
            let each = (waitlist.last_issued * 16 / waitlist.jobs.max(1)).max(16);
            let widest = match below {
                0 => waitlist.widest,
                below => self.states[below].fair_queue.widest,
            };
            let max = highest_cost(&self.layout.limits_in(partition, self.limits));
            let highest = self.highest_cost();
            let flow = &self.layout.shared[partition - 1].flow;
            let queue = &mut self.states[partition].fair_queue;
            queue.save(
                flow,
                self.started,
                units,
                (widest, each),
                (max, join(highest)),
            );
        }
        (end, self.tallies)
    }

    /// Returns how many of the next `max` units wait for this partition or a wider one behind it,
    /// rather than for a narrower one or for the tenant to open. Only these units delay other
    /// flows. The estimate errs on the low side, which brings other jobs back a little early.
    fn demand(&mut self, partition: usize, max: u64) -> u64 {
        if self.base > self.clock.now_ms || max > 0 && !self.demands(partition, 1) {
            return 0;
        }
        let mut units = max;
        while units > 1 && !self.demands(partition, units) {
            units /= 2;
        }
        units
    }

    /// Reports whether unit number `units` of the waitlist waits for this partition.
    fn demands(&mut self, partition: usize, units: u64) -> bool {
        let below = self.layout.shared[partition - 1].below;
        let narrow = self.nth(below, units).unwrap_or(self.base);
        let own = self.started + units;
        let rank = units + self.views[partition - 1].before(own);
        let mut wide = self.nth(partition, rank).unwrap_or(0);
        for wider in self.shared() {
            if self.layout.shared[wider - 1].below == partition {
                let rank = rank + self.views[wider - 1].before(self.started + rank);
                wide = wide.max(self.nth(wider, rank).unwrap_or(0));
            }
        }
        narrow.max(self.base) <= wide
    }

    /// Charges the limits. Counts the start in the shadows unless it is a repeated one
    /// (`readmitted`).
    fn charge(&mut self, cost: u64, permit: &str, readmitted: bool) -> Sequences {
        let clock = self.clock;
        let mut sequences = Sequences::default();
        for (partition, state) in self.states.iter_mut().enumerate() {
            let limits = self.layout.limits_in(partition, self.charged);
            sequences.set(partition, state.usage.take(&limits, clock, cost, permit));
        }
        let shadows = self.charged.iter().zip(&self.layout.partitions);
        let shadows = shadows.skip(self.limits.len()).filter(|_| !readmitted);
        for ((limit, partition), tally) in shadows.zip(&mut self.tallies) {
            let trials = &mut self.states[*partition].trials;
            let trial = trials.entry(limit.clone()).or_default();
            tally.add(&trial.start(limit, clock, cost));
        }
        sequences
    }

    /// Advances the waitlist and the shared fair queues after a start.
    fn start(&mut self, ticket: Option<Ticket>, units: u64, due: bool) {
        let now = self.clock.now_ms;
        if !due {
            self.waitlist_mut().reset(now);
        } else if let Some(ticket) = ticket {
            let reach = reach(self.limits);
            self.waitlist_mut().claim(ticket.number, units, reach);
        }
        self.started += units;
        self.waitlist_mut().seen = 0;
        if self.waitlist().waiting() > 0 {
            self.waitlist_mut().room = self.first();
        }
        for partition in self.shared() {
            if self.fair_queue(partition).waiting > 0 {
                let room = self.room_at(partition);
                let queue = self.fair_queue(partition);
                (queue.seen, queue.room) = (0, room);
            }
        }
    }

    /// Tracks unclaimed room after the denial of a job, which must wait until `at`. Records since
    /// when room exists that neither the front of this waitlist nor the other waitlists have
    /// claimed. Returns an earlier time if the job should ask again right after the grace period,
    /// when it is certain that the jobs ahead have vanished and are not just late.
    fn watch(&mut self, open: bool, mut at: u64, ticket: u64, units: u64) -> u64 {
        let now = self.clock.now_ms;
        let first = self.first();
        if open && first == now {
            let waitlist = self.waitlist_mut();
            if waitlist.seen == 0 {
                waitlist.seen = now;
            }
            // A job with no other job in front of it waits for its own turn.
            if waitlist.waiting() > 0 && now.saturating_sub(waitlist.room) > GRACE_MS {
                at = at.min(waitlist.seen + GRACE_MS + 1);
            }
        } else {
            // Only a start or another flow's turns take room away. In the guard at the end of a
            // fixed window there may be no room even without a start.
            let widest = self.widest();
            if !open || self.is_taken(widest) || self.has_room(widest) {
                let waitlist = self.waitlist_mut();
                (waitlist.seen, waitlist.room) = (0, first);
            }
        }
        if !open {
            return at;
        }
        for partition in self.shared() {
            if self.fair_queue(partition).waiting == 0
                || !self.waits_for_others(partition, ticket, units)
            {
                continue;
            }
            let room = self.room_at(partition);
            if room == now {
                let queue = self.fair_queue(partition);
                if queue.seen == 0 {
                    queue.seen = now;
                }
                if now.saturating_sub(queue.room) > GRACE_MS {
                    at = at.min(queue.seen + GRACE_MS + 1);
                }
            } else if self.is_taken_at(partition) {
                let queue = self.fair_queue(partition);
                (queue.seen, queue.room) = (0, room);
            }
        }
        at
    }

    /// Reports whether this ticket must wait because other flows have earlier turns, here or in a
    /// wider partition that they wait for through this one.
    fn waits_for_others(&mut self, partition: usize, ticket: u64, units: u64) -> bool {
        let k = self.distance(ticket, units);
        let below = match self.layout.shared[partition - 1].below {
            0 => k,
            below => self.rank(below, k, units),
        };
        let now = self.clock.now_ms;
        self.rank(partition, k, units) > below
            && self.shared().any(|wider| {
                let rank = self.rank(wider, k, units);
                self.layout.is_behind(wider, partition)
                    && self.nth(wider, rank).is_some_and(|at| at > now)
            })
    }

    /// Removes the waiters of each partition whose room was unclaimed for longer than the grace
    /// period.
    fn give_up_others(&mut self) {
        let now = self.clock.now_ms;
        for partition in self.shared() {
            let FairQueue { waiting, seen, .. } = *self.fair_queue(partition);
            if waiting > 0 && seen > 0 && now - seen > GRACE_MS && self.room_at(partition) == now {
                let join = join(self.highest_cost());
                let flow = &self.layout.shared[partition - 1].flow;
                let queue = &mut self.states[partition].fair_queue;
                *queue = FairQueue::default();
                self.views[partition - 1] = queue.view(flow, u64::MAX, join);
                // The first jobs of this waitlist did not come either, so its grace period began at
                // the same time. If it began only now, each newcomer would end it, and it would
                // start over forever.
                let waitlist = self.waitlist_mut();
                if waitlist.seen == 0 && waitlist.waiting() > 0 {
                    waitlist.seen = seen;
                }
            }
        }
    }

    /// Returns how long before its turn a job may start, in milliseconds. It is 0 if any waiting
    /// job costs several units: small jobs that go ahead would take the room that a large one waits
    /// for.
    fn ahead(&self) -> u64 {
        let wide = self.waitlist().widest > 1;
        match wide
            || self.states[self.shared()]
                .iter()
                .any(|state| state.fair_queue.widest > 1)
        {
            true => 0,
            false => AHEAD_MS,
        }
    }
}
