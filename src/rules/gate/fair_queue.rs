//! Fair queues: which waitlist has the next turn in a partition that several waitlists share.
//!
//! A fair queue is start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queuing",
//! SIGCOMM 1996) without a queue. Each waitlist with waiting jobs is a *flow*. Its next unit has a
//! *start tag*, and each further unit a tag that is [`STEP`] higher. The unit with the lowest tag
//! of all flows is next. So waiting flows take turns, unit by unit, and a new flow joins at the tag
//! of the last start, however long the other waitlists are.
//!
//! A flow is two tags: its *front*, the start tag of its next unit, and its *end*, one [`STEP`]
//! above the tag of its last waiting unit. So the size of a fair queue depends on the number of
//! waitlists and not on the number of jobs. For up to [`IDLE`] waitlists without waiting jobs the
//! queue remembers the front alone, so that a flow whose job has just started does not overtake
//! waiting flows. The turn of a unit is the number of units with lower tags ([`FlowView::before`]).
//!
//! Like a waitlist, a fair queue only advises; usage decides. So a flow whose jobs vanished costs
//! other flows a few turns: it is removed when it has let its turns pass, or when quota was left
//! unclaimed. If its jobs still exist, it joins again when the next one asks.

use std::collections::BTreeMap;

use crate::gate::waitlist::AHEAD_MS;
use crate::limit::{Limit, MAX_REQUESTS};

/// Distance between two units of a flow, in tags.
pub const STEP: u64 = 256;
/// The lowest limit whose units count as small, such as tokens. From there on, new flows join a
/// whole [`STEP`] apart. Below it, 256 new flows fit between two units of an existing flow.
pub const MANY: u64 = 1 << 20;
/// The highest tag. The scripts' doubles hold every lower multiple of a [`STEP`] exactly. A queue
/// that never gets empty reaches it after 4,500 windows of the highest limit, and is cleared then.
pub const MAX_TAG: u64 = 1 << 60;
/// Maximum number of flows removed at once because they let their turns pass.
pub const PURGE: usize = 8;
/// A job that costs more than 1/`EIGHTH` of the quota holds the other jobs back until there is
/// quota for all of it. Among many small jobs it would never find enough.
pub const EIGHTH: u64 = 8;
/// Maximum number of waitlists with such jobs that a view considers, the largest jobs first.
pub const WIDE: usize = 8;
/// Maximum number of waitlists without waiting jobs whose recent turns are remembered. Those with
/// the lowest tags are forgotten first. When they wait again, they take turns like new flows.
pub const IDLE: usize = 1024;

/// Returns how many turns a flow may let pass before it counts as gone. A flow can lose that many
/// turns without being gone, because another flow's jobs may ask first and use all quota of
/// `limits` at once.
pub fn reach<'a>(limits: impl Iterator<Item = &'a Limit>) -> u64 {
    let at_once = |limit: &Limit| {
        let ahead = limit.max() * AHEAD_MS / limit.span().max(1);
        limit.capacity() + ahead
    };
    limits.map(at_once).max().unwrap_or(0).max(2)
}

/// Returns the distance between two new flows, in tags, if a job can cost at most `max`.
pub fn join(max: u64) -> u64 {
    match max {
        MANY..=MAX_REQUESTS => STEP,
        _ => 1,
    }
}

/// The flows that wait in one partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FairQueue {
    /// Front and end of each waiting flow, by its name.
    flows: BTreeMap<String, (u64, u64)>,
    /// Front of each flow that started lately and does not wait, by its name.
    idle: BTreeMap<String, u64>,
    /// The largest cost in each waitlist with a job of more than an [`EIGHTH`] of the quota. The
    /// average in `each` would hide a few of them among many small ones.
    wide: BTreeMap<String, u64>,
    /// The tag of the newest start.
    pub now: u64,
    /// The tag at which the newest flow joined.
    pub joined: u64,
    /// Waiting units of all flows.
    pub waiting: u64,
    /// The largest cost among them.
    pub widest: u64,
    /// The recent average cost of a job, in sixteenths; 0 if none has waited yet. Covers all
    /// waitlists, while `wide` covers only some.
    pub each: u64,
    /// Since when available quota has gone unclaimed (ms); 0 if all of it is claimed.
    pub seen: u64,
    /// When quota becomes available for the next unit, in milliseconds.
    pub room: u64,
}

