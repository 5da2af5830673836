//! Shadow limits: what a limit would have done to the jobs that start, had it been enforced.
//!
//! A shadow is charged for each start like an enforced limit, in the same [`PartitionUsage`], but
//! never checks whether quota is available. It also has a *trial* for each partition: the starts as
//! they would have been, one after the other. A start of the trial happens no earlier than the real
//! start, no earlier than the start ahead of it, and no earlier than the algorithm has quota, given
//! the starts of the trial. So a job that would have waited also waits in the trial, and delays the
//! jobs after it.
//!
//! `lua/shadows.lua` does the same over Redis.

use crate::clock::Clock;
use crate::decision::{Tally, TrialStatus};
use crate::gate::usage::PartitionUsage;
use crate::limit::{Limit, Unit};

/// Maximum wait in a trial, in milliseconds: a day. A start that would have waited longer counts as
/// one that would never have happened, and does not delay others.
pub const MAX_BEHIND_MS: u64 = 86_400_000;
/// Time after its last start at which a trial is forgotten, in milliseconds: a week.
pub const TRIAL_MS: u64 = 604_800_000;
/// Flag added to the cost of a job that starts again, in a question to the store. Costs are lower.
pub const REPEATED_FLAG: u64 = 1 << 50;
/// Maximum number of times that the algorithm is asked for one start, because its first answer may
/// be too early.
pub const TRIES: u64 = 4;

/// The trial of one limit in one partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShadowTrial {
    /// The starts as they would have been.
    usage: PartitionUsage,
    tally: Tally,
    since_ms: u64,
    /// When the last start would have been.
    at: u64,
    /// When the trial last recorded a start.
    last_start_ms: u64,
}

impl ShadowTrial {
    /// Records that a job of `cost` starts at `clock`. Returns the tally of this start.
    pub fn start(&mut self, limit: &Limit, clock: Clock, cost: u64) -> Tally {
        let now = clock.now_ms;
        if self.is_over(now) {
            *self = Self {
                since_ms: now,
                ..Self::default()
            };
        }
        if now < self.last_start_ms {
            // The clock was stepped back. The starts ahead would delay new ones forever.
            (self.usage, self.at) = (PartitionUsage::default(), 0);
        }
        self.last_start_ms = now;
        let one = self.take(limit, clock, cost);
        self.tally.add(&one);
        one
    }

    fn take(&mut self, limit: &Limit, clock: Clock, cost: u64) -> Tally {
        let now = clock.now_ms;
        let never = Tally {
            starts: 1,
            waited: 1,
            never: 1,
            worst_ms: 0,
        };
        if limit.unit() == Unit::Cost && cost > limit.capacity() {
            return never;
        }
        let units = limit.unit().of(cost);
        let limits = std::slice::from_ref(limit);
        let mut at = now.max(self.at);
        for tries in 1.. {
            let clock = match at == now {
                true => clock,
                false => Clock {
                    now_ms: at,
                    stamp_ms: at,
                },
            };
            self.usage.load(limits, clock, 0);
            let earliest = self.usage.nth(limit, at, units);
            if earliest > now + MAX_BEHIND_MS {
                return never;
            }
            if earliest <= at || tries == TRIES {
                self.usage.take(limits, clock, cost, "");
                break;
            }
            at = earliest;
        }
        self.at = at;
        let wait = at - now;
        Tally {
            starts: 1,
            waited: u64::from(wait > 0),
            never: 0,
            worst_ms: wait,
        }
    }

    /// Returns the results of the trial.
    pub fn tried(&self, now: u64) -> TrialStatus {
        if self.is_over(now) {
            return TrialStatus::default();
        }
        TrialStatus {
            tally: self.tally,
            since_ms: self.since_ms,
            behind_ms: match now < self.last_start_ms {
                true => 0,
                false => self.at.saturating_sub(now),
            },
        }
    }

