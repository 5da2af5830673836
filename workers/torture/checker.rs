//! Judges a history: lost jobs, overfull windows, and jobs that ran again without a cause. Pure;
//! tolerance zero.

mod cancels;
mod closings;
mod keys;
mod lives;
mod misses;
mod neighbors;
mod results;
mod starts;
#[cfg(test)]
mod tests;
mod windows;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::faults::{FaultKind, FaultTarget};
use crate::history::{EventKind, HistoryEvent, JobId};
use keys::JobsByKey;
pub use lives::{FaultInterval, FaultIntervals};
use lives::{JobLives, Life};
use thiserror::Error;

/// How long a fault has consequences after its end. For example, a connection that died unnoticed
/// is noticed only later.
const AFTERMATH: Duration = Duration::from_secs(30);

/// A caller that leaves earlier than this has not timed out: its timeout is longer, even after
/// subtracting the time for connecting and a stall of the machine.
const SOON: Duration = Duration::from_millis(2500);
/// Nanoseconds after which all workers know of a 429. Calls that arrive later were started although
/// their tenant was closed, or were delayed on their way.
const KNOWN: u64 = 500_000_000;
/// Minimum number of closings to judge. Half of them must have held; the others may have failed
/// because of a fault or a stall of the machine.
const CLOSINGS: usize = 3;

/// The rules that a history is checked against. Limits are in the history, since they change.
#[derive(Debug, Clone, Copy)]
pub struct CheckRules {
    /// Length of a window, in nanoseconds.
    pub window: u64,
    /// The value of `retry.max-attempts`.
    pub max_attempts: u32,
    /// Whether the workers have breakers, so that a failure may use no attempt.
    pub breakers: bool,
    /// Whether each overfull window is a finding. Otherwise overfull windows are only counted:
    /// third-party workers may delay the calls of forwarded jobs, and a machine may stall.
    pub windows_hold: bool,
    /// Whether jobs are forwarded through RabbitMQ to other workers, which call the downstream.
    pub forwards: bool,
    /// The `Retry-After` of a 429, in nanoseconds.
    pub closed: u64,
    /// Whether each confirmed job must have a result, since a listener takes results.
    pub results: bool,
    /// Whether some neighbor must have been rude long enough, with nothing else broken.
    pub neighbors: bool,
}

impl CheckRules {
    /// Returns true if the fault can delay, repeat or lose a forwarded call without a trace.
    /// RabbitMQ carries such calls.
    fn affects_forwarding(self, kind: FaultKind) -> bool {
        self.forwards && kind.part() == FaultTarget::Rabbit
    }
}