impl FairQueue {
    /// Returns the number of waitlists that the queue tracks.
    pub fn flows(&self) -> usize {
        self.flows.len() + self.idle.len()
    }

    /// Returns the front and end of the flow `name`.
    fn known(&self, name: &str) -> Option<(u64, u64)> {
        let idle = || self.idle.get(name).map(|front| (*front, *front));
        self.flows.get(name).copied().or_else(idle)
    }

    /// Returns the other flows as `name` sees them. `max` is the largest number of units that can
    /// start at one moment. New flows join `join` tags apart.
    pub fn view(&self, name: &str, max: u64, join: u64) -> FlowView {
        let own = self.known(name);
        let fresh = self.now.max(self.joined + join);
        let lowest = self.flows.values().map(|(front, _)| *front).min();
        let origin = own.map_or(fresh, |(front, _)| front);
        FlowView {
            flows: self.flows.values().copied().collect(),
            own,
            origin,
            first: lowest.map(|lowest| {
                (lowest.cast_signed() - origin.cast_signed()).div_euclid(STEP.cast_signed()) + 1
            }),
            points: Vec::new(),
            wide: match self.widest > max / EIGHTH {
                true => self.widest_others(name),
                false => Vec::new(),
            },
            each: self.each,
        }
    }

    /// Returns the other flows with the largest jobs: front, end and largest cost of each.
    fn widest_others(&self, name: &str) -> Vec<(u64, u64, u64)> {
        let mut wide: Vec<_> = self.wide.iter().map(|(flow, cost)| (*cost, flow)).collect();
        wide.sort_unstable();
        let largest = wide.into_iter().rev().take(WIDE);
        let others = largest.filter(|(_, flow)| *flow != name);
        let known = others.filter_map(|(cost, flow)| Some((self.flows.get(flow)?, cost)));
        known
            .map(|((front, end), cost)| (*front, *end, cost))
            .collect()
    }

    /// Removes flows that let more than `reach` turns pass, and idle flows whose front is as far
    /// behind.
    pub fn purge(&mut self, reach: u64) {
        let late = self.now.saturating_sub(reach * STEP);
        let mut passed: Vec<_> = (self.flows.iter())
            .filter(|(_, (front, _))| *front < late)
            .map(|(name, (front, end))| (*front, name.clone(), (end - front) / STEP))
            .collect();
        passed.sort_unstable();
        self.idle.retain(|_, front| *front >= late);
        for (_, name, units) in passed.into_iter().take(PURGE) {
            self.flows.remove(&name);
            self.wide.remove(&name);
            self.waiting -= units;
        }
    }

    /// Stores the result of a call of the script: `started` units of the flow `name` have started
    /// and `waiting` units wait. Their jobs cost at most `widest`, and on average `each`
    /// sixteenths. At most `max` units can start at one moment. New flows join `join` tags apart.
    pub fn save(
        &mut self,
        name: &str,
        started: u64,
        waiting: u64,
        (widest, each): (u64, u64),
        (max, join): (u64, u64),
    ) {
        let known = self.known(name);
        let (front, end) = known.unwrap_or_else(|| {
            let front = self.now.max(self.joined + join);
            (front, front)
        });
        self.waiting = self.waiting - (end - front) / STEP + waiting;
        let last = (started + waiting)
            .saturating_mul(STEP)
            .saturating_add(front);
        if self.waiting == 0 || last > MAX_TAG {
            *self = Self::default();
            return;
        }
        if started > 0 {
            self.now = self.now.max(front + (started - 1) * STEP);
        }
        if waiting > 0 {
            self.widest = self.widest.max(widest);
        }
        if waiting > 0 && widest > max / EIGHTH {
            self.wide.insert(name.to_owned(), widest);
        } else if self.widest > max / EIGHTH {
            self.wide.remove(name);
        }
        if known.is_none() && (waiting > 0 || started > 0) {
            self.joined = front;
        }
        if known.is_some() || waiting > 0 || started > 0 {
            let front = front + started * STEP;
            let end = front + waiting * STEP;
            if known != Some((front, end)) {
                self.moves(name, front, end);
                if waiting > 0 {
                    self.each = match self.each {
                        0 => each,
                        known => (known * 7 + each) / 8,
                    };
                }
            }
        }
    }

