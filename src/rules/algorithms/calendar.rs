//! `fixed-window-algo` with `window-size: day`, `week` or `month`: one counter, stored with the
//! boundaries of its window.
//!
//! Workers compute the boundaries. Their databases of time zones may differ, and a clock that was
//! stepped back may show a window again. The stored window takes precedence: a new one begins only
//! when it has ended.

use super::{
    AlgorithmFacts, KeyLayout, PartitionContext, ReportedCall, Rules, StoredUsage, Terms, Usage,
};
use crate::calendar::{Boundaries, KNOWN_WINDOWS, MAX_WINDOWS_AHEAD};
use crate::clock::Clock;

/// The algorithm.
pub struct CalendarWindow;

/// The properties of the algorithm.
pub(super) const FACTS: AlgorithmFacts = AlgorithmFacts {
    name: "calendar-window",
    about: "L in each day, week or month of a time zone",
    window_words: "in each",
    scripts: &["calendar_window"],
    shortcut: None,
    keys: KeyLayout::Own {
        kind: "calendar",
        holds: "string",
    },
    default_burst: None,
    holds_leases: false,
    is_aligned: true,
    saves_up: false,
    counts_arrivals: true,
};

impl Rules for CalendarWindow {
    /// Two times and a count.
    fn stored(&self, _: &Terms) -> StoredUsage {
        StoredUsage::Text(40)
    }

    /// The longest window.
    fn span(&self, terms: &Terms) -> u64 {
        let calendar = terms.calendar();
        calendar.map_or(terms.window_ms(), |calendar| calendar.longest_ms())
    }

    fn margin(&self, terms: &Terms) -> u64 {
        terms.guard_ms()
    }

    fn state_ms(&self, terms: &Terms) -> (u64, u64) {
        (terms.window_ms(), 0)
    }

    /// The worst case, in any time as long as the shortest window: all units of one window start
    /// just before it closes, and all units of the next one right after.
    fn worst_case(&self, terms: &Terms) -> u64 {
        2 * terms.max()
    }

    fn max_units_in(&self, terms: &Terms, ms: u64) -> u64 {
        // A start is written up to one millisecond after it was decided.
        terms
            .max()
            .saturating_mul((ms + 1).div_ceil(shortest_ms(terms)) + 1)
    }

    /// An API's window of the usual length is assumed to have the same edges.
    fn arriving(&self, terms: &Terms, window_ms: u64) -> u64 {
        let max = terms.max();
        if window_ms == terms.window_ms() {
            max
        } else {
            max.saturating_mul(window_ms.div_ceil(shortest_ms(terms)) + 1)
        }
    }

    fn is_implied_by(&self, terms: &Terms, other: &Terms) -> bool {
        terms.guard_ms() == 0 && other.max_units_in(terms.span()) <= terms.max()
    }
}

fn shortest_ms(terms: &Terms) -> u64 {
    let calendar = terms.calendar();
    calendar.map_or(terms.window_ms(), |calendar| calendar.shortest_ms())
}

/// A window and its units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    start: u64,
    end: u64,
    count: u64,
}

/// The window of one limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CalendarCount {
    stored: Option<Window>,
    /// The window of the last load, in which the next unit may start.
    live: Option<Window>,
    /// The boundaries around the last load.
    around: Option<Boundaries>,
    /// When the stored window is forgotten.
    kept_until: u64,
}

impl CalendarCount {
    fn store(&mut self, terms: &Terms, window: Window) {
        self.kept_until = window.end + terms.span();
        self.stored = Some(window);
        self.live = self.stored;
    }

    fn load_around(&mut self, terms: &Terms, now: u64, around: Boundaries) {
        self.around = Some(around);
        let (window, is_changed) = self.window_in_force(terms, now, &around.starts);
        self.live = Some(window);
        if is_changed {
            self.store(terms, window);
        }
    }

