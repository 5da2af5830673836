//! Wakes jobs before their time because an operator changed what they wait for (`Steering::wakes`),
//! for example resumed a tenant or raised a limit.
//!
//! Each job asks once for each change, and keeps its ticket. Jobs in memory ask when the worker
//! learns of the change, jobs in a delay queue when they are delivered. A job that is denied again
//! leaves the window: it takes the delay queue for its new turn, so that the jobs behind it are
//! delivered, too.

use std::time::Duration;

use crate::action::JobKey;
use crate::scheduler::Scheduler;
use crate::scheduler::due_time::DueTime;
use crate::scheduler::entry::{JobEntry, Phase};
use rules::steering::Steering;

/// Marks the job as having followed the newest wake. Returns true if it had not before.
fn follows(steering: &Steering, job: &mut JobEntry) -> bool {
    let wake = steering.wakes(&job.claims.tenant);
    let is_news = job.claims.woken < wake;
    job.claims.woken = job.claims.woken.max(wake);
    is_news
}

impl Scheduler {
    /// Wakes the jobs in memory that have to ask again.
    pub(in crate::scheduler) fn wake_waiting(&mut self, now: Duration) {
        let steering = &self.steering.now;
        if steering.wakes_no_job() || self.intake.is_stopping() {
            return;
        }
        let mut waiting: Vec<(Option<u64>, JobKey)> = Vec::new();
        for (key, job) in &mut self.jobs {
            match job.phase {
                // The job follows when it is looked at, or answered. A job without a turn from the
                // gate waits for something else: its publisher's time, or a retry's.
                Phase::Delayed { .. } | Phase::InWindow { .. }
                    if job.claims.promise.is_some()
                        && job.claims.woken < steering.wakes(&job.claims.tenant) =>
                {
                    waiting.push((job.claims.ticket.map(|ticket| ticket.number), *key));
                }
                Phase::Delayed { .. } | Phase::InWindow { .. } | Phase::Asking => {}
                // The job has yet to ask.
                _ => {
                    follows(steering, job);
                }
            }
        }
        // Sorted into the order of tickets; the map has no stable order.
        waiting.sort_unstable();
        for (_, key) in waiting {
            self.wake(now, key);
        }
    }

    /// Ends the wait of a job that is looked at, if it waits for its turn and has to ask again. The
    /// waits of retries and of delayed starts go on.
    pub(in crate::scheduler) fn end_wait_if_woken(&mut self, now: Duration, key: JobKey) {
        let steering = &self.steering.now;
        if steering.wakes_no_job() {
            return;
        }
        if let Some(job) = self.jobs.get_mut(&key)
            && follows(steering, job)
            && job.claims.promise.take().is_some()
        {
            (job.claims.trip, job.claims.not_before, job.window_until) = (None, None, None);
            job.due = DueTime::at(now);
        }
    }

    /// Returns true if a denied job has to ask once more, because the answer may be older than the
    /// wake that it follows.
    pub(in crate::scheduler) fn must_ask_again(steering: &Steering, job: &mut JobEntry) -> bool {
        !steering.wakes_no_job() && follows(steering, job)
    }
}
