//! `sliding-window-algo`: one entry for each start that still counts, oldest first, for all limits of a scope.
//!
//! What is counted is simply what is in the log: a start that never called is taken out of it, one that cost something else
//! has another cost from then on. `lua/excess.lua` says how the store knows the sums without adding up.

use std::collections::VecDeque;

use super::Clock;
use super::span::LongestSpan;
use crate::rules::limit::Limit;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlidingLog {
    /// In the order of their scores.
    entries: VecDeque<Entry>,
    /// No number above this was given to an entry that was taken out.
    last: u64,
    /// How far back anybody counts.
    spans: LongestSpan,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    /// When it started, in milliseconds since the epoch, rounded up.
    score: u64,
    cost: u64,
    /// Its running number; 0: another writer's.
    sequence: u64,
}

impl SlidingLog {
    /// Somebody counts with `span`.
    pub fn note(&mut self, span: u64, clock: Clock) {
        self.spans.note(span, clock.now_ms);
    }

    /// Somebody has counted with it.
    pub fn knows_spans(&self) -> bool {
        self.spans.longest() > 0
    }

    /// Forgets what nobody counts any more.
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
        let counts = self.entries.iter().rev();
        let counts = counts.take_while(|entry| entry.score + limit.span() > at);
        counts.map(|entry| limit.unit().of(entry.cost)).sum()
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
        let sequence = self.highest() + 1;
        self.entries.push_back(Entry {
            score,
            cost,
            sequence,
        });
        sequence
    }

    /// A start of `cost` cost `used` in fact; `None`: it never called.
    pub fn settle(&mut self, started_ms: u64, sequence: u64, cost: u64, used: Option<u32>) {
        let started = started_ms..=started_ms + 1;
        let ours = |e: &Entry| {
            (e.sequence, e.cost) == (sequence, cost) && started.contains(&e.score) && sequence > 0
        };
        let Some(at) = self.entries.iter().position(ours) else {
            return;
        };
        match used {
            Some(used) => self.entries[at].cost = used.into(),
            None => {
                self.last = self.highest();
                self.entries.remove(at);
            }
        }
    }

    /// An entry that another writer added at `score`: one unit.
    pub fn add_foreign(&mut self, score: u64) {
        let at = self.entries.partition_point(|e| e.score <= score);
        let (cost, sequence) = (1, 0);
        self.entries.insert(
            at,
            Entry {
                score,
                cost,
                sequence,
            },
        );
    }

    /// When it no longer says anything.
    pub fn end(&self) -> u64 {
        self.spans.end()
    }

    /// The highest number that was given.
    fn highest(&self) -> u64 {
        let numbers = self.entries.iter().map(|entry| entry.sequence);
        numbers.max().unwrap_or(0).max(self.last)
    }

    /// The first moment after which at most `rest` units started; there are more.
    fn left_at(&self, limit: &Limit, rest: u64) -> u64 {
        let mut units = 0;
        let mut newest_first = self.entries.iter().rev();
        let reached = newest_first.find(|entry| {
            units += limit.unit().of(entry.cost);
            units > rest
        });
        reached.map_or(0, |entry| entry.score)
    }
}
