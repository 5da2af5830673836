//! `sliding-window-algo`: one entry for each start that still counts, oldest first, for all limits
//! of a scope.
//!
//! The cost that a call actually used is written into its entry. `lua/corrections.lua` explains how
//! the store keeps the sums without rewriting the log.

use std::collections::VecDeque;

use super::product::laps_ms;
use super::span::LongestSpan;
use super::{
    AlgorithmFacts, KeyLayout, PartitionContext, ReportedCall, Rules, Shortcut, StoredUsage, Terms,
    Unit, Usage,
};
use crate::clock::Clock;

/// The algorithm.
pub struct SlidingWindow;

/// The properties of the algorithm.
pub(super) const FACTS: AlgorithmFacts = AlgorithmFacts {
    name: "sliding-window-algo",
    about: "L in any W",
    window_words: "in any",
    scripts: &["corrections", "sliding_window"],
    shortcut: Some(Shortcut {
        usage: "sliding_log",
        entry: "sliding_shortcut",
    }),
    keys: KeyLayout::Log,
    default_burst: None,
    holds_leases: false,
    is_aligned: false,
    saves_up: false,
    counts_arrivals: true,
};

impl Rules for SlidingWindow {
    fn stored(&self, terms: &Terms) -> StoredUsage {
        StoredUsage::Entries {
            max: terms.max(),
            compact: 33,
            linked: 110,
        }
    }

    fn span(&self, terms: &Terms) -> u64 {
        terms.window_ms() + terms.guard_ms()
    }

    fn margin(&self, terms: &Terms) -> u64 {
        terms.guard_ms()
    }

    fn burstiness(&self, terms: &Terms) -> u64 {
        terms.max()
    }

