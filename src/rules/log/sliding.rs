//! `sliding-window-algo`: one entry for each start that still counts, oldest first, for all limits of a scope.

use std::collections::VecDeque;

use super::Clock;
use super::span::LongestSpan;
use crate::rules::limit::{Limit, Unit};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlidingLog {
    entries: VecDeque<Entry>,
    /// The running total of units before the first entry.
    gone: u64,
    /// How far back anybody counts.
    spans: LongestSpan,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    /// When it started, in milliseconds since the epoch, rounded up.
    score: u64,
    /// The running total of units, this entry's included.
    total: u64,
    /// Its running number; 0: another writer's.
    sequence: u64,
}

impl SlidingLog {
    /// Somebody counts with `span`: forgets what no span counts any more.
    pub fn load(&mut self, span: u64, clock: Clock) {
        self.spans.note(span, clock.now_ms);
        let longest = self.spans.longest();
        while let Some(first) = self.entries.front() {
            if first.score + longest > clock.now_ms {
                break;
            }
            self.gone = first.total;
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

    pub fn count(&self, limit: &Limit, now: u64) -> u64 {
        self.all(limit) - self.dead(limit, now)
    }

    pub fn nth(&self, limit: &Limit, base: u64, k: u64) -> u64 {
        let (max, span) = (u64::from(limit.max()), limit.span());
        let all = self.all(limit);
        // Of more than `max` (the limit was lowered) only the last `max` stand in the way.
        let used = (all - self.dead(limit, base)).min(max);
        let free = max - used;
        let (turn, laps) = ((k - 1) % max, (k - 1) / max);
        let first = if turn < free {
            base
        } else {
            self.score_of(limit, all - used + turn - free + 1) + span
        };
        first + laps * span
    }

    /// Returns the new entry's number.
    pub fn take(&mut self, score: u64, cost: u64) -> u64 {
        let total = self.entries.back().map_or(self.gone, |e| e.total) + cost;
        let ours = self.entries.iter().rev().find(|e| e.sequence > 0);
        let sequence = ours.map_or(0, |e| e.sequence) + 1;
        self.entries.push_back(Entry {
            score,
            total,
            sequence,
        });
        sequence
    }

    /// A start cost `used` in fact; `None`: it never called.
    pub fn settle(&mut self, started_ms: u64, sequence: u64, used: Option<u32>) {
        let started = started_ms..=started_ms + 1;
        let ours =
            |e: &Entry| e.sequence == sequence && started.contains(&e.score) && e.sequence > 0;
        let Some(at) = self.entries.iter().position(ours) else {
            return;
        };
        let before = match at.checked_sub(1) {
            Some(before) => self.entries[before].total,
            None => self.gone,
        };
        let (cost, used_cost) = (self.entries[at].total - before, used.map_or(0, u64::from));
        for entry in self.entries.range_mut(at..) {
            entry.total = entry.total + used_cost - cost;
        }
        if used.is_none() {
            self.entries.remove(at);
        }
    }

    /// An entry that another writer added at `score`: one unit.
    pub fn add_foreign(&mut self, score: u64) {
        let at = self.entries.partition_point(|e| e.score <= score);
        let total = match at.checked_sub(1) {
            Some(before) => self.entries[before].total,
            None => self.gone,
        };
        self.entries.insert(
            at,
            Entry {
                score,
                total,
                sequence: 0,
            },
        );
        for entry in self.entries.range_mut(at..) {
            entry.total += 1;
        }
    }

    /// When it no longer says anything.
    pub fn end(&self) -> u64 {
        self.spans.end()
    }

    /// Units of all entries, also of those that count only for a longer limit.
    fn all(&self, limit: &Limit) -> u64 {
        self.up_to(limit, self.entries.len())
    }

    /// Units that no longer count at `at`.
    fn dead(&self, limit: &Limit, at: u64) -> u64 {
        let span = limit.span();
        let entries = self.entries.partition_point(|e| e.score + span <= at);
        self.up_to(limit, entries)
    }

    /// Units of the first `entries`.
    fn up_to(&self, limit: &Limit, entries: usize) -> u64 {
        match (limit.unit(), entries.checked_sub(1)) {
            (_, None) => 0,
            (Unit::Calls, _) => entries as u64,
            (Unit::Cost, Some(last)) => self.entries[last].total - self.gone,
        }
    }

    /// When the `unit`-th unit (from 1, and there is one) started.
    fn score_of(&self, limit: &Limit, unit: u64) -> u64 {
        let at = match limit.unit() {
            Unit::Calls => (unit - 1) as usize,
            Unit::Cost => self.entries.partition_point(|e| e.total - self.gone < unit),
        };
        self.entries[at].score
    }
}
