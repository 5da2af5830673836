//! The delay lanes: which fixed waiting times exist, and which one a job takes.
//!
//! The times form a geometric ladder with [`STEPS_PER_OCTAVE`] steps an octave, so that rounding a wait
//! down to a lane loses at most 8.3 % of it. Waits above the longest lane take a *recheck lane*: a few
//! times spread over the upper half of the longest one, so that jobs sent round together do not return
//! together.

use std::sync::Arc;
use std::time::Duration;

use crate::rules::limit::ceil_ms;

/// The shortest lane, in milliseconds. Lanes are late by some 10 ms, so shorter ones would say little.
pub const MIN_LANE_MS: u64 = 50;
/// The longest lane, in milliseconds: RabbitMQ's longest `x-message-ttl`, about 49 days.
pub const MAX_LANE_MS: u64 = u32::MAX as u64;
/// Lanes from one time to its double. 2^(1/8) is 1.0905: rounding down loses at most 8.3 %.
pub const STEPS_PER_OCTAVE: u32 = 8;
/// Lanes for waits above the longest lane.
pub const RECHECK_LANES: usize = 8;
/// What the longest name adds to the work queue's, in bytes; see [`MAX_WORK_QUEUE_BYTES`].
const MAX_SUFFIX_BYTES: usize = 50;
/// The longest name of a work queue, in bytes: AMQP's names have 255, and the lanes' are longer.
pub const MAX_WORK_QUEUE_BYTES: usize = 255 - MAX_SUFFIX_BYTES;

/// Where a job's wait ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// In `jobs.due`: its turn has come.
    Due,
    /// In `jobs.recheck`: its wait was longer than the longest lane.
    Recheck,
}

/// The lane that a wait takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Route {
    /// Where it ends.
    pub kind: Kind,
    /// The lane's position among those of its kind, shortest first.
    pub index: usize,
    /// How long it takes, in milliseconds.
    pub ttl_ms: u64,
}

/// All lanes for one `max-delay`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ladder {
    due_ms: Vec<u64>,
    recheck_ms: Vec<u64>,
}

impl Ladder {
    /// The lanes up to `max_delay` (in whole milliseconds, rounded up; from [`MIN_LANE_MS`] to
    /// [`MAX_LANE_MS`]).
    pub fn new(max_delay: Duration) -> Self {
        let max = ceil_ms(max_delay).clamp(MIN_LANE_MS, MAX_LANE_MS);
        let mut due_ms = Vec::new();
        for step in 0_u32.. {
            let ttl = step_ms(step);
            if ttl >= max {
                break;
            }
            due_ms.push(ttl);
        }
        due_ms.push(max);
        let half = max.div_ceil(2);
        let last = RECHECK_LANES as u64 - 1;
        let mut recheck_ms: Vec<u64> = (0..=last).map(|i| half + (max - half) * i / last).collect();
        recheck_ms.dedup();
        Self { due_ms, recheck_ms }
    }

    /// The times that end in `jobs.due`, in milliseconds, ascending.
    pub fn due_ms(&self) -> &[u64] {
        &self.due_ms
    }

    /// The times that end in `jobs.recheck`, in milliseconds, ascending.
    pub fn recheck_ms(&self) -> &[u64] {
        &self.recheck_ms
    }

    /// The longest lane, in milliseconds.
    pub fn max_ms(&self) -> u64 {
        self.due_ms.last().copied().unwrap_or(MIN_LANE_MS)
    }

    /// The lane for a wait: the longest that is not longer, the shortest for waits below
    /// [`MIN_LANE_MS`], and for waits above [`Self::max_ms`] one of the recheck lanes, which `spread`,
    /// a random number in [0, 1), picks.
    pub fn choose(&self, wait_ms: u64, spread: f64) -> Route {
        let (kind, times, index) = if wait_ms <= self.max_ms() {
            let longer = self.due_ms.partition_point(|ttl| *ttl <= wait_ms);
            (Kind::Due, &self.due_ms, longer.saturating_sub(1))
        } else {
            let count = self.recheck_ms.len();
            // A float to integer cast saturates, so a spread out of range takes the last or first lane.
            let index = ((spread * count as f64) as usize).min(count.saturating_sub(1));
            (Kind::Recheck, &self.recheck_ms, index)
        };
        Route {
            kind,
            index,
            ttl_ms: times.get(index).copied().unwrap_or(MIN_LANE_MS),
        }
    }
}

/// The time of a step: `MIN_LANE_MS * 2^(step / STEPS_PER_OCTAVE)`, rounded. Every machine gets the same
/// integers: the power is exact by octaves, and what is left is far from a rounding edge. The caller stops
/// at [`MAX_LANE_MS`], 27 octaves up, so that the shift cannot overflow.
fn step_ms(step: u32) -> u64 {
    let octave = MIN_LANE_MS << (step / STEPS_PER_OCTAVE);
    let part = f64::from(step % STEPS_PER_OCTAVE) / f64::from(STEPS_PER_OCTAVE);
    (octave as f64 * part.exp2()).round() as u64
}

/// The names of all queues, derived from the work queue's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueNames {
    /// `jobs`: fresh work.
    pub fresh: Arc<str>,
    /// `jobs.due`: jobs whose turn has come.
    pub due: Arc<str>,
    /// `jobs.recheck`: jobs whose wait was longer than the longest lane.
    pub recheck: Arc<str>,
    /// `jobs.dead`: dead letters.
    pub dead: Arc<str>,
    due_lanes: Vec<Arc<str>>,
    recheck_lanes: Vec<Arc<str>>,
}

