//! Follows operators' instructions (`rules::steering`): canceled jobs leave, jobs of diverted
//! tenants go to another queue, and the state of a job is reported to operators who asked for it. A
//! worker that follows an instruction has checked all jobs in its memory; other jobs are checked
//! when they arrive. Running calls are not interrupted. A tried limit applies from the job's next
//! question on.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::moves::Destination;
use crate::action::{Action, JobKey};
use crate::facts::{Death, JobFact, WorkerFact};
use crate::scheduler::Scheduler;
use crate::scheduler::entry::{JobEntry, Phase};
use gate::GateError;
use rules::headers::{self, HeaderValue};
use rules::job;
use rules::limit::{Limits, floor_ms};
use rules::steering::{
    CANCELED, DIVERTED, Hold, JobRequests, JobSighting, SightedState, Sighting, Steering, WaitState,
};
use rules::tenant::Tenant;

/// Delay before a failed report is sent again.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The instructions in force, and the reports on jobs. Operators ask for each report, which bounds
/// their number.
#[derive(Debug, Default)]
pub struct SteeringState {
    pub now: Arc<Steering>,
    open: BTreeMap<(Tenant, String), Sighting>,
    /// Reports in flight.
    sent: Vec<JobSighting>,
    not_before: Duration,
}

impl SteeringState {
    /// Returns the instructions on the job.
    fn wish(&self, job: &JobEntry) -> Option<JobRequests> {
        let id = job.message.id().filter(|_| job.has_own_id)?;
        self.now.of_job(&job.claims.tenant, id)
    }

    /// Returns true if the job is not to be called, now or ever.
    fn stops(&self, job: &JobEntry) -> bool {
        self.now.diverts(&job.claims.tenant).is_some()
            || self.wish(job).is_some_and(|wish| wish.cancel.is_some())
    }

    /// Returns `limits` of `tenant` with the limits that operators try as shadows.
    pub fn with_tried(&self, tenant: &Tenant, limits: Limits) -> Limits {
        self.now.with_tried(tenant, limits)
    }

    /// Returns when there is something to report.
    pub fn next(&self) -> Option<Duration> {
        (self.sent.is_empty() && !self.open.is_empty()).then_some(self.not_before)
    }
}

impl Scheduler {
    /// Puts instructions in force. From now on no job is called against them, except for running
    /// calls.
    pub fn steer(&mut self, now: Duration, steering: Arc<Steering>) {
        let before = std::mem::replace(&mut self.steering.now, Arc::clone(&steering));
        if before.hold != steering.hold {
            self.facts.push(WorkerFact::Held(steering.hold));
            self.agreement.pause(steering.hold == Some(Hold::Paused));
            let draining = |steering: &Steering| steering.hold == Some(Hold::Draining);
            if draining(&before) != draining(&steering) {
                self.agenda.push(Action::TakeNew(!draining(&steering)));
            }
        }
        self.wake_waiting(now);
        if steering.concerns_no_job() {
            return;
        }
        let concerned =
            |job: &JobEntry| self.steering.stops(job) || self.steering.wish(job).is_some();
        let concerned = self.jobs.iter().filter(|(_, job)| concerned(job));
        let mut keys: Vec<JobKey> = concerned.map(|(key, _)| *key).collect();
        // Sorted into the order of arrival; the map has no stable order.
        keys.sort_unstable();
        for &key in &keys {
            let state = self.jobs.get(&key).map(state_of);
            state
                .into_iter()
                .for_each(|state| self.sight(now, key, state));
        }
        if self.intake.is_stopping() {
            return;
        }
        let stops = |key: &JobKey| (self.jobs.get(key)).is_some_and(|job| self.steering.stops(job));
        let stopped: HashSet<JobKey> = keys.iter().copied().filter(stops).collect();
        for key in self.queues.take_stale(|key| stopped.contains(&key)) {
            self.remove_if_unwanted(now, key);
        }
        for key in keys.into_iter().filter(|key| stopped.contains(key)) {
            self.wake(now, key);
        }
    }

    /// Removes a job that is not to be called. Returns true if it left.
    pub(in crate::scheduler) fn remove_if_unwanted(&mut self, now: Duration, key: JobKey) -> bool {
        if self.steering.now.concerns_no_job() {
            return false;
        }
        let Some(job) = self.jobs.get(&key) else {
            return false;
        };
        if self
            .steering
            .wish(job)
            .is_some_and(|wish| wish.cancel.is_some())
        {
            self.sight(now, key, SightedState::Canceled);
            self.bury(now, key, Death::Canceled, CANCELED);
            return true;
        }
        let Some(queue) = self.steering.now.diverts(&job.claims.tenant).cloned() else {
            return false;
        };
        // It keeps its times, for the case that it comes back. Its turn is not one of them: the
        // limits are asked again then.
        let waits_for_turn = job.claims.promise.is_some();
        let rest = self.rest(now, key).filter(|_| !waits_for_turn);
        let wait_ms = rest.map_or(0, |rest| rest.within_ms);
        let mut headers = job::postponed(&job.claims, rest.map(|rest| rest.at_ms), wait_ms);
        headers.push((headers::REASON, HeaderValue::Text(DIVERTED.to_owned())));
        self.sight(now, key, SightedState::Diverted);
        self.facts.push(JobFact::Diverted);
        self.leave(now, key, Destination { queue, headers }, None);
        true
    }

