//! The store's clock, as the gate's answers show it, and the jobs that wait to know it.

use std::time::Duration;

use super::millis;
use super::queues::End;
use super::seldom::Seldom;
use crate::engine::action::Key;

/// That it can't be read is told so often at most.
const UNREAD_TOLD: Duration = Duration::from_secs(60);

/// One reading.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// What it said, in milliseconds since the epoch.
    ms: u64,
    /// It was read between these two.
    asked_at: Duration,
    read_at: Duration,
}

/// The last reading, and who waits for the first.
#[derive(Debug, Default)]
pub(super) struct StoreClock {
    reading: Option<Reading>,
    /// Jobs whose times are the store's, and where they are to ask.
    waiting: Vec<(Key, End)>,
    unread: Seldom,
}

impl StoreClock {
    /// It said `ms` at a time from `asked_at` to `read_at`.
    pub(super) fn read(&mut self, ms: u64, asked_at: Duration, read_at: Duration) {
        self.reading = Some(Reading {
            ms,
            asked_at,
            read_at,
        });
    }

    /// What it says at `now`, never ahead of the truth; `None` until the gate has answered once.
    pub(super) fn at_least(&self, now: Duration) -> Option<u64> {
        let clock = self.reading?;
        let since = now.saturating_sub(clock.read_at);
        Some(clock.ms.saturating_add(millis(since)))
    }

    /// The same, never behind the truth.
    pub(super) fn at_most(&self, now: Duration) -> Option<u64> {
        let clock = self.reading?;
        let since = now.saturating_sub(clock.asked_at);
        Some(clock.ms.saturating_add(millis(since)).saturating_add(1))
    }

    /// The job waits for the first reading.
    pub(super) fn wait(&mut self, key: Key, end: End) {
        self.waiting.push((key, end));
    }

    /// Who waits.
    pub(super) fn waiting(&self) -> impl ExactSizeIterator<Item = Key> {
        self.waiting.iter().map(|(key, _)| *key)
    }

    /// It could not be read with the first that waits: the next one is tried.
    pub(super) fn try_next(&mut self) {
        let next = 1.min(self.waiting.len());
        self.waiting.rotate_left(next);
    }

    /// It was read: who waited for it.
    pub(super) fn take_waiting(&mut self) -> Vec<(Key, End)> {
        std::mem::take(&mut self.waiting)
    }

    /// It could not be read: whether that is to be told.
    pub(super) fn is_news_that_unread(&mut self, now: Duration) -> bool {
        self.unread.is_news(now, UNREAD_TOLD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_truth_is_between_two_bounds() {
        let mut clock = StoreClock::default();
        assert_eq!((clock.at_least(MS), clock.at_most(MS)), (None, None));
        clock.read(1_000, 10 * MS, 30 * MS);
        assert_eq!(clock.at_least(35 * MS), Some(1_005));
        assert_eq!(clock.at_most(35 * MS), Some(1_026));
    }

    #[test]
    fn each_of_those_that_wait_is_tried() {
        let mut clock = StoreClock::default();
        clock.try_next();
        clock.wait(Key(1), End::Due);
        clock.wait(Key(2), End::Fresh);
        clock.try_next();
        assert_eq!(clock.waiting().next(), Some(Key(2)));
        let all = clock.take_waiting();
        assert_eq!(all, [(Key(2), End::Fresh), (Key(1), End::Due)]);
        assert_eq!(clock.waiting().len(), 0);
    }
}
