//! Jobs that ask anew before their time, since an operator changed what they wait for (`Steering::wakes`): a resumed tenant, a raised limit.
//!
//! Each job does so once for each change, and keeps its ticket. What is in memory asks when the worker learns of it, what is in a delay
//! queue when it is delivered. Who is denied again gives up its place in the window: it takes the delay queue for its new turn, so those
//! behind it are delivered, too.

use std::time::Duration;

use super::Scheduler;
use super::entry::{JobEntry, Phase};
use super::plan::Plan;
use crate::engine::action::Key;
use crate::rules::steering::Steering;

/// The job has followed this call, or an earlier one was the newest. True: it had not.
fn follows(steering: &Steering, job: &mut JobEntry) -> bool {
    let wake = steering.wakes(&job.claims.tenant);
    let is_news = job.claims.woken < wake;
    job.claims.woken = job.claims.woken.max(wake);
    is_news
}

impl Scheduler {
    /// What waits in memory asks anew, if it is to.
    pub(super) fn wake_waiting(&mut self, now: Duration) {
        let steering = &self.steered.now;
        if steering.lets_sleep() || self.intake.is_draining() {
            return;
        }
        let mut waiting: Vec<(Option<u64>, Key)> = Vec::new();
        for (key, job) in &mut self.jobs {
            match job.phase {
                // It follows when it is looked at, or answered. Who was told no turn waits for something else: a publisher's time, or a
                // retry's.
                Phase::Delayed { .. } | Phase::InWindow { .. }
                    if job.claims.promise.is_some()
                        && job.claims.woken < steering.wakes(&job.claims.tenant) =>
                {
                    waiting.push((job.claims.ticket.map(|ticket| ticket.number), *key));
                }
                Phase::Delayed { .. } | Phase::InWindow { .. } | Phase::Asking => {}
                // It has yet to ask.
                _ => {
                    follows(steering, job);
                }
            }
        }
        // In the order of their tickets, and not the map's.
        waiting.sort_unstable();
        for (_, key) in waiting {
            self.wake(now, key);
        }
    }

    /// The job is looked at: if it waits for its turn, and is to ask anew, its time has come. A retry's, and a publisher's, has not.
    pub(super) fn rouse(&mut self, now: Duration, key: Key) {
        let steering = &self.steered.now;
        if steering.lets_sleep() {
            return;
        }
        if let Some(job) = self.jobs.get_mut(&key)
            && follows(steering, job)
            && job.claims.promise.take().is_some()
        {
            (job.claims.trip, job.claims.not_before, job.stays) = (None, None, None);
            job.plan = Plan::at(now);
        }
    }

    /// The job was denied, by an answer that may be older than what it is to follow: then it asks once more.
    pub(super) fn asks_anew(steering: &Steering, job: &mut JobEntry) -> bool {
        !steering.lets_sleep() && follows(steering, job)
    }
}
