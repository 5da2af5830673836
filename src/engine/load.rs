//! Measures the use of worker slots, and schedules the counts of jobs in memory.

use std::time::Duration;

/// Interval at which the jobs in memory are counted, and over which the use of the slots is
/// averaged.
pub(super) const LOAD_INTERVAL: Duration = Duration::from_secs(2);

/// The time for which slots were in use.
#[derive(Debug, Default)]
pub(super) struct SlotLoad {
    /// Time of the last change.
    at: Duration,
    /// Slots in use since then.
    taken: usize,
    /// Time of the last count.
    since: Duration,
    /// Use since the last count, in slots times seconds.
    used: f64,
    /// Whether there was something to count.
    busy: bool,
}

impl SlotLoad {
    /// Sets the slots in use from now on to `taken`. Returns the previous number, and how long it
    /// lasted.
    pub(super) fn turn(&mut self, now: Duration, taken: usize) -> (usize, Duration) {
        let lasted = now.saturating_sub(self.at);
        let before = std::mem::replace(&mut self.taken, taken);
        self.at = now;
        self.used += f64::from(u32::try_from(before).unwrap_or(u32::MAX)) * lasted.as_secs_f64();
        (before, lasted)
    }

    /// Returns when the jobs in memory are to be counted, given their number. Returns `None` if
    /// nothing has changed since the last count.
    pub(super) fn next(&self, in_memory: usize) -> Option<Duration> {
        (in_memory > 0 || self.busy).then(|| self.since + LOAD_INTERVAL)
    }

    /// Records a count, and returns the share of all `slots` that was in use since the last one.
    pub(super) fn counted(&mut self, now: Duration, slots: usize, in_memory: usize) -> f64 {
        let lasted = now.saturating_sub(self.since).as_secs_f64();
        let all = f64::from(u32::try_from(slots).unwrap_or(u32::MAX)) * lasted;
        let used = std::mem::take(&mut self.used);
        self.since = now;
        self.busy = in_memory > 0 || used > 0.0;
        if all > 0.0 {
            (used / all).min(1.0)
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::SECOND;

    #[test]
    fn slots_in_use_count_until_they_change() {
        let mut load = SlotLoad::default();
        assert_eq!(load.turn(10 * SECOND, 4), (0, 10 * SECOND));
        assert!(load.counted(10 * SECOND, 8, 4).abs() < 1e-9);
        assert_eq!(load.turn(11 * SECOND, 2), (4, SECOND));
        assert_eq!(load.turn(13 * SECOND, 0), (2, 2 * SECOND));
        assert_eq!(load.turn(14 * SECOND, 8), (0, SECOND));
        let share = load.counted(14 * SECOND, 8, 0);
        assert!((share - 8.0 / 32.0).abs() < 1e-9, "{share}");
        // The concurrency was lowered while more slots were in use.
        load.turn(18 * SECOND, 8);
        let share = load.counted(18 * SECOND, 4, 0);
        assert!((share - 1.0).abs() < 1e-9, "{share}");
    }

    #[test]
    fn an_idle_worker_is_counted_once_more_and_then_skipped() {
        let mut load = SlotLoad::default();
        assert_eq!(load.next(0), None);
        assert_eq!(load.next(1), Some(LOAD_INTERVAL));
        load.turn(SECOND, 1);
        load.turn(2 * SECOND, 0);
        load.counted(2 * SECOND, 8, 1);
        assert_eq!(load.next(0), Some(2 * SECOND + LOAD_INTERVAL));
        load.counted(4 * SECOND, 8, 0);
        assert_eq!(load.next(0), None);
    }
}
