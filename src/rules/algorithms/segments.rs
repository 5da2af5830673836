//! `sliding-segments-algo`: a sliding window that counts its starts in segments of time, 192 per
//! window. A start counts from the end of its segment for a whole window and guard. So at most L
//! start in any window, as with a log of every start, but in the memory of 192 counters, however
//! large L is. In return, a start counts for up to one segment longer.

use super::product::laps_ms;
use super::{
    AlgorithmFacts, KeyLayout, PartitionContext, ReportedCall, Rules, StoredUsage, Terms, Usage,
};
use crate::clock::Clock;

/// Number of segments in a window and its guard; fewer if segments would be shorter than a
/// millisecond.
const SEGMENTS: u64 = 192;

/// The algorithm.
pub struct SlidingSegments;

/// The properties of the algorithm.
pub(super) const FACTS: AlgorithmFacts = AlgorithmFacts {
    name: "sliding-segments-algo",
    about: "L in any W, counted by 192nds of it",
    window_words: "in any",
    scripts: &["sliding_segments"],
    shortcut: None,
    keys: KeyLayout::Own {
        kind: "segments",
        holds: "string",
    },
    default_burst: None,
    holds_leases: false,
    is_aligned: false,
    saves_up: false,
    counts_arrivals: false,
};

impl Rules for SlidingSegments {
    /// One number for the state, and two for each segment with starts. The last segment reaches
    /// beyond the window, hence one more.
    fn stored(&self, terms: &Terms) -> StoredUsage {
        let segments = look_back_ms(terms).div_ceil(self.margin(terms)) + 1;
        StoredUsage::Text(6 + 14 * segments.min(terms.max()))
    }

    /// Window and guard, rounded up to whole segments, minus a millisecond. So a unit that starts
    /// as soon as a segment expires starts in the last millisecond of a segment, and counts no
    /// longer than it must. A moment later it would count for a segment more.
    fn span(&self, terms: &Terms) -> u64 {
        let length = self.margin(terms);
        length * look_back_ms(terms).div_ceil(length) - 1
    }

    /// The length of a segment.
    fn margin(&self, terms: &Terms) -> u64 {
        look_back_ms(terms).div_ceil(SEGMENTS)
    }

    fn burstiness(&self, terms: &Terms) -> u64 {
        terms.max()
    }

    fn is_implied_by(&self, terms: &Terms, other: &Terms) -> bool {
        let counted = self.span(terms) + self.margin(terms);
        other.max_units_in(counted) <= terms.max()
    }
}

/// Returns the sum of window and guard, plus a millisecond for the rounded clock.
fn look_back_ms(terms: &Terms) -> u64 {
    terms.window_ms() + terms.guard_ms() + 1
}

/// The segments of one limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Segments {
    /// The segments that the last start wrote.
    stored: Vec<Segment>,
    /// The segments as of the last load, without the expired ones.
    live: Vec<Segment>,
    /// The index of the segment of that load.
    current: u64,
    /// The highest index whose units were moved to an earlier segment because the clock was stepped
    /// back.
    pulled: u64,
    length: u64,
    span: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    /// The segment's number, counted from the epoch.
    index: u64,
    units: u64,
}

impl Segments {
    /// Returns when the starts in a segment no longer count.
    fn over(&self, index: u64) -> u64 {
        (index + 1) * self.length + self.span
    }
}

impl Usage for Segments {
    fn load(&mut self, terms: &Terms, clock: Clock, _: &mut PartitionContext<'_>) {
        (self.length, self.span) = (terms.margin(), terms.span());
        self.current = clock.now_ms / self.length;
        let mut live: Vec<Segment> = Vec::new();
        let mut is_pulled = false;
        for segment in &self.stored {
            // An index in the future means that the clock was stepped back. Its units count from
            // now.
            let index = segment.index.min(self.current);
            if index < segment.index {
                is_pulled = true;
                self.pulled = self.pulled.max(segment.index);
            }
            if self.over(index) <= clock.now_ms {
                continue;
            }
            match live.last_mut() {
                Some(last) if last.index == index => last.units += segment.units,
                _ => live.push(Segment { index, ..*segment }),
            }
        }
        self.live = live;
        if is_pulled {
            self.stored.clone_from(&self.live);
        }
    }

