//! Deduplication: of a tenant's jobs with the same dedupe key, only the first within a period is
//! called. The others are duplicates and are dropped.
//!
//! A job asks when it is first read, before anything else, and the store records which job was
//! first. That job goes on whatever happens to its worker: it carries a mark through each queue,
//! and is recognized by its ID if it is delivered again before it has the mark. So a job is dropped
//! only if another job with its key goes on.

use crate::tenant::Tenant;

/// A job that asks whether it is the first with its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The job's tenant.
    pub tenant: Tenant,
    /// The job's dedupe key.
    pub key: String,
    /// The job's ID.
    pub job: String,
    /// A name that is unique among the deliveries of all workers.
    pub owner: String,
    /// Whether a worker may have had the job before, so that it may itself be the first.
    pub seen_before: bool,
    /// How long no other job is the first, in milliseconds.
    pub lasts_ms: u64,
}

/// The answer to a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DedupeAnswer {
    /// The job is the first and goes on.
    First,
    /// Another job was the first.
    Duplicate {
        /// How long no other job can be the first, in milliseconds.
        left_ms: u64,
    },
}

/// The store's record of the first job with a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstJob {
    /// Until when no other job can be the first, in milliseconds since the epoch.
    until_ms: u64,
    /// How long no other job can be the first, counted from when this one asked, in milliseconds.
    lasts_ms: u64,
    owner: String,
    job: String,
}

impl FirstJob {
    /// Answers a job that asks at `now_ms`. `known` is the store's record, which is updated.
    pub fn ask(known: &mut Option<Self>, now_ms: u64, candidate: &Candidate) -> DedupeAnswer {
        let Candidate { owner, job, .. } = candidate;
        match known {
            Some(first) if first.until_ms > now_ms => {
                // The clock may have been stepped back.
                first.until_ms = first.until_ms.min(now_ms.saturating_add(first.lasts_ms));
                let is_itself = first.owner == *owner || candidate.seen_before && first.job == *job;
                match is_itself {
                    true => DedupeAnswer::First,
                    false => DedupeAnswer::Duplicate {
                        left_ms: first.until_ms - now_ms,
                    },
                }
            }
            _ => {
                *known = Some(Self {
                    until_ms: now_ms.saturating_add(candidate.lasts_ms),
                    lasts_ms: candidate.lasts_ms,
                    owner: owner.clone(),
                    job: job.clone(),
                });
                DedupeAnswer::First
            }
        }
    }

    /// Returns true if the record has expired.
    pub fn is_over(&self, now_ms: u64) -> bool {
        self.until_ms <= now_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(job: &str, owner: &str, seen_before: bool) -> Candidate {
        Candidate {
            tenant: Tenant::parse("a").expect("a tenant"),
            key: "k".to_owned(),
            job: job.to_owned(),
            owner: owner.to_owned(),
            seen_before,
            lasts_ms: 1_000,
        }
    }

    #[test]
    fn one_job_is_the_first_until_the_key_expires() {
        let mut known = None;
        let ask = |known: &mut _, now, job, owner| {
            FirstJob::ask(known, now, &candidate(job, owner, false))
        };
        assert_eq!(ask(&mut known, 5, "1", "w-1"), DedupeAnswer::First);
        let left_ms = 1;
        let second = ask(&mut known, 1_004, "2", "w-2");
        assert_eq!(second, DedupeAnswer::Duplicate { left_ms });
        assert_eq!(ask(&mut known, 1_005, "2", "w-2"), DedupeAnswer::First);
        let first = ask(&mut known, 1_006, "1", "w-1");
        assert_eq!(first, DedupeAnswer::Duplicate { left_ms: 999 });
    }

    #[test]
    fn a_key_expires_after_its_period_although_the_clock_was_stepped_back() {
        let mut known = None;
        let ask = |known: &mut _, now, job| FirstJob::ask(known, now, &candidate(job, job, false));
        assert_eq!(ask(&mut known, 90_000, "1"), DedupeAnswer::First);
        let left_ms = 1_000;
        let second = ask(&mut known, 500, "2");
        assert_eq!(second, DedupeAnswer::Duplicate { left_ms });
        assert_eq!(ask(&mut known, 1_500, "2"), DedupeAnswer::First);
    }

    #[test]
    fn the_first_job_remains_the_first_on_repeated_requests() {
        let mut known = None;
        let mut ask =
            |job, owner, before| FirstJob::ask(&mut known, 7, &candidate(job, owner, before));
        assert_eq!(ask("1", "w-1", false), DedupeAnswer::First);
        // The answer was lost.
        assert_eq!(ask("1", "w-1", false), DedupeAnswer::First);
        // The worker crashed or lost its session.
        assert_eq!(ask("1", "w-2", true), DedupeAnswer::First);
        // The job was published twice with the same ID.
        let copy = ask("1", "w-2", false);
        assert_eq!(copy, DedupeAnswer::Duplicate { left_ms: 1_000 });
        let other = ask("2", "w-3", true);
        assert_eq!(other, DedupeAnswer::Duplicate { left_ms: 1_000 });
    }
}
