//! `fixed-window-algo`: one counter for each window that is aligned to the epoch.

use std::collections::BTreeMap;

use super::product::laps_ms;
use super::{
    AlgorithmFacts, KeyLayout, PartitionContext, ReportedCall, Rules, Shortcut, StoredUsage, Terms,
    Usage,
};
use crate::clock::Clock;

/// The algorithm.
pub struct FixedWindow;

/// The properties of the algorithm.
pub(super) const FACTS: AlgorithmFacts = AlgorithmFacts {
    name: "fixed-window-algo",
    about: "L in each window that begins at a multiple of W since 1970 (UTC)",
    window_words: "in each aligned",
    scripts: &["fixed_window"],
    shortcut: Some(Shortcut {
        usage: "fixed_usage",
        entry: "fixed_shortcut",
    }),
    keys: KeyLayout::Windows,
    default_burst: None,
    holds_leases: false,
    is_aligned: true,
    saves_up: false,
    counts_arrivals: true,
};

impl Rules for FixedWindow {
    /// A number that Redis stores inside the key's object, so it takes no memory of its own.
    fn stored(&self, _: &Terms) -> StoredUsage {
        StoredUsage::Text(0)
    }

    /// The window includes its guard.
    fn span(&self, terms: &Terms) -> u64 {
        terms.window_ms()
    }

    fn margin(&self, terms: &Terms) -> u64 {
        terms.guard_ms()
    }

    fn state_ms(&self, terms: &Terms) -> (u64, u64) {
        (terms.window_ms(), 0)
    }

    /// The worst case: all units of one window start just before it closes, and all units of the
    /// next one right after. The window after that is too far away.
    fn worst_case(&self, terms: &Terms) -> u64 {
        2 * terms.max()
    }

    /// Each window holds at most `max` units, and `ms` touches one window more than it covers.
    fn max_units_in(&self, terms: &Terms, ms: u64) -> u64 {
        // A start is written up to one millisecond after it was decided.
        terms
            .max()
            .saturating_mul((ms + 1).div_ceil(terms.window_ms()) + 1)
    }

    /// If one of the windows is a multiple of the other, they are assumed to have the same edges:
    /// an operator chooses this algorithm because the API counts in such windows.
    fn arriving(&self, terms: &Terms, window_ms: u64) -> u64 {
        let (max, own) = (terms.max(), terms.window_ms());
        if window_ms.is_multiple_of(own) {
            max.saturating_mul(window_ms / own)
        } else if own.is_multiple_of(window_ms) {
            max
        } else {
            max.saturating_mul(window_ms.div_ceil(own) + 1)
        }
    }

    fn is_implied_by(&self, terms: &Terms, other: &Terms) -> bool {
        let max = terms.max();
        if other.algorithm() == terms.algorithm() {
            // Each window must end together with one of the other limit's, whose guard at that end
            // must be at least as long.
            terms.window_ms().is_multiple_of(other.window_ms())
                && other.guard_ms() >= terms.guard_ms()
                && other
                    .max()
                    .saturating_mul(terms.window_ms() / other.window_ms())
                    <= max
        } else {
            terms.guard_ms() == 0 && other.max_units_in(terms.window_ms()) <= max
        }
    }
}

/// The windows of one limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FixedWindows {
    /// The units and the end of each window, by the window's index.
    counts: BTreeMap<u64, (u64, u64)>,
    /// The window of the last load.
    index: u64,
    /// Whether the clock was stepped back, and may have passed this window before.
    is_repeated: bool,
    /// The minimum count of this window: the limit's max if counts may have been forgotten since
    /// then, otherwise 0.
    min_held: u64,
}

/// The record of a clock that was stepped back to before the newest fixed window of a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SteppedBack {
    /// When the step was noticed, by the clock as of then.
    at: u64,
    /// The start of the newest window since the step.
    seen: u64,
    /// The start of the newest window before the step.
    newest: u64,
}

impl SteppedBack {
    /// Returns true if the count of the window that began at `start`, before `newest`, may have
    /// been forgotten. A window that begins at least a span and the guard after the step was
    /// noticed is new: starts before the step no longer count in it.
    fn is_doubtful(&mut self, terms: &Terms, start: u64, now: u64, newest: u64) -> bool {
        let span = terms.span();
        let restarted = self.newest != newest || now < self.at || start + span <= self.seen;
        let at = if restarted { now } else { self.at };
        let seen = if restarted {
            start
        } else {
            start.max(self.seen)
        };
        *self = Self { at, seen, newest };
        start < at + span + terms.guard_ms()
    }
}

