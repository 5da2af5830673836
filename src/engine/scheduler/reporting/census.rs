//! Counts the jobs in memory for metrics, at intervals, because each count visits every job.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::facts::JobFact;
use crate::scheduler::Scheduler;
use crate::scheduler::due_time::LATE_AFTER;
use crate::scheduler::entry::{JobEntry, Phase, SlotState};
use broker::DeliverySource;
use gate::TenantReply;
use rules::job::{Envelope, Field, start};
use rules::report::load::{Census, MissingResource};
use rules::steering::WaitsFor;
use rules::tenant::Tenant;

/// Maximum number of remembered suspended tenants.
const MAX_TENANTS: usize = 10_000;

/// The suspended tenants, as the gate's answers report them, and the ends of their suspensions: in
/// scheduler time, and in milliseconds of the store's clock.
#[derive(Debug, Default)]
pub struct SuspendedTenants(HashMap<Tenant, (Duration, u64), RandomState>);

impl SuspendedTenants {
    /// Records the state of `tenant` in an answer.
    pub fn record(&mut self, now: Duration, tenant: &Tenant, reply: &TenantReply) {
        match reply.blocked_until_ms.saturating_sub(reply.now_ms) {
            0 => _ = self.0.remove(tenant),
            left_ms => {
                let until = now + Duration::from_millis(left_ms);
                if self.0.len() < MAX_TENANTS || self.0.contains_key(tenant) {
                    let until = (until, reply.blocked_until_ms);
                    self.0.insert(tenant.clone(), until);
                }
            }
        }
    }

    /// Returns the number of suspended tenants.
    fn count(&mut self, now: Duration) -> usize {
        self.0.retain(|_, (until, _)| now < *until);
        self.0.len()
    }

    /// Returns the suspended tenants of the last count, with the ends of their suspensions in
    /// milliseconds of the store's clock.
    pub fn until_ms(&self) -> impl Iterator<Item = (&Tenant, u64)> {
        self.0
            .iter()
            .map(|(tenant, (_, until_ms))| (tenant, *until_ms))
    }
}

impl Scheduler {
    /// Reports how long a new job has been in its queue, if its publisher's timestamp and the
    /// store's clock are known.
    pub(in crate::scheduler) fn count_queued(
        &mut self,
        now: Duration,
        source: DeliverySource,
        job: &JobEntry,
    ) {
        if source == DeliverySource::Fresh
            && let Some(published_ms) = job.message.published_ms()
            && let Some(store_now) = self.clock.at_least(now)
        {
            let age = Duration::from_millis(store_now.saturating_sub(published_ms));
            self.facts.push(JobFact::Queued(age));
        }
    }

    /// Counts the jobs in memory.
    pub fn census(&mut self, now: Duration) -> Census {
        let mut census = Census {
            suspended: self.suspended.count(now),
            ..Census::default()
        };
        // Otherwise no job is supposed to be called, which has metrics of its own.
        let calls =
            self.agreement.allows(now) && !self.breakers.is_shut(now) && !self.intake.is_stopping();
        let mut waiting = HashSet::new();
        for job in self.jobs.values() {
            if matches!(
                job.phase,
                Phase::Running | Phase::Throttling { .. } | Phase::Reporting
            ) {
                continue;
            }
            waiting.insert(&job.claims.tenant);
            if matches!(job.phase, Phase::Delayed { .. } | Phase::InWindow { .. }) {
                continue;
            }
            let late = job.due.late(now);
            census.oldest = census.oldest.max(late);
            if calls && late >= LATE_AFTER {
                census.idle[self.lacks(job) as usize] += 1;
            }
        }
        census.waiting = waiting.len();
        census
    }

    /// Returns what a job waits for, or `None` if it does not wait.
    pub(in crate::scheduler) fn waits_for(
        &self,
        now: Duration,
        job: &JobEntry,
    ) -> Option<WaitsFor> {
        let says_when = || {
            let says = |header| job.message.header(header) != Field::Missing;
            [start::DELAY, start::NOT_BEFORE].into_iter().any(says)
        };
        Some(match job.phase {
            Phase::Running | Phase::Throttling { .. } | Phase::Reporting => return None,
            // The gate gave it a turn after it last started.
            Phase::Delayed { .. } | Phase::InWindow { .. } if job.claims.promise.is_some() => {
                WaitsFor::Turn
            }
            Phase::Delayed { .. } | Phase::InWindow { .. } => match job.claims.attempt {
                1 if says_when() => WaitsFor::DelayedStart,
                1 => WaitsFor::Later,
                _ => WaitsFor::Retry,
            },
            _ if self.breakers.is_shut(now) => WaitsFor::Breaker,
            _ if !self.agreement.allows(now) => WaitsFor::Agreement,
            _ => match self.lacks(job) {
                MissingResource::Slot => WaitsFor::Slot,
                MissingResource::Redis => WaitsFor::Redis,
                MissingResource::Connection => WaitsFor::Connection,
                MissingResource::Worker => WaitsFor::Nothing,
            },
        })
    }

    /// Returns the resource that a job lacks whose time has come.
    fn lacks(&self, job: &JobEntry) -> MissingResource {
        let shard = || self.queues.shard_of(&job.claims.tenant);
        match job.phase {
            Phase::Preparing => MissingResource::Connection,
            Phase::Candidate | Phase::Noting | Phase::Asking => MissingResource::Redis,
            _ if job.slot == SlotState::Empty && !self.queues.has_slot(&job.claims.tenant) => {
                MissingResource::Slot
            }
            _ if !self.is_open(shard()) => MissingResource::Redis,
            _ => MissingResource::Worker,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::SECOND;

    fn reply(blocked_until_ms: u64) -> TenantReply {
        TenantReply {
            now_ms: 10_000,
            blocked_until_ms,
            has_failures: false,
            shadows: Vec::new(),
            answers: Vec::new(),
        }
    }

    #[test]
    fn a_tenant_is_suspended_until_its_time_or_an_answer_says_otherwise() {
        let tenant = |name: &str| Tenant::parse(name).expect("a tenant");
        let (mut suspended, a, b) = (SuspendedTenants::default(), tenant("a"), tenant("b"));
        suspended.record(SECOND, &a, &reply(0));
        suspended.record(SECOND, &a, &reply(10_000));
        assert_eq!(suspended.count(SECOND), 0);
        suspended.record(SECOND, &a, &reply(13_000));
        suspended.record(SECOND, &b, &reply(15_000));
        assert_eq!(suspended.count(SECOND), 2);
        assert_eq!(suspended.count(4 * SECOND), 1, "the time of one is over");
        suspended.record(SECOND, &b, &reply(0));
        assert_eq!(suspended.count(4 * SECOND), 0, "resumed");
    }

    #[test]
    fn the_number_of_suspended_tenants_is_bounded() {
        let mut suspended = SuspendedTenants::default();
        for number in 0..=MAX_TENANTS {
            let tenant = Tenant::parse(&number.to_string()).expect("a tenant");
            suspended.record(SECOND, &tenant, &reply(13_000));
        }
        assert_eq!(suspended.count(SECOND), MAX_TENANTS);
    }
}
