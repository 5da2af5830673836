//! Handles jobs for which the gate could not decide.

use std::time::Duration;

use rand::Rng;

use super::admission::RoundTrip;
use super::outages::{FIRST_WAIT, next_wait};
use super::questions::GateQuestion;
use crate::action::JobKey;
use crate::facts::{GateFact, NoDecision, TenantFact};
use crate::scheduler::Scheduler;
use gate::{GateError, Receipt};
use rules::scope::Labels;
use rules::tenant::Tenant;

/// How long the jobs of a tenant whose keys can't be used wait. An operator has to fix the keys.
const UNUSABLE_KEYS_WAIT: Duration = Duration::from_secs(60);
/// Waits below this are spent in memory, even if it is full, as long as the outage is younger than
/// [`FIRST_WAIT`].
const MAX_IN_MEMORY_WAIT: Duration = Duration::from_secs(1);
/// Jobs that come back when their primary may decide again are spread over their wait divided by
/// this.
const SPREAD_PART: u32 = 10;
/// Maximum time over which they are spread.
const MAX_SPREAD: Duration = Duration::from_secs(5);

impl Scheduler {
    /// Handles a failed round trip. It is not known when its jobs may ask again.
    pub(in crate::scheduler) fn undecided_round(
        &mut self,
        now: Duration,
        round: &RoundTrip,
        why: &GateError,
    ) {
        for question in &round.questions {
            self.settlement.doubt(now, question);
        }
        let same = |one: &GateQuestion, two: &GateQuestion| one.tenant == two.tenant;
        for of_tenant in round.questions.chunk_by(same) {
            let jobs = of_tenant.iter().flat_map(|question| &question.jobs);
            let jobs: Vec<_> = jobs.map(|job| (job.index, job.key)).collect();
            jobs.iter().for_each(|(_, key)| self.release_slot(*key));
            self.put_back_in_order(jobs);
        }
        self.back_off(now, why);
    }

    /// Delays the next question, because the gate can't be asked.
    pub(in crate::scheduler) fn back_off(&mut self, now: Duration, why: &GateError) {
        let jitter = self.random.random();
        self.admission.back_off(now, why, jitter);
    }

    /// Handles an answer without a decision for the tenant of `question`.
    pub(in crate::scheduler) fn undecided(
        &mut self,
        now: Duration,
        question: &GateQuestion,
        why: &GateError,
    ) {
        let GateQuestion { tenant, labels, .. } = question;
        if question.jobs.is_empty() {
            return self.clock_unread(now, tenant, why);
        }
        self.settlement.doubt(now, question);
        let keys: Vec<JobKey> = question.jobs.iter().map(|job| job.key).collect();
        keys.iter().for_each(|key| self.release_slot(*key));
        self.set_aside(now, (tenant, labels), &keys, why);
    }

    /// Handles a failed reading of the store's clock. The next one uses another tenant.
    fn clock_unread(&mut self, now: Duration, tenant: &Tenant, why: &GateError) {
        if self.clock.should_report_unreadable(now) {
            let jobs = self.clock.waiting().len();
            let fact = TenantFact::ClockUnreadable(tenant.clone(), jobs, why.clone());
            self.facts.push(fact);
        }
        self.clock.try_next();
        self.admission.back_off_clock(now);
    }

    /// Delays these jobs of one tenant, but no other jobs.
    pub(in crate::scheduler) fn set_aside(
        &mut self,
        now: Duration,
        (tenant, labels): (&Tenant, &Labels),
        keys: &[JobKey],
        why: &GateError,
    ) {
        let mut undecided = |what| {
            self.facts.push(TenantFact::Undecided {
                tenant: tenant.clone(),
                labels: labels.clone(),
                jobs: keys.len(),
                why: why.clone(),
                what,
            });
        };
        let counts_in = match why {
            GateError::Refused(_) => {
                undecided(NoDecision::Refused(UNUSABLE_KEYS_WAIT));
                for key in keys {
                    self.delay_in_queue(now, *key, UNUSABLE_KEYS_WAIT);
                }
                return;
            }
            GateError::Unreachable(_) | GateError::Unusable(_) => None,
            GateError::Cold { wait, .. } => Some(*wait),
        };
        let farthest = Duration::from_millis(self.settings.levels.max_ms());
        let lasts = self.outages.record(now, tenant, farthest);
        // The gate reports a recovery wait once per primary. An unavailable primary is reported
        // once per tenant.
        undecided(match counts_in.is_none() && lasts.is_zero() {
            true => NoDecision::Unavailable,
            false => NoDecision::AlreadyReported,
        });
        let again_in = next_wait(lasts, farthest);
        for &key in keys {
            match counts_in {
                Some(wait) if wait < MAX_IN_MEMORY_WAIT && lasts < FIRST_WAIT => {
                    self.delay_in_memory_anyway(now, key, wait);
                }
                Some(wait) if wait <= again_in => {
                    let spread = (wait / SPREAD_PART).min(MAX_SPREAD);
                    let spread = spread.mul_f64(self.random.random_range(0.0..=1.0));
                    self.delay(now, key, (wait + spread).min(farthest));
                }
                _ => self.recheck(now, key, again_in),
            }
        }
    }

    /// Gives back a permit that came too late, or whose job is gone. The job asks again.
    pub(in crate::scheduler) fn permit_expired(
        &mut self,
        question: &GateQuestion,
        key: JobKey,
        receipt: Receipt,
    ) {
        self.facts.push(GateFact::ExpiredPermit);
        self.breakers.unused(&question.tenant, receipt.started_ms);
        self.settlement.unused(question, receipt);
        if let Some(job) = self.jobs.get_mut(&key) {
            job.had_its_turn();
        }
    }
}
