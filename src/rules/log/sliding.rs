//! `sliding-window-algo`: one entry for each start that still counts, oldest first, for all limits of a scope.
//!
//! What a call used in fact is written into its entry. `lua/corrections.lua` says how the store knows the sums without rewriting it.

use std::collections::VecDeque;

use super::Clock;
use super::span::LongestSpan;
use crate::rules::limit::Limit;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlidingLog {
    /// In the order of their scores.
    entries: VecDeque<Entry>,
    /// How far back anybody counts.
    spans: LongestSpan,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    /// When it started, in milliseconds since the epoch, rounded up.
    score: u64,
    /// What it cost; `None`: it was given back.
    cost: Option<u64>,
    /// Its running number; 0: another writer's.
    sequence: u64,
    /// It came late: the number that the start was given, and when, as its receipt says.
    moved: Option<(u64, u64)>,
}

impl Entry {
    fn units(&self, limit: &Limit) -> u64 {
        self.cost.map_or(0, |cost| limit.unit().of(cost))
    }
}

impl SlidingLog {
    /// Somebody counts with `span`.
    pub fn note(&mut self, span: u64, clock: Clock) {
        self.spans.note(span, clock.now_ms);
    }

    /// Forgets what no span counts any more.
    pub fn load(&mut self, clock: Clock) {
        let longest = self.spans.longest();
        while (self.entries.front()).is_some_and(|first| first.score + longest <= clock.now_ms) {
            self.entries.pop_front();
        }
        // A start in the future: the clock was stepped back. Counting it from now wastes at most one window.
        for entry in self.entries.iter_mut().rev() {
            if entry.score <= clock.stamp_ms {
                break;
            }
            entry.score = clock.stamp_ms;
        }
    }

    pub fn count(&self, limit: &Limit, at: u64) -> u64 {
        let newest_first = self.entries.iter().rev();
        let counts = newest_first.take_while(|entry| entry.score + limit.span() > at);
        counts.map(|entry| entry.units(limit)).sum()
    }

    pub fn nth(&self, limit: &Limit, base: u64, k: u64) -> u64 {
        let (max, span) = (u64::from(limit.max()), limit.span());
        // Of more than `max` (the limit was lowered) only the last `max` stand in the way.
        let used = self.count(limit, base).min(max);
        let free = max - used;
        let (turn, laps) = ((k - 1) % max, (k - 1) / max);
        let first = if turn < free {
            base
        } else {
            self.left_at(limit, used - (turn - free + 1)) + span
        };
        first + laps * span
    }

    /// Returns the new entry's number.
    pub fn take(&mut self, score: u64, cost: u64) -> u64 {
        self.push(score, cost, None)
    }

    fn push(&mut self, score: u64, cost: u64, moved: Option<(u64, u64)>) -> u64 {
        let ours = self.entries.iter().rev().find(|e| e.sequence > 0);
        let sequence = ours.map_or(0, |e| e.sequence) + 1;
        self.entries.push_back(Entry {
            score,
            cost: Some(cost),
            sequence,
            moved,
        });
        sequence
    }

    /// A start cost `used` in fact; `None`: it never called. One that was given back stays so.
    pub fn settle(&mut self, started_ms: u64, sequence: u64, used: Option<u32>) {
        if let Some(entry) = self.find(started_ms, sequence) {
            entry.cost = entry.cost.and(used.map(u64::from));
        }
    }

    /// A start's call came later than the guard covers: it counts from now, as another entry behind all others. False: it is not there.
    pub fn late(&mut self, clock: Clock, started_ms: u64, sequence: u64) -> bool {
        let newest = self.entries.back().map_or(0, |e| e.score);
        let entry = self.find(started_ms, sequence);
        let Some(cost) = entry.and_then(|entry| entry.cost.take()) else {
            return false;
        };
        let moved = Some((sequence, started_ms));
        self.push(clock.stamp_ms.max(newest), cost, moved);
        true
    }

    /// The entry of a start that was given this number then.
    fn find(&mut self, started_ms: u64, sequence: u64) -> Option<&mut Entry> {
        let started = started_ms..=started_ms + 1;
        let receipt = Some((sequence, started_ms));
        let newest_first = || (0..self.entries.len()).rev();
        let moved = newest_first().find(|at| self.entries[*at].moved == receipt);
        let ours =
            |e: &Entry| e.sequence == sequence && e.moved.is_none() && started.contains(&e.score);
        let at = moved.or_else(|| newest_first().find(|at| ours(&self.entries[*at])));
        at.filter(|_| sequence > 0).map(|at| &mut self.entries[at])
    }

    /// An entry that another writer added at `score`: one unit.
    pub fn add_foreign(&mut self, score: u64) {
        let at = self.entries.partition_point(|e| e.score <= score);
        self.entries.insert(
            at,
            Entry {
                score,
                cost: Some(1),
                sequence: 0,
                moved: None,
            },
        );
    }

    /// When it no longer says anything.
    pub fn end(&self) -> u64 {
        let newest = self.entries.back().map_or(0, |e| e.score);
        self.spans.end().max(newest + self.spans.longest())
    }

    /// The first moment after which at most `rest` units started; there are more.
    fn left_at(&self, limit: &Limit, rest: u64) -> u64 {
        let mut units = 0;
        let mut newest_first = self.entries.iter().rev();
        let reached = newest_first.find(|entry| {
            units += entry.units(limit);
            units > rest
        });
        reached.map_or(0, |entry| entry.score)
    }
}
