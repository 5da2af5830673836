//! The logs of what really started: they alone admit.
//!
//! An algorithm is two functions, `nth` (when the k-th next unit may start if nobody else does) and `take`, over
//! what `load` made of the stored state. The files in `lua/` of the same names are the same functions over Redis.

mod bucket;
mod counter;
mod fixed;
mod held;
mod sliding;
mod span;

use std::collections::BTreeMap;

use self::bucket::Bucket;
use self::counter::SlidingCounter;
use self::fixed::{FixedWindows, SteppedBack};
use self::held::Held;
use self::sliding::SlidingLog;
use crate::rules::decision::{End, LEASE_MS, Receipt, Settled};
use crate::rules::limit::{Algorithm, Limit, Unit};

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

/// What one scope has started, as far as its limits still count it.
///
/// All sliding windows share one log, which is as long as the longest of them needs, those of other jobs included; every
/// other limit has a state of its own ([`Limit::shares_state`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Logs {
    sliding: SlidingLog,
    fixed: BTreeMap<Own, FixedWindows>,
    counters: BTreeMap<Own, SlidingCounter>,
    buckets: BTreeMap<Own, Bucket>,
    held: BTreeMap<Own, Held>,
    /// The start of the newest fixed window that was seen. The line's hash keeps it: a clock that is stepped back
    /// must not open a window whose count is forgotten.
    newest: u64,
    /// The line's hash keeps it, too.
    stepped: SteppedBack,
}

/// Names a limit's own state.
type Own = (Algorithm, String, (u64, u64), Option<(u32, u32)>, Unit);

fn own(limit: &Limit) -> Own {
    let name = limit.name().to_owned();
    let (span, bucket) = (limit.state_ms(), limit.state_bucket());
    (limit.algorithm(), name, span, bucket, limit.unit())
}

impl Logs {
    /// Brings the state of all of `limits` to `clock`: forgets what no longer counts, and repairs what a clock that
    /// was stepped back left in the future. True when the newest fixed window changed, which the line's hash keeps.
    /// `usual`: how long a call holds a place.
    pub fn load(&mut self, limits: &[Limit], clock: Clock, usual: u64) -> bool {
        if self.note_span(limits, clock) {
            self.sliding.load(clock);
        }
        self.load_own(limits, clock, usual)
    }

    /// Somebody counts with the sliding ones of `limits`. False: there are none.
    fn note_span(&mut self, limits: &[Limit], clock: Clock) -> bool {
        let sliding = (limits.iter()).filter(|l| l.algorithm() == Algorithm::SlidingWindow);
        let longest = sliding.map(Limit::span).max();
        if let Some(longest) = longest {
            self.sliding.note(longest, clock);
        }
        longest.is_some()
    }

