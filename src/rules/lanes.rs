//! The delay lanes: queues for jobs that wait, by how long they wait, and which one a job takes.
//!
//! A lane keeps no time: it is a plain queue, and each job in it carries its own ([`Trip`]). Workers take jobs from all lanes,
//! a [`window`] from each, and hold them until their time. A job enters the lane of its wait, so that those before it in
//! the lane are due about when it is: what one job can be late for another is below a step of the ladder.

use std::sync::Arc;
use std::time::Duration;

use crate::rules::limit::ceil_ms;

/// Lanes from one time to its double. 2^(1/3) is 1.26: of two jobs of a lane, the one behind is due at most 26 % of its wait
/// before the other.
pub const STEPS_PER_OCTAVE: u32 = 3;
/// The first lane after the one for shorter waits begins here, in milliseconds.
const FIRST_MS: u64 = 250;
/// The longest trip through a lane, in milliseconds. A job may be in a worker's hands for all of it, and RabbitMQ closes the
/// channel of a consumer that has had a message for `consumer_timeout` (30 minutes, or what somebody has set).
pub const MAX_TRIP_MS: u64 = 600_000;
/// A worker has so much of its prefetch of each lane waiting, beside what runs: 1 / this.
const WINDOW_SHARE: usize = 8;
/// A job asks so long before its turn, in milliseconds, and up to 1 / [`LEAD_SHARE`] of its wait before that.
const LEAD_MS: u64 = 100;
const LEAD_SHARE: u64 = 12;
/// The longest name of a work queue, in bytes. AMQP's names have at most 255, and the queues beside it have longer ones: 18 bytes
/// now, with room for those of later versions.
pub const MAX_WORK_QUEUE_BYTES: usize = 200;

/// How many jobs of one lane a worker has at once, if it has `prefetch` of each of its main queues and runs `concurrency` jobs:
/// all that run may have come from one lane, and stay unacked meanwhile; those behind them may be due, too.
pub fn window(prefetch: usize, concurrency: usize) -> usize {
    (prefetch / WINDOW_SHARE).max(1) + concurrency.min(prefetch)
}

/// A job's wait in a lane, as the job carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trip {
    /// When it ends, in milliseconds of the store's clock; 0: the clock was not known.
    pub until_ms: u64,
    /// How long it takes, in milliseconds.
    pub wait_ms: u64,
}

impl Trip {
    /// What is left of it for a job that has just arrived, in milliseconds. Never more than the whole: a clock that was stepped
    /// back makes nobody wait for as long as the step.
    pub fn left_ms(&self, store_now_ms: u64) -> u64 {
        match self.until_ms {
            0 => self.wait_ms,
            until => until.saturating_sub(store_now_ms).min(self.wait_ms),
        }
    }
}

/// How long before the end of its wait a job in a worker's memory asks for its turn, in milliseconds. To ask early costs a
/// question and no delivery, and who is there early starts in the place of one that is late or gone: limits are used up
/// though jobs vanish, and a limit that was raised is noticed. `spread`, a random number in [0, 1), keeps those apart that
/// entered a lane together. Short waits have none, so that nobody asks without a pause.
pub fn lead_ms(wait_ms: u64, spread: f64) -> u64 {
    if wait_ms <= 2 * LEAD_MS {
        return 0;
    }
    let share = ((wait_ms - LEAD_MS) / LEAD_SHARE) as f64 * spread.clamp(0.0, 1.0);
    // A float to integer cast saturates.
    LEAD_MS + share as u64
}

/// How long after the end of its trip a job may still be in the worker's memory, in milliseconds, since its turn is a
/// little later than it was told.
pub fn stay_ms(wait_ms: u64) -> u64 {
    wait_ms / LEAD_SHARE
}

/// The way through a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Route {
    /// The lane's position, shortest first.
    pub lane: usize,
    /// How long the job is to be away, in milliseconds.
    pub wait_ms: u64,
    /// That is all of its wait; else the job is asked for anew, and waits on.
    pub whole: bool,
}

/// All lanes, and the longest trip for one `max-delay`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ladder {
    from_ms: Vec<u64>,
    max_ms: u64,
}

