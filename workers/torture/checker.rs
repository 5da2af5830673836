//! The verdict on a history: who was lost, which window was too full, who ran again and why. Pure; tolerance zero.

mod lives;
#[cfg(test)]
mod tests;
mod windows;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::faults::Kind;
use crate::history::{Event, Job, What};
use lives::{Broken, Lives};

/// What a fault that is over may still bring about: a connection that died unnoticed is missed only later.
const AFTERMATH: Duration = Duration::from_secs(30);

/// What the history is held against. Limits are in the history, since they change.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// A window, in nanoseconds.
    pub window: u64,
    /// `retry.max-attempts`.
    pub max_attempts: u32,
    /// With every guard but `strict` a call that is late is no fault of the worker's.
    pub windows_hold: bool,
}

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// A confirmed job neither done nor dead.
    Lost { job: Job, calls: usize },
    /// A window held more than it may.
    Overfull {
        tenant: u32,
        at: u64,
        calls: u64,
        allowed: u64,
    },
    /// A job ran again after its end, and no fault explains it.
    Repeated { job: Job, at: u64 },
    /// A call said that it was a later attempt than failures explain.
    Attempt {
        job: Job,
        attempt: u32,
        failures: u32,
    },
    /// A dead letter of a job that was not rejected and had attempts left.
    Buried { job: Job, reason: String },
    /// A call for a job that nobody published.
    Stranger { job: Job },
    /// A worker ended by itself, or not as it should have.
    Worker { worker: usize, how: String },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |at: &u64| *at as f64 / 1e9;
        match self {
            Self::Lost { job, calls } => write!(f, "job {job} is lost, after {calls} calls"),
            Self::Overfull {
                tenant,
                at,
                calls,
                allowed,
            } => write!(
                f,
                "tenant {tenant}: the window that ends at {:.6} s has {calls} calls; {allowed} are allowed",
                seconds(at)
            ),
            Self::Repeated { job, at } => write!(
                f,
                "job {job} ran again at {:.6} s after its end, and no fault explains it",
                seconds(at)
            ),
            Self::Attempt {
                job,
                attempt,
                failures,
            } => write!(
                f,
                "job {job} said attempt {attempt} after {failures} failures"
            ),
            Self::Buried { job, reason } => {
                write!(
                    f,
                    "job {job} is a dead letter without a reason to be: {reason:?}"
                )
            }
            Self::Stranger { job } => write!(f, "job {job} was called, and nobody published it"),
            Self::Worker { worker, how } => write!(f, "worker {worker}: {how}"),
        }
    }
}

/// The figures of a history.
#[derive(Debug, Default)]
pub struct Verdict {
    pub confirmed: usize,
    /// Published, and RabbitMQ did not say whether it has them: they may run, or not.
    pub unsure: usize,
    pub done: usize,
    pub dead: usize,
    pub calls: usize,
    /// Calls answered by other than 2xx.
    pub refused: usize,
    /// Jobs that ran again after their end, by the latest fault before that could explain it.
    pub repeated: BTreeMap<Kind, usize>,
    /// The most calls in a window, and what it was allowed.
    pub fullest: (u64, u64),
    /// Windows that were too full: none where the guard is strict.
    pub overfull: usize,
    /// Faults, by kind.
    pub faults: BTreeMap<Kind, usize>,
    /// Of these, so many waited for what did not come: a moment, an empty queue.
    pub missed: usize,
    /// The highest attempt that a call said.
    pub attempts: u32,
    pub findings: Vec<Finding>,
}

impl Verdict {
    /// Every promise held.
    pub fn holds(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Judges `events`, which are in order of time.
pub fn check(events: &[Event], rules: Rules) -> Verdict {
    let lives = Lives::of(events);
    let broken = Broken::of(events);
    let mut verdict = Verdict::default();
    for (job, life) in &lives.jobs {
        let done = life.calls.iter().any(|call| call.is_done());
        verdict.calls += life.calls.len();
        verdict.refused += life.calls.iter().filter(|call| !call.is_done()).count();
        verdict.done += usize::from(done);
        verdict.dead += usize::from(life.dead.is_some());
        match life.confirmed {
            true => verdict.confirmed += 1,
            false => verdict.unsure += 1,
        }
        if life.published.is_none() {
            verdict.findings.push(Finding::Stranger { job: *job });
        }
        if life.confirmed && !done && life.dead.is_none() {
            let calls = life.calls.len();
            verdict.findings.push(Finding::Lost { job: *job, calls });
        }
        verdict.again(*job, life, &broken);
        verdict.attempts(*job, life, &broken);
        verdict.buried(*job, life, &broken, rules);
    }
    verdict.windows(events, rules);
    for event in events {
        match &event.what {
            What::Broken { kind, .. } => *verdict.faults.entry(*kind).or_default() += 1,
            What::Missed { .. } => verdict.missed += 1,
            What::Failed { worker, how } => verdict.findings.push(Finding::Worker {
                worker: *worker,
                how: how.clone(),
            }),
            _ => {}
        }
    }
    verdict
}

impl Verdict {
    /// Each call after the job's end must have a fault in the job's life that may repeat jobs: a copy of a job can wait for
    /// its turn long after the fault that made it.
    fn again(&mut self, job: Job, life: &lives::Life, broken: &Broken) {
        for call in life.after_the_end() {
            let cause = broken.latest(life.begins(), call.at, AFTERMATH, Kind::repeats_jobs);
            match cause {
                Some(kind) => *self.repeated.entry(kind).or_default() += 1,
                None => self.findings.push(Finding::Repeated { job, at: call.at }),
            }
        }
    }

    /// A wait uses no attempt: a call's attempt is at most one more than the failures before it.
    fn attempts(&mut self, job: Job, life: &lives::Life, broken: &Broken) {
        for (at, call) in life.calls.iter().enumerate() {
            self.attempts = self.attempts.max(call.attempt);
            let failures = life.calls[..at].iter().filter(|call| call.failed()).count();
            let unseen = broken.count(life.begins(), call.at, AFTERMATH, Kind::uses_attempts);
            let failures = u32::try_from(failures + unseen).unwrap_or(u32::MAX);
            if call.attempt == 0 || call.attempt > failures.saturating_add(1) {
                self.findings.push(Finding::Attempt {
                    job,
                    attempt: call.attempt,
                    failures,
                });
            }
        }
    }

    /// A dead letter was rejected, or has used all its attempts.
    fn buried(&mut self, job: Job, life: &lives::Life, broken: &Broken, rules: Rules) {
        let Some(reason) = &life.dead else { return };
        let failures = life.calls.iter().filter(|call| call.failed()).count()
            + broken.count(life.begins(), u64::MAX, AFTERMATH, Kind::uses_attempts);
        if !life.calls.iter().any(|call| call.is_rejected())
            && failures < rules.max_attempts as usize
        {
            self.findings.push(Finding::Buried {
                job,
                reason: reason.clone(),
            });
        }
    }

    fn windows(&mut self, events: &[Event], rules: Rules) {
        for window in windows::windows(events, rules.window) {
            if window.calls * self.fullest.1.max(1) > self.fullest.0 * window.allowed.max(1) {
                self.fullest = (window.calls, window.allowed);
            }
            if window.calls <= window.allowed {
                continue;
            }
            self.overfull += 1;
            if rules.windows_hold {
                self.findings.push(Finding::Overfull {
                    tenant: window.tenant,
                    at: window.at,
                    calls: window.calls,
                    allowed: window.allowed,
                });
            }
        }
    }
}
