//! Compares results of jobs with their calls.

use std::collections::{HashMap, HashSet};

use super::lives::DUPLICATE;
use super::{Checker, Violation};
use crate::history::{DownstreamAnswer, EventKind, HistoryEvent, JobId};

/// The statuses with which the downstream has answered each job so far.
#[derive(Default)]
struct AnsweredStatuses(HashMap<JobId, HashSet<u16>>);

impl Checker<'_> {
    /// Checks that each confirmed job has a result, and each result is true when it comes. `done`
    /// must follow a successful call, a status a call with that status, and `duplicate` another job
    /// with the same key.
    pub(super) fn results(&mut self) {
        let mut calls: HashMap<u64, JobId> = HashMap::new();
        let mut answered = AnsweredStatuses::default();
        let mut have_result: HashSet<JobId> = HashSet::new();
        for HistoryEvent { at, what } in self.events {
            match what {
                EventKind::Arrived { call, job, .. } => _ = calls.insert(*call, *job),
                EventKind::Answered { call, answer } => {
                    if let (Some(job), Some(status)) = (calls.get(call), status(*answer)) {
                        answered.0.entry(*job).or_default().insert(status);
                    }
                }
                EventKind::Told { job, ended, status } => {
                    self.verdict.results += 1;
                    let is_right = job.is_some_and(|job| {
                        have_result.insert(job);
                        let life = self.lives.jobs.get(&job);
                        if ended == DUPLICATE {
                            let may = |life| self.keys.may_drop(job, life, *at, self.broken);
                            return status.is_none() && life.is_some_and(may);
                        }
                        let dead = life.is_some_and(|life| life.dead.is_some());
                        answered.allows(job, ended, *status, dead)
                    });
                    if !is_right {
                        self.find(Violation::WrongResult {
                            at: *at,
                            job: *job,
                            how: format!("{ended} {status:?}"),
                        });
                    }
                }
                _ => {}
            }
        }
        if !self.rules.results {
            return;
        }
        let confirmed = self.lives.jobs.iter().filter(|(_, life)| life.confirmed);
        let without_result = confirmed.filter(|(job, _)| !have_result.contains(job));
        self.verdict
            .findings
            .extend(without_result.map(|(job, _)| Violation::NoResult { job: *job }));
    }
}

impl AnsweredStatuses {
    /// Returns true if the job may have ended like this by now. `dead`: the job is a dead letter at
    /// the end.
    fn allows(&self, job: JobId, ended: &str, status: Option<u16>, dead: bool) -> bool {
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
fn status(answer: DownstreamAnswer) -> Option<u16> {
    match answer {
        DownstreamAnswer::Done => Some(200),
        DownstreamAnswer::Rejected => Some(422),
        DownstreamAnswer::Throttled => Some(429),
        DownstreamAnswer::Failed => Some(500),
        DownstreamAnswer::Cut | DownstreamAnswer::Gone => None,
    }
}