impl Ladder {
    /// Trips up to `max_delay` (in whole milliseconds, rounded up; [`MAX_TRIP_MS`] at most). The lanes are the same for any:
    /// each worker takes from all of them, whatever another one's longest trip is.
    pub fn new(max_delay: Duration) -> Self {
        Self::with_steps(max_delay, STEPS_PER_OCTAVE)
    }

    /// The same with another number of lanes, for measurements: workers that differ in it do not take each other's jobs.
    #[doc(hidden)]
    pub fn with_steps(max_delay: Duration, per_octave: u32) -> Self {
        let steps = (0_u32..)
            .map(|step| step_ms(step, per_octave))
            .take_while(|from| *from < MAX_TRIP_MS);
        Self {
            from_ms: std::iter::once(0).chain(steps).collect(),
            max_ms: ceil_ms(max_delay).clamp(1, MAX_TRIP_MS),
        }
    }

    /// The shortest wait of each lane, in milliseconds, ascending from 0.
    pub fn from_ms(&self) -> &[u64] {
        &self.from_ms
    }

    /// The longest trip, in milliseconds.
    pub fn max_ms(&self) -> u64 {
        self.max_ms
    }

    /// The way for a wait. One above [`Self::max_ms`] is cut to a part of that, from a half of it on, which `spread`, a random number
    /// in [0, 1), picks: jobs that are sent round together do not come back together.
    pub fn choose(&self, wait_ms: u64, spread: f64) -> Route {
        let whole = wait_ms <= self.max_ms;
        let wait_ms = if whole {
            wait_ms
        } else {
            let half = self.max_ms / 2;
            // A float to integer cast saturates.
            self.max_ms - ((half as f64 * spread.clamp(0.0, 1.0)) as u64)
        };
        let longer = self.from_ms.partition_point(|from| *from <= wait_ms);
        Route {
            lane: longer.saturating_sub(1),
            wait_ms,
            whole,
        }
    }
}

/// The time of a step: `FIRST_MS * 2^(step / per_octave)`, rounded. Every machine gets the same
/// integers: the power is exact by octaves, and what is left is far from a rounding edge. The caller stops
/// at [`MAX_TRIP_MS`], 12 octaves up, so that the shift cannot overflow.
fn step_ms(step: u32, per_octave: u32) -> u64 {
    let octave = FIRST_MS << (step / per_octave);
    let part = f64::from(step % per_octave) / f64::from(per_octave);
    (octave as f64 * part.exp2()).round() as u64
}

/// The names of all queues, derived from the work queue's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueNames {
    /// `jobs`: fresh work.
    pub fresh: Arc<str>,
    /// `jobs.due`: where lanes of earlier versions end.
    pub due: Arc<str>,
    /// `jobs.recheck`: where lanes of earlier versions end for waits that were longer than the longest of them.
    pub recheck: Arc<str>,
    /// `jobs.dead`: dead letters.
    pub dead: Arc<str>,
    lanes: Vec<Arc<str>>,
}

impl QueueNames {
    /// Names for the work queue `work`. A lane's name says from which wait on jobs take it; since each job carries its
    /// time, it does no harm if another ladder means a little more or less by it.
    pub fn new(work: &str, ladder: &Ladder) -> Self {
        let lane = |from: &u64| format!("{work}.delay.from-{from}").into();
        Self {
            fresh: work.into(),
            due: format!("{work}.due").into(),
            recheck: format!("{work}.recheck").into(),
            dead: format!("{work}.dead").into(),
            lanes: ladder.from_ms().iter().map(lane).collect(),
        }
    }

    /// The lane's queue. A route of another ladder falls back to `jobs.due`, where the job waits as well.
    pub fn lane(&self, route: Route) -> &Arc<str> {
        self.lanes.get(route.lane).unwrap_or(&self.due)
    }

