//! Applies what the API says about itself to other jobs: that it throttles a tenant or all tenants,
//! and what its limits are. `rules::answers` decides what an answer means.
//!
//! [`UnstoredThrottles`] retries throttles that could not be stored in the gate,
//! [`AdvertisedLimits`] stores the API's limits, and [`Lessons`] stores lessons for adaptive
//! limits.

mod advertised;
mod lessons;
mod unstored_throttles;

use std::time::Duration;

pub use advertised::AdvertisedLimits;
pub(in crate::scheduler) use lessons::{Learner, Lessons};
pub use unstored_throttles::UnstoredThrottles;

use crate::action::{Action, Block, JobKey};
use crate::facts::{LimitFact, TenantFact};
use crate::scheduler::Scheduler;
use crate::scheduler::due_time::DueTime;
use crate::scheduler::entry::Phase;
use crate::scheduler::queues::QueuePosition;
use gate::{BreakerScope, GateError};
use handler::Outcome;
use rules::answers::{Excess, LimitInfo, Quotas, ThrottleScope};
use rules::job::Claims;
use rules::limit::Limit;
use rules::tenant::Tenant;

/// Length of a throttle for which the answer names a time of 0, or for which it names no time and
/// the tenant has no window.
const DEFAULT_THROTTLE: Duration = Duration::from_secs(1);

impl Scheduler {
    /// Throttles the tenant of a refused call, or all tenants: none of their jobs starts until the
    /// throttle is over. The job waits until the throttle is stored. `stops_all`: whether all
    /// tenants are throttled, if the answer decides that.
    pub(in crate::scheduler) fn throttled(
        &mut self,
        now: Duration,
        key: JobKey,
        after: Option<Duration>,
        stops_all: Option<bool>,
        reason: String,
    ) {
        let Some(job) = self.jobs.get(&key) else {
            return;
        };
        let (tenant, plan) = (&job.claims.tenant, job.claims.plan.as_deref());
        let limits = self.agreement.own().limits(tenant, plan);
        let reason = match self.refusals.advise(now, tenant, limits) {
            Some(advice) => format!("{reason}; {advice}"),
            None => reason,
        };
        let by_answer = self.settings.throttle_scope.or_by_answer(stops_all);
        let scope = throttled_by(by_answer, limits, tenant);
        let length = match after {
            Some(_) => None,
            None => self.throttle_backoff.refused(now, &scope, limits),
        };
        let unnamed = length.map_or(DEFAULT_THROTTLE, |length| length.duration);
        // A refusal does not mean "at once": the job would be called again and again.
        let named = after.filter(|after| !after.is_zero());
        let duration = (named.unwrap_or(unnamed)).min(self.settings.live.max_throttle);
        self.facts.push(TenantFact::Throttled {
            tenant: tenant.clone(),
            scope: scope.clone(),
            duration,
            reason: Some(reason.clone()),
        });
        let stale = !self.intake.is_current(&job.tag);
        let waits = stale || !self.gives_up(now, key, &reason);
        if waits && let Some(job) = self.jobs.get_mut(&key) {
            // The job asks again then, regardless of its next wait.
            job.due = DueTime::at(now);
            job.phase = Phase::Throttling { duration };
        }
        let lesson = self.lessons.take_refused();
        let lesson = lesson.filter(|_| !length.is_some_and(|length| length.is_repeated));
        self.throttle(
            now,
            Block {
                key: waits.then_some(key),
                scope,
                until: now + duration,
                reason,
                failures: 0,
                lesson,
            },
        );
    }

    /// Counts a call that has ended, and returns true if the API refused it. A refusal widens the
    /// margins between starts; several refusals show how the API counts.
    pub(in crate::scheduler) fn count_refusals(
        &mut self,
        now: Duration,
        key: JobKey,
        called: bool,
        seen: &LimitInfo,
    ) -> bool {
        let is_refused = seen.refused.is_some();
        let Some(job) = self.jobs.get(&key) else {
            return is_refused;
        };
        let (tenant, Some(started)) = (&job.claims.tenant, &job.started) else {
            return is_refused;
        };
        self.pacing.called();
        if is_refused {
            (self.pacing).refused(now, tenant, (&started.limits, started.asked_at));
            self.refusals.refused(now, tenant, started.asked_at);
        } else if called {
            self.refusals.passed(tenant);
        }
        is_refused
    }

    /// Records a call that the API handled, and its actual cost. The next throttle without a time
    /// is short again.
    pub(in crate::scheduler) fn count_success(
        &mut self,
        key: JobKey,
        called: bool,
        (outcome, actual_cost): (&Outcome, Option<u64>),
    ) {
        let is_handled = match outcome {
            Outcome::Done | Outcome::Snooze { .. } | Outcome::Reject { .. } => called,
            Outcome::Retry { .. } | Outcome::Throttled { .. } | Outcome::Late => false,
        };
        if is_handled
            && let Some(job) = self.jobs.get(&key)
            && let Some(started) = &job.started
        {
            let Claims { tenant, cost, .. } = &job.claims;
            (self.throttle_backoff).succeeded(tenant, started.asked_at);
            self.costs
                .record(tenant, *cost, actual_cost.unwrap_or(*cost));
        }
    }

