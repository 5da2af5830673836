//! `sliding-counter-algo`: the counts of the window aligned to the epoch and of the one before, which is weighted by
//! how much of it a sliding window would still see. Approximate: it takes the older starts for evenly spread.

use crate::rules::limit::Limit;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlidingCounter {
    /// The windows' length that the counts belong to; 0: nothing was counted yet.
    span: u64,
    index: u64,
    current: u64,
    previous: u64,
}

impl SlidingCounter {
    pub fn load(&mut self, limit: &Limit, now: u64) {
        let (span, index) = (limit.span(), now / limit.span());
        if self.end() <= now {
            *self = Self::default();
        } else if self.span != span {
            // Both may lie in the window of the new length.
            self.current += self.previous;
            self.previous = 0;
            self.index = index;
        }
        self.span = span;
        // Beyond the clock: it was stepped back, and what was counted counts from here.
        self.index = self.index.min(index);
        *self = self.at(index);
    }

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

    /// What it takes the window to hold, rounded up.
    pub fn count(&self, limit: &Limit, now: u64) -> u64 {
        let left = self.span - now % limit.span();
        self.current + (self.previous * left).div_ceil(self.span)
    }

    /// `previous * left + (current + k) * span <= max * span`, for the first time `left` before a window's end.
    pub fn nth(&self, limit: &Limit, base: u64, mut k: u64) -> u64 {
        let (max, span) = (u64::from(limit.max()), self.span);
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
    fn most(&self, max: u64) -> u64 {
        max.saturating_sub(self.current + self.previous.div_ceil(self.span))
    }

    pub fn take(&mut self, units: u64) {
        self.current += units;
    }

    /// When it no longer says anything.
    pub fn end(&self) -> u64 {
        (self.index + 2) * self.span
    }
}