    /// [`Logs::load`] for a [`Logs::settle`]: the log of all sliding limits stays as it is, since other limits may be in
    /// force by now, which look back further than those of the start.
    pub fn load_own(&mut self, limits: &[Limit], clock: Clock, usual: u64) -> bool {
        let mut newest = self.newest;
        // The store forgets a window that is over, whoever asks.
        for log in self.fixed.values_mut() {
            log.forget(clock.now_ms);
        }
        for limit in limits {
            match limit.algorithm() {
                Algorithm::SlidingWindow => {}
                Algorithm::FixedWindow => {
                    let start = clock.now_ms / limit.span() * limit.span();
                    newest = newest.max(start);
                    let log = self.fixed.entry(own(limit)).or_default();
                    log.load(limit, clock.now_ms, self.newest, &mut self.stepped);
                }
                Algorithm::SlidingCounter => {
                    let log = self.counters.entry(own(limit)).or_default();
                    log.load(limit, clock.now_ms);
                }
                Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                    let log = self.buckets.entry(own(limit)).or_default();
                    log.load(limit, clock.now_ms);
                }
                Algorithm::Strict | Algorithm::Concurrency => {
                    let log = self.held.entry(own(limit)).or_default();
                    log.load(limit, clock, usual);
                }
            }
        }
        let newer = newest > self.newest;
        self.newest = newest;
        newer
    }

    /// Units that count against `limit`.
    ///
    /// # Panics
    /// Without a [`Logs::load`] of the limit before, as all that follow.
    pub fn count(&self, limit: &Limit, clock: Clock) -> u64 {
        match limit.algorithm() {
            Algorithm::SlidingWindow => self.sliding.count(limit, clock.now_ms),
            Algorithm::FixedWindow => self.fixed[&own(limit)].count(limit),
            Algorithm::SlidingCounter => self.counters[&own(limit)].count(limit, clock.now_ms),
            Algorithm::TokenBucket | Algorithm::LeakyBucket => self.bucket(limit).count(limit),
            Algorithm::Strict | Algorithm::Concurrency => self.held[&own(limit)].count(),
        }
    }

    /// When the `k`-th next unit (from 1) may start if nobody starts before `base`, which is now or later.
    pub fn nth(&self, limit: &Limit, base: u64, k: u64) -> u64 {
        match limit.algorithm() {
            Algorithm::SlidingWindow => self.sliding.nth(limit, base, k),
            Algorithm::FixedWindow => self.fixed[&own(limit)].nth(limit, base, k),
            Algorithm::SlidingCounter => self.counters[&own(limit)].nth(limit, base, k),
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                self.bucket(limit).nth(limit, base, k)
            }
            Algorithm::Strict | Algorithm::Concurrency => {
                self.held[&own(limit)].nth(limit, base, k)
            }
        }
    }

    /// Units that may start at once at `now`.
    pub fn free(&self, limit: &Limit, now: u64) -> u64 {
        let (mut free, mut most) = (0, u64::from(limit.capacity()));
        while free < most {
            let middle = (free + most).div_ceil(2);
            if self.nth(limit, now, middle) == now {
                free = middle;
            } else {
                most = middle - 1;
            }
        }
        free
    }

    /// Writes down the start of a job of `cost` units, under its permit's name. Returns its number in the sliding log;
    /// 0 without one.
    pub fn take(&mut self, limits: &[Limit], clock: Clock, cost: u64, permit: &str) -> u64 {
        let mut sequence = 0;
        for limit in limits {
            let units = limit.unit().of(cost);
            match limit.algorithm() {
                Algorithm::SlidingWindow if sequence > 0 => {}
                Algorithm::SlidingWindow => sequence = self.sliding.take(clock.stamp_ms, cost),
                Algorithm::FixedWindow => self.fixed_mut(limit).take(limit, units),
                Algorithm::SlidingCounter => self.counter_mut(limit).take(units),
                Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                    self.bucket_mut(limit).take(limit, units);
                }
                Algorithm::Strict | Algorithm::Concurrency => {
                    self.held_mut(limit).take(clock, permit, units);
                }
            }
        }
        sequence
    }

    /// A call of `cost` has ended: what it used in fact is set against what it was charged.
    /// `sequence` is its number in the sliding log.
    pub fn settle(
        &mut self,
        limits: &[Limit],
        clock: Clock,
        settled: &Settled,
        sequence: u64,
        cost: u64,
    ) {
        let Settled { receipt, end } = settled;
        let used = match end {
            End::Cost(used) => Some(*used),
            End::Unused => None,
            End::Running => return self.keep(limits, clock, &receipt.permit, cost, LEASE_MS),
            End::Abandoned { for_ms } => {
                return self.keep(limits, clock, &receipt.permit, cost, *for_ms);
            }
            End::Late => return self.late(limits, clock, receipt, sequence),
        };
        let mut in_log = false;
        for limit in limits {
            let charged = limit.unit().of(cost);
            let used_units = used.map_or(0, |used| limit.unit().of(used.into()));
            let change = used_units.cast_signed() - charged.cast_signed();
            match limit.algorithm() {
                Algorithm::SlidingWindow if in_log => {}
                Algorithm::SlidingWindow => {
                    in_log = true;
                    self.sliding.settle(receipt.started_ms, sequence, used);
                }
                Algorithm::FixedWindow => {
                    let started = receipt.started_ms;
                    self.fixed_mut(limit).settle(limit, started, change);
                }
                Algorithm::SlidingCounter => {
                    self.counter_mut(limit).settle(receipt.started_ms, change);
                }
                Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                    self.bucket_mut(limit)
                        .settle(limit, receipt.started_ms, change);
                }
                Algorithm::Strict | Algorithm::Concurrency => {
                    let used = used.map(|used| limit.unit().of(used.into()));
                    self.held_mut(limit)
                        .settle(clock, &receipt.permit, charged, used);
                }
            }
        }
    }

    /// A call came later than the guard covers.
    fn late(&mut self, limits: &[Limit], clock: Clock, receipt: &Receipt, sequence: u64) {
        let (started, cost) = (receipt.started_ms, u64::from(receipt.cost).max(1));
        let mut in_log = false;
        for limit in limits {
            match limit.algorithm() {
                Algorithm::SlidingWindow if !in_log => {
                    in_log = true;
                    if self.sliding.late(clock, started, sequence) {
                        self.note_span(limits, clock);
                    }
                }
                Algorithm::FixedWindow => {
                    let units = limit.unit().of(cost);
                    self.fixed_mut(limit).late(limit, started, units);
                }
                _ => {}
            }
        }
    }

    /// A call of `cost` may be under way for so long.
    fn keep(&mut self, limits: &[Limit], clock: Clock, permit: &str, cost: u64, for_ms: u64) {
        for limit in limits {
            if limit.algorithm().holds_places() {
                let units = limit.unit().of(cost);
                self.held_mut(limit).keep(clock, permit, units, for_ms);
            }
        }
    }

    /// The end of the newest fixed window of any of `limits`, until which the line's hash must remember it; 0
    /// without one.
    pub fn newest_window_end(&self, limits: &[Limit]) -> u64 {
        let fixed = limits
            .iter()
            .filter(|limit| limit.algorithm() == Algorithm::FixedWindow);
        fixed.map(|l| self.newest + l.span()).max().unwrap_or(0)
    }

    /// The newest window is kept with the line, and goes with it.
    pub fn forget_newest_window(&mut self) {
        self.newest = 0;
        self.stepped = SteppedBack::default();
    }

    /// Another writer's entry in the sliding log at `score`: one unit.
    pub fn add_foreign(&mut self, score: u64) {
        self.sliding.add_foreign(score);
    }

    /// True when none of it says anything any more, whatever the limits are.
    pub fn is_over(&self, now: u64) -> bool {
        self.sliding.end() <= now
            && self.fixed.values().all(|log| log.end() <= now)
            && self.counters.values().all(|log| log.end() <= now)
            && self.buckets.values().all(|log| log.end() <= now)
            && self.held.values().all(|log| log.end() <= now)
    }

    fn bucket(&self, limit: &Limit) -> &Bucket {
        &self.buckets[&own(limit)]
    }

    fn bucket_mut(&mut self, limit: &Limit) -> &mut Bucket {
        self.buckets.entry(own(limit)).or_default()
    }

    fn held_mut(&mut self, limit: &Limit) -> &mut Held {
        self.held.entry(own(limit)).or_default()
    }

    fn fixed_mut(&mut self, limit: &Limit) -> &mut FixedWindows {
        self.fixed.entry(own(limit)).or_default()
    }

    fn counter_mut(&mut self, limit: &Limit) -> &mut SlidingCounter {
        self.counters.entry(own(limit)).or_default()
    }
}