    /// Checks a job whose time has come against the instructions, and reports it. Returns true if
    /// it left.
    pub(in crate::scheduler) fn remove_if_unwanted_in_turn(
        &mut self,
        now: Duration,
        key: JobKey,
    ) -> bool {
        if self.steering.now.concerns_no_job() {
            return false;
        }
        if self.remove_if_unwanted(now, key) {
            return true;
        }
        self.sight(now, key, SightedState::Waiting);
        false
    }

    /// Returns true if operators allow the job to start.
    pub(in crate::scheduler) fn is_wanted(&self, job: &JobEntry) -> bool {
        let steering = &self.steering.now;
        steering.hold != Some(Hold::Paused)
            && (steering.concerns_no_job() || !self.steering.stops(job))
    }

    /// Reports the state of the job if an operator asked for it.
    pub(in crate::scheduler) fn sight(&mut self, now: Duration, key: JobKey, state: SightedState) {
        if self.steering.now.concerns_no_job() {
            return;
        }
        let Some(job) = self.jobs.get(&key) else {
            return;
        };
        let Some(JobRequests { cancel, show }) = self.steering.wish(job) else {
            return;
        };
        let (tenant, plan) = (&job.claims.tenant, job.claims.plan.clone());
        let limits = self.agreement.limits(tenant, plan.as_deref());
        let what = match state.is_end() {
            true => None,
            false => self.waits_for(now, job),
        };
        let waits = what.map(|what| WaitState {
            what,
            plan,
            labels: (self.labels_of(job, &limits).iter())
                .map(|(scope, value)| (scope.to_string(), value.to_owned()))
                .collect(),
            generation: job.claims.ticket.map(|ticket| ticket.generation),
            promised_ms: job.claims.promise.map(|promise| promise.at_ms),
        });
        let wait = match job.phase {
            Phase::Delayed { until } | Phase::InWindow { until } => Some(until.saturating_sub(now)),
            _ => None,
        };
        let limit = job.denied_by.as_ref();
        let limit = limit.and_then(|(limits, index)| limits.get(*index));
        let sighting = Sighting {
            cancel,
            show,
            state,
            at_ms: self.clock.at_least(now).unwrap_or_default(),
            attempt: job.claims.attempt,
            cost: job.claims.cost,
            queue: self.settings.names.of(job.tag.source).to_string(),
            here_ms: floor_ms(now.saturating_sub(job.since)),
            wait_ms: wait.map(floor_ms),
            ticket: job.claims.ticket.map(|ticket| ticket.number),
            limit: limit.map(|limit| limit.name().to_owned()),
            waits,
        };
        let id = job.message.id().unwrap_or_default().to_owned();
        let named = (job.claims.tenant.clone(), id);
        self.steering.open.insert(named, sighting);
    }

    /// Sends the reports on jobs.
    pub(in crate::scheduler) fn send_sightings(&mut self, now: Duration) {
        if self.steering.next().is_none_or(|at| at > now) {
            return;
        }
        let open = std::mem::take(&mut self.steering.open).into_iter();
        let batch: Vec<JobSighting> = open
            .map(|((tenant, job), sighting)| JobSighting {
                tenant,
                job,
                sighting,
            })
            .collect();
        self.steering.sent = batch.clone();
        self.agenda.push(Action::Sighted(batch));
    }

    /// Handles the result of [`Action::Sighted`]. Reports that failed are sent again, unless there
    /// are newer ones.
    pub fn sighted(&mut self, now: Duration, result: &Result<(), GateError>) {
        let sent = std::mem::take(&mut self.steering.sent);
        if result.is_ok() {
            return;
        }
        self.steering.not_before = now + RETRY_DELAY;
        for JobSighting {
            tenant,
            job,
            sighting,
        } in sent
        {
            // Skips reports that no operator asks for anymore.
            if self.steering.now.of_job(&tenant, &job).is_some() {
                self.steering.open.entry((tenant, job)).or_insert(sighting);
            }
        }
    }
}

/// Returns the state of a job in memory.
fn state_of(job: &JobEntry) -> SightedState {
    match job.phase {
        Phase::Running => SightedState::Running,
        Phase::Noting | Phase::Asking | Phase::Preparing => SightedState::Asking,
        _ => SightedState::Waiting,
    }
}
