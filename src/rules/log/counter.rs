//! `sliding-counter-algo`: the counts of the window aligned to the epoch and of the one before, which is weighted by
//! how much of it a sliding window would still see. Approximate: it takes the older starts for evenly spread.

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
        } else if live.span != span {
            // Both may lie in the window of the new length.
            live.current += live.previous;
            live.previous = 0;
            live.index = index;
        }
        live.span = span;
        // Beyond the clock: it was stepped back, and what was counted counts from here.
        live.index = live.index.min(index);
        self.live = live.at(index);
    }

    /// What it takes the window to hold, rounded up.
    pub fn count(&self, now: u64) -> u64 {
        let Counts {
            span,
            current,
            previous,
            ..
        } = self.live;
        current + (previous * (span - now % span)).div_ceil(span)
    }

    pub fn nth(&self, limit: &Limit, base: u64, k: u64) -> u64 {
        self.live.nth(u64::from(limit.max()), base, k)
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

    /// `previous * left + (current + k) * span <= max * span`, for the first time `left` before a window's end.
    fn nth(self, max: u64, base: u64, mut k: u64) -> u64 {
        let span = self.span;
        let mut window = self.at(base / span);
        let mut from = base % span;
        loop {
            let most = window.most(max);
            if k <= most {
                let room = max - window.current - k;
                let since = match window.previous {
                    0 => 0,
                    previous => span - (room * span / previous).min(span),
                };
                return window.index * span + from.max(since);
            }
            k -= most;
            window = Self {
                span,
                index: window.index + 1,
                current: 0,
                previous: window.current + most,
            };
            from = 0;
            // From here on windows repeat in pairs, sooner or later: whole pairs are skipped.
            let first = window.most(max);
            let second = Self {
                previous: first,
                ..window
            }
            .most(max);
            if second == window.previous {
                let pairs = (k - 1) / (first + second);
                k -= pairs * (first + second);
                window.index += 2 * pairs;
            }
        }
    }

    /// How many more this window will let start.
    fn most(self, max: u64) -> u64 {
        max.saturating_sub(self.current + self.previous.div_ceil(self.span))
    }
}