impl QueueNames {
    /// Names for the work queue `work`. A lane's name holds the layout (shortest, longest, steps) and its
    /// time, so two configurations on one work queue never share a lane that differs.
    pub fn new(work: &str, ladder: &Ladder) -> Self {
        let layout = format!(
            "{work}.delay.{MIN_LANE_MS}-{}x{STEPS_PER_OCTAVE}",
            ladder.max_ms()
        );
        let names = |times: &[u64], part: &str| -> Vec<Arc<str>> {
            times
                .iter()
                .map(|ttl| format!("{layout}.{part}{ttl}").into())
                .collect()
        };
        Self {
            fresh: work.into(),
            due: format!("{work}.due").into(),
            recheck: format!("{work}.recheck").into(),
            dead: format!("{work}.dead").into(),
            due_lanes: names(ladder.due_ms(), ""),
            recheck_lanes: names(ladder.recheck_ms(), "recheck-"),
        }
    }

    /// The lane's queue. A route of another ladder falls back to `jobs.due`, where it is looked at anew.
    pub fn lane(&self, route: Route) -> &Arc<str> {
        let lanes = match route.kind {
            Kind::Due => &self.due_lanes,
            Kind::Recheck => &self.recheck_lanes,
        };
        lanes.get(route.index).unwrap_or(&self.due)
    }

    /// The lanes that end in `jobs.due`, in the order of [`Ladder::due_ms`].
    pub fn due_lanes(&self) -> &[Arc<str>] {
        &self.due_lanes
    }

    /// The lanes that end in `jobs.recheck`, in the order of [`Ladder::recheck_ms`].
    pub fn recheck_lanes(&self) -> &[Arc<str>] {
        &self.recheck_lanes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn five_minutes_make_about_a_hundred_lanes() {
        let ladder = Ladder::new(Duration::from_secs(300));
        assert_eq!(ladder.due_ms().len(), 102);
        assert_eq!(&ladder.due_ms()[..9], [50, 55, 59, 65, 71, 77, 84, 92, 100]);
        assert_eq!(ladder.max_ms(), 300_000);
        assert_eq!(ladder.recheck_ms().len(), RECHECK_LANES);
        assert_eq!(ladder.recheck_ms()[0], 150_000);
        assert_eq!(ladder.recheck_ms()[7], 300_000);
    }

    #[test]
    fn names_hold_the_layout() {
        let ladder = Ladder::new(Duration::from_secs(300));
        let names = QueueNames::new("jobs", &ladder);
        assert_eq!(
            [&*names.fresh, &*names.due, &*names.recheck, &*names.dead],
            ["jobs", "jobs.due", "jobs.recheck", "jobs.dead"]
        );
        let lane = |wait, spread| names.lane(ladder.choose(wait, spread)).to_string();
        assert_eq!(lane(60, 0.0), "jobs.delay.50-300000x8.59");
        assert_eq!(lane(300_000, 0.0), "jobs.delay.50-300000x8.300000");
        assert_eq!(lane(300_001, 0.0), "jobs.delay.50-300000x8.recheck-150000");
        assert_eq!(
            lane(u64::MAX, 0.999),
            "jobs.delay.50-300000x8.recheck-300000"
        );
    }

    #[test]
    fn two_layouts_share_no_lane() {
        let names =
            |secs| QueueNames::new("jobs", &Ladder::new(Duration::from_secs(secs))).due_lanes;
        let other = names(60);
        assert!(names(300).iter().all(|name| !other.contains(name)));
    }

    proptest! {
        #[test]
        fn a_due_lane_never_rounds_up_and_loses_little(
            max in 50_u64..100_000_000, wait in 0_u64..100_000_000, spread in 0.0..1.0,
        ) {
            let ladder = Ladder::new(Duration::from_millis(max));
            let route = ladder.choose(wait, spread);
            if wait < MIN_LANE_MS {
                prop_assert_eq!((route.kind, route.ttl_ms), (Kind::Due, MIN_LANE_MS));
            } else if wait <= max {
                prop_assert_eq!(route.kind, Kind::Due);
                prop_assert!(route.ttl_ms <= wait);
                prop_assert!((wait - route.ttl_ms) as f64 <= wait as f64 * 0.0835, "{:?}", route);
            } else {
                prop_assert_eq!(route.kind, Kind::Recheck);
                prop_assert!(route.ttl_ms * 2 >= max && route.ttl_ms <= max, "{:?}", route);
            }
        }

        #[test]
        fn lanes_ascend_and_names_are_unique_and_fit(max in 0_u64..u64::MAX / 4) {
            let ladder = Ladder::new(Duration::from_millis(max));
            let names = QueueNames::new(&"q".repeat(MAX_WORK_QUEUE_BYTES), &ladder);
            let mut all: Vec<_> = names.due_lanes().iter().chain(names.recheck_lanes()).collect();
            prop_assert!(all.iter().all(|name| name.len() <= 255));
            let count = all.len();
            all.sort();
            all.dedup();
            prop_assert_eq!(all.len(), count);
            prop_assert!(ladder.due_ms().windows(2).all(|pair| pair[0] < pair[1]));
        }

        #[test]
        fn each_recheck_lane_is_as_likely(seed in 0_usize..8) {
            let ladder = Ladder::new(Duration::from_secs(300));
            let route = ladder.choose(u64::MAX, (seed as f64 + 0.5) / 8.0);
            prop_assert_eq!(route.index, seed);
        }
    }
}
