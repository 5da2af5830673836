//! `sliding-counter-algo`: the counts of the window aligned to the epoch and of the one before, which is weighted by
//! how much of it a sliding window would still see. Approximate: it takes the older starts for evenly spread.
//!
//! The aligned windows are longer than what slides over them by the lateness that is forgiven: in a window's last
//! milliseconds the one before is out of sight. Without them the last unit of a window would have to start exactly at its
//! end, which is the next one: a steady load could use max - 1 in each.

use crate::rules::limit::Limit;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlidingCounter {
    /// What was written by the last start.
    stored: Counts,
    /// The same at the time of the last load.
    live: Counts,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    /// The windows' length that the counts belong to; 0: nothing was counted yet.
    span: u64,
    index: u64,
    current: u64,
    previous: u64,
}

impl SlidingCounter {
    pub fn load(&mut self, limit: &Limit, now: u64) {
        let (span, index) = (limit.span(), now / limit.span());
        let mut live = self.stored;
        if self.end() <= now {
            live = Counts::default();
        }
        live.span = span;
        // Beyond the clock: it was stepped back, and what was counted counts from here.
        live.index = live.index.min(index);
        self.live = live.at(index);
    }

    /// What it takes the window to hold, rounded up.
    pub fn count(&self, limit: &Limit, now: u64) -> u64 {
        let (sight, passed) = (sight(limit), now % limit.span());
        let weighted = self.live.previous * sight.saturating_sub(passed);
        self.live.current + weighted.div_ceil(sight)
    }

    pub fn nth(&self, limit: &Limit, base: u64, k: u64) -> u64 {
        self.live.nth(limit, base, k)
    }

    pub fn take(&mut self, units: u64) {
        self.live.current += units;
        self.stored = self.live;
    }

    /// A start at `started` used so many units more (or fewer) than it was charged.
    pub fn settle(&mut self, started: u64, change: i64) {
        let live = &mut self.live;
        match live.index.checked_sub(started / live.span) {
            Some(0) => live.current = live.current.saturating_add_signed(change),
            Some(1) => live.previous = live.previous.saturating_add_signed(change),
            _ => return,
        }
        self.stored = self.live;
    }

    /// When it no longer says anything.
    pub fn end(&self) -> u64 {
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
    fn nth(self, limit: &Limit, base: u64, k: u64) -> u64 {
        let (span, sight, max) = (self.span, sight(limit), u64::from(limit.max()));
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
fn sight(limit: &Limit) -> u64 {
    limit.span() - limit.lateness_ms()
}
