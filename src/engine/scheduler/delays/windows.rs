//! The jobs that this worker has taken from the delay queues, and the decision which of them make
//! room for jobs behind them.
//!
//! A delay queue delivers its jobs in the order in which they entered it, one window at a time. As
//! long as the window has room, all of the queue's jobs are in some worker's memory, and no job is
//! late. When it is full, jobs behind it may be due before jobs in it. A delay queue whose jobs
//! have so far come in the order of their times is trusted to stay in order, so that no job behind
//! the window is due before those in it. In other delay queues, the jobs with the most time left
//! move on to a shorter delay queue as soon as jobs behind them may be due.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::action::JobKey;
use rules::failures::retry::pause;

/// A job that is due this soon stays in the window: moving it would take as long.
const MIN_MOVE_WAIT: Duration = Duration::from_millis(250);
/// The first and the longest pause between tries of a delay queue that seems to be in order. A try
/// moves some jobs of a full window on, in case jobs behind it are due earlier. The pause doubles
/// while the window stays full.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(64);
/// One in this many of a window's waiting jobs moves on at once.
const MOVE_SHARE: usize = 2;
/// In a try, one in this many of a window's waiting jobs moves on.
const TRY_SHARE: usize = 8;

/// The jobs of one delay queue.
#[derive(Debug, Default)]
struct DelayWindow {
    /// The jobs that wait for their time.
    parked: BTreeSet<(Duration, JobKey)>,
    /// Number of its jobs in memory, including running ones.
    taken: usize,
    /// The latest time of all jobs that came in while the window was in use.
    latest: Duration,
    /// Longest time by which a job was due before `latest` although it arrived later.
    disorder: Duration,
    /// Jobs still in the delay queue, behind the last one delivered, are due at this time or later.
    open_at: Duration,
    /// When a delay queue that seems to be in order is tried next.
    try_at: Duration,
    /// Number of tries so far.
    tries: u32,
}

/// The windows of all delay queues.
#[derive(Debug)]
pub struct DelayWindows {
    room: usize,
    levels: Vec<DelayWindow>,
    positions: HashMap<JobKey, (usize, Duration), RandomState>,
}

impl DelayWindows {
    /// Creates the windows of `levels` delay queues, with up to `room` jobs each.
    pub fn new(levels: usize, room: usize) -> Self {
        Self {
            room,
            levels: std::iter::repeat_with(DelayWindow::default)
                .take(levels)
                .collect(),
            positions: HashMap::default(),
        }
    }

    /// Records that a job came from the delay queue.
    pub fn add(&mut self, level: usize, key: JobKey) {
        if let Some(window) = self.levels.get_mut(level) {
            window.taken += 1;
            self.positions.insert(key, (level, Duration::ZERO));
        }
    }

    /// Lets a job wait until `until`. Jobs that entered its delay queue after it are due at
    /// `open_at` or later.
    pub fn park(&mut self, key: JobKey, until: Duration, open_at: Duration) {
        let Some((level, parked)) = self.positions.get_mut(&key) else {
            return;
        };
        let window = &mut self.levels[*level];
        window.parked.insert((until, key));
        *parked = until;
        window.open_at = open_at;
        window.disorder = window.disorder.max(window.latest.saturating_sub(until));
        window.latest = window.latest.max(until);
    }

    /// Extends a job's wait to `until`, although it could ask now. This does not affect whether the
    /// delay queue counts as ordered.
    pub fn stay(&mut self, key: JobKey, until: Duration) {
        if let Some((level, parked)) = self.positions.get_mut(&key) {
            self.levels[*level].parked.insert((until, key));
            *parked = until;
        }
    }

    /// Ends a job's wait: its time has come.
    pub fn unpark(&mut self, key: JobKey) {
        if let Some((level, until)) = self.positions.get(&key) {
            self.levels[*level].parked.remove(&(*until, key));
        }
    }

    /// Forgets a job that has left memory, or is on its way to another queue.
    pub fn forget(&mut self, key: JobKey) {
        self.unpark(key);
        if let Some((level, _)) = self.positions.remove(&key) {
            let window = &mut self.levels[level];
            window.taken -= 1;
            if window.taken == 0 {
                *window = DelayWindow::default();
            }
        }
    }

    /// Forgets all jobs.
    pub fn clear(&mut self) {
        self.positions.clear();
        self.levels.fill_with(DelayWindow::default);
    }

    /// Returns the number of waiting jobs.
    pub fn parked(&self) -> usize {
        self.levels.iter().map(|window| window.parked.len()).sum()
    }

    /// Returns the jobs that have to move on, and the times that they wait for.
    pub fn surplus(&mut self, now: Duration) -> Vec<(JobKey, Duration)> {
        let mut surplus = Vec::new();
        for window in &mut self.levels {
            if window.check_job(self.room).is_none_or(|at| now < at) {
                continue;
            }
            let share = if window.in_doubt() > now {
                window.tries = window.tries.saturating_add(1);
                window.try_at = now + pause(FIRST_RETRY, MAX_RETRY, window.tries);
                TRY_SHARE
            } else {
                MOVE_SHARE
            };
            let max = (window.parked.len() / share).max(1);
            let far = window.parked.range((now + MIN_MOVE_WAIT, JobKey(0))..);
            surplus.extend(far.rev().take(max).map(|(until, key)| (*key, *until)));
        }
        surplus
    }

