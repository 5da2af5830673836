//! Sorts a history by job, and lists its faults.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::{AFTERMATH, CheckRules};
use crate::faults::FaultKind;
use crate::history::{DownstreamAnswer, EventKind, HistoryEvent, JobId};

/// The result of a dropped job.
pub const DUPLICATE: &str = "duplicate";

/// A call of a job.
#[derive(Debug, Clone, Copy)]
pub struct JobCall {
    pub at: u64,
    pub attempt: u32,
    /// When and how the call ended; `None` if the run ended before.
    answer: Option<(u64, DownstreamAnswer)>,
}

impl JobCall {
    pub fn is_done(&self) -> bool {
        self.answer() == Some(DownstreamAnswer::Done)
    }

    fn answer(&self) -> Option<DownstreamAnswer> {
        self.answer.map(|(_, answer)| answer)
    }

    /// Returns when the caller left before the answer.
    pub fn left(&self) -> Option<u64> {
        let (at, answer) = self.answer?;
        (answer == DownstreamAnswer::Gone).then_some(at)
    }

    pub fn is_rejected(&self) -> bool {
        self.answer() == Some(DownstreamAnswer::Rejected)
    }

    pub fn failed(&self) -> bool {
        self.answer().is_some_and(DownstreamAnswer::is_failure)
    }
}

/// Everything about a job.
#[derive(Debug, Default)]
pub struct Life {
    pub published: Option<u64>,
    pub confirmed: bool,
    pub calls: Vec<JobCall>,
    /// The reason of its dead letter.
    pub dead: Option<String>,
    /// Its start time: calls before that are too early.
    pub starts: Option<u64>,
    pub key: Option<UsedKey>,
    /// Whether its result reported a duplicate.
    pub dropped: bool,
    /// When an operator began to cancel it.
    pub canceling: Option<u64>,
    /// The report of the canceling command.
    pub asked: Option<CancelReport>,
}

/// A job's dedupe key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsedKey {
    pub number: u32,
    /// How long the key counts, in nanoseconds.
    pub lasts: u64,
    /// Whether the job was published twice.
    pub twice: bool,
}

/// The report of a command that canceled a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CancelReport {
    pub at: u64,
    /// Whether the job is a dead letter.
    pub is_canceled: bool,
    /// Whether no worker calls it any more.
    pub all_follow: bool,
}

impl Life {
    /// Returns the earliest time at which a fault can have affected the job.
    pub fn begins(&self) -> u64 {
        self.published.unwrap_or(0)
    }

    pub fn is_done(&self) -> bool {
        self.calls.iter().any(JobCall::is_done)
    }

    pub fn has_ended(&self) -> bool {
        self.is_done() || self.dead.is_some()
    }

    /// Returns the faults after which the job may be called again. The second of two messages with
    /// the same id is recognized only if it was not redelivered before its check and Redis knows
    /// the first.
    pub fn repeated_by(&self, rules: CheckRules) -> impl Fn(FaultKind) -> bool {
        let is_twice = self.is_twice();
        move |kind| {
            kind.repeats_jobs()
                || rules.affects_forwarding(kind)
                || is_twice && kind.gives_jobs_back()
        }
    }

    /// Returns true if two messages have the job's id.
    pub fn is_twice(&self) -> bool {
        self.key.is_some_and(|key| key.twice)
    }

    /// Returns the calls after one with a final answer. A call that ran at the same time is a
    /// repetition, too.
    pub fn after_the_end(&self) -> impl Iterator<Item = &JobCall> {
        let is_final = |call: &JobCall| call.answer().is_some_and(DownstreamAnswer::is_final);
        let first = self.calls.iter().position(is_final);
        self.calls
            .iter()
            .skip(first.map_or(usize::MAX, |at| at + 1))
    }
}

/// All jobs of a history.
#[derive(Debug, Default)]
pub struct JobLives {
    pub jobs: BTreeMap<JobId, Life>,
}

