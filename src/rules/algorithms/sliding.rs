//! `sliding-window-algo`: one entry for each start that still counts, oldest first, for all limits of a scope.
//!
//! What a call used in fact is written into its entry. `lua/corrections.lua` says how the store knows the sums without rewriting it.

use std::collections::VecDeque;

use super::span::LongestSpan;
use super::{Around, Ended, Keys, Rules, Stored, Terms, Unit, Usage};
use crate::rules::clock::Clock;

/// The algorithm.
pub struct SlidingWindow;

impl Rules for SlidingWindow {
    fn name(&self) -> &'static str {
        "sliding-window-algo"
    }

    fn about(&self) -> &'static str {
        "L in any W"
    }

    fn worst_words(&self) -> &'static str {
        "L"
    }

    fn window_words(&self) -> &'static str {
        "in any"
    }

    fn script(&self) -> &'static str {
        concat!(
            include_str!("../../../lua/corrections.lua"),
            "\n",
            include_str!("../../../lua/sliding_window.lua")
        )
    }

    fn shortcut(&self) -> Option<&'static str> {
        Some(include_str!("../../../lua/sliding_shortcut.lua"))
    }

    fn keys(&self) -> Keys {
        Keys::Log
    }

    fn stored(&self, terms: &Terms) -> Stored {
        Stored::Entries {
            most: terms.max().into(),
            compact: 33,
            linked: 110,
        }
    }

    fn counts_arrivals(&self) -> bool {
        true
    }

    fn span(&self, terms: &Terms) -> u64 {
        terms.window_ms() + terms.guard_ms()
    }

    fn margin(&self, terms: &Terms) -> u64 {
        terms.guard_ms()
    }

    /// A start counts for all of window + guard.
    fn worst_case(&self, terms: &Terms) -> u64 {
        terms.max().into()
    }

    fn most_in(&self, terms: &Terms, ms: u64) -> u64 {
        u64::from(terms.max()) * ms.div_ceil(self.span(terms))
    }

    fn burstiness(&self, terms: &Terms) -> u64 {
        terms.max().into()
    }

    fn arriving(&self, terms: &Terms, window_ms: u64) -> u64 {
        let apart = window_ms.saturating_add(terms.guard_ms());
        u64::from(terms.max()).saturating_mul(apart.div_ceil(self.span(terms)))
    }

    fn is_implied_by(&self, terms: &Terms, other: &Terms) -> bool {
        other.most_in(self.span(terms)) <= u64::from(terms.max())
    }
}

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
    fn units(&self, unit: Unit) -> u64 {
        self.cost.map_or(0, |cost| unit.of(cost))
    }
}

impl SlidingLog {
    /// Somebody counts with `span`.
    pub fn note(&mut self, span: u64, clock: Clock) {
        self.spans.note(span, clock.now_ms);
    }

    fn counted(&self, terms: &Terms, at: u64) -> u64 {
        let (newest_first, span) = (self.entries.iter().rev(), terms.span());
        let counts = newest_first.take_while(|entry| entry.score + span > at);
        let unit = terms.unit();
        counts.map(|entry| entry.units(unit)).sum()
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

    /// The first moment after which at most `rest` units started; there are more.
    fn left_at(&self, terms: &Terms, rest: u64) -> u64 {
        let (mut units, unit) = (0, terms.unit());
        let mut newest_first = self.entries.iter().rev();
        let reached = newest_first.find(|entry| {
            units += entry.units(unit);
            units > rest
        });
        reached.map_or(0, |entry| entry.score)
    }
}

impl Usage for SlidingLog {
    /// Forgets what no span that was [noted](SlidingLog::note) counts any more.
    fn load(&mut self, _: &Terms, clock: Clock, _: &mut Around<'_>) {
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

    fn count(&self, terms: &Terms, now_ms: u64) -> u64 {
        self.counted(terms, now_ms)
    }

    fn nth(&self, terms: &Terms, base: u64, k: u64) -> u64 {
        let (max, span) = (u64::from(terms.max()), terms.span());
        // Of more than `max` (the limit was lowered) only the last `max` stand in the way.
        let used = self.counted(terms, base).min(max);
        let free = max - used;
        let (turn, laps) = ((k - 1) % max, (k - 1) / max);
        let first = if turn < free {
            base
        } else {
            self.left_at(terms, used - (turn - free + 1)) + span
        };
        first + laps * span
    }

    fn take(&mut self, _: &Terms, clock: Clock, cost: u64, _: &str) -> u64 {
        self.push(clock.stamp_ms, cost, None)
    }

    /// One that was given back stays so.
    fn settle(&mut self, _: &Terms, _: Clock, ended: &Ended<'_>) {
        if let Some(entry) = self.find(ended.started_ms, ended.sequence) {
            entry.cost = entry.cost.and(ended.used);
        }
    }

    /// It counts from now, as another entry behind all others.
    fn late(&mut self, _: &Terms, clock: Clock, ended: &Ended<'_>) -> bool {
        let newest = self.entries.back().map_or(0, |e| e.score);
        let entry = self.find(ended.started_ms, ended.sequence);
        let Some(cost) = entry.and_then(|entry| entry.cost.take()) else {
            return false;
        };
        let moved = Some((ended.sequence, ended.started_ms));
        self.push(clock.stamp_ms.max(newest), cost, moved);
        true
    }

    fn end(&self) -> u64 {
        let newest = self.entries.back().map_or(0, |e| e.score);
        self.spans.end().max(newest + self.spans.longest())
    }
}
