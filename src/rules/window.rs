//! The logs of what really started, one for each algorithm: they alone admit.
//!
//! Every algorithm offers the same: [`Log::load`], then [`Log::count`], [`Log::free`], [`Log::nth`] and
//! [`Log::take`]. `lua/fixed_window.lua` and `lua/sliding_window.lua` are the same functions over Redis.

use std::collections::{BTreeMap, VecDeque};

use crate::rules::limit::{Algorithm, Limit};

/// One reading of the store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// Milliseconds since the epoch, rounded down: what is compared.
    pub now_ms: u64,
    /// Milliseconds since the epoch, rounded up: what a start is written with, so that it never counts for less
    /// than its window.
    pub stamp_ms: u64,
}

impl Clock {
    /// A reading in microseconds since the epoch.
    pub fn from_micros(micros: u64) -> Self {
        Self {
            now_ms: micros / 1000,
            stamp_ms: micros.div_ceil(1000),
        }
    }
}

/// What one tenant has started, as far as a limit still counts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Log {
    /// `fixed-window-algo`
    Fixed(FixedWindow),
    /// `sliding-window-algo`
    Sliding(SlidingLog),
}

impl Log {
    /// The empty log of `algorithm`.
    pub fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::FixedWindow => Self::Fixed(FixedWindow::default()),
            Algorithm::SlidingWindow => Self::Sliding(SlidingLog::default()),
        }
    }

    /// Brings the log to `clock`: forgets what no longer counts, and repairs what a clock that was stepped back
    /// left in the future. True when the newest window that was seen changed, which the line's hash keeps.
    pub fn load(&mut self, limit: &Limit, clock: Clock) -> bool {
        match self {
            Self::Fixed(log) => log.load(limit, clock.now_ms),
            Self::Sliding(log) => {
                log.load(limit, clock);
                false
            }
        }
    }

    /// Units that the window holds.
    pub fn count(&self, limit: &Limit) -> u64 {
        match self {
            Self::Fixed(log) => log.count(limit),
            Self::Sliding(log) => log.count(),
        }
    }

    /// Units that may start now.
    pub fn free(&self, limit: &Limit, clock: Clock) -> u64 {
        match self {
            Self::Fixed(log) => log.free(limit, clock.now_ms),
            Self::Sliding(log) => u64::from(limit.max()).saturating_sub(log.count()),
        }
    }

    /// When the `k`-th next unit (from 1) may start if nobody starts before `base`, which is now or later.
    pub fn nth(&self, limit: &Limit, base: u64, k: u64) -> u64 {
        match self {
            Self::Fixed(log) => log.nth(limit, base, k),
            Self::Sliding(log) => log.nth(limit, base, k),
        }
    }

    /// Writes down the start of a job of `cost` units.
    pub fn take(&mut self, limit: &Limit, clock: Clock, cost: u64) {
        match self {
            Self::Fixed(log) => log.take(limit, cost),
            Self::Sliding(log) => log.take(clock.stamp_ms, cost),
        }
    }

    /// When the log no longer says anything, in milliseconds since the epoch.
    pub fn end(&self, limit: &Limit) -> u64 {
        match self {
            Self::Fixed(_) => self.newest_window_end(limit),
            Self::Sliding(log) => log.entries.back().map_or(0, |e| e.score + span(limit)),
        }
    }

    /// The end of the newest window that was seen, until which the line's hash must remember it; 0 where there
    /// are no windows.
    pub fn newest_window_end(&self, limit: &Limit) -> u64 {
        match self {
            Self::Fixed(log) => log.newest + limit.window_ms(),
            Self::Sliding(_) => 0,
        }
    }

    /// The newest window is kept with the line, and goes with it.
    pub fn forget_newest_window(&mut self) {
        if let Self::Fixed(log) = self {
            log.newest = 0;
        }
    }
}

/// Over how long a unit counts: the window, and for the sliding log the guard.
pub fn span(limit: &Limit) -> u64 {
    match limit.algorithm() {
        Algorithm::FixedWindow => limit.window_ms(),
        Algorithm::SlidingWindow => limit.window_ms() + limit.guard_ms(),
    }
}

