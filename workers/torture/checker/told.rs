//! What was told of jobs' ends, held against their calls.

use std::collections::{HashMap, HashSet};

use super::keys::Keys;
use super::lives::{Broken, DUPLICATE, Lives};
use super::{Finding, Verdict};
use crate::history::{Answer, Event, Job, What};

/// The statuses with which the downstream answered a job so far.
#[derive(Default)]
struct Answered(HashMap<Job, HashSet<u16>>);

impl Verdict {
    /// Each confirmed job has a result, and each result tells of an end that its job had by then: one that says `done` comes after
    /// a call that was, one with a status after a call that had it. One that says `duplicate` comes after another job with its key.
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
            // Nobody listened.
            return;
        }
        let confirmed = lives.jobs.iter().filter(|(_, life)| life.confirmed);
        let untold = confirmed.filter(|(job, _)| !told.contains(job));
        self.findings
            .extend(untold.map(|(job, _)| Finding::Untold { job: *job }));
    }
}

impl Answered {
    /// A job may have ended so by now; `dead`: it is a dead letter at the end.
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

/// What the caller saw.
fn status(answer: Answer) -> Option<u16> {
    match answer {
        Answer::Done => Some(200),
        Answer::Rejected => Some(422),
        Answer::Throttled => Some(429),
        Answer::Failed => Some(500),
        Answer::Cut | Answer::Gone => None,
    }
}
