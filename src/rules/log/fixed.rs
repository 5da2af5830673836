//! `fixed-window-algo`: a counter for each window aligned to the epoch.

use std::collections::BTreeMap;

use crate::rules::limit::Limit;

/// The windows of one limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FixedWindows {
    /// Units and the window's end, by the window's index.
    counts: BTreeMap<u64, (u64, u64)>,
    /// The window of the last load.
    index: u64,
    /// The clock was stepped back, and what this window let pass may be forgotten.
    is_doubtful: bool,
}

/// What all fixed windows of a budget know of a clock that was stepped back to before the newest of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SteppedBack {
    /// When that was noticed, by the clock of since then.
    at: u64,
    /// The start of the newest window since then.
    seen: u64,
    /// That of the newest one before.
    newest: u64,
}

impl SteppedBack {
    /// What the window of `limit` let pass that began at `start`, before the `newest`, may be forgotten. One that begins a span, and the
    /// guard, after the step was noticed is a new one: what was started before the step counts for it no more.
    fn is_doubtful(&mut self, limit: &Limit, start: u64, now: u64, newest: u64) -> bool {
        let span = limit.span();
        let again = self.newest != newest || now < self.at || start + span <= self.seen;
        let at = if again { now } else { self.at };
        let seen = if again { start } else { start.max(self.seen) };
        *self = Self { at, seen, newest };
        start < at + span + limit.guard_ms()
    }
}

impl FixedWindows {
    /// Forgets the windows that are over.
    pub fn forget(&mut self, now: u64) {
        self.counts.retain(|_, (_, end)| *end > now);
    }

    /// `newest` is the start of the newest window of any limit that was seen.
    pub fn load(&mut self, limit: &Limit, now: u64, newest: u64, stepped: &mut SteppedBack) {
        let span = limit.span();
        self.index = now / span;
        let start = self.index * span;
        self.is_doubtful = start + span <= newest && stepped.is_doubtful(limit, start, now, newest);
    }

    pub fn count(&self, limit: &Limit) -> u64 {
        let count = self.counts.get(&self.index).map_or(0, |(count, _)| *count);
        if self.is_doubtful {
            count.max(u64::from(limit.max()))
        } else {
            count
        }
    }

    fn free(&self, limit: &Limit, at: u64) -> u64 {
        let index = at / limit.span();
        if at >= (index + 1) * limit.span() - limit.guard_ms() {
            return 0;
        }
        let held = if index == self.index {
            self.count(limit)
        } else {
            0
        };
        u64::from(limit.max()).saturating_sub(held)
    }

    pub fn nth(&self, limit: &Limit, base: u64, k: u64) -> u64 {
        let free = self.free(limit, base);
        if k <= free {
            return base;
        }
        let next = base / limit.span() + 1;
        (next + (k - free - 1) / u64::from(limit.max())) * limit.span()
    }

    pub fn take(&mut self, limit: &Limit, units: u64) {
        let (count, end) = self.counts.entry(self.index).or_default();
        *count += units;
        *end = (self.index + 1) * limit.span();
    }

    /// A start at `started` used so many units more (or fewer) than it was charged. A window that is over is over.
    pub fn settle(&mut self, limit: &Limit, started: u64, change: i64) {
        if started / limit.span() == self.index
            && let Some((count, _)) = self.counts.get_mut(&self.index)
        {
            *count = count.saturating_add_signed(change);
        }
    }

    /// The call of a start at `started` came late: in the window of now it counts, too; as often as that is told.
    pub fn late(&mut self, limit: &Limit, started: u64, units: u64) {
        if started / limit.span() != self.index {
            self.take(limit, units);
        }
    }

    /// When it no longer says anything.
    pub fn end(&self) -> u64 {
        let ends = self.counts.values().map(|(_, end)| *end);
        ends.max().unwrap_or(0)
    }
}