    /// Handles an answer that was no refusal but announced that the next one would be, or asked for
    /// a pause. The answer gives the end of the throttle in whole seconds. If the limits in force
    /// respect the API's, the throttle ends at the earliest time that this can mean, and the limits
    /// decide from then on.
    pub(in crate::scheduler) fn throttle_used_up(
        &mut self,
        now: Duration,
        key: JobKey,
        seen: &LimitInfo,
    ) {
        let (Some(job), Some(used_up)) = (self.jobs.get(&key), seen.used_up) else {
            return;
        };
        let (tenant, plan) = (&job.claims.tenant, job.claims.plan.as_deref());
        let limits = self.agreement.own().limits(tenant, plan);
        let min = used_up.saturating_sub(seen.rounding);
        let duration = match seen.quotas.are_met_by(limits, min) {
            true => min,
            false => used_up,
        };
        let duration = duration.min(self.settings.live.max_throttle);
        if duration.is_zero() {
            return;
        }
        let by_answer = self.settings.throttle_scope.or_by_answer(seen.stops_all);
        let scope = throttled_by(by_answer, limits, tenant);
        self.facts.push(TenantFact::Throttled {
            tenant: tenant.clone(),
            scope: scope.clone(),
            duration,
            reason: None,
        });
        self.throttle(
            now,
            Block {
                key: None,
                scope,
                until: now + duration,
                reason:
                    "an answer of the API asks for a pause (RateLimit headers or dispatch.http)"
                        .to_owned(),
                failures: 0,
                lesson: None,
            },
        );
    }

    fn throttle(&mut self, now: Duration, block: Block) {
        match &block.scope {
            BreakerScope::Api => self.breakers.throttled(block.until, false),
            BreakerScope::Tenant(tenant) => self.queues.suspend(tenant),
        }
        let duration = block.until.saturating_sub(now);
        self.throttles.begin();
        self.agenda.push(Action::Block(block, duration));
    }

    /// Stores throttles again that could not be stored.
    pub(in crate::scheduler) fn throttle_again(&mut self, now: Duration) {
        for block in self.throttles.due(now) {
            self.throttle(now, block);
        }
    }

    /// Handles the result of [`Action::Block`]. If the throttle could not be stored, the job that
    /// waits for it is delayed, and the throttle is stored again later.
    pub fn blocked(&mut self, now: Duration, mut block: Block, result: Result<(), GateError>) {
        self.throttles.end();
        if let BreakerScope::Tenant(tenant) = &block.scope {
            self.queues.end_suspension(tenant);
        }
        // Nothing starts anymore, so calls that are refused from now on belong to the same event.
        if let Some(lesson) = block.lesson.take() {
            let left = block.until.saturating_sub(now);
            let stops_all = block.scope == BreakerScope::Api;
            self.lessons.refused(*lesson, stops_all, left);
        }
        let key = block.key;
        match &result {
            Ok(()) if block.scope == BreakerScope::Api => {
                self.breakers.throttled(block.until, true)
            }
            Ok(()) => {}
            Err(why) => self.throttle_not_stored(now, block, why),
        }
        let Some((key, job)) = key.and_then(|key| Some((key, self.jobs.get_mut(&key)?))) else {
            return;
        };
        let Phase::Throttling { duration } = job.phase else {
            return;
        };
        // Its ticket was claimed when it started, so it needs a new one.
        job.claims.ticket = None;
        if !self.intake.is_current(&job.tag) {
            self.forget(key);
        } else if result.is_ok() {
            self.arrange(now, key, QueuePosition::Due);
        } else {
            self.delay_in_queue(now, key, duration);
        }
    }

    /// Returns true if no job of the tenant may start: its throttle is being stored, or all tenants
    /// are throttled.
    pub(in crate::scheduler) fn is_throttled(&self, now: Duration, tenant: &Tenant) -> bool {
        self.queues.is_suspended(tenant) || self.breakers.is_throttled(now)
    }

    fn throttle_not_stored(&mut self, now: Duration, block: Block, why: &GateError) {
        let (scope, by) = (block.scope.clone(), block.reason.clone());
        let (first, left) = (block.failures == 0, block.until.saturating_sub(now));
        let will_retry = self.throttles.failed(now, block);
        if first || !will_retry {
            self.facts.push(TenantFact::ThrottleNotStored {
                scope,
                by,
                left,
                will_retry,
                why: why.clone(),
            });
        }
    }

    /// Handles the limits that the API advertises in an answer, and warns if ours allow more.
    pub(in crate::scheduler) fn record_quotas(
        &mut self,
        now: Duration,
        key: JobKey,
        quotas: Quotas,
        learner: Option<&Learner>,
    ) {
        let Some(job) = self.jobs.get(&key) else {
            return;
        };
        let (tenant, plan) = (&job.claims.tenant, job.claims.plan.as_deref());
        let Some(is_news) = self.advertised.record(now, tenant, quotas) else {
            return;
        };
        if let Some(learner) = learner {
            self.lessons.advertised(tenant, learner, quotas);
        }
        if !is_news {
            return;
        }
        let limits = self.agreement.own().limits(tenant, plan);
        for excess in quotas.iter().filter_map(|quota| Excess::of(limits, quota)) {
            let warning = excess.to_string();
            if self.advertised.is_new_warning(now, &warning) {
                self.facts
                    .push(LimitFact::LowerAdvertised(tenant.clone(), warning));
            }
        }
    }

    /// Handles the result of [`Action::Advertised`].
    pub fn advertised_result(&mut self, now: Duration, result: Result<(), GateError>) {
        self.advertised.advertised_result(now, result.is_ok());
        self.facts
            .extend(result.err().map(LimitFact::QuotaNotStored));
    }
}

/// Returns which tenants a refused job of `tenant` throttles, given its limits.
fn throttled_by(scope: ThrottleScope, limits: &[Limit], tenant: &Tenant) -> BreakerScope {
    match scope.stops_all(limits) {
        true => BreakerScope::Api,
        false => BreakerScope::Tenant(tenant.clone()),
    }
}
