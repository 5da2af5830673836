//! Counts waiting jobs during the run. Pure.

use std::collections::{HashMap, HashSet};

use crate::history::{EventKind, JobId};

/// The waiting jobs of each tenant, derived from the events.
#[derive(Debug, Default)]
pub struct TenantBacklogs {
    waiting: HashMap<u32, HashSet<JobId>>,
    /// Jobs that ended before RabbitMQ confirmed them: the worker was faster than the confirm.
    early: HashSet<JobId>,
    /// Calls in flight.
    calls: HashMap<u64, JobId>,
    /// Number of final answers.
    ended: usize,
}

impl TenantBacklogs {
    /// Takes an event into account.
    pub fn note(&mut self, what: &EventKind) {
        match what {
            EventKind::Confirmed { job } if !self.early.remove(job) => {
                self.waiting.entry(job.tenant).or_default().insert(*job);
            }
            EventKind::Arrived { call, job, .. } => {
                self.calls.insert(*call, *job);
            }
            EventKind::Answered { call, answer } => {
                let Some(job) = self.calls.remove(call) else {
                    return;
                };
                let waiting = self.waiting.entry(job.tenant).or_default();
                if !answer.is_final() {
                    return;
                }
                self.ended += 1;
                if !waiting.remove(&job) {
                    self.early.insert(job);
                }
            }
            // Jobs that ended without a call, or after other answers: duplicates and dead letters.
            EventKind::Told {
                job: Some(job),
                ended,
                ..
            } if ended != "done" => {
                let waiting = self.waiting.entry(job.tenant).or_default();
                if !waiting.remove(job) {
                    self.early.insert(*job);
                }
            }
            _ => {}
        }
    }

    /// Returns the number of waiting jobs of `tenant`.
    pub fn of(&self, tenant: u32) -> usize {
        self.waiting.get(&tenant).map_or(0, HashSet::len)
    }

    /// Returns the waiting job that `choice` selects.
    pub fn some(&self, choice: u32) -> Option<JobId> {
        let nth = choice as usize % self.in_all().max(1);
        self.waiting.values().flatten().nth(nth).copied()
    }

    /// Returns the number of final answers so far.
    pub fn ended(&self) -> usize {
        self.ended
    }

    /// Returns the number of waiting jobs of all tenants.
    pub fn in_all(&self) -> usize {
        self.waiting.values().map(HashSet::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::DownstreamAnswer;

    #[test]
    fn a_job_waits_from_its_confirm_to_its_final_answer_in_whichever_order_they_come() {
        let mut backlog = TenantBacklogs::default();
        let job = |number| JobId::new(1, number);
        let called = |backlog: &mut TenantBacklogs, call, number, answer| {
            let (attempt, worker, life) = (1, 0, 1);
            let job = job(number);
            backlog.note(&EventKind::Arrived {
                call,
                job,
                attempt,
                worker,
                life,
            });
            backlog.note(&EventKind::Answered { call, answer });
        };
        backlog.note(&EventKind::Confirmed { job: job(1) });
        called(&mut backlog, 1, 1, DownstreamAnswer::Failed);
        called(&mut backlog, 2, 2, DownstreamAnswer::Done);
        assert_eq!((backlog.of(1), backlog.of(2), backlog.in_all()), (1, 0, 1));
        backlog.note(&EventKind::Confirmed { job: job(2) });
        called(&mut backlog, 3, 1, DownstreamAnswer::Rejected);
        assert_eq!(
            (backlog.of(1), backlog.in_all(), backlog.ended()),
            (0, 0, 2)
        );
        let result_of = |number| EventKind::Told {
            job: Some(job(number)),
            ended: "duplicate".to_owned(),
            status: None,
        };
        assert_eq!(backlog.some(7), None);
        backlog.note(&EventKind::Confirmed { job: job(3) });
        assert_eq!(backlog.some(7), Some(job(3)));
        backlog.note(&result_of(3));
        backlog.note(&result_of(4));
        backlog.note(&EventKind::Confirmed { job: job(4) });
        assert_eq!((backlog.in_all(), backlog.ended()), (0, 2));
    }
}