impl JobLives {
    pub fn of(events: &[HistoryEvent]) -> Self {
        let mut lives = Self::default();
        let mut calls: HashMap<u64, (JobId, usize)> = HashMap::new();
        for HistoryEvent { at, what } in events {
            match what {
                EventKind::Publishing { job } => lives.of_job(*job).published = Some(*at),
                EventKind::Confirmed { job } => lives.of_job(*job).confirmed = true,
                EventKind::Dead { job, reason } => lives.of_job(*job).dead = Some(reason.clone()),
                EventKind::Starts { job, from } => lives.of_job(*job).starts = Some(*from),
                EventKind::Keyed {
                    job,
                    key: number,
                    lasts,
                    twice,
                } => {
                    lives.of_job(*job).key = Some(UsedKey {
                        number: *number,
                        lasts: *lasts,
                        twice: *twice,
                    });
                }
                EventKind::Told {
                    job: Some(job),
                    ended,
                    ..
                } if ended == DUPLICATE => lives.of_job(*job).dropped = true,
                EventKind::Canceling { job } => lives.of_job(*job).canceling = Some(*at),
                EventKind::Asked {
                    job,
                    said: state,
                    all_follow,
                } => {
                    lives.of_job(*job).asked = Some(CancelReport {
                        at: *at,
                        is_canceled: state == "canceled",
                        all_follow: *all_follow,
                    });
                }
                EventKind::Arrived {
                    call, job, attempt, ..
                } => {
                    let life = lives.of_job(*job);
                    calls.insert(*call, (*job, life.calls.len()));
                    life.calls.push(JobCall {
                        at: *at,
                        attempt: *attempt,
                        answer: None,
                    });
                }
                EventKind::Answered { call, answer } => {
                    if let Some((job, index)) = calls.get(call) {
                        lives.of_job(*job).calls[*index].answer = Some((*at, *answer));
                    }
                }
                _ => {}
            }
        }
        lives
    }

    fn of_job(&mut self, job: JobId) -> &mut Life {
        self.jobs.entry(job).or_default()
    }
}

/// A fault of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultInterval {
    pub kind: FaultKind,
    pub begins: u64,
    pub ends: u64,
    /// Whether it waited in vain, or could not be injected.
    pub missed: bool,
}

/// The faults of a history.
#[derive(Debug, Default)]
pub struct FaultIntervals(Vec<FaultInterval>);

impl FaultIntervals {
    pub fn of(events: &[HistoryEvent]) -> Self {
        let mut all: Vec<FaultInterval> = Vec::new();
        let mut open: HashMap<u64, usize> = HashMap::new();
        for HistoryEvent { at, what } in events {
            match what {
                EventKind::Broken { fault, kind, .. } => {
                    open.insert(*fault, all.len());
                    all.push(FaultInterval {
                        kind: *kind,
                        begins: *at,
                        ends: u64::MAX,
                        missed: false,
                    });
                }
                EventKind::Missed { fault } => {
                    if let Some(index) = open.get(fault) {
                        all[*index].missed = true;
                    }
                }
                EventKind::Mended { fault } => {
                    if let Some(index) = open.remove(fault) {
                        all[index].ends = *at;
                    }
                }
                _ => {}
            }
        }
        Self(all)
    }

    fn between(
        &self,
        from: u64,
        to: u64,
        aftermath: Duration,
        which: impl Fn(FaultKind) -> bool,
    ) -> impl Iterator<Item = FaultKind> {
        let aftermath = u64::try_from(aftermath.as_nanos()).unwrap_or(u64::MAX);
        self.0.iter().filter_map(move |fault| {
            let touches = fault.begins <= to && fault.ends.saturating_add(aftermath) >= from;
            (touches && which(fault.kind)).then_some(fault.kind)
        })
    }

    /// Returns the latest fault of matching kinds between two times. It may have ended up to
    /// [`AFTERMATH`] before the first.
    pub fn latest(
        &self,
        from: u64,
        to: u64,
        which: impl Fn(FaultKind) -> bool,
    ) -> Option<FaultKind> {
        self.between(from, to, AFTERMATH, which).last()
    }

    /// Returns true if there was such a fault, which may have ended up to `aftermath` before.
    pub fn any(
        &self,
        from: u64,
        to: u64,
        aftermath: Duration,
        which: impl Fn(FaultKind) -> bool,
    ) -> bool {
        self.between(from, to, aftermath, which).next().is_some()
    }

    /// Returns all faults in the order of their begin.
    pub fn all(&self) -> impl Iterator<Item = FaultInterval> {
        self.0.iter().copied()
    }

    /// Returns the number of these faults.
    pub fn count(&self, from: u64, to: u64, which: impl Fn(FaultKind) -> bool) -> usize {
        self.between(from, to, AFTERMATH, which).count()
    }
}
