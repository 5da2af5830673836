//! Equal shares of a partition that several waitlists draw from: whose turn it is.
//!
//! This is start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queuing", SIGCOMM 1996) without a queue. Each
//! waitlist that waits is a *flow*. Its next unit has a *start tag*, and each further one of its units a tag that is [`STEP`] higher;
//! the unit with the lowest tag of all is the next one. So flows that wait take turns, unit by unit, and one that comes
//! anew goes in at the tag of the last start, however long the others' waitlists are.
//!
//! A flow is two numbers, the tag behind which its units wait and the last of them, so a fair queue is as large as the
//! number of waitlists that wait, and not of jobs. Of [`IDLE`] more at most, which do not wait any more, it has the tag of their
//! next unit, so that one whose job has just started does not come before those that wait. Which turn a unit has is how many
//! units have lower tags ([`View::before`]).
//!
//! As a waitlist does, a fair queue only advises; usage decides. So a flow whose jobs vanished costs others a few turns: it is taken
//! out when it let its turns pass, or when room was left unclaimed. One that is there after all comes in again when the
//! next of its jobs asks.

use std::collections::BTreeMap;

use crate::rules::limit::Limit;
use crate::rules::waitlist::AHEAD_MS;

/// From a flow's unit to its next one, in tags.
pub const STEP: u64 = 65_536;
/// From one flow that comes anew to the next: so many of them fit between two units of those that were there before.
pub(crate) const JOIN: u64 = STEP / 256;
/// How many flows that let their turns pass are taken out at once.
pub(crate) const PURGE: usize = 8;
/// A job of more than this part of the quota holds the others back until there is room for all of it: it would never
/// find that beside many small ones.
pub(crate) const EIGHTH: u64 = 8;
/// Of so many waitlists with such jobs, the largest ones, this is known.
pub(crate) const WIDE: usize = 8;
/// Of so many waitlists that do not wait it is known what they had lately. The ones that had the least are forgotten first: if they
/// wait, they take turns as if they came anew.
pub const IDLE: usize = 1024;

/// How many turns a flow may let pass before it counts as gone, where `limits` decide: one flow's jobs may use all room at once
/// and be asked for before the others', whose turns these are too.
pub fn reach<'a>(limits: impl Iterator<Item = &'a Limit>) -> u64 {
    let at_once = |limit: &Limit| {
        let ahead = u64::from(limit.max()) * AHEAD_MS / limit.span().max(1);
        u64::from(limit.capacity()) + ahead
    };
    limits.map(at_once).max().unwrap_or(0).max(2)
}

/// The flows that wait for one partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FairQueue {
    /// By the flow's name: behind which tag its units wait, and the tag of the last of them.
    flows: BTreeMap<String, (u64, u64)>,
    /// Of those that do not wait and started lately: behind which tag their next unit is.
    idle: BTreeMap<String, u64>,
    /// The largest cost in those waitlists that have a job of more than an [`EIGHTH`] of the quota: a few of them among many small
    /// ones, which `each` would hide.
    wide: BTreeMap<String, u64>,
    /// The tag of the newest start.
    pub now: u64,
    /// The tag with which a flow came anew last.
    pub joined: u64,
    /// Units that wait, of all flows.
    pub waiting: u64,
    /// The largest cost among them.
    pub widest: u64,
    /// What a job costs on average, lately, in sixteenths; 0: none has waited yet. For any number of waitlists, where `wide` knows
    /// only some.
    pub each: u64,
    /// Since when room has been seen unclaimed, in milliseconds; 0: it has not.
    pub seen: u64,
    /// From when on there is room for the next unit, in milliseconds.
    pub room: u64,
}

impl FairQueue {
    /// How many waitlists it knows.
    pub fn flows(&self) -> usize {
        self.flows.len() + self.idle.len()
    }