    /// The lanes, in the order of [`Ladder::from_ms`].
    pub fn lanes(&self) -> &[Arc<str>] {
        &self.lanes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ten_minutes_make_some_thirty_lanes() {
        let ladder = Ladder::new(Duration::from_secs(300));
        let from = ladder.from_ms();
        assert_eq!(from.len(), 35);
        assert_eq!(from[..8], [0, 250, 315, 397, 500, 630, 794, 1000]);
        assert_eq!(from.last(), Some(&512_000));
        assert_eq!(ladder.max_ms(), 300_000);
        assert_eq!(window(500, 64), 62 + 64);
        assert_eq!(window(1, 64), 2);
    }

    #[test]
    fn all_workers_of_a_work_queue_have_the_same_lanes() {
        let names = |secs| QueueNames::new("jobs", &Ladder::new(Duration::from_secs(secs)));
        let some = names(300);
        assert_eq!(some, names(1));
        assert_eq!(some, names(86_400));
        assert_eq!(
            [&*some.fresh, &*some.due, &*some.recheck, &*some.dead],
            ["jobs", "jobs.due", "jobs.recheck", "jobs.dead"]
        );
        let lane = |wait, spread| {
            let ladder = Ladder::new(Duration::from_secs(300));
            some.lane(ladder.choose(wait, spread)).to_string()
        };
        assert_eq!(lane(60, 0.0), "jobs.delay.from-0");
        assert_eq!(lane(300_000, 0.0), "jobs.delay.from-256000");
        assert_eq!(lane(u64::MAX, 0.0), "jobs.delay.from-256000");
        assert_eq!(lane(u64::MAX, 0.999), "jobs.delay.from-128000");
    }

    #[test]
    fn nobody_waits_for_longer_than_he_was_told() {
        let trip = |until_ms| Trip {
            until_ms,
            wait_ms: 10_000,
        };
        let left = |until, now| trip(until).left_ms(now);
        assert_eq!(left(1_010_000, 1_000_000), 10_000);
        assert_eq!(left(1_010_000, 1_009_999), 1);
        assert_eq!(left(1_010_000, 2_000_000), 0);
        assert_eq!(
            left(1_010_000, 500_000),
            10_000,
            "the clock was stepped back"
        );
        assert_eq!(left(0, 1_000_000), 10_000, "the clock was not known");
    }

    #[test]
    fn a_job_asks_at_most_a_twelfth_of_its_wait_early() {
        assert_eq!((lead_ms(200, 1.0), lead_ms(201, 0.0)), (0, 100));
        assert_eq!((lead_ms(1_300, 0.0), lead_ms(1_300, 1.0)), (100, 200));
        assert_eq!(lead_ms(600_000, 1.0), 100 + 49_991);
        assert_eq!(stay_ms(600_000), 50_000);
    }

    proptest! {
        #[test]
        fn a_lane_has_waits_from_its_time_to_the_next(
            max in 1_u64..100_000_000, wait in 0_u64..100_000_000, spread in 0.0..1.0,
        ) {
            let ladder = Ladder::new(Duration::from_millis(max));
            let longest = max.min(MAX_TRIP_MS);
            let route = ladder.choose(wait, spread);
            prop_assert_eq!(route.whole, wait <= longest);
            if route.whole {
                prop_assert_eq!(route.wait_ms, wait);
            } else {
                prop_assert!(route.wait_ms * 2 >= longest && route.wait_ms <= longest, "{:?}", route);
            }
            prop_assert!(ladder.from_ms()[route.lane] <= route.wait_ms);
            let next = ladder.from_ms().get(route.lane + 1);
            prop_assert!(next.is_none_or(|next| route.wait_ms < *next));
        }
    }

    #[test]
    fn lanes_ascend_and_names_are_unique_and_fit() {
        let ladder = Ladder::new(Duration::from_secs(300));
        let names = QueueNames::new(&"q".repeat(MAX_WORK_QUEUE_BYTES), &ladder);
        assert!(names.lanes().iter().all(|name| name.len() <= 255));
        let unique: std::collections::HashSet<_> = names.lanes().iter().collect();
        assert_eq!(unique.len(), ladder.from_ms().len());
        assert!(ladder.from_ms().windows(2).all(|pair| pair[0] < pair[1]));
    }
}