/// A counter for each window aligned to the epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FixedWindow {
    /// Units and the window's end, by the window's index.
    counts: BTreeMap<u64, (u64, u64)>,
    /// The start of the newest window that was seen.
    newest: u64,
    /// The window of the last load.
    index: u64,
    /// The clock stands before `newest`: it was stepped back, and what this window let pass may be forgotten.
    stepped_back: bool,
}

impl FixedWindow {
    fn load(&mut self, limit: &Limit, now: u64) -> bool {
        self.index = now / limit.window_ms();
        self.counts.retain(|_, (_, end)| *end > now);
        self.stepped_back = now < self.newest;
        let start = self.index * limit.window_ms();
        let newer = start > self.newest;
        self.newest = self.newest.max(start);
        newer
    }

    fn count(&self, limit: &Limit) -> u64 {
        let count = self.counts.get(&self.index).map_or(0, |(count, _)| *count);
        if self.stepped_back {
            count.max(u64::from(limit.max()))
        } else {
            count
        }
    }

    fn free(&self, limit: &Limit, at: u64) -> u64 {
        let index = at / limit.window_ms();
        if at >= (index + 1) * limit.window_ms() - limit.guard_ms() {
            return 0;
        }
        let held = if index == self.index {
            self.count(limit)
        } else {
            0
        };
        u64::from(limit.max()).saturating_sub(held)
    }

    fn nth(&self, limit: &Limit, base: u64, k: u64) -> u64 {
        let free = self.free(limit, base);
        if k <= free {
            return base;
        }
        let next = base / limit.window_ms() + 1;
        (next + (k - free - 1) / u64::from(limit.max())) * limit.window_ms()
    }

    fn take(&mut self, limit: &Limit, cost: u64) {
        let (count, end) = self.counts.entry(self.index).or_default();
        *count += cost;
        *end = (self.index + 1) * limit.window_ms();
    }
}

/// One entry for each start that still counts, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlidingLog {
    entries: VecDeque<Entry>,
    /// The running total before the first entry.
    gone: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    /// When it started, in milliseconds since the epoch, rounded up.
    score: u64,
    /// The running total of units, this entry's included.
    total: u64,
}

impl SlidingLog {
    fn load(&mut self, limit: &Limit, clock: Clock) {
        while let Some(first) = self.entries.front() {
            if first.score + span(limit) > clock.now_ms {
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

    fn count(&self) -> u64 {
        self.entries.back().map_or(0, |e| e.total - self.gone)
    }

    fn nth(&self, limit: &Limit, base: u64, k: u64) -> u64 {
        let (max, span) = (u64::from(limit.max()), span(limit));
        let held = self.count();
        let dead_entries = self.entries.partition_point(|e| e.score + span <= base);
        let dead = match dead_entries.checked_sub(1) {
            Some(last) => self.entries[last].total - self.gone,
            None => 0,
        };
        // Of more than `max` (the limit was lowered) only the last `max` stand in the way.
        let used = (held - dead).min(max);
        let free = max - used;
        let (turn, laps) = ((k - 1) % max, (k - 1) / max);
        let first = if turn < free {
            base
        } else {
            self.score_of(held - used + turn - free + 1) + span
        };
        first + laps * span
    }

    /// When the `unit`-th unit of the window (from 1) started.
    fn score_of(&self, unit: u64) -> u64 {
        let at = self.entries.partition_point(|e| e.total - self.gone < unit);
        self.entries[at].score
    }

    fn take(&mut self, score: u64, cost: u64) {
        let total = self.entries.back().map_or(self.gone, |e| e.total) + cost;
        self.entries.push_back(Entry { score, total });
    }

    /// An entry that another writer added at `score`: one unit.
    pub fn add_foreign(&mut self, score: u64) {
        let at = self.entries.partition_point(|e| e.score <= score);
        let total = match at.checked_sub(1) {
            Some(before) => self.entries[before].total,
            None => self.gone,
        };
        self.entries.insert(at, Entry { score, total });
        for entry in self.entries.range_mut(at..) {
            entry.total += 1;
        }
    }
}