    fn is_implied_by(&self, terms: &Terms, other: &Terms) -> bool {
        other.max_units_in(self.span(terms)) <= terms.max()
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlidingLog {
    /// Sorted by score.
    entries: VecDeque<LogEntry>,
    /// Number of entries of late calls; if it is 0, [`SlidingLog::find`] skips the search for them.
    moved: usize,
    /// How far back the limits that share the log count.
    spans: LongestSpan,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LogEntry {
    /// When the call started, in milliseconds since the epoch, rounded up.
    score: u64,
    /// The call's cost, or `None` if it was given back.
    cost: Option<u64>,
    /// The entry's sequence number; 0 if another writer added it.
    sequence: u64,
    /// The sequence number and the start of a late call, as in its receipt; `None` if the call was
    /// not late.
    moved: Option<(u64, u64)>,
    /// The calls and the cost of this entry and all entries before it since the log began. With
    /// these sums no question has to walk through the log, which is long if the limit is.
    up_to: (u64, u64),
}

impl LogEntry {
    fn units(&self, unit: Unit) -> u64 {
        self.cost.map_or(0, |cost| unit.of(cost))
    }

    fn units_up_to(&self, unit: Unit) -> u64 {
        match unit {
            Unit::Calls => self.up_to.0,
            Unit::Cost => self.up_to.1,
        }
    }
}

impl SlidingLog {
    /// Records that a limit counts over `span`.
    pub fn note(&mut self, span: u64, clock: Clock) {
        self.spans.note(span, clock.now_ms);
    }

    fn counted(&self, terms: &Terms, at: u64) -> u64 {
        let over = |entry: &LogEntry| entry.score + terms.span() <= at;
        let first = self.entries.get(self.entries.partition_point(over));
        first.map_or(0, |first| self.units_from(first, terms.unit()))
    }

    /// Returns the units of `first`, an entry of the log, and of all entries after it.
    fn units_from(&self, first: &LogEntry, unit: Unit) -> u64 {
        let all = self.entries.back().map_or(0, |it| it.units_up_to(unit));
        all - first.units_up_to(unit) + first.units(unit)
    }

    fn push(&mut self, score: u64, cost: u64, moved: Option<(u64, u64)>) -> u64 {
        let ours = self.entries.iter().rev().find(|e| e.sequence > 0);
        let sequence = ours.map_or(0, |e| e.sequence) + 1;
        self.insert(self.entries.len(), score, cost, (sequence, moved));
        sequence
    }

    fn insert(
        &mut self,
        at: usize,
        score: u64,
        cost: u64,
        (sequence, moved): (u64, Option<(u64, u64)>),
    ) {
        let entry = LogEntry {
            score,
            cost: Some(cost),
            sequence,
            moved,
            up_to: (0, 0),
        };
        self.moved += usize::from(moved.is_some());
        self.entries.insert(at, entry);
        self.sum_up(at);
    }

    /// Updates the sums from the entry at index `at` on, whose units have changed.
    fn sum_up(&mut self, at: usize) {
        let before = at.checked_sub(1).map(|before| self.entries[before].up_to);
        let (mut calls, mut cost) = before.unwrap_or_default();
        for entry in self.entries.range_mut(at..) {
            calls += entry.units(Unit::Calls);
            cost += entry.units(Unit::Cost);
            entry.up_to = (calls, cost);
        }
    }

    /// Returns the index of the entry of the start that has this time and sequence number in its
    /// receipt.
    fn find(&self, started_ms: u64, sequence: u64) -> Option<usize> {
        let started = started_ms..=started_ms + 1;
        let receipt = Some((sequence, started_ms));
        let newest_first = || (0..self.entries.len()).rev();
        let moved = match self.moved {
            0 => None,
            _ => newest_first().find(|at| self.entries[*at].moved == receipt),
        };
        let ours = |e: &LogEntry| {
            e.sequence == sequence && e.moved.is_none() && started.contains(&e.score)
        };
        let at = moved.or_else(|| newest_first().find(|at| ours(&self.entries[*at])));
        at.filter(|_| sequence > 0)
    }

    /// Adds another writer's entry of one unit at `score`.
    pub fn add_foreign(&mut self, score: u64) {
        let at = self.entries.partition_point(|e| e.score <= score);
        self.insert(at, score, 1, (0, None));
    }

    /// Returns the first moment after which at most `rest` units started. More than `rest` must
    /// count.
    fn left_at(&self, terms: &Terms, rest: u64) -> u64 {
        let leaves_more = |entry: &LogEntry| self.units_from(entry, terms.unit()) > rest;
        let behind = self.entries.partition_point(leaves_more);
        let reached = behind.checked_sub(1).map(|at| self.entries[at].score);
        reached.unwrap_or(0)
    }
}

impl Usage for SlidingLog {
    /// Drops entries that no [noted](SlidingLog::note) span counts any more.
    fn load(&mut self, _: &Terms, clock: Clock, _: &mut PartitionContext<'_>) {
        let longest = self.spans.longest();
        while (self.entries.front()).is_some_and(|first| first.score + longest <= clock.now_ms) {
            let over = self.entries.pop_front();
            self.moved -= usize::from(over.is_some_and(|entry| entry.moved.is_some()));
        }
        // A start in the future means that the clock was stepped back. Counting it from now wastes
        // at most one window.
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
        let (max, span) = (terms.max(), terms.span());
        // If more than `max` units count (the limit was lowered), only the last `max` are in the
        // way.
        let used = self.counted(terms, base).min(max);
        let free = max - used;
        let (turn, laps) = ((k - 1) % max, (k - 1) / max);
        let first = if turn < free {
            base
        } else {
            self.left_at(terms, used - (turn - free + 1)) + span
        };
        first + laps_ms(laps, span)
    }

    fn take(&mut self, _: &Terms, clock: Clock, cost: u64, _: &str) -> u64 {
        self.push(clock.stamp_ms, cost, None)
    }

    /// Does not change an entry that was given back.
    fn settle(&mut self, _: &Terms, _: Clock, ended: &ReportedCall<'_>) {
        if let Some(at) = self.find(ended.started_ms, ended.sequence) {
            let entry = &mut self.entries[at];
            entry.cost = entry.cost.and(ended.used);
            self.sum_up(at);
        }
    }

    /// Counts the call from now, as a new entry at the end of the log.
    fn late(&mut self, _: &Terms, clock: Clock, ended: &ReportedCall<'_>) -> bool {
        let newest = self.entries.back().map_or(0, |e| e.score);
        let Some(at) = self.find(ended.started_ms, ended.sequence) else {
            return false;
        };
        let Some(cost) = self.entries[at].cost.take() else {
            return false;
        };
        self.sum_up(at);
        let moved = Some((ended.sequence, ended.started_ms));
        self.push(clock.stamp_ms.max(newest), cost, moved);
        true
    }

    fn end(&self) -> u64 {
        let newest = self.entries.back().map_or(0, |e| e.score);
        self.spans.end().max(newest + self.spans.longest())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Algorithm, SteppedBack};
    use super::*;

    const START: u64 = 1_700_000_000_000;

    #[derive(Debug, Clone)]
    enum LogStep {
        Take { cost: u64 },
        Settle { which: usize, used: Option<u64> },
        Late { which: usize },
        Foreign { before_ms: u64 },
    }

    fn steps() -> impl Strategy<Value = Vec<(LogStep, i64)>> {
        let step = prop_oneof![
            4 => (1..9u64).prop_map(|cost| LogStep::Take { cost }),
            2 => (any::<usize>(), proptest::option::of(0..9u64))
                .prop_map(|(which, used)| LogStep::Settle { which, used }),
            1 => any::<usize>().prop_map(|which| LogStep::Late { which }),
            1 => (0..500u64).prop_map(|before_ms| LogStep::Foreign { before_ms }),
        ];
        // The clock is sometimes stepped back.
        let by = prop_oneof![9 => 0..300i64, 1 => -300..0i64];
        proptest::collection::vec((step, by), 1..60)
    }

    /// Counts by a walk through all entries, as the expected value.
    fn walk(log: &SlidingLog, terms: &Terms, at: u64) -> u64 {
        let counts = |entry: &&LogEntry| entry.score + terms.span() > at;
        let entries = log.entries.iter().filter(counts);
        entries.map(|entry| entry.units(terms.unit())).sum()
    }

    proptest! {
        #[test]
        fn the_sums_are_those_of_the_entries(steps in steps(), of_cost in any::<bool>()) {
            let terms = Terms {
                algorithm: Algorithm::SlidingWindow,
                max: 20,
                window_ms: 1000,
                guard_ms: 10,
                burst: 20,
                unit: if of_cost { Unit::Cost } else { Unit::Calls },
                spacing_us: 0,
                forgiven_ms: 0,
                calendar: None,
            };
            let (mut log, mut now, mut receipts) = (SlidingLog::default(), START, Vec::new());
            for (step, by) in steps {
                now = now.saturating_add_signed(by);
                let clock = Clock::from_micros(now * 1000);
                log.note(terms.span(), clock);
                let stepped = &mut SteppedBack::default();
                log.load(&terms, clock, &mut PartitionContext { usual: 1, newest: 0, stepped });
                let ended = |which: usize, used| {
                    let at = which.checked_rem(receipts.len())?;
                    let (started_ms, sequence, cost) = receipts[at];
                    Some(ReportedCall { started_ms, sequence, permit: "", cost, used })
                };
                match step {
                    LogStep::Take { cost } => {
                        let sequence = log.take(&terms, clock, cost, "");
                        receipts.push((now, sequence, cost));
                    }
                    LogStep::Settle { which, used } => {
                        if let Some(ended) = ended(which, used) {
                            log.settle(&terms, clock, &ended);
                        }
                    }
                    LogStep::Late { which } => {
                        if let Some(ended) = ended(which, Some(1)) {
                            log.late(&terms, clock, &ended);
                        }
                    }
                    LogStep::Foreign { before_ms } => log.add_foreign(now - before_ms),
                }
                let mut units = 0;
                for entry in log.entries.iter().rev() {
                    let before = units;
                    units += entry.units(terms.unit());
                    prop_assert_eq!(log.counted(&terms, entry.score), walk(&log, &terms, entry.score));
                    for rest in before..units {
                        prop_assert_eq!(log.left_at(&terms, rest), entry.score);
                    }
                }
                prop_assert_eq!(log.counted(&terms, now), walk(&log, &terms, now));
                prop_assert_eq!(log.moved, log.entries.iter().filter(|it| it.moved.is_some()).count());
                prop_assert!(log.entries.iter().map(|it| it.score).is_sorted());
            }
        }
    }
}