    /// Returns true if the trial was forgotten or has recorded no start.
    pub fn is_over(&self, now: u64) -> bool {
        self.tally.starts == 0 || self.last_start_ms + TRIAL_MS <= now
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::kit;
    use crate::limit::Algorithm;

    const BEGIN: u64 = 1_700_000_000_000;

    fn shadow(algorithm: Algorithm, max: u64, window_ms: u64) -> Limit {
        let limit = kit::limit("day", algorithm, max, Duration::from_millis(window_ms));
        limit.in_shadow().expect("it holds no leases")
    }

    fn at(ms: u64) -> Clock {
        Clock::from_micros((BEGIN + ms) * 1_000)
    }

    #[test]
    fn a_burst_queues_up_as_it_would_have() {
        // Ten in any second. Of 100 jobs that arrive at once, ten start at once, and ten in each
        // second after.
        let limit = shadow(Algorithm::SlidingWindow, 10, 1_000);
        let mut trial = ShadowTrial::default();
        for _ in 0..100 {
            trial.start(&limit, at(0), 1);
        }
        let tried = trial.tried(BEGIN);
        let expected = Tally {
            starts: 100,
            waited: 90,
            never: 0,
            worst_ms: 9_000,
        };
        assert_eq!((tried.tally, tried.behind_ms), (expected, 9_000));
        // A job that arrives five seconds later is behind them.
        assert_eq!(trial.start(&limit, at(5_000), 1).worst_ms, 5_000);
        // A minute later no job is ahead.
        assert_eq!(trial.start(&limit, at(60_000), 1).waited, 0);
    }

    #[test]
    fn a_job_that_could_never_start_delays_no_other() {
        let limit = shadow(Algorithm::TokenBucket, 1, 3_600_000);
        let mut trial = ShadowTrial::default();
        for _ in 0..100 {
            trial.start(&limit, at(0), 1);
        }
        let Tally {
            never,
            waited,
            worst_ms,
            ..
        } = trial.tried(BEGIN).tally;
        // A bucket's refill takes a little longer than its window.
        assert_eq!((waited, never), (99, 76));
        assert!(worst_ms <= MAX_BEHIND_MS && worst_ms > MAX_BEHIND_MS - 3_601_000);
        // The job costs more than the whole limit.
        let large = trial.start(&limit, at(0), 2);
        assert_eq!((large.never, large.waited, large.worst_ms), (1, 1, 0));
    }

    #[test]
    fn a_clock_that_was_stepped_back_leaves_the_counts_and_no_backlog() {
        let limit = shadow(Algorithm::FixedWindow, 1, 60_000);
        let mut trial = ShadowTrial::default();
        for _ in 0..10 {
            trial.start(&limit, at(3_600_000), 1);
        }
        let one = trial.start(&limit, at(0), 1);
        assert_eq!((one.waited, trial.tried(BEGIN).tally.starts), (0, 11));
        let later = BEGIN + TRIAL_MS;
        assert_eq!(trial.tried(later), TrialStatus::default());
    }

    proptest! {
        /// The starts of a trial are the ones that the limit would allow, by an independent count:
        /// never more than the worst case in a window, in order, and for a limit with a window of
        /// its own none later than necessary.
        #[test]
        fn the_starts_of_a_trial_keep_the_limit(
            which in 0..Algorithm::ALL.len(),
            max in 1..8_u64,
            steps in prop::collection::vec((0..400_u64, 1..4_u64), 1..120),
        ) {
            let limit = shadow(Algorithm::ALL[which], max, 1_000);
            let (mut trial, mut now) = (ShadowTrial::default(), BEGIN);
            let mut starts: Vec<(u64, u64)> = Vec::new();
            for (pause, cost) in steps {
                // Half of the jobs arrive at the same moment.
                now += pause.saturating_sub(200);
                let one = trial.start(&limit, Clock::from_micros(now * 1_000), cost);
                if one.never > 0 {
                    prop_assert!(cost > limit.capacity());
                    continue;
                }
                let start = now + one.worst_ms;
                prop_assert!(starts.last().is_none_or(|(last, _)| *last <= start));
                starts.push((start, cost));
                let in_window = starts.iter().filter(|(other, _)| start - other < 1_000);
                let units: u64 = in_window.map(|(_, cost)| cost).sum();
                prop_assert!(units <= limit.worst_case(), "{units} at {start}");
                if limit.algorithm() == Algorithm::SlidingWindow && one.waited > 0 {
                    // A millisecond earlier there was no quota, or another job was ahead.
                    let before = start - 1;
                    let ahead = starts.iter().rev().nth(1).is_some_and(|(last, _)| *last == start);
                    let held = starts.iter().rev().skip(1).filter(|(other, _)| *other + 1_000 > before);
                    let units = cost + held.map(|(_, cost)| cost).sum::<u64>();
                    prop_assert!(ahead || units > max, "{units} at {before}");
                }
            }
        }
    }
}