    /// Removes the waiting units of `name`, because an operator emptied its waitlist.
    pub fn leave(&mut self, name: &str, now_ms: u64) {
        let Some((front, end)) = self.flows.get(name).copied() else {
            return;
        };
        self.seen = self.seen.min(now_ms);
        self.waiting = self.waiting.saturating_sub((end - front) / STEP);
        if self.waiting == 0 {
            *self = Self::default();
            return;
        }
        self.wide.remove(name);
        self.moves(name, front, front);
    }

    /// Sets the front and end tags of the flow `name`.
    fn moves(&mut self, name: &str, front: u64, end: u64) {
        self.flows.remove(name);
        self.idle.remove(name);
        if end > front {
            self.flows.insert(name.to_owned(), (front, end));
        } else {
            // Includes a flow whose job started at once: its next unit gets a later tag, and does
            // not overtake others again.
            self.idle.insert(name.to_owned(), front);
        }
        while self.idle.len() > IDLE {
            let min = self.idle.iter().map(|(name, front)| (*front, name)).min();
            let Some((_, name)) = min else { break };
            let name = name.clone();
            self.idle.remove(&name);
        }
    }
}

/// The other flows as one flow sees them during a call of the script.
#[derive(Debug)]
pub struct FlowView {
    flows: Vec<(u64, u64)>,
    own: Option<(u64, u64)>,
    origin: u64,
    /// The index (from 0) of the flow's first unit that has units of other flows before it, or
    /// `None` if there are no other flows.
    first: Option<i64>,
    /// Counts that are known. Each has the index of a unit (from 0), the number of other flows'
    /// units between it and the unit before it, and the running sum.
    points: Vec<(i64, i64, i64)>,
    /// Other flows with large jobs: front, end and largest cost of each.
    wide: Vec<(u64, u64, u64)>,
    each: u64,
}

impl FlowView {
    /// Returns how many units of other flows have lower tags than the flow's `nth` unit. `nth` is 1
    /// for the first unit that waits at the start of the call. The number is exact for the first
    /// units, and for later ones if no other flow ends shortly before them; it is never too high.
    /// But a large job counts as a whole as soon as its first unit does, because it needs all of
    /// its quota at once.
    pub fn before(&mut self, nth: u64) -> u64 {
        match self.units_before(nth) {
            0 => 0,
            units => units + self.rest_of_wide(nth),
        }
    }

    /// Returns the units not counted yet of large jobs of which at least one unit was counted.
    fn rest_of_wide(&self, nth: u64) -> u64 {
        let tag = self.origin + nth * STEP;
        let rest = |&(front, end, cost): &(u64, u64, u64)| {
            let all = (end - front) / STEP;
            match (tag - 1).saturating_sub(front) / STEP {
                0 => 0,
                counted => cost.min(all).saturating_sub(counted),
            }
        };
        self.wide.iter().map(rest).sum()
    }

    fn units_before(&mut self, nth: u64) -> u64 {
        let last = nth.cast_signed() - 1;
        let Some(first) = self.first.filter(|first| *first <= last) else {
            return 0;
        };
        if self.points.is_empty() {
            let between = self.between(first);
            self.points.push((first, between, between));
        }
        loop {
            // The list is not empty: it was filled above.
            let &(at, between, sum) = &self.points[self.points.len() - 1];
            let next = at + 1.max((at - first) / 2);
            if at >= last || next > last {
                break;
            }
            let there = self.between(next);
            self.points
                .push((next, there, sum + added(at, between, next, there)));
        }
        let known = self.points.iter().rev().find(|(at, ..)| *at <= last);
        let &(at, between, sum) = known.unwrap_or(&self.points[0]);
        let all = match at == last {
            true => sum,
            false => sum + added(at, between, last, self.between(last)),
        };
        all.max(0).cast_unsigned()
    }

    /// Returns what to add to [`before`](Self::before) for the flow's next job. A job of another
    /// flow starts as a whole once its first unit has the turn. `started` units of this flow have
    /// started.
    pub fn whole(&mut self, started: u64) -> u64 {
        let at = started.cast_signed();
        if self.each <= 16 || self.first.is_none_or(|first| first > at) {
            return 0;
        }
        let jobs = self.between(at).max(0).cast_unsigned();
        (jobs.saturating_mul(self.each) / 16).saturating_sub(self.before(started + 1))
    }

