//! Applies the breakers to jobs: reports failures, and lets jobs wait while the API's breaker is
//! open.

use std::time::Duration;

use rand::Rng;

use super::breakers::{EndedCall, FailedJob, ReportOutcome};
use crate::action::{Action, JobKey};
use crate::facts::{Death, JobFact, TenantFact, WorkerFact};
use crate::scheduler::Scheduler;
use crate::scheduler::entry::{JobEntry, Phase};
use crate::scheduler::queues::QueuePosition;
use gate::{GateError, Standings};
use handler::{Attempt, Outcome, Trouble};
use rules::failures::breaker::MAX_JITTER;
use rules::job::Job;
use rules::limit::floor_ms;

/// How long a job waits in memory while the API's breaker is open. There it costs nothing, and
/// keeps the prefetch full, so that no more jobs come. Afterwards it moves to a short delay queue:
/// another worker may have a better connection to the API, and RabbitMQ takes back deliveries that
/// are unacked for 30 minutes.
const LET_GO_AFTER: Duration = Duration::from_secs(30);
/// Delay before jobs that left memory because of an open breaker ask again.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(15);

/// Minimum interval between reports that this worker lacks a resource.
const SHORTAGE_REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Delay before a job whose worker lacked a resource comes back, perhaps to another worker.
const SHORT_PAUSE: Duration = Duration::from_secs(1);

impl Scheduler {
    /// Records that this worker reached the API.
    pub(in crate::scheduler) fn could_call(&mut self) {
        if self.fitness.reached() {
            self.facts.push(WorkerFact::Fit);
        }
    }

    /// Records that this worker did not reach the API.
    fn could_not_call(&mut self, now: Duration, reason: &str, job: Option<Job>) {
        if self.fitness.failed(now, reason, job) {
            self.facts.push(WorkerFact::Unfit(reason.to_owned()));
        }
    }

    /// Begins a test of an unfit worker if it is due.
    pub(in crate::scheduler) fn test_fitness(&mut self, now: Duration) {
        if self.intake.is_stopping() {
            return;
        }
        if let Some((key, job)) = self.fitness.begin_test(now, || self.intake.new_key()) {
            let job = Box::new(job);
            self.agenda.push(Action::Prepare { key, job });
        }
    }

    /// Handles the result of a test. Unless the API was not reached, the next jobs show whether
    /// this worker can make calls.
    pub(in crate::scheduler) fn tested(
        &mut self,
        now: Duration,
        key: JobKey,
        result: Result<(), Attempt>,
    ) {
        match result {
            Err(Attempt {
                outcome: Outcome::Retry { reason, .. },
                trouble: Some(Trouble::Unreachable),
                ..
            }) => self.could_not_call(now, &reason, None),
            _ => self.could_call(),
        }
        self.agenda.release(key);
    }

    /// Records a call that this worker could not make. Turns its outcome into a snooze if the
    /// worker lacked a resource, or is unfit: it is no failure of the job or the API.
    pub(in crate::scheduler) fn spare(
        &mut self,
        now: Duration,
        key: JobKey,
        outcome: Outcome,
        trouble: Option<Trouble>,
    ) -> Outcome {
        // A lack of resources limits how many calls run at once; some calls are likely to run. So
        // only unreachability counts against the worker.
        if trouble == Some(Trouble::Unreachable)
            && let Outcome::Retry { reason, .. } = &outcome
        {
            let job = self.jobs.get(&key).map(JobEntry::job);
            self.could_not_call(now, reason, job);
        }
        match (outcome, trouble) {
            (Outcome::Retry { after, reason }, Some(Trouble::Local)) => {
                if self
                    .shortage_reports
                    .may_report(now, SHORTAGE_REPORT_INTERVAL)
                {
                    self.facts.push(WorkerFact::ResourceShortage(reason));
                }
                let after = after.unwrap_or(SHORT_PAUSE);
                Outcome::Snooze { after }
            }
            (Outcome::Retry { after, .. }, Some(Trouble::Unreachable))
                if !self.fitness.counts_for_all() =>
            {
                let after = after.unwrap_or(self.settings.live.retry.initial_interval);
                Outcome::Snooze { after }
            }
            (outcome, _) => outcome,
        }
    }