/// A violation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Violation {
    /// A confirmed job that is neither done nor a dead letter.
    #[error("job {job} is lost, after {calls} calls")]
    Lost { job: JobId, calls: usize },
    /// A window with more calls than allowed.
    #[error(
        "tenant {tenant}: the window that ends at {:.6} s has {calls} calls; the maximum is \
         {allowed}",
        seconds(.at)
    )]
    Overfull {
        tenant: u32,
        at: u64,
        calls: u64,
        allowed: u64,
    },
    /// A job that ran again after its end without a fault that explains it.
    #[error("job {job} ran again at {:.6} s after its end, and no fault explains it", seconds(.at))]
    Repeated { job: JobId, at: u64 },
    /// A call with a higher or lower attempt than its failures explain.
    #[error("job {job} had attempt {attempt} after {failures} failures")]
    Attempt {
        job: JobId,
        attempt: u32,
        failures: u32,
    },
    /// A dead letter of a job that was not rejected and had attempts left.
    #[error("job {job} should not be a dead letter: {reason:?}")]
    Buried { job: JobId, reason: String },
    /// A dead letter without a reason.
    #[error("job {job} is a dead letter without a reason")]
    NoReason { job: JobId },
    /// A caller that left long before its timeout although no fault had killed or stopped it.
    #[error(
        "a worker abandoned its call of job {job} at {:.6} s, and no fault explains it",
        seconds(.at)
    )]
    Abandoned { job: JobId, at: u64 },
    /// Calls went on after most 429s.
    #[error("429 closed a tenant {closings} times, and its calls continued {ignored} times")]
    Ignored { closings: usize, ignored: usize },
    /// Messages that were still in queues when all work had ended.
    #[error("{messages} messages are still in queues, or held by a worker")]
    LeftInQueues { messages: u64 },
    /// Dead letters with ids of neither a job nor a rude job.
    #[error("{count} dead letters have an unknown id")]
    UnknownDeadLetters { count: usize },
    /// No job was confirmed, so the run tested nothing.
    #[error("no job was confirmed: nothing was tested")]
    Nothing,
    /// A call with another body or tenant than its job's.
    #[error("job {job} arrived with another body or another tenant")]
    Mangled { job: JobId },
    /// A call for a job that was never published.
    #[error("job {job} was called but never published")]
    Stranger { job: JobId },
    /// A confirmed job without a result.
    #[error("job {job} ended without a result")]
    NoResult { job: JobId },
    /// A result with an end that its job did not have by then.
    #[error(
        "a result at {:.6} s reports {how} for {}, which was not the case by then",
        seconds(.at), named(.job)
    )]
    WrongResult {
        at: u64,
        job: Option<JobId>,
        how: String,
    },
    /// A call before its job's start time, by this number of nanoseconds.
    #[error("job {job} was called at {:.6} s, {:.6} s before its time", seconds(.at), seconds(.by))]
    Early { job: JobId, at: u64, by: u64 },
    /// Two jobs with one dedupe key that were called within its time.
    #[error(
        "jobs {} and {} have one dedupe key, and both were called by {:.6} s",
        .jobs.0, .jobs.1, seconds(.at)
    )]
    Twice { jobs: (JobId, JobId), at: u64 },
    /// A job that was called although all workers were reported to follow its cancellation.
    #[error("job {job} was called at {:.6} s although it was canceled", seconds(.at))]
    AfterCancel { job: JobId, at: u64 },
    /// A job that was reported as canceled, and is no dead letter.
    #[error("job {job} was reported as canceled but is not a dead letter")]
    Uncanceled { job: JobId },
    /// A job that is both done and canceled.
    #[error("job {job} is done and canceled")]
    DoneAndCanceled { job: JobId },
    /// A tenant with few jobs done within a span while a neighbor was rude and nothing else was
    /// broken.
    #[error(
        "tenant {tenant} had {done} of {allowed} jobs done during {kind}, from {:.6} s on",
        seconds(.at)
    )]
    Starved {
        tenant: u32,
        kind: FaultKind,
        at: u64,
        done: u64,
        allowed: u64,
    },
    /// No neighbor was rude long enough, so that P5 was not tested.
    #[error("no neighbor was rude long enough: the run did not test the effect on other tenants")]
    NoNeighbor,
    /// A kind of fault that never found its moment or could never be injected, so that the run did
    /// not test it.
    #[error("all {count} faults of kind {kind} missed, so it was not tested")]
    AlwaysMissed { kind: FaultKind, count: usize },
    /// A changed file that a worker did not apply in time although no fault hindered it.
    #[error(
        "a changed file was not applied in the fault that began at {:.6} s, and no fault explains \
         it",
        seconds(.at)
    )]
    NotReloaded { at: u64 },
    /// A worker that ended by itself, or not as it should have.
    #[error("worker {worker}: {how}")]
    Worker { worker: usize, how: String },
}

/// Returns nanoseconds as seconds.
fn seconds(at: &u64) -> f64 {
    *at as f64 / 1e9
}

fn named(job: &Option<JobId>) -> String {
    job.map_or("an unknown job".to_owned(), |job| format!("job {job}"))
}