    /// Returns how many other flows have a unit between the flow's unit `at` (from 0) and the unit
    /// before it.
    fn between(&self, at: i64) -> i64 {
        let tag = self.origin.cast_signed() + at * STEP.cast_signed();
        let spans = |(front, end): &(u64, u64)| {
            i64::from(front.cast_signed() < tag) - i64::from(end.cast_signed() < tag)
        };
        let all: i64 = self.flows.iter().map(spans).sum();
        all - self.own.as_ref().map_or(0, spans)
    }
}

/// Estimates how many units of other flows lie between the flow's units `from` and `to`. `there`
/// flows have a unit just before `from`, and `here` flows have one just before `to`. In between it
/// assumes the smaller of the two numbers. An estimate that is too low makes a job return early and
/// wait again; one that is too high leaves quota unused.
fn added(from: i64, there: i64, to: i64, here: i64) -> i64 {
    (to - from - 1) * there.min(here) + here
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: (u64, u64) = (1, 16);

    #[test]
    fn an_immediate_start_does_not_pass_waiting_ones() {
        let mut queue = FairQueue::default();
        queue.save("waits", 0, 2, ONE, (100, 1));
        queue.save("starts", 1, 0, ONE, (100, 1));
        queue.save("starts", 0, 1, ONE, (100, 1));
        assert_eq!(queue.view("starts", 100, 1).before(1), 2);
        assert_eq!(queue.view("waits", 100, 1).before(2), 0);
    }

    #[test]
    fn the_number_of_idle_waitlists_is_bounded() {
        let mut queue = FairQueue::default();
        queue.save("waits", 0, 3, ONE, (100, 1));
        for n in 0..5_000 {
            queue.save(&format!("{n}"), 1, 0, ONE, (100, 1));
            assert!(queue.flows() <= 1 + IDLE, "{n}");
        }
        let known = |queue: &FairQueue, name: &str| queue.known(name).is_some();
        assert!(known(&queue, "waits") && known(&queue, "4999"));
        assert!(!known(&queue, "3000"));
        // 256 flows that start at once make up one turn. A flow that has let a few turns pass has
        // vanished.
        queue.purge(1);
        assert!(queue.waiting == 0 && !known(&queue, "waits"));
        assert!(queue.flows() <= 513, "{}", queue.flows());

        // Flows that waited together and end together.
        let mut queue = FairQueue::default();
        queue.save("waits", 0, 30, ONE, (100, 1));
        let names: Vec<String> = (2..2_002_u64).map(|n| format!("{n:04}")).collect();
        for name in &names {
            queue.save(name, 0, 9, ONE, (100, 1));
        }
        for (n, name) in (2..).zip(&names) {
            queue.save(name, 9 - n / STEP, 0, ONE, (100, 1));
        }
        assert_eq!((queue.waiting, queue.idle.len()), (30, IDLE));
        assert!(known(&queue, "waits") && !known(&queue, "0002"));
    }

    /// Its numbers stay exact in the scripts.
    #[test]
    fn a_queue_whose_tags_are_used_up_is_cleared() {
        let max = (MAX_REQUESTS, join(MAX_REQUESTS));
        let mut queue = FairQueue::default();
        let waiting = MAX_TAG / STEP - 2 * MAX_REQUESTS;
        queue.save("a", 0, waiting, (MAX_REQUESTS, 16), max);
        queue.save("b", 0, MAX_REQUESTS, (MAX_REQUESTS, 16), max);
        queue.save("b", MAX_REQUESTS, 0, (MAX_REQUESTS, 16), max);
        assert_eq!((queue.flows(), queue.waiting), (2, waiting));
        queue.save("a", MAX_REQUESTS, waiting + MAX_REQUESTS, ONE, max);
        assert_eq!(queue, FairQueue::default());
    }

    #[test]
    fn a_waitlist_that_leaves_blocks_no_other() {
        let mut queue = FairQueue::default();
        queue.save("a", 0, 3, (60, 16), (100, 1));
        queue.save("b", 0, 2, ONE, (100, 1));
        queue.leave("nobody", 5);
        queue.leave("a", 5);
        assert_eq!((queue.waiting, queue.view("b", 100, 1).before(2)), (2, 0));
        queue.leave("b", 5);
        assert_eq!(queue, FairQueue::default());
    }
}