    /// Reports to the breakers how a call ended, if that is news. Returns true if its job waits
    /// until the report has arrived. `took` is the duration of the call or its preparation.
    /// `called`: the API may have seen the call.
    pub(in crate::scheduler) fn report_health(
        &mut self,
        now: Duration,
        key: JobKey,
        (took, called): (Duration, bool),
        outcome: &Outcome,
        trouble: Option<Trouble>,
    ) -> bool {
        if called && *outcome != Outcome::Late {
            self.could_call();
        }
        if matches!(outcome, Outcome::Retry { .. } | Outcome::Throttled { .. }) {
            self.note_failure(now, key);
        }
        let Some(job) = self.jobs.get(&key) else {
            return false;
        };
        let ended = EndedCall {
            key,
            id: job.message.id().unwrap_or_default(),
            tenant: &job.claims.tenant,
            began_ms: match &job.started {
                Some(started) => started.receipt.started_ms,
                // An estimate that is never too early, so that the failed preparation of a probe
                // counts as the probe.
                None => {
                    let store_now = self.clock.at_most(now).unwrap_or_default();
                    store_now.saturating_sub(floor_ms(took))
                }
            },
            has_started: job.started.is_some(),
        };
        match (outcome, trouble) {
            // Disabled breakers count no failures. The probe of a breaker that another worker
            // opened ends, so that the next call is the probe.
            (Outcome::Retry { .. }, Some(_)) if !self.breakers.are_enabled() => {
                self.breakers.no_outcome(&ended);
                false
            }
            (Outcome::Retry { after, reason }, Some(trouble)) => {
                // If the session is gone, the broker delivers its jobs again.
                let waits = self.intake.is_current(&job.tag);
                let failed = waits.then(|| FailedJob {
                    key,
                    after: *after,
                    reason: reason.clone(),
                    has_called: trouble != Trouble::Unreachable,
                });
                let jitter = self.random.random_range(0..=MAX_JITTER);
                self.breakers
                    .failed(&ended, (trouble, reason), jitter, failed);
                waits
            }
            (Outcome::Late | Outcome::Snooze { .. }, _)
            | (Outcome::Throttled { .. } | Outcome::Reject { .. }, Some(_)) => {
                self.breakers.no_outcome(&ended);
                false
            }
            // No call was made.
            _ if !called => {
                self.breakers.no_outcome(&ended);
                false
            }
            _ => {
                self.breakers.succeeded(&ended);
                false
            }
        }
    }

    /// Handles the result of [`Action::Report`].
    pub fn reported(&mut self, now: Duration, result: Result<Standings, GateError>) {
        if let Err(why) = &result {
            self.facts
                .push(WorkerFact::FailuresNotReported(why.clone()));
        }
        for outcome in self.breakers.report_result(now, result) {
            match outcome {
                ReportOutcome::Changed(scope, is_open, by) => {
                    self.facts.push(WorkerFact::Breaker(scope, is_open, by));
                }
                ReportOutcome::Failed(job, open) => self.failure_reported(now, job, open),
                ReportOutcome::AllStopped(left, by) => {
                    self.facts.push(TenantFact::AllStopped(left, by))
                }
            }
        }
    }

    /// Continues a failed job now that its failure is reported and the state of its breaker is
    /// known.
    fn failure_reported(&mut self, now: Duration, job: FailedJob, open: Option<bool>) {
        let FailedJob {
            key,
            after,
            reason,
            has_called,
        } = job;
        let reporting = |job: &JobEntry| job.phase == Phase::Reporting;
        if !self.jobs.get(&key).is_some_and(reporting) || self.gives_up(now, key, &reason) {
            return;
        }
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        match open {
            Some(false) if has_called => self.try_again(now, key, after, &reason),
            Some(true) => {
                self.facts
                    .push(JobFact::FailedWhileOpen(job.log_fields(), reason));
                // Its ticket was claimed when it started, so it needs a new one.
                job.claims.ticket = None;
                job.last_call = None;
                // It goes behind jobs that have not failed. If it always fails, the
                // next probe is a different job.
                self.arrange(now, key, QueuePosition::Fresh);
            }
            // The breakers did not answer, or no call was made.
            None | Some(false) => {
                job.claims.ticket = None;
                self.delay_in_queue(now, key, self.settings.live.retry.initial_interval);
            }
        }
    }