    fn count(&self, _: &Terms, _: u64) -> u64 {
        self.live.iter().map(|segment| segment.units).sum()
    }

    fn nth(&self, terms: &Terms, base: u64, k: u64) -> u64 {
        let max = terms.max();
        let counting =
            (self.live.iter().rev()).take_while(|segment| self.over(segment.index) > base);
        let used: u64 = counting.clone().map(|segment| segment.units).sum();
        // If more than `max` units count (the limit was lowered), only the last `max` are in the
        // way.
        let used = used.min(max);
        let free = max - used;
        let (turn, laps) = ((k - 1) % max, (k - 1) / max);
        // A unit that starts when a segment expires is in the way for this long.
        let lap = self.span + 1;
        if turn < free {
            return match laps {
                0 => base,
                laps => self.over(base / self.length) + laps_ms(laps - 1, lap),
            };
        }
        let rest = used - (turn - free + 1);
        let mut units = 0;
        let mut counting = counting;
        let leaving = counting.find(|segment| {
            units += segment.units;
            units > rest
        });
        leaving.map_or(base, |segment| self.over(segment.index)) + laps_ms(laps, lap)
    }

    fn take(&mut self, terms: &Terms, _: Clock, cost: u64, _: &str) -> u64 {
        let (index, units) = (self.current, terms.unit().of(cost));
        match self.live.last_mut() {
            Some(last) if last.index == index => last.units += units,
            _ => self.live.push(Segment { index, units }),
        }
        self.stored.clone_from(&self.live);
        0
    }

    /// Leaves an expired segment alone. After a step of the clock a start may have been moved to
    /// another segment, so its units are not given back: that could give back units of other
    /// starts.
    fn settle(&mut self, terms: &Terms, clock: Clock, ended: &ReportedCall<'_>) {
        let index = ended.started_ms / self.length;
        if index <= self.pulled && ended.change(terms, clock) < 0 {
            return;
        }
        if let Some(segment) = self.live.iter_mut().rev().find(|it| it.index == index) {
            segment.units = segment
                .units
                .saturating_add_signed(ended.change(terms, clock));
            self.stored.clone_from(&self.live);
        }
    }

    fn end(&self) -> u64 {
        let newest = self.stored.last();
        newest.map_or(0, |segment| self.over(segment.index))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Algorithm, SteppedBack, Unit};
    use super::*;

    const NOW: u64 = 1_700_000_000_000;

    #[test]
    fn starts_of_others_are_not_refunded_after_a_clock_step() {
        let terms = Terms {
            algorithm: Algorithm::SlidingSegments,
            max: 10,
            window_ms: 60_000,
            guard_ms: 50,
            burst: 10,
            unit: Unit::Cost,
            spacing_us: 0,
            forgiven_ms: 0,
            calendar: None,
        };
        let mut segments = Segments::default();
        let load = |segments: &mut Segments, ms: u64| {
            let clock = Clock::from_micros((NOW + ms) * 1000);
            let mut around = PartitionContext {
                usual: 1,
                newest: 0,
                stepped: &mut SteppedBack::default(),
            };
            segments.load(&terms, clock, &mut around);
            clock
        };
        let clock = load(&mut segments, 30_000);
        segments.take(&terms, clock, 4, "a");
        let started_ms = clock.now_ms;
        // The clock goes back, and forward again to where the first call started.
        let clock = load(&mut segments, 10_000);
        segments.take(&terms, clock, 1, "b");
        let clock = load(&mut segments, 30_001);
        segments.take(&terms, clock, 5, "c");
        let ended = ReportedCall {
            started_ms,
            sequence: 0,
            permit: "a",
            cost: 4,
            used: None,
        };
        segments.settle(&terms, clock, &ended);
        load(&mut segments, 10_000 + 61_000);
        assert_eq!(segments.count(&terms, NOW + 71_000), 5, "those of c");
        // Without a step of the clock, unused units are given back.
        let clock = load(&mut segments, 72_000);
        segments.take(&terms, clock, 4, "d");
        let ended = ReportedCall {
            started_ms: clock.now_ms,
            permit: "d",
            ..ended
        };
        segments.settle(&terms, clock, &ended);
        assert_eq!(segments.count(&terms, NOW + 72_000), 5);
    }
}