    /// Returns when [`DelayWindows::surplus`] may find something.
    pub fn next(&self, now: Duration) -> Option<Duration> {
        let look_at = |window: &DelayWindow| {
            let (last, _) = window.parked.last()?;
            let at = window.check_job(self.room)?.max(now);
            (*last >= at + MIN_MOVE_WAIT).then_some(at)
        };
        self.levels.iter().filter_map(look_at).min()
    }
}

impl DelayWindow {
    /// Returns when jobs behind the window may be due before jobs in it, or `None` if no job is
    /// behind it.
    fn check_job(&self, room: usize) -> Option<Duration> {
        (self.taken >= room).then(|| self.in_doubt().min(self.try_at.max(self.open_at)))
    }

    /// Returns when jobs behind the window may be due before jobs in it, judging by the delay
    /// queue's order so far.
    fn in_doubt(&self) -> Duration {
        self.open_at.max(self.latest.saturating_sub(self.disorder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::SECOND;

    const WINDOW_SIZE: usize = 16;

    /// Returns windows after a delay queue (for waits of 100 s or more) delivered jobs with these
    /// waits. All entered the queue at 0.
    fn taken(waits: impl IntoIterator<Item = u32>) -> DelayWindows {
        let mut windows = DelayWindows::new(2, WINDOW_SIZE);
        for (key, wait) in (1..).map(JobKey).zip(waits) {
            windows.add(1, key);
            windows.park(key, wait * SECOND, 100 * SECOND);
        }
        windows
    }

    fn moved(windows: &mut DelayWindows, now: Duration) -> Vec<u64> {
        let surplus = windows.surplus(now);
        for (key, _) in &surplus {
            windows.forget(*key);
        }
        surplus.into_iter().map(|(key, _)| key.0).collect()
    }

    #[test]
    fn no_job_moves_while_there_is_room() {
        let mut windows = taken((100..115).rev());
        assert_eq!(windows.next(SECOND), None);
        assert!(moved(&mut windows, 99 * SECOND).is_empty());
        assert_eq!(windows.parked(), 15);
    }

    #[test]
    fn in_a_full_window_the_last_make_room_when_others_may_be_due() {
        // The last job to come is due 20 s before the first.
        let mut windows = taken((105..121).rev());
        assert_eq!(windows.next(SECOND), Some(100 * SECOND));
        assert!(moved(&mut windows, 99 * SECOND).is_empty());
        assert_eq!(moved(&mut windows, 100 * SECOND), [1, 2], "a try");
        assert!(
            moved(&mut windows, 105 * SECOND).is_empty(),
            "there is room"
        );
        for (key, wait) in [(17, 104), (18, 103)] {
            windows.add(1, JobKey(key));
            windows.park(JobKey(key), wait * SECOND, 100 * SECOND);
        }
        assert_eq!(
            windows.next(102 * SECOND),
            Some(102 * SECOND),
            "the next try"
        );
        assert_eq!(moved(&mut windows, 103 * SECOND), [3, 4, 5, 6, 7, 8, 9, 10]);
    }

    #[test]
    fn a_delay_queue_in_order_is_tried_with_backoff() {
        let mut windows = taken(110..126);
        let mut next = 17;
        let (mut now, mut tries) = (SECOND, Vec::new());
        while let Some(at) = windows.next(now).filter(|at| *at < 125 * SECOND) {
            now = at;
            for key in moved(&mut windows, now) {
                tries.push((now.as_secs(), key));
                windows.add(1, JobKey(next));
                windows.park(
                    JobKey(next),
                    110 * SECOND + SECOND * next as u32,
                    100 * SECOND,
                );
                next += 1;
            }
        }
        let at: Vec<u64> = tries.iter().map(|(at, _)| *at).collect();
        assert_eq!(at, [100, 100, 101, 101, 103, 103, 107, 107, 115, 115]);
    }

    #[test]
    fn jobs_that_are_due_soon_stay() {
        let mut windows = taken([101; WINDOW_SIZE]);
        assert!(moved(&mut windows, 101 * SECOND).is_empty());
        assert_eq!(windows.next(101 * SECOND), None);
        for key in 1..=16 {
            windows.unpark(JobKey(key));
        }
        assert_eq!(windows.parked(), 0);
        assert_eq!(windows.next(102 * SECOND), None, "all of them run");
    }

    #[test]
    fn a_job_that_waits_on_does_not_count_as_disorder() {
        let mut windows = taken(110..126);
        windows.unpark(JobKey(16));
        windows.stay(JobKey(16), 105 * SECOND);
        assert_eq!(windows.parked(), WINDOW_SIZE);
        assert_eq!(moved(&mut windows, 100 * SECOND), [15, 14], "a try");
    }

    #[test]
    fn a_lost_session_leaves_nothing() {
        let mut windows = taken((105..121).rev());
        windows.clear();
        windows.forget(JobKey(1));
        assert_eq!((windows.parked(), windows.next(SECOND)), (0, None));
        windows.add(9, JobKey(1));
        windows.park(JobKey(1), SECOND, SECOND);
        assert_eq!(windows.parked(), 0, "there is no such delay queue");
    }
}