    /// Returns the window that is in force, and whether it differs from the stored one.
    fn window_in_force(&self, terms: &Terms, now: u64, starts: &[u64]) -> (Window, bool) {
        let (start, end, after) = (starts[0], starts[1], starts[2]);
        let new = Window {
            start,
            end,
            count: 0,
        };
        match self.stored {
            Some(stored) if stored.end > start => match stored {
                // The clock was stepped back by windows: the counts of those in between are
                // forgotten, so nothing starts before a whole window has passed.
                far if far.start > after => {
                    let later = Window {
                        start: after,
                        end: starts[3],
                        count: 0,
                    };
                    (later, true)
                }
                // Another worker's windows end earlier: this one lasts until both have ended.
                short
                    if short.start <= now
                        && short.end < end
                        && end.saturating_sub(short.start) <= terms.span() =>
                {
                    (Window { end, ..short }, true)
                }
                // Another worker's windows differ by more: their units may belong to this one.
                over if over.end <= now => {
                    let start = over.end;
                    (Window { start, end, ..over }, false)
                }
                same => (same, false),
            },
            _ => (new, false),
        }
    }

    /// Returns the end of the window that is `windows` after the one in force. If it is not known,
    /// the estimate is never late.
    fn end_after(&self, windows: u64) -> u64 {
        let (Some(live), Some(around)) = (self.live, &self.around) else {
            return 0;
        };
        let later = around.starts[1..=KNOWN_WINDOWS].iter();
        let later: Vec<u64> = later.copied().filter(|end| *end > live.end).collect();
        let known = later.len() as u64;
        let last = later.last().copied().unwrap_or(live.end);
        match windows {
            0 => live.end,
            windows if windows <= known => later[usize::try_from(windows).unwrap_or(0) - 1],
            windows => last + (windows - known) * around.mean_ms - around.slack_ms,
        }
    }

    /// Returns the distance, in windows, from the one in force to the first that ends after `at`.
    fn windows_until(&self, at: u64) -> u64 {
        let known = (0..=KNOWN_WINDOWS as u64).find(|windows| self.end_after(*windows) > at);
        known.unwrap_or_else(|| {
            let mean_ms = self.around.map_or(1, |around| around.mean_ms);
            let far = KNOWN_WINDOWS as u64;
            far + (at - self.end_after(far)) / mean_ms + 1
        })
    }
}

impl Usage for CalendarCount {
    fn forget(&mut self, now_ms: u64) {
        if self.kept_until <= now_ms {
            self.stored = None;
        }
    }

    fn load(&mut self, terms: &Terms, clock: Clock, _: &mut PartitionContext<'_>) {
        self.forget(clock.now_ms);
        self.load_around(terms, clock.now_ms, terms.boundaries(clock.now_ms));
    }

    fn count(&self, _: &Terms, _: u64) -> u64 {
        self.live.map_or(0, |live| live.count)
    }

    fn nth(&self, terms: &Terms, base: u64, k: u64) -> u64 {
        let max = terms.max();
        let Some(live) = self.live else {
            return base;
        };
        let at = base.max(live.start);
        let windows = self.windows_until(at);
        let held = if windows == 0 { live.count } else { 0 };
        let is_closing = at >= self.end_after(windows) - terms.guard_ms();
        let free = if is_closing {
            0
        } else {
            max.saturating_sub(held)
        };
        if k <= free {
            return at;
        }
        let later = ((k - free - 1) / max).min(MAX_WINDOWS_AHEAD);
        self.end_after(windows + later)
    }

    fn take(&mut self, terms: &Terms, _: Clock, cost: u64, _: &str) -> u64 {
        if let Some(live) = self.live {
            let count = live.count + terms.unit().of(cost);
            self.store(terms, Window { count, ..live });
        }
        0
    }

    /// Corrects the current window only: an earlier window no longer counts.
    fn settle(&mut self, terms: &Terms, clock: Clock, ended: &ReportedCall<'_>) {
        if let Some(live) = self.live
            && self.stored == self.live
            && ended.started_ms >= live.start
        {
            let count = live.count.saturating_add_signed(ended.change(terms, clock));
            self.store(terms, Window { count, ..live });
        }
    }

    /// Counts the call in the current window as well if it started in an earlier one, each time it
    /// is reported.
    fn late(&mut self, terms: &Terms, _: Clock, ended: &ReportedCall<'_>) -> bool {
        let Some(live) = self.live.filter(|live| ended.started_ms < live.start) else {
            return false;
        };
        let count = live.count + ended.charged(terms);
        self.store(terms, Window { count, ..live });
        true
    }

