//! Jobs with the same dedupe key: which of them were called, and which were dropped.

use std::collections::BTreeMap;

use super::lives::{FaultIntervals, JobLives, Life};
use super::{AFTERMATH, Checker, Violation};
use crate::faults::FaultKind;
use crate::history::JobId;

/// The jobs of each tenant and key.
#[derive(Debug, Default)]
pub struct JobsByKey<'a>(BTreeMap<(u32, u32), Vec<(JobId, &'a Life)>>);

impl<'a> JobsByKey<'a> {
    pub fn of(lives: &'a JobLives) -> Self {
        let mut all = Self::default();
        for (job, life) in &lives.jobs {
            if let Some(key) = life.key {
                let same = all.0.entry((job.tenant, key.number)).or_default();
                same.push((*job, life));
            }
        }
        all
    }

    /// Returns true if the job may be dropped: another message with its key was published `by`
    /// then, was not dropped itself, and may have been the first when this one was checked.
    pub fn may_drop(&self, job: JobId, life: &Life, by: u64, broken: &FaultIntervals) -> bool {
        let Some(key) = life.key else { return false };
        let same = self.0.get(&(job.tenant, key.number));
        same.into_iter().flatten().any(|(other, first)| {
            // The key's time counts from the first check, which precedes the first call. The clock
            // may be stepped back.
            let seen_by = first.calls.first().map_or(u64::MAX, |call| call.at);
            let clock = |kind| kind == FaultKind::RedisClock;
            let longer = broken.any(first.begins(), by, AFTERMATH, clock);
            let counts = longer || seen_by.saturating_add(key.lasts) > life.begins();
            (*other != job || key.twice) && first.begins() <= by && first.has_ended() && counts
        })
    }
}

impl Checker<'_> {
    /// Checks that at most one of two jobs with the same key is called within its time, unless
    /// Redis forgot the first one.
    pub(super) fn keys(&mut self) {
        for same in self.keys.0.values() {
            self.verdict.dropped += same.iter().filter(|(_, life)| life.dropped).count();
            for (at, (one, life)) in same.iter().enumerate() {
                for (other, second) in &same[at + 1..] {
                    self.one_of((*one, life), (*other, second));
                }
            }
        }
    }

    fn one_of(&mut self, (one, a): (JobId, &Life), (other, b): (JobId, &Life)) {
        let (Some(key), Some(first), Some(second)) = (a.key, a.calls.first(), b.calls.first())
        else {
            return;
        };
        // The job that was checked first was published before its check. The other one was checked
        // before its call.
        let within =
            second.at < a.begins() + key.lasts && first.at < b.begins().saturating_add(key.lasts);
        let (from, to) = (a.begins().min(b.begins()), first.at.max(second.at));
        if within && !self.broken.any(from, to, AFTERMATH, FaultKind::forgets) {
            let jobs = (one, other);
            self.verdict
                .findings
                .push(Violation::Twice { jobs, at: to });
        }
    }
}