impl FixedWindows {
    fn held(&self) -> u64 {
        let count = self.counts.get(&self.index).map_or(0, |(count, _)| *count);
        count.max(self.min_held)
    }

    fn free(&self, terms: &Terms, at: u64) -> u64 {
        let index = at / terms.span();
        if at >= (index + 1) * terms.span() - terms.guard_ms() {
            return 0;
        }
        let held = if index == self.index { self.held() } else { 0 };
        terms.max().saturating_sub(held)
    }

    fn add(&mut self, terms: &Terms, units: u64) {
        let (count, end) = self.counts.entry(self.index).or_default();
        *count += units;
        *end = (self.index + 1) * terms.span();
    }
}

impl Usage for FixedWindows {
    fn forget(&mut self, now_ms: u64) {
        self.counts.retain(|_, (_, end)| *end > now_ms);
    }

    fn load(&mut self, terms: &Terms, clock: Clock, around: &mut PartitionContext<'_>) {
        let (now, span, newest) = (clock.now_ms, terms.span(), around.newest);
        self.index = now / span;
        let start = self.index * span;
        let stepped = &mut *around.stepped;
        self.is_repeated = start + span <= newest;
        let is_doubtful = self.is_repeated && stepped.is_doubtful(terms, start, now, newest);
        self.min_held = if is_doubtful { terms.max() } else { 0 };
    }

    fn count(&self, _: &Terms, _: u64) -> u64 {
        self.held()
    }

    fn nth(&self, terms: &Terms, base: u64, k: u64) -> u64 {
        let free = self.free(terms, base);
        if k <= free {
            return base;
        }
        let next = base / terms.span() + 1;
        next * terms.span() + laps_ms((k - free - 1) / terms.max(), terms.span())
    }

    fn take(&mut self, terms: &Terms, _: Clock, cost: u64, _: &str) -> u64 {
        self.add(terms, terms.unit().of(cost));
        0
    }

    /// Corrects the current window only: an earlier window no longer counts. Gives back nothing if
    /// the call may have been counted in this window before the clock was stepped back.
    fn settle(&mut self, terms: &Terms, clock: Clock, ended: &ReportedCall<'_>) {
        if self.is_repeated && ended.change(terms, clock) < 0 {
            return;
        }
        if ended.started_ms / terms.span() == self.index
            && let Some((count, _)) = self.counts.get_mut(&self.index)
        {
            *count = count.saturating_add_signed(ended.change(terms, clock));
        }
    }

    /// Counts the call in the current window as well if it started in another one, each time it is
    /// reported.
    fn late(&mut self, terms: &Terms, _: Clock, ended: &ReportedCall<'_>) -> bool {
        let is_other = ended.started_ms / terms.span() != self.index;
        if is_other {
            self.add(terms, ended.charged(terms));
        }
        is_other
    }

    fn end(&self) -> u64 {
        let ends = self.counts.values().map(|(_, end)| *end);
        ends.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Algorithm, Unit};
    use super::*;

    #[test]
    fn starts_of_others_are_not_returned_after_a_clock_step() {
        let terms = Terms {
            algorithm: Algorithm::FixedWindow,
            max: 10,
            window_ms: 1_000,
            guard_ms: 0,
            burst: 10,
            unit: Unit::Cost,
            spacing_us: 0,
            forgiven_ms: 0,
            calendar: None,
        };
        let (mut windows, mut stepped) = (FixedWindows::default(), SteppedBack::default());
        let mut newest = 0;
        let mut load = |windows: &mut FixedWindows, ms: u64| {
            let clock = Clock::from_micros(ms * 1000);
            newest = newest.max(ms / 1000 * 1000);
            let mut around = PartitionContext {
                usual: 1,
                newest,
                stepped: &mut stepped,
            };
            windows.forget(ms);
            windows.load(&terms, clock, &mut around);
            clock
        };
        let clock = load(&mut windows, 10_000);
        windows.take(&terms, clock, 8, "");
        load(&mut windows, 12_000);
        // The clock goes back, and reaches the same window again.
        load(&mut windows, 8_500);
        let clock = load(&mut windows, 10_500);
        assert_eq!(windows.count(&terms, 10_500), 0);
        windows.take(&terms, clock, 9, "");
        let ended = ReportedCall {
            started_ms: 10_000,
            sequence: 0,
            permit: "",
            cost: 8,
            used: None,
        };
        windows.settle(&terms, clock, &ended);
        assert_eq!(windows.count(&terms, 10_500), 9);
    }
}
