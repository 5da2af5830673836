//! The jobs that wait in memory: until when, in which delay queue's window, and for whose lease.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::lead::PrepareLead;
use super::leases::Leases;
use super::windows::DelayWindows;
use crate::action::JobKey;

/// Timers of the waiting jobs, and what else can end their waits.
#[derive(Debug)]
pub struct JobTimers {
    timers: BinaryHeap<Reverse<(Duration, JobKey)>>,
    /// The jobs that came from delay queues.
    pub windows: DelayWindows,
    /// The jobs that the end of a call may wake.
    pub leases: Leases,
    /// How long before their turns calls are prepared.
    pub lead: PrepareLead,
}

impl JobTimers {
    /// Creates the state for `levels` delay queues, with up to `window` jobs of each.
    pub fn new(levels: usize, window: usize) -> Self {
        Self {
            timers: BinaryHeap::new(),
            windows: DelayWindows::new(levels, window),
            leases: Leases::default(),
            lead: PrepareLead::default(),
        }
    }

    /// Forgets all waiting jobs at the end of a session.
    pub fn clear(&mut self) {
        self.leases.clear();
        self.windows.clear();
        self.timers.clear();
    }

    /// Schedules a look at the job or its message.
    pub fn check_at(&mut self, at: Duration, key: JobKey) {
        self.timers.push(Reverse((at, key)));
    }

    /// Lets the job wait until `until`. Looks at it earlier when its call has to be prepared.
    pub fn wait(&mut self, until: Duration, key: JobKey) {
        self.check_at(until, key);
        let lead = self.lead.get();
        if !lead.is_zero() {
            self.check_at(until.saturating_sub(lead), key);
        }
    }

    /// Takes the next job whose time has come, and that time.
    pub fn due(&mut self, now: Duration) -> Option<(Duration, JobKey)> {
        self.next().filter(|at| *at <= now)?;
        self.timers.pop().map(|Reverse(due)| due)
    }

    /// Returns when [`JobTimers::due`] finds something.
    pub fn next(&self) -> Option<Duration> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Lets the job wait in the window of its delay queue, to ask at `ask_at`, because its trip
    /// ends at `until`. Jobs that entered the delay queue after it are due at `open_at` or later.
    pub fn wait_for_trip(
        &mut self,
        key: JobKey,
        ask_at: Duration,
        until: Duration,
        open_at: Duration,
    ) {
        self.wait(ask_at, key);
        self.windows.park(key, until, open_at);
    }

    /// Lets the job wait on in the window of its delay queue, to ask at `ask_at`, because its turn
    /// comes at `until`.
    pub fn wait_in_window(&mut self, key: JobKey, ask_at: Duration, until: Duration) {
        self.wait(ask_at, key);
        self.windows.stay(key, until);
    }

    /// Ends the job's wait.
    pub fn end(&mut self, key: JobKey) {
        self.leases.forget(key);
        self.windows.unpark(key);
    }

    /// Forgets a job that is no longer in memory.
    pub fn forget(&mut self, key: JobKey) {
        self.leases.forget(key);
        self.windows.forget(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::MS;

    #[test]
    fn due_jobs_are_checked_in_order() {
        let mut waiting = JobTimers::new(1, 4);
        waiting.wait(20 * MS, JobKey(1));
        waiting.wait(10 * MS, JobKey(3));
        waiting.check_at(10 * MS, JobKey(2));
        assert_eq!(waiting.next(), Some(10 * MS));
        assert_eq!(waiting.due(9 * MS), None);
        assert_eq!(waiting.due(15 * MS), Some((10 * MS, JobKey(2))));
        assert_eq!(waiting.due(15 * MS), Some((10 * MS, JobKey(3))));
        assert_eq!(waiting.due(15 * MS), None);
        waiting.clear();
        assert_eq!(waiting.next(), None);
    }

    #[test]
    fn slow_preparation_starts_before_jobs_are_due() {
        let mut waiting = JobTimers::new(1, 4);
        waiting.lead.learn(100 * MS);
        waiting.wait(1_000 * MS, JobKey(1));
        assert_eq!(waiting.due(900 * MS), Some((880 * MS, JobKey(1))));
        assert_eq!(waiting.due(900 * MS), None);
        assert_eq!(waiting.due(1_000 * MS), Some((1_000 * MS, JobKey(1))));
    }

    #[test]
    fn a_job_is_in_its_window_until_it_leaves() {
        let mut waiting = JobTimers::new(1, 4);
        waiting.windows.add(0, JobKey(1));
        waiting.wait_for_trip(JobKey(1), 40 * MS, 50 * MS, 50 * MS);
        assert_eq!(waiting.windows.parked(), 1);
        waiting.end(JobKey(1));
        assert_eq!(waiting.windows.parked(), 0);
        waiting.wait_in_window(JobKey(1), 60 * MS, 60 * MS);
        assert_eq!(waiting.windows.parked(), 1);
        waiting.forget(JobKey(1));
        assert_eq!(waiting.windows.parked(), 0);
    }
}