    /// Behind which tag the next units of `name` are, and the last one's.
    fn known(&self, name: &str) -> Option<(u64, u64)> {
        let idle = || self.idle.get(name).map(|front| (*front, *front));
        self.flows.get(name).copied().or_else(idle)
    }

    /// What the flow `name` sees of the others, where at most `most` units can start at one moment.
    pub fn view(&self, name: &str, most: u64) -> View {
        let own = self.known(name);
        let fresh = self.now.max(self.joined + JOIN);
        let lowest = self.flows.values().map(|(front, _)| *front).min();
        let origin = own.map_or(fresh, |(front, _)| front);
        View {
            flows: self.flows.values().copied().collect(),
            own,
            origin,
            first: lowest.map(|lowest| {
                (lowest.cast_signed() - origin.cast_signed()).div_euclid(STEP.cast_signed()) + 1
            }),
            points: Vec::new(),
            wide: match self.widest > most / EIGHTH {
                true => self.widest_others(name),
                false => Vec::new(),
            },
            each: self.each,
        }
    }

    /// The others' waitlists with the largest jobs: what waits there, and how large.
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

    /// Takes out what let more than `reach` turns pass, and what would have them but does not wait.
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

    /// After a call: `started` units of the flow `name` have started, and `waiting` wait, of jobs that cost `widest` at
    /// most, and `each` on average, in sixteenths, where at most `most` can start at one moment.
    pub fn save(
        &mut self,
        name: &str,
        started: u64,
        waiting: u64,
        (widest, each): (u64, u64),
        most: u64,
    ) {
        let known = self.known(name);
        let (front, end) = known.unwrap_or_else(|| {
            let front = self.now.max(self.joined + JOIN);
            (front, front)
        });
        self.waiting = self.waiting - (end - front) / STEP + waiting;
        if self.waiting == 0 {
            *self = Self::default();
            return;
        }
        if started > 0 {
            self.now = self.now.max(front + (started - 1) * STEP);
        }
        if waiting > 0 {
            self.widest = self.widest.max(widest);
        }
        if waiting > 0 && widest > most / EIGHTH {
            self.wide.insert(name.to_owned(), widest);
        } else if self.widest > most / EIGHTH {
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

    /// An operator says that nobody waits in the waitlist `name`.
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

    /// The next units of `name` are behind `front`, the last of them at `end`.
    fn moves(&mut self, name: &str, front: u64, end: u64) {
        self.flows.remove(name);
        self.idle.remove(name);
        if end > front {
            self.flows.insert(name.to_owned(), (front, end));
        } else {
            // Also one that started at once: its next unit has a later tag than this one, and does not pass others again.
            self.idle.insert(name.to_owned(), front);
        }
        while self.idle.len() > IDLE {
            let least = self.idle.iter().map(|(name, front)| (*front, name)).min();
            let Some((_, name)) = least else { break };
            let name = name.clone();
            self.idle.remove(&name);
        }
    }
}

/// What one flow sees of the others during a call.
#[derive(Debug)]
pub struct View {
    flows: Vec<(u64, u64)>,
    own: Option<(u64, u64)>,
    origin: u64,
    /// The first of the flow's units that has any of the others' before it, from 0; `None`: there are no others.
    first: Option<i64>,
    /// Up to which unit (from 0) it is known how many of the others' have turns between it and the one before: the
    /// unit, that number, and their sum up to here.
    points: Vec<(i64, i64, i64)>,
    /// The others with large jobs: behind which tag their units wait, the last one's, and the largest cost.
    wide: Vec<(u64, u64, u64)>,
    each: u64,
}

impl View {
    /// How many of the others' units have lower tags than the flow's `nth` one, from 1, counted from what it had when the
    /// call began. Exact for the first units, and for later ones where no other flow ends soon before them; never more.
    /// But a large job counts as a whole as soon as its first unit does: it needs all of its room at once.
    pub fn before(&mut self, nth: u64) -> u64 {
        match self.units_before(nth) {
            0 => 0,
            units => units + self.rest_of_wide(nth),
        }
    }

    /// What is missing of the large jobs of which a unit was counted.
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
            // There is one: the list was filled above.
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

    /// How many of the others' units, beyond [`before`](Self::before) it, come before the flow's next job when so many of its
    /// units have `started`: a job whose first unit comes first starts as a whole.
    pub fn whole(&mut self, started: u64) -> u64 {
        let at = started.cast_signed();
        if self.each <= 16 || self.first.is_none_or(|first| first > at) {
            return 0;
        }
        let jobs = self.between(at).max(0).cast_unsigned();
        (jobs * self.each / 16).saturating_sub(self.before(started + 1))
    }

    /// How many of the others have a unit between the flow's unit `at`, from 0, and the one before it.
    fn between(&self, at: i64) -> i64 {
        let tag = self.origin.cast_signed() + at * STEP.cast_signed();
        let spans = |(front, end): &(u64, u64)| {
            i64::from(front.cast_signed() < tag) - i64::from(end.cast_signed() < tag)
        };
        let all: i64 = self.flows.iter().map(spans).sum();
        all - self.own.as_ref().map_or(0, spans)
    }
}

/// The others' units behind the flow's unit `from`, where `there` of them have one, up to its unit `to`, where `here` have:
/// between the two at least as many as at the lower end. Who comes back a little early waits a little longer; who comes
/// late leaves room unused.
fn added(from: i64, there: i64, to: i64, here: i64) -> i64 {
    (to - from - 1) * there.min(here) + here
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: (u64, u64) = (1, 16);

    #[test]
    fn one_that_started_at_once_does_not_come_before_those_that_wait() {
        let mut queue = FairQueue::default();
        queue.save("waits", 0, 2, ONE, 100);
        queue.save("starts", 1, 0, ONE, 100);
        queue.save("starts", 0, 1, ONE, 100);
        assert_eq!(queue.view("starts", 100).before(1), 2);
        assert_eq!(queue.view("waits", 100).before(2), 0);
    }

    #[test]
    fn of_waitlists_that_do_not_wait_a_bounded_number_is_known() {
        let mut queue = FairQueue::default();
        queue.save("waits", 0, 3, ONE, 100);
        for n in 0..5_000 {
            queue.save(&format!("{n}"), 1, 0, ONE, 100);
            assert!(queue.flows() <= 1 + IDLE, "{n}");
        }
        let known = |queue: &FairQueue, name: &str| queue.known(name).is_some();
        assert!(known(&queue, "waits") && known(&queue, "4999"));
        assert!(!known(&queue, "3000"));
        // 256 of those that start at once are a turn. Who has let a few pass has vanished.
        queue.purge(1);
        assert!(queue.waiting == 0 && !known(&queue, "waits"));
        assert!(queue.flows() <= 513, "{}", queue.flows());

        // Lines that waited together, and end together.
        let mut queue = FairQueue::default();
        queue.save("waits", 0, 30, ONE, 100);
        let names: Vec<String> = (2..2_002_u64).map(|n| format!("{n:04}")).collect();
        for name in &names {
            queue.save(name, 0, 9, ONE, 100);
        }
        for (n, name) in (2..).zip(&names) {
            queue.save(name, 9 - n * JOIN / STEP, 0, ONE, 100);
        }
        assert_eq!((queue.waiting, queue.idle.len()), (30, IDLE));
        assert!(known(&queue, "waits") && !known(&queue, "0002"));
    }

    #[test]
    fn one_that_leaves_is_in_nobodys_way() {
        let mut queue = FairQueue::default();
        queue.save("a", 0, 3, (60, 16), 100);
        queue.save("b", 0, 2, ONE, 100);
        queue.leave("nobody", 5);
        queue.leave("a", 5);
        assert_eq!((queue.waiting, queue.view("b", 100).before(2)), (2, 0));
        queue.leave("b", 5);
        assert_eq!(queue, FairQueue::default());
    }
}
