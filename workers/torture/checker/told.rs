//! Compares results of jobs with their calls.

use std::collections::{HashMap, HashSet};

use super::keys::Keys;
use super::lives::{Broken, DUPLICATE, Lives};
use super::{Finding, Verdict};
use crate::history::{Answer, Event, Job, What};

/// The statuses with which the downstream has answered each job so far.
#[derive(Default)]
struct Answered(HashMap<Job, HashSet<u16>>);

impl Verdict {
    /// Checks that each confirmed job has a result, and each result is true when it comes. `done`
    /// must follow a successful call, a status a call with that status, and `duplicate` another job
    /// with the same key.
    pub(super) fn told(
        &mut self,
        events: &[Event],
        (lives, keys): (&Lives, &Keys<'_>),
        broken: &Broken,
    ) {
        let mut calls: HashMap<u64, Job> = HashMap::new();
        let mut answered = Answered::default();
        let mut told: HashSet<Job> = HashSet::new();
        for Event { at, what } in events {
            match what {
                What::Arrived { call, job, .. } => _ = calls.insert(*call, *job),
                What::Answered { call, answer } => {
                    if let (Some(job), Some(status)) = (calls.get(call), status(*answer)) {
                        answered.0.entry(*job).or_default().insert(status);
                    }
                }
                What::Told { job, ended, status } => {
                    self.results += 1;
                    let is_right = job.is_some_and(|job| {
                        told.insert(job);
                        let life = lives.jobs.get(&job);
                        if ended == DUPLICATE {
                            let may = |life| keys.may_drop(job, life, *at, broken);
                            return status.is_none() && life.is_some_and(may);
                        }
                        let dead = life.is_some_and(|life| life.dead.is_some());
                        answered.allows(job, ended, *status, dead)
                    });
                    if !is_right {
                        self.findings.push(Finding::Mistold {
                            at: *at,
                            job: *job,
                            how: format!("{ended} {status:?}"),
                        });
                    }
                }
                _ => {}
            }
        }
        if self.results == 0 {
            // No listener was running.
            return;
        }
        let confirmed = lives.jobs.iter().filter(|(_, life)| life.confirmed);
        let untold = confirmed.filter(|(job, _)| !told.contains(job));
        self.findings
            .extend(untold.map(|(job, _)| Finding::Untold { job: *job }));
    }
}

impl Answered {
    /// Returns true if the job may have ended like this by now. `dead`: the job is a dead letter at
    /// the end.
    fn allows(&self, job: Job, ended: &str, status: Option<u16>, dead: bool) -> bool {
        let had = |status: u16| self.0.get(&job).is_some_and(|all| all.contains(&status));
        let had_its_status = status.is_none_or(had);
        match ended {
            "done" => status == Some(200) && had(200),
            "dead" | "expired" => dead && had_its_status,
            _ => false,
        }
    }
}

/// Returns the status that the caller saw.
fn status(answer: Answer) -> Option<u16> {
    match answer {
        Answer::Done => Some(200),
        Answer::Rejected => Some(422),
        Answer::Throttled => Some(429),
        Answer::Failed => Some(500),
        Answer::Cut | Answer::Gone => None,
    }
}
