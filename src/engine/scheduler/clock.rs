//! The store's clock, as the gate's answers show it, and the jobs that wait for its first reading.

use std::time::Duration;

use super::queues::QueuePosition;
use super::report_limiter::ReportLimiter;
use crate::action::JobKey;
use rules::job::NotBefore;
use rules::limit::floor_ms;

/// Minimum interval between reports that it can't be read.
const UNREADABLE_REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// A reading of the clock.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// Milliseconds since the Unix epoch.
    ms: u64,
    /// When it was recorded.
    at: Duration,
    /// How long before that the store was asked, and had answered. The worker may have asked before
    /// the scheduler's time began.
    asked_ago: Duration,
    read_ago: Duration,
}

/// The last reading, and the jobs that wait for the first one.
#[derive(Debug, Default)]
pub(super) struct StoreClock {
    reading: Option<Reading>,
    /// Jobs that wait for the clock because their times are in store time, and the position at
    /// which each joins its queue.
    waiting: Vec<(JobKey, QueuePosition)>,
    unread: ReportLimiter,
}

impl StoreClock {
    /// Records at `at` a reading of `ms` that took place between `asked_ago` and `read_ago` before.
    pub(super) fn read(&mut self, at: Duration, ms: u64, asked_ago: Duration, read_ago: Duration) {
        self.reading = Some(Reading {
            ms,
            at,
            asked_ago,
            read_ago,
        });
    }

    /// Returns the clock's time at `now`, never ahead of the truth, or `None` before the first
    /// reading.
    pub(super) fn at_least(&self, now: Duration) -> Option<u64> {
        let clock = self.reading?;
        let since = now.saturating_sub(clock.at) + clock.read_ago;
        Some(clock.ms.saturating_add(floor_ms(since)))
    }

    /// Returns the clock's time at `now`, never behind the truth, or `None` before the first
    /// reading.
    pub(super) fn at_most(&self, now: Duration) -> Option<u64> {
        let clock = self.reading?;
        let since = now.saturating_sub(clock.at) + clock.asked_ago;
        Some(clock.ms.saturating_add(floor_ms(since)).saturating_add(1))
    }

    /// Returns the rest of a job's delay, if it is ahead.
    pub(super) fn rest(&self, now: Duration, delay: NotBefore) -> Option<NotBefore> {
        let at_least = self.at_least(now).unwrap_or_default();
        delay.rest(at_least, self.at_most(now).unwrap_or(u64::MAX))
    }

    /// Lets a job wait for the first reading.
    pub(super) fn wait(&mut self, key: JobKey, end: QueuePosition) {
        self.waiting.push((key, end));
    }

    /// Returns the waiting jobs.
    pub(super) fn waiting(&self) -> impl ExactSizeIterator<Item = JobKey> {
        self.waiting.iter().map(|(key, _)| *key)
    }

    /// Moves the first waiting job to the end, because the clock could not be read with it.
    pub(super) fn try_next(&mut self) {
        let next = 1.min(self.waiting.len());
        self.waiting.rotate_left(next);
    }

    /// Takes the waiting jobs.
    pub(super) fn take_waiting(&mut self) -> Vec<(JobKey, QueuePosition)> {
        std::mem::take(&mut self.waiting)
    }

    /// Returns true if a failed reading is to be reported.
    pub(super) fn should_report_unreadable(&mut self, now: Duration) -> bool {
        self.unread.may_report(now, UNREADABLE_REPORT_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::MS;

    #[test]
    fn the_store_time_is_between_two_bounds() {
        let mut clock = StoreClock::default();
        assert_eq!((clock.at_least(MS), clock.at_most(MS)), (None, None));
        clock.read(30 * MS, 1_000, 20 * MS, Duration::ZERO);
        assert_eq!(clock.at_least(35 * MS), Some(1_005));
        assert_eq!(clock.at_most(35 * MS), Some(1_026));
        // Asked before the scheduler's time began.
        clock.read(2 * MS, 2_000, 300 * MS, 100 * MS);
        assert_eq!(clock.at_least(5 * MS), Some(2_103));
        assert_eq!(clock.at_most(5 * MS), Some(2_304));
    }

    #[test]
    fn each_waiting_job_is_tried() {
        let mut clock = StoreClock::default();
        clock.try_next();
        clock.wait(JobKey(1), QueuePosition::Due);
        clock.wait(JobKey(2), QueuePosition::Fresh);
        clock.try_next();
        assert_eq!(clock.waiting().next(), Some(JobKey(2)));
        let all = clock.take_waiting();
        assert_eq!(
            all,
            [
                (JobKey(2), QueuePosition::Fresh),
                (JobKey(1), QueuePosition::Due)
            ]
        );
        assert_eq!(clock.waiting().len(), 0);
    }
}
