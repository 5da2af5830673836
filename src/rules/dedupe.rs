//! Jobs of one tenant with the same dedupe key: which of them is the first within a time. The others are duplicates, and dropped.
//!
//! A job asks when it is first looked at, before all else, and the store keeps who was the first. Whoever was goes on, whatever becomes of
//! its worker: it carries that it was through each queue, and delivered again before that, it is known by its id. So a job is dropped
//! only where another one with its key went on.

use crate::rules::tenant::Tenant;

/// A job asks whether it is the first with its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Whose it is.
    pub tenant: Tenant,
    /// Its dedupe key.
    pub key: String,
    /// Its id.
    pub job: String,
    /// Who asks: a name that no other delivery of any worker has.
    pub by: String,
    /// A worker may have had it before: the first may be itself.
    pub seen_before: bool,
    /// For so long, in milliseconds, no other one is the first.
    pub lasts_ms: u64,
}

/// What it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deduped {
    /// It is the first, and goes on.
    First,
    /// Another one was.
    Duplicate {
        /// For so long nobody else is, in milliseconds.
        left_ms: u64,
    },
}

/// The first with a key, as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct First {
    /// Until when no other one is, in milliseconds since the epoch.
    until_ms: u64,
    by: String,
    job: String,
}

impl First {
    /// A job asks at `now_ms`, where `known` is what the store has.
    pub fn ask(known: &mut Option<Self>, now_ms: u64, candidate: &Candidate) -> Deduped {
        let Candidate { by, job, .. } = candidate;
        match known {
            Some(first) if first.until_ms > now_ms => {
                let is_itself = first.by == *by || candidate.seen_before && first.job == *job;
                match is_itself {
                    true => Deduped::First,
                    false => Deduped::Duplicate {
                        left_ms: first.until_ms - now_ms,
                    },
                }
            }
            _ => {
                *known = Some(Self {
                    until_ms: now_ms.saturating_add(candidate.lasts_ms),
                    by: by.clone(),
                    job: job.clone(),
                });
                Deduped::First
            }
        }
    }

    /// Nothing is left of it.
    pub fn is_over(&self, now_ms: u64) -> bool {
        self.until_ms <= now_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(job: &str, by: &str, seen_before: bool) -> Candidate {
        Candidate {
            tenant: Tenant::parse("a").expect("a tenant"),
            key: "k".to_owned(),
            job: job.to_owned(),
            by: by.to_owned(),
            seen_before,
            lasts_ms: 1_000,
        }
    }

    #[test]
    fn one_is_the_first_until_the_time_is_over() {
        let mut known = None;
        let ask = |known: &mut _, now, job, by| First::ask(known, now, &candidate(job, by, false));
        assert_eq!(ask(&mut known, 5, "1", "w-1"), Deduped::First);
        let left_ms = 1;
        let second = ask(&mut known, 1_004, "2", "w-2");
        assert_eq!(second, Deduped::Duplicate { left_ms });
        assert_eq!(ask(&mut known, 1_005, "2", "w-2"), Deduped::First);
        let first = ask(&mut known, 1_006, "1", "w-1");
        assert_eq!(first, Deduped::Duplicate { left_ms: 999 });
    }

    #[test]
    fn the_first_stays_it_when_it_asks_again_or_is_delivered_again() {
        let mut known = None;
        let mut ask = |job, by, before| First::ask(&mut known, 7, &candidate(job, by, before));
        assert_eq!(ask("1", "w-1", false), Deduped::First);
        // The answer was lost on its way.
        assert_eq!(ask("1", "w-1", false), Deduped::First);
        // Its worker crashed, or lost its session.
        assert_eq!(ask("1", "w-2", true), Deduped::First);
        // It was published twice with one id.
        let copy = ask("1", "w-2", false);
        assert_eq!(copy, Deduped::Duplicate { left_ms: 1_000 });
        let other = ask("2", "w-3", true);
        assert_eq!(other, Deduped::Duplicate { left_ms: 1_000 });
    }
}
