//! The times of each job: its publish, its first call and its end.

use std::collections::{HashMap, HashSet};

use super::Wait;
use crate::history::RunHistory;
use crate::jobs::SimulatedJob;

/// The calls of each job, and the end of the run. Times are in microseconds after the beginning.
pub(super) struct JobTimes<'a> {
    jobs: &'a [SimulatedJob],
    /// Jobs that are dead letters.
    dead: HashSet<usize>,
    /// When each dropped duplicate was dropped.
    duplicates: HashMap<usize, u64>,
    /// End of the run if jobs were left.
    over_us: Option<u64>,
    /// Whether jobs were left.
    has_unfinished: bool,
    /// Beginning of each job's first call.
    first: Vec<Option<u64>>,
    /// End and status of each job's last call.
    last: Vec<Option<(u64, u16)>>,
    /// Calls that the API answered with 429.
    pub throttled: usize,
    /// Calls that follow an earlier call of their job, unless that one was answered with 429.
    pub retries: usize,
}

impl<'a> JobTimes<'a> {
    /// Collects the calls of `jobs` from `history`.
    pub fn of(jobs: &'a [SimulatedJob], history: &RunHistory) -> Self {
        let mut times = Self {
            jobs,
            dead: history.dead.iter().map(|(job, _)| *job).collect(),
            duplicates: history.duplicates.iter().copied().collect(),
            over_us: history.left.map(|left| left.at_us),
            has_unfinished: history.unfinished > 0,
            first: vec![None; jobs.len()],
            last: vec![None; jobs.len()],
            throttled: 0,
            retries: 0,
        };
        for call in &history.calls {
            let Some(first) = times.first.get_mut(call.job) else {
                continue;
            };
            times.throttled += usize::from(call.status == 429);
            let last = &mut times.last[call.job];
            if last.is_some_and(|(_, status)| status != 429) {
                times.retries += 1;
            }
            first.get_or_insert(call.at_us);
            *last = Some((call.ended_us, call.status));
        }
        times
    }

    /// Returns the time from the job's publish to `at`, or to the end of the run. `None` if the job
    /// was not published by then, became a dead letter before, or was dropped.
    fn until(&self, job: usize, at: Option<u64>) -> Option<Wait> {
        let published = self.jobs[job].at_us();
        let since = |at: u64| at.saturating_sub(published);
        match (at, self.over_us) {
            (Some(at), _) => Some((since(at), false)),
            (None, Some(over)) if !self.is_given_up(job) && published <= over => {
                Some((since(over), true))
            }
            _ => None,
        }
    }

    /// Returns each job's wait from publish to first call.
    pub fn waits(&self) -> Vec<Option<Wait>> {
        (self.first.iter().enumerate())
            .map(|(job, first)| self.until(job, *first))
            .collect()
    }

    /// Returns true if the job is a dead letter or a dropped duplicate.
    fn is_given_up(&self, job: usize) -> bool {
        self.dead.contains(&job) || self.duplicates.contains_key(&job)
    }

    /// Returns the time at which each job was done, became a dead letter or was dropped.
    pub fn ends(&self) -> Vec<Option<u64>> {
        let is_done = |status: u16| !self.has_unfinished || (200..300).contains(&status);
        let is_dead = |job: usize| self.dead.contains(&job);
        (self.last.iter().enumerate())
            .map(|(job, end)| match end {
                // A call may outlast the run.
                Some((at, status))
                    if self.over_us.is_none_or(|over| *at <= over)
                        && (is_done(*status) || is_dead(job)) =>
                {
                    Some(*at)
                }
                None if is_dead(job) => Some(self.jobs[job].at_us()),
                _ => self.duplicates.get(&job).copied(),
            })
            .collect()
    }

    /// Returns the times from publish to one of `ends`, without dead letters and duplicates.
    pub fn done_after(&self, ends: &[Option<u64>]) -> Vec<Wait> {
        let done = ends.iter().enumerate();
        done.filter(|(job, _)| !self.is_given_up(*job))
            .filter_map(|(job, end)| self.until(job, *end))
            .collect()
    }

    /// Counts the dead letters that were never called.
    pub fn dead_uncalled(&self) -> usize {
        let is_uncalled = |job: &&usize| self.first.get(**job).is_some_and(Option::is_none);
        self.dead.iter().filter(is_uncalled).count()
    }

    /// Counts the jobs whose publish time was after the end of the run.
    pub fn unpublished(&self) -> usize {
        let is_late = |job: &&SimulatedJob| self.over_us.is_some_and(|over| job.at_us() > over);
        self.jobs.iter().filter(is_late).count()
    }
}