    fn end(&self) -> u64 {
        self.stored.map_or(0, |_| self.kept_until)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::calendar::{BOUNDARIES, Calendar, Zone};
    use crate::limit::Limit;

    const HOUR: u64 = 3_600_000;
    const MIDNIGHT: u64 = 20_000 * 24 * HOUR;

    fn day(max: u64) -> Limit {
        let calendar = Calendar::parse("day", Zone::UTC, None).expect("a calendar");
        Limit::calendar("day", max, calendar, Duration::ZERO).expect("in range")
    }

    /// Returns boundaries of days that begin `early` before midnight.
    fn boundaries(now: u64, early: u64) -> Boundaries {
        let first = (now + early) / (24 * HOUR) * 24 * HOUR - early;
        let mut starts = [first; BOUNDARIES];
        for (start, at) in starts.iter_mut().zip(0..) {
            *start += at * 24 * HOUR;
        }
        Boundaries {
            starts,
            mean_ms: 24 * HOUR,
            slack_ms: 0,
        }
    }

    /// Two workers compute different boundaries because one has an older database of time zones. No
    /// window of the other one has more than its units, whichever of them asks first.
    #[test]
    fn no_window_has_more_if_another_worker_has_other_boundaries() {
        let limit = day(9);
        for early in [HOUR / 2, HOUR, 2 * HOUR] {
            for order in 0..2 {
                let mut count = CalendarCount::default();
                let mut started = [0_u64; 10];
                for step in 0..10 * 24 * 6 {
                    let now = MIDNIGHT + step * HOUR / 6;
                    for worker in 0..2 {
                        let is_old = (worker + order) % 2 == 0;
                        let around = boundaries(now, if is_old { early } else { 0 });
                        count.load_around(limit.terms(), now, around);
                        if count.nth(limit.terms(), now, 1) == now {
                            count.take(limit.terms(), Clock::from_micros(now * 1000), 1, "");
                            let day = usize::try_from((now - MIDNIGHT) / (24 * HOUR));
                            started[day.expect("few days")] += 1;
                        }
                    }
                }
                assert!(
                    started.iter().all(|units| *units <= 9),
                    "{early} {started:?}"
                );
                assert!(started.iter().sum::<u64>() >= 9 * 9, "{early} {started:?}");
            }
        }
    }

    #[test]
    fn jobs_that_wait_for_later_days_know_when_they_start() {
        let (limit, now) = (day(10), MIDNIGHT + 20 * HOUR);
        let mut count = CalendarCount::default();
        count.load_around(limit.terms(), now, limit.boundaries(now));
        count.take(limit.terms(), Clock::from_micros(now * 1000), 10, "");
        let nth = |k| count.nth(limit.terms(), now, k) - MIDNIGHT;
        assert_eq!(
            [nth(1), nth(10), nth(11)],
            [24, 24, 48].map(|hours| hours * HOUR)
        );
        assert_eq!(nth(61), 7 * 24 * HOUR);
        // Estimates of days far away are not late.
        assert_eq!(nth(1_001), 101 * 24 * HOUR - 2 * HOUR);
    }

    /// A clock that was stepped back by days starts nothing for at least a day, and goes on then.
    #[test]
    fn a_clock_that_was_stepped_back_waits_for_a_whole_window() {
        let limit = day(1);
        let mut count = CalendarCount::default();
        let load = |count: &mut CalendarCount, now| {
            count.load_around(limit.terms(), now, limit.boundaries(now));
        };
        let now = MIDNIGHT + 10 * 24 * HOUR;
        load(&mut count, now);
        count.take(limit.terms(), Clock::from_micros(now * 1000), 1, "");
        let back = MIDNIGHT + 23 * HOUR;
        load(&mut count, back);
        assert_eq!(count.nth(limit.terms(), back, 1), MIDNIGHT + 48 * HOUR);
        load(&mut count, MIDNIGHT + 47 * HOUR);
        assert_eq!(
            count.nth(limit.terms(), MIDNIGHT + 47 * HOUR, 1),
            MIDNIGHT + 48 * HOUR
        );
        // A step across midnight waits for midnight.
        let (now, back) = (MIDNIGHT + 48 * HOUR, MIDNIGHT + 48 * HOUR - 5);
        load(&mut count, now);
        count.take(limit.terms(), Clock::from_micros(now * 1000), 1, "");
        load(&mut count, back);
        assert_eq!(count.nth(limit.terms(), back, 1), MIDNIGHT + 72 * HOUR);
    }
}
