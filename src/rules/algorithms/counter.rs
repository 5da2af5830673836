//! `sliding-counter-algo`: the counts of the window aligned to the epoch and of the one before, which is weighted by
//! how much of it a sliding window would still see. Approximate: it takes the older starts for evenly spread.
//!
//! The aligned windows are longer than what slides over them by the lateness that is forgiven: in a window's last
//! milliseconds the one before is out of sight. Without them the last unit of a window would have to start exactly at its
//! end, which is the next one: a steady load could use max - 1 in each.

use super::{Around, Ended, Keys, Rules, Stored, Terms, Usage};
use crate::rules::clock::Clock;

/// The algorithm.
pub struct Counter;

impl Rules for Counter {
    fn name(&self) -> &'static str {
        "sliding-counter-algo"
    }

    fn about(&self) -> &'static str {
        "L in the window before now, estimated from two counters"
    }

    fn worst_words(&self) -> &'static str {
        "2 L - 1"
    }

    fn window_words(&self) -> &'static str {
        "in about any"
    }

    fn script(&self) -> &'static str {
        include_str!("../../../lua/sliding_counter.lua")
    }

    fn keys(&self) -> Keys {
        Keys::Own {
            kind: "counter",
            holds: "string",
        }
    }

    fn stored(&self, _: &Terms) -> Stored {
        Stored::Text(22)
    }

    fn saves_up(&self) -> bool {
        true
    }

    fn span(&self, terms: &Terms) -> u64 {
        terms.window_ms() + terms.guard_ms() + terms.lateness_ms()
    }

    fn margin(&self, terms: &Terms) -> u64 {
        terms.lateness_ms()
    }

    /// All of one window in its last millisecond, and in the next what these leave in the last millisecond in which they are
    /// seen, rounded up.
    fn worst_case(&self, terms: &Terms) -> u64 {
        let max = u64::from(terms.max());
        2 * max - max.div_ceil(terms.window_ms() + terms.guard_ms())
    }

    /// Each aligned window holds at most `max`, and one more is touched.
    fn most_in(&self, terms: &Terms, ms: u64) -> u64 {
        // A start is written up to a millisecond after it was decided.
        u64::from(terms.max()) * ((ms + 1).div_ceil(terms.span()) + 1)
    }

    fn arriving(&self, terms: &Terms, window_ms: u64) -> u64 {
        if window_ms == terms.window_ms() {
            return self.worst_case(terms);
        }
        let apart = window_ms.saturating_add(terms.guard_ms());
        let windows = apart.div_ceil(terms.window_ms() + terms.guard_ms()) + 1;
        u64::from(terms.max()).saturating_mul(windows)
    }

    /// The estimate is never above what both windows hold.
    fn is_implied_by(&self, terms: &Terms, other: &Terms) -> bool {
        other.most_in(2 * terms.span()) <= u64::from(terms.max())
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlidingCounter {
    /// What was written by the last start.
    stored: Counts,
    /// The same at the time of the last load.
    live: Counts,
    /// When that was, in milliseconds since the epoch.
    at: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    /// The windows' length that the counts belong to; 0: nothing was counted yet.
    span: u64,
    index: u64,
    current: u64,
    previous: u64,
}

impl Usage for SlidingCounter {
    fn load(&mut self, terms: &Terms, clock: Clock, _: &mut Around<'_>) {
        let now = clock.now_ms;
        let (span, index) = (terms.span(), now / terms.span());
        let mut live = self.stored;
        if self.end() <= now {
            live = Counts::default();
        }
        live.span = span;
        // Beyond the clock: it was stepped back, and what was counted counts from here.
        live.index = live.index.min(index);
        self.live = live.at(index);
        self.at = now;
    }

    /// What it takes the window to hold, rounded up.
    fn count(&self, terms: &Terms, now: u64) -> u64 {
        let (sight, passed) = (sight(terms), now % terms.span());
        let weighted = self.live.previous * sight.saturating_sub(passed);
        self.live.current + weighted.div_ceil(sight)
    }

    fn nth(&self, terms: &Terms, base: u64, k: u64) -> u64 {
        self.live.nth(terms, base, k)
    }

    fn take(&mut self, terms: &Terms, _: Clock, cost: u64, _: &str) -> u64 {
        self.live.current += terms.unit().of(cost);
        self.stored = self.live;
        0
    }

    fn settle(&mut self, terms: &Terms, _: Clock, ended: &Ended<'_>) {
        let (change, live) = (ended.change(terms), &mut self.live);
        match live.index.checked_sub(ended.started_ms / live.span) {
            Some(0) => live.current = live.current.saturating_add_signed(change),
            Some(1) => live.previous = live.previous.saturating_add_signed(change),
            _ => return,
        }
        self.stored = self.live;
    }

    /// As if so much had started as flows evenly.
    fn hold(&mut self, terms: &Terms, until_ms: u64) {
        let max = u64::from(terms.max());
        let flows = max.saturating_mul(until_ms.saturating_sub(self.at)) / self.live.span;
        let live = &mut self.live;
        live.current = live.current.max((live.current + flows).min(max));
        self.stored = self.live;
    }

    fn end(&self) -> u64 {
        (self.stored.index + 2) * self.stored.span
    }
}

impl Counts {
    /// As it is in the window `index`, if nobody starts before.
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

    /// The `k`-th start is in this window or, `max` in each, a later one; there as soon as
    /// `previous * (sight - passed) + (current + k) * sight <= max * sight`.
    fn nth(self, terms: &Terms, base: u64, k: u64) -> u64 {
        let (span, sight, max) = (self.span, sight(terms), u64::from(terms.max()));
        let mut window = self.at(base / span);
        let (mut from, mut k) = (base % span, k);
        let most = max.saturating_sub(window.current);
        if k > most {
            let windows = (k - most - 1) / max;
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
            0 => 0,
            previous => sight - (room * sight / previous).min(sight),
        };
        window.index * span + from.max(since)
    }
}

/// How far back a start is seen, in milliseconds: the span without the lateness.
fn sight(terms: &Terms) -> u64 {
    terms.span() - terms.lateness_ms()
}
