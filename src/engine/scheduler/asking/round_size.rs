//! Bounds the number of jobs per round trip. The bound shrinks while answers come too late for the
//! permits in them.
//!
//! An answer takes longer the more jobs it is for. On a machine that is too busy for a large round,
//! all of its permits may have expired when they arrive. The same jobs would ask again at once, all
//! together, and be late again, forever. So only half of them ask.

use std::time::Duration;

/// Maximum number of jobs in one round trip.
const MAX_JOBS: usize = 1024;
/// Lower bound. Fewer jobs are not answered any sooner: the round trip itself takes longer than
/// their answers.
const MIN_JOBS: usize = 8;

/// The maximum number of jobs in the next round trip.
#[derive(Debug)]
pub struct RoundSize {
    max: usize,
    /// Number of jobs in the last round trip.
    asked: usize,
    /// When the bound was last changed. Questions from before that do not count.
    lowered: Duration,
    raised: Duration,
}

impl Default for RoundSize {
    fn default() -> Self {
        Self {
            max: MAX_JOBS,
            asked: MAX_JOBS,
            lowered: Duration::ZERO,
            raised: Duration::ZERO,
        }
    }
}

impl RoundSize {
    /// Returns the maximum number of jobs that may ask together.
    pub fn get(&self) -> usize {
        self.max
    }

    /// Records the number of jobs that ask. A question without jobs, for the clock alone, does not
    /// count.
    pub fn asked(&mut self, jobs: usize) {
        if jobs > 0 {
            self.asked = jobs;
        }
    }

    /// Records that a permit requested at `asked_at` came too late.
    pub fn late(&mut self, now: Duration, asked_at: Duration) {
        if asked_at >= self.lowered {
            self.max = (self.max.min(self.asked) / 2).max(MIN_JOBS);
            self.lowered = now;
        }
    }

    /// Records that a permit came in time.
    pub fn in_time(&mut self, now: Duration, asked_at: Duration) {
        if self.max < MAX_JOBS && asked_at >= self.lowered.max(self.raised) {
            self.max = (2 * self.max).min(MAX_JOBS);
            self.raised = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::MS;

    #[test]
    fn a_late_round_halves_the_next_one_once() {
        let mut size = RoundSize::default();
        size.asked(300);
        size.asked(0);
        for _ in 0..300 {
            size.late(MS * 40, MS * 10);
        }
        assert_eq!(size.get(), 150);
        size.asked(150);
        size.late(MS * 41, MS * 39);
        assert_eq!(size.get(), 150, "it was asked for before");
        size.late(MS * 70, MS * 40);
        assert_eq!(size.get(), 75);
        // The permit came in time, but the call's task ran too late.
        size.asked(75);
        size.in_time(MS * 75, MS * 71);
        size.late(MS * 90, MS * 71);
        assert_eq!(size.get(), 37);
    }

    #[test]
    fn the_round_grows_while_permits_are_in_time_within_bounds() {
        let mut size = RoundSize::default();
        size.in_time(MS, MS);
        assert_eq!(size.get(), MAX_JOBS);
        for n in 0..20 {
            size.asked(size.get());
            size.late(MS * 10 * n, MS * 10 * n);
        }
        assert_eq!(size.get(), MIN_JOBS);
        let mut sizes = Vec::new();
        for n in 20..32 {
            size.in_time(MS * 10 * n + MS, MS * 10 * n);
            size.in_time(MS * 10 * n + MS, MS * 10 * n);
            sizes.push(size.get());
        }
        assert_eq!(sizes[..4], [16, 32, 64, 128]);
        assert_eq!(sizes[6..], [MAX_JOBS; 6]);
    }
}
