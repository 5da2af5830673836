//! Delay levels: which delay queue a job takes for its wait.

use std::time::Duration;

use super::trip::MAX_TRIP_MS;
use crate::limit::ceil_ms;

/// Number of levels from one wait to its double. 2^(1/3) is 1.26: of two jobs in a delay queue, the
/// one behind is due at most 26 % of its wait before the other.
pub const STEPS_PER_OCTAVE: u32 = 3;
/// The shortest wait of the second level, in milliseconds. The first level has the shorter waits.
const FIRST_MS: u64 = 250;
/// The route of a job through a delay queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Route {
    /// The delay queue's level; 0 has the shortest waits.
    pub level: usize,
    /// How long the job stays in the queue, in milliseconds.
    pub wait_ms: u64,
    /// Whether that is the whole wait. Otherwise the job asks again and waits on.
    pub is_complete: bool,
}

/// The shortest wait of each delay queue, and the longest trip for one `max-delay`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelayLevels {
    from_ms: Vec<u64>,
    max_ms: u64,
}

impl DelayLevels {
    /// Returns the levels for trips up to `max_delay`, rounded up to whole milliseconds, at most
    /// [`MAX_TRIP_MS`]. The delay queues are the same for any `max_delay`: each worker takes from
    /// all of them, even if another worker's longest trip differs.
    pub fn new(max_delay: Duration) -> Self {
        let steps = (0_u32..)
            .map(step_ms)
            .take_while(|from| *from < MAX_TRIP_MS);
        Self {
            from_ms: std::iter::once(0).chain(steps).collect(),
            max_ms: ceil_ms(max_delay).clamp(1, MAX_TRIP_MS),
        }
    }

    /// Returns the shortest wait of each delay queue, in milliseconds, ascending from 0.
    pub fn from_ms(&self) -> &[u64] {
        &self.from_ms
    }

    /// Returns the longest trip, in milliseconds.
    pub fn max_ms(&self) -> u64 {
        self.max_ms
    }

    /// Returns the route for a wait. A wait above [`Self::max_ms`] takes the delay queue of the
    /// longest trips, with the shortest wait of that queue: a job that enters later is then due
    /// later, so no job has to wait for one behind it, and jobs come back in the order in which
    /// they were sent. Such a job may itself be behind longer trips, but these end before its whole
    /// wait does.
    pub fn choose(&self, wait_ms: u64) -> Route {
        let trip_ms = wait_ms.min(self.max_ms);
        let longer = self.from_ms.partition_point(|from| *from <= trip_ms);
        let level = longer.saturating_sub(1);
        let is_complete = wait_ms <= self.max_ms;
        Route {
            level,
            wait_ms: match is_complete || level == 0 {
                true => trip_ms,
                false => self.from_ms[level],
            },
            is_complete,
        }
    }
}

/// Returns the shortest wait of a step: `FIRST_MS * 2^(step / STEPS_PER_OCTAVE)`, rounded. Every
/// machine computes the same integers: the power is exact per octave, and the rest is far from a
/// rounding edge. The caller stops at [`MAX_TRIP_MS`], 12 octaves up, so the shift cannot overflow.
fn step_ms(step: u32) -> u64 {
    let octave = FIRST_MS << (step / STEPS_PER_OCTAVE);
    let part = f64::from(step % STEPS_PER_OCTAVE) / f64::from(STEPS_PER_OCTAVE);
    (octave as f64 * part.exp2()).round() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ten_minutes_make_some_thirty_levels() {
        let levels = DelayLevels::new(Duration::from_secs(300));
        let from = levels.from_ms();
        assert_eq!(from.len(), 35);
        assert_eq!(from[..8], [0, 250, 315, 397, 500, 630, 794, 1000]);
        assert_eq!(from.last(), Some(&512_000));
        assert_eq!(levels.max_ms(), 300_000);
    }

    proptest! {
        #[test]
        fn a_level_covers_waits_from_its_time_to_the_next(
            max in 1_u64..100_000_000, wait in 0_u64..100_000_000,
        ) {
            let levels = DelayLevels::new(Duration::from_millis(max));
            let longest = max.min(MAX_TRIP_MS);
            let route = levels.choose(wait);
            prop_assert_eq!(route.is_complete, wait <= longest);
            let from = levels.from_ms()[route.level];
            let end = levels.from_ms().get(route.level + 1).copied().unwrap_or(u64::MAX);
            prop_assert!(from <= route.wait_ms && route.wait_ms < end, "{:?}", route);
            if route.is_complete {
                prop_assert_eq!(route.wait_ms, wait);
            } else {
                // The first delay queue has no minimum wait.
                let part = if from == 0 { longest } else { from };
                prop_assert_eq!(route.wait_ms, part);
                prop_assert!(part * 13 >= longest * 10 && longest < end, "{:?}", route);
            }
        }
    }
}
