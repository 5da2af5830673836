//! `sliding-counter-algo`: adds the count of the window aligned to the epoch and the count of the
//! window before, weighted by the part that a sliding window would still cover. The result is
//! approximate: older starts are assumed to be evenly spread.
//!
//! An aligned window is longer than the sliding window by the tolerated lateness, so the previous
//! window no longer counts in the last milliseconds of an aligned window. Otherwise the last unit
//! of a window could start only exactly at its end, which belongs to the next window, and a steady
//! load could use only max - 1 units of each window.

use super::product::{LATEST_MS, ceil_muldiv, muldiv};
use super::{
    AlgorithmFacts, KeyLayout, PartitionContext, ReportedCall, Rules, StoredUsage, Terms, Usage,
};
use crate::clock::Clock;

/// The algorithm.
pub struct Counter;

/// The properties of the algorithm.
pub(super) const FACTS: AlgorithmFacts = AlgorithmFacts {
    name: "sliding-counter-algo",
    about: "L in the window before now, estimated from two counters",
    window_words: "in about any",
    scripts: &["muldiv", "sliding_counter"],
    shortcut: None,
    keys: KeyLayout::Own {
        kind: "counter",
        holds: "string",
    },
    default_burst: None,
    holds_leases: false,
    is_aligned: false,
    saves_up: true,
    counts_arrivals: false,
};

impl Rules for Counter {
    fn stored(&self, _: &Terms) -> StoredUsage {
        StoredUsage::Text(22)
    }

    fn span(&self, terms: &Terms) -> u64 {
        terms.window_ms() + terms.guard_ms() + terms.lateness_ms()
    }

    fn margin(&self, terms: &Terms) -> u64 {
        terms.lateness_ms()
    }

    /// The worst case: all units of one window start in its last millisecond. In the next window as
    /// many start as these leave room for in the last millisecond in which they still count,
    /// rounded up.
    fn worst_case(&self, terms: &Terms) -> u64 {
        let max = terms.max();
        2 * max - max.div_ceil(terms.window_ms() + terms.guard_ms())
    }

    /// Each aligned window holds at most `max` units, and `ms` touches one window more than it
    /// covers.
    fn max_units_in(&self, terms: &Terms, ms: u64) -> u64 {
        // A start is written up to one millisecond after it was decided.
        terms
            .max()
            .saturating_mul((ms + 1).div_ceil(terms.span()) + 1)
    }

    fn arriving(&self, terms: &Terms, window_ms: u64) -> u64 {
        if window_ms == terms.window_ms() {
            return self.worst_case(terms);
        }
        let apart = window_ms.saturating_add(terms.guard_ms());
        let windows = apart.div_ceil(terms.window_ms() + terms.guard_ms()) + 1;
        terms.max().saturating_mul(windows)
    }

    /// Holds because the estimate never exceeds the sum of both windows.
    fn is_implied_by(&self, terms: &Terms, other: &Terms) -> bool {
        other.max_units_in(2 * terms.span()) <= terms.max()
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlidingCounter {
    /// The counts that the last start wrote.
    stored: WindowCounts,
    /// The counts as of the last load.
    live: WindowCounts,
    /// When the last load was, in milliseconds since the epoch.
    at: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct WindowCounts {
    /// The length of the windows that the counts belong to; 0 if nothing has been counted.
    span: u64,
    index: u64,
    current: u64,
    previous: u64,
}

impl Usage for SlidingCounter {
    fn load(&mut self, terms: &Terms, clock: Clock, _: &mut PartitionContext<'_>) {
        let now = clock.now_ms;
        let (span, index) = (terms.span(), now / terms.span());
        let mut live = self.stored;
        if self.end() <= now {
            live = WindowCounts::default();
        }
        live.span = span;
        // An index in the future means that the clock was stepped back. Its units count from now.
        live.index = live.index.min(index);
        self.live = live.at(index);
        self.at = now;
    }

    /// Returns the estimated number of units in the sliding window, rounded up.
    fn count(&self, terms: &Terms, now: u64) -> u64 {
        let (sight, passed) = (sight(terms), now % terms.span());
        let left = sight.saturating_sub(passed);
        self.live.current + ceil_muldiv(self.live.previous, left, sight)
    }

    fn nth(&self, terms: &Terms, base: u64, k: u64) -> u64 {
        self.live.nth(terms, base, k)
    }

    fn take(&mut self, terms: &Terms, _: Clock, cost: u64, _: &str) -> u64 {
        self.live.current += terms.unit().of(cost);
        self.stored = self.live;
        0
    }

    fn settle(&mut self, terms: &Terms, clock: Clock, ended: &ReportedCall<'_>) {
        let (change, live) = (ended.change(terms, clock), &mut self.live);
        match live.index.checked_sub(ended.started_ms / live.span) {
            Some(0) => live.current = live.current.saturating_add_signed(change),
            Some(1) => live.previous = live.previous.saturating_add_signed(change),
            _ => return,
        }
        self.stored = self.live;
    }

    /// Raises the current count by the units that an even flow would have started.
    fn hold(&mut self, terms: &Terms, until_ms: u64) {
        let max = terms.max();
        let flows = muldiv(max, until_ms.saturating_sub(self.at), self.live.span);
        let live = &mut self.live;
        live.current = live.current.max((live.current + flows).min(max));
        self.stored = self.live;
    }

    fn end(&self) -> u64 {
        (self.stored.index + 2) * self.stored.span
    }
}

impl WindowCounts {
    /// Returns the counts as they will be in the window `index` if nothing starts before.
    fn at(self, index: u64) -> Self {
        let (current, previous) = match index - self.index {
            0 => (self.current, self.previous),
            1 => (0, self.current),
            _ => (0, 0),
        };
        Self {
            span: self.span,
            index,
            current,
            previous,
        }
    }

    /// Returns when the `k`-th unit starts. It falls into this window or, at `max` per window, into
    /// a later one. Within its window it may start as soon as `previous * (sight - passed) +
    /// (current + k) * sight <= max * sight`.
    fn nth(self, terms: &Terms, base: u64, k: u64) -> u64 {
        let (span, sight, max) = (self.span, sight(terms), terms.max());
        let mut window = self.at(base / span);
        let (mut from, mut k) = (base % span, k);
        let most = max.saturating_sub(window.current);
        if k > most {
            let windows = ((k - most - 1) / max).min(LATEST_MS / span);
            k = (k - most - 1) % max + 1;
            window = Self {
                span,
                index: window.index + 1 + windows,
                current: 0,
                previous: match windows {
                    0 => window.current + most,
                    _ => max,
                },
            };
            from = 0;
        }
        let room = max - window.current - k;
        let since = match window.previous {
            previous if previous > room => sight - muldiv(room, sight, previous),
            _ => 0,
        };
        window.index * span + from.max(since)
    }
}

/// Returns how long a start counts, in milliseconds: the span without the tolerated lateness.
fn sight(terms: &Terms) -> u64 {
    terms.span() - terms.lateness_ms()
}