/// The figures of a history, and the violations in it.
#[derive(Debug, Default)]
pub struct HistoryVerdict {
    pub confirmed: usize,
    /// Published jobs without an answer from RabbitMQ. They may run or not.
    pub unsure: usize,
    pub done: usize,
    pub dead: usize,
    pub calls: usize,
    /// Number of results; at least one for each end.
    pub results: usize,
    /// Number of jobs with a delayed start.
    pub delayed: usize,
    /// Number of jobs dropped because another job with their dedupe key was called.
    pub dropped: usize,
    /// Number of dead letters that an operator made, and number of requests for one.
    pub canceled: (usize, usize),
    /// Calls answered with another status than 2xx.
    pub refused: usize,
    /// Jobs that ran again after their end, by the latest earlier fault that could explain it.
    pub repeated: BTreeMap<FaultKind, usize>,
    /// Calls in the fullest window, and the maximum allowed in it.
    pub fullest: (u64, u64),
    /// Number of overfull windows, whether or not they are findings.
    pub overfull: usize,
    /// How often a 429 closed a tenant, and how often calls went on.
    pub closings: (usize, usize),
    /// Number of faults, by kind.
    pub faults: BTreeMap<FaultKind, usize>,
    /// Number of faults that waited in vain for a moment or an empty queue, or could not be
    /// injected, by kind.
    pub missed: BTreeMap<FaultKind, usize>,
    /// Minimum number of jobs that a tenant had done in a span while a neighbor was rude, and the
    /// number that its limit allowed.
    pub neighbors: Option<(u64, u64)>,
    /// Highest attempt of any call.
    pub attempts: u32,
    pub findings: Vec<Violation>,
}

impl HistoryVerdict {
    /// Returns true if there are no findings.
    pub fn holds(&self) -> bool {
        self.findings.is_empty()
    }
}

/// A history, its rules, and the verdict so far.
struct Checker<'a> {
    events: &'a [HistoryEvent],
    rules: CheckRules,
    lives: &'a JobLives,
    keys: &'a JobsByKey<'a>,
    broken: &'a FaultIntervals,
    verdict: HistoryVerdict,
}

/// Checks `events`, which must be sorted by time.
pub fn check(events: &[HistoryEvent], rules: CheckRules) -> HistoryVerdict {
    let lives = JobLives::of(events);
    let mut checker = Checker {
        events,
        rules,
        lives: &lives,
        keys: &JobsByKey::of(&lives),
        broken: &FaultIntervals::of(events),
        verdict: HistoryVerdict::default(),
    };
    checker.check();
    checker.verdict
}