    /// Uses an attempt of a failed job, and tries it again later or makes it a dead letter.
    pub(in crate::scheduler) fn try_again(
        &mut self,
        now: Duration,
        key: JobKey,
        after: Option<Duration>,
        reason: &str,
    ) {
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        let attempt = job.claims.attempt;
        let jitter = self.random.random();
        let Some(backoff) = self.settings.live.retry.wait(attempt, jitter) else {
            let reason = format!("gave up after {attempt} attempts: {reason}");
            return self.bury(now, key, Death::Attempts, &reason);
        };
        let wait = after.unwrap_or(backoff);
        self.facts.push(JobFact::Retried {
            job: job.log_fields(),
            attempt,
            wait,
            reason: reason.to_owned(),
        });
        job.claims.attempt += 1;
        job.claims.ticket = None;
        self.delay_in_queue(now, key, wait);
    }

    /// Records the time of a job's first failure or throttle.
    fn note_failure(&mut self, now: Duration, key: JobKey) {
        let store_now = self.clock.at_least(now);
        if let Some(job) = self.jobs.get_mut(&key) {
            job.claims.first_failure_ms = job.claims.first_failure_ms.or(store_now);
        }
    }

    /// Turns a job that has failed, or was throttled, for too long into a dead letter. Returns true
    /// if it did.
    pub(in crate::scheduler) fn gives_up(
        &mut self,
        now: Duration,
        key: JobKey,
        reason: &str,
    ) -> bool {
        let first = self.jobs.get(&key).and_then(|e| e.claims.first_failure_ms);
        let (Some(first), Some(store_now)) = (first, self.clock.at_least(now)) else {
            return false;
        };
        let give_up_after = self.settings.live.retry.give_up_after;
        let age = Duration::from_millis(store_now.saturating_sub(first));
        if age < give_up_after {
            return false;
        }
        let reason = format!(
            "gave up {give_up_after:?} after its first failure or throttle (retry.give-up-after): {reason}"
        );
        self.bury(now, key, Death::GivenUp, &reason);
        true
    }

    /// Requests the next probe if a job wants to start, sends reports to the breakers, and lets
    /// jobs go that have waited for long.
    pub(in crate::scheduler) fn check_breaker(&mut self, now: Duration) {
        let stopping = self.intake.is_stopping();
        if !stopping {
            let has_jobs = self.queues.may_ask(|_| true) || self.clock.waiting().len() > 0;
            let wants = has_jobs && self.may_call();
            let (scope, policy) = (self.settings.throttle_scope, self.agreement.own());
            let by_answer = self.settings.answers_stop_all;
            (self.breakers).check(now, wants, || by_answer || scope.may_stop_all(policy));
        }
        // A stopping worker starts no more calls.
        if stopping && self.admission.is_idle() {
            let jobs = &self.jobs;
            let runs = |key| {
                jobs.get(&key)
                    .is_some_and(|job| job.phase == Phase::Running)
            };
            self.breakers.release_probe(runs);
        }
        if let Some((rule, events)) = self.breakers.send(now) {
            self.agenda.push(Action::Report(rule, events));
        }
        if stopping || !self.breakers.should_release_waiting(now) {
            return;
        }
        let jobs = &self.jobs;
        let stale = |key| {
            jobs.get(&key)
                .is_some_and(|job| job.since + LET_GO_AFTER < now)
        };
        for key in self.queues.take_stale(stale) {
            self.recheck(now, key, ASK_AGAIN_AFTER);
        }
    }
}