impl Checker<'_> {
    fn check(&mut self) {
        for (job, life) in &self.lives.jobs {
            self.check_job(*job, life);
        }
        if self.verdict.confirmed == 0 {
            self.find(Violation::Nothing);
        }
        self.windows();
        self.closings();
        self.results();
        self.starts();
        self.keys();
        self.cancels();
        self.neighbors();
        self.misses();
        let verdict = &mut self.verdict;
        for event in self.events {
            match &event.what {
                EventKind::Broken { kind, .. } => *verdict.faults.entry(*kind).or_default() += 1,
                EventKind::Mangled { job } => {
                    verdict.findings.push(Violation::Mangled { job: *job });
                }
                EventKind::Failed { worker, how } => verdict.findings.push(Violation::Worker {
                    worker: *worker,
                    how: how.clone(),
                }),
                _ => {}
            }
        }
    }

    fn check_job(&mut self, job: JobId, life: &Life) {
        let verdict = &mut self.verdict;
        verdict.calls += life.calls.len();
        verdict.refused += life.calls.iter().filter(|call| !call.is_done()).count();
        verdict.done += usize::from(life.is_done());
        verdict.dead += usize::from(life.dead.is_some());
        match life.confirmed {
            true => verdict.confirmed += 1,
            false => verdict.unsure += 1,
        }
        if life.published.is_none() {
            verdict.findings.push(Violation::Stranger { job });
        }
        let went_on = life.dropped && self.keys.may_drop(job, life, u64::MAX, self.broken);
        if life.confirmed && !life.has_ended() && !went_on {
            let calls = life.calls.len();
            verdict.findings.push(Violation::Lost { job, calls });
        }
        self.again(job, life);
        self.attempts(job, life);
        self.buried(job, life);
        self.abandoned(job, life);
    }

    fn find(&mut self, finding: Violation) {
        self.verdict.findings.push(finding);
    }

    /// Requires a fault that explains each call after the job's end. The fault may be anywhere in
    /// the job's life, since a copy of a job can wait for its turn long after the fault that made
    /// it.
    fn again(&mut self, job: JobId, life: &Life) {
        for call in life.after_the_end() {
            let repeats = life.repeated_by(self.rules);
            let cause = self.broken.latest(life.begins(), call.at, repeats);
            match cause {
                Some(kind) => *self.verdict.repeated.entry(kind).or_default() += 1,
                None => self.find(Violation::Repeated { job, at: call.at }),
            }
        }
    }

    /// Checks that waits use no attempts: a call's attempt is at most one more than the number of
    /// failures before it. It may be lower only with a copy of the job, a worker that died and
    /// forgot a failure, or an open breaker.
    fn attempts(&mut self, job: JobId, life: &Life) {
        for (at, call) in life.calls.iter().enumerate() {
            self.verdict.attempts = self.verdict.attempts.max(call.attempt);
            let failures = life.calls[..at].iter().filter(|call| call.failed()).count();
            let (from, to) = (life.begins(), call.at);
            let unseen = self.broken.count(from, to, FaultKind::uses_attempts);
            let hidden = self.broken.any(from, to, AFTERMATH, |kind| {
                kind.hides_attempts() || self.rules.affects_forwarding(kind)
            });
            if hidden {
                continue;
            }
            let repeats = life.repeated_by(self.rules);
            let copies = self.broken.any(from, to, AFTERMATH, repeats);
            let failures = u32::try_from(failures + unseen).unwrap_or(u32::MAX);
            let next = failures.saturating_add(1);
            let exact = !copies && unseen == 0 && !self.rules.breakers;
            let forgot = exact && call.attempt < next;
            if call.attempt == 0 || call.attempt > next || forgot {
                self.find(Violation::Attempt {
                    job,
                    attempt: call.attempt,
                    failures,
                });
            }
        }
    }

    /// Checks that a dead letter was rejected, had used all its attempts, or was requested by an
    /// operator.
    fn buried(&mut self, job: JobId, life: &Life) {
        let Some(reason) = &life.dead else { return };
        if reason.trim().is_empty() {
            self.find(Violation::NoReason { job });
        }
        let unseen = self
            .broken
            .count(life.begins(), u64::MAX, FaultKind::uses_attempts);
        let failures = life.calls.iter().filter(|call| call.failed()).count() + unseen;
        if !life.calls.iter().any(|call| call.is_rejected())
            && !cancels::is_canceled(life)
            && failures < self.rules.max_attempts as usize
        {
            self.find(Violation::Buried {
                job,
                reason: reason.clone(),
            });
        }
    }

    /// Checks that workers finish their calls when they end. Only a killed worker may leave a call;
    /// a stopped one may find its call timed out.
    fn abandoned(&mut self, job: JobId, life: &Life) {
        let rules = self.rules;
        let explains = |kind: FaultKind| {
            kind.kills()
                || kind.uses_attempts()
                || kind.hides_attempts()
                || rules.affects_forwarding(kind)
        };
        for call in &life.calls {
            let Some(at) = call.left() else { continue };
            let soon = Duration::from_nanos(at - call.at) < SOON;
            if soon && !self.broken.any(call.at, at, AFTERMATH, explains) {
                self.find(Violation::Abandoned { job, at });
            }
        }
    }

    /// Checks that no job of a tenant starts after a 429. Leaves out closings in which Redis lost
    /// data.
    fn closings(&mut self) {
        let mut all = closings::closings(self.events, self.rules.closed);
        all.retain(|closing| {
            let end = closing.at + self.rules.closed;
            !(self.broken).any(closing.at, end, Duration::ZERO, FaultKind::forgets)
        });
        let ignored = (all.iter().filter_map(|closing| closing.last))
            .filter(|after| *after > KNOWN)
            .count();
        let closings = all.len();
        self.verdict.closings = (closings, ignored);
        if closings >= CLOSINGS && ignored * 2 > closings {
            self.verdict
                .findings
                .push(Violation::Ignored { closings, ignored });
        }
    }

    fn windows(&mut self) {
        let verdict = &mut self.verdict;
        for window in windows::windows(self.events, self.rules.window) {
            if window.calls * verdict.fullest.1.max(1) > verdict.fullest.0 * window.allowed.max(1) {
                verdict.fullest = (window.calls, window.allowed);
            }
            if window.calls <= window.allowed {
                continue;
            }
            verdict.overfull += 1;
            if self.rules.windows_hold {
                verdict.findings.push(Violation::Overfull {
                    tenant: window.tenant,
                    at: window.at,
                    calls: window.calls,
                    allowed: window.allowed,
                });
            }
        }
    }
}
