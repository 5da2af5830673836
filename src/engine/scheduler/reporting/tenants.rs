//! The state of the tenants, for commands that show the fleet. Starts and denials are counted as
//! they happen; the rest is collected at intervals, because that looks at each job in memory.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::scheduler::Scheduler;
use crate::scheduler::asking::questions::GateQuestion;
use crate::scheduler::entry::Phase;
use gate::{Answer, TenantReply};
use rules::job::Claims;
use rules::report::load::TenantLoads;
use rules::report::{ReportedTenant, UnnamedTenants, busiest};
use rules::tenant::Tenant;

/// Maximum number of tenants that are counted separately. Tenants whose jobs did nothing lately
/// make room first.
const MAX_TENANTS: usize = 10_000;

/// The counts of one tenant's jobs.
#[derive(Debug, Default)]
struct TenantTally {
    starts: u64,
    denials: u64,
    /// The latest turn that the gate gave one of its jobs, in milliseconds of the store's clock, or
    /// 0 if its waitlist was empty after that.
    line_ends_ms: u64,
    /// The limit that last made one of its jobs wait.
    waits_for: String,
}

/// The counts of all tenants since the last report.
#[derive(Debug, Default)]
pub struct Tallies {
    tenants: HashMap<Tenant, TenantTally, RandomState>,
    /// When they were last reported.
    since: Duration,
    /// Starts and denials of tenants that are not counted separately.
    others: (u64, u64),
}

impl Tallies {
    fn of(&mut self, tenant: &Tenant) -> Option<&mut TenantTally> {
        if self.tenants.len() >= MAX_TENANTS {
            return self.tenants.get_mut(tenant);
        }
        Some(self.tenants.entry(tenant.clone()).or_default())
    }

    /// Counts a job that starts.
    pub fn started(&mut self, claims: &Claims) {
        // A new job is admitted only if no job waits.
        self.starts(&claims.tenant, claims.ticket.is_none());
    }

    /// Counts a start of `tenant`. `has_no_line`: its waitlist is known to be empty.
    fn starts(&mut self, tenant: &Tenant, has_no_line: bool) {
        let Some(tally) = self.of(tenant) else {
            self.others.0 += 1;
            return;
        };
        tally.starts += 1;
        // A job in the same question may have begun a waitlist.
        if has_no_line && tally.denials == 0 {
            tally.line_ends_ms = 0;
        }
    }

    /// Counts the denials of a question.
    pub fn denied(&mut self, question: &GateQuestion, reply: &TenantReply) {
        for answer in &reply.answers {
            if let Answer::Wait { limit, ttl_ms, .. } = answer {
                let limits = &question.limits;
                let limit = &limits[(*limit).min(limits.len() - 1)];
                let until_ms = reply.now_ms.saturating_add(*ttl_ms);
                self.waits(&question.tenant, limit.name(), until_ms);
            }
        }
    }

    /// Counts a job of `tenant` that must wait for `limit` until `until_ms` of the store's clock.
    fn waits(&mut self, tenant: &Tenant, limit: &str, until_ms: u64) {
        let Some(tally) = self.of(tenant) else {
            self.others.1 += 1;
            return;
        };
        tally.denials += 1;
        tally.line_ends_ms = tally.line_ends_ms.max(until_ms);
        if tally.waits_for != limit {
            limit.clone_into(&mut tally.waits_for);
        }
    }

    /// Begins new counts after a report at `store_ms` of the store's clock. Forgets tenants that
    /// did nothing and have no waitlist.
    fn report(&mut self, now: Duration, store_ms: u64) {
        self.since = now;
        self.others = (0, 0);
        let is_busy = |tally: &TenantTally| tally.starts + tally.denials > 0;
        // New tenants must find room.
        let is_full = self.tenants.len() > MAX_TENANTS / 2;
        (self.tenants).retain(|_, tally| match is_full {
            true => is_busy(tally) && tally.line_ends_ms > store_ms,
            false => tally.line_ends_ms > store_ms,
        });
        for tally in self.tenants.values_mut() {
            (tally.starts, tally.denials) = (0, 0);
        }
    }
}

impl Scheduler {
    /// Returns the state of the tenants. Starts and denials are those since the last call.
    pub fn tenants(&mut self, now: Duration) -> TenantLoads {
        let mut all: HashMap<&Tenant, ReportedTenant, RandomState> = HashMap::default();
        let new = |tenant: &Tenant| ReportedTenant::new(tenant.clone());
        for (tenant, tally) in &self.tallies.tenants {
            let one = all.entry(tenant).or_insert_with(|| new(tenant));
            (one.starts, one.denials) = (tally.starts, tally.denials);
            one.line_ends_ms = tally.line_ends_ms;
        }
        let mut waiting = 0;
        for job in self.jobs.values() {
            let tenant = &job.claims.tenant;
            let one = all.entry(tenant).or_insert_with(|| new(tenant));
            match job.phase {
                Phase::Running => one.running += 1,
                // Its call has just ended.
                Phase::Throttling { .. } | Phase::Reporting => {}
                _ => {
                    one.waiting += 1;
                    waiting += 1;
                }
            }
        }
        for (tenant, until_ms) in self.suspended.until_ms() {
            let one = all.entry(tenant).or_insert_with(|| new(tenant));
            one.closed_until_ms = until_ms;
        }
        let (starts, denials) = self.tallies.others;
        let mut left_out = UnnamedTenants {
            starts,
            denials,
            uncounted: starts + denials > 0,
            ..UnnamedTenants::default()
        };
        let mut busiest = busiest(all.into_values().collect(), &mut left_out);
        for one in &mut busiest {
            if let Some(tally) = self.tallies.tenants.get(&one.tenant) {
                one.waits_for.clone_from(&tally.waits_for);
            }
        }
        let tenants = TenantLoads {
            over: now.saturating_sub(self.tallies.since),
            waiting,
            busiest,
            left_out,
            advice: self.refusals.last_advice(now).map(str::to_owned),
        };
        let store_ms = self.clock.at_least(now).unwrap_or_default();
        self.tallies.report(now, store_ms);
        tenants
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::SECOND;
    use kit::gate::tenant;

    #[test]
    fn counts_reset_and_a_waitlist_is_known_until_its_end() {
        let (mut tallies, acme) = (Tallies::default(), tenant("acme"));
        tallies.starts(&acme, true);
        tallies.waits(&acme, "hour", 9_000);
        tallies.waits(&acme, "minute", 8_000);
        let tally = tallies.of(&acme).expect("known");
        assert_eq!((tally.starts, tally.denials), (1, 2));
        assert_eq!(
            (tally.line_ends_ms, tally.waits_for.as_str()),
            (9_000, "minute")
        );
        tallies.report(SECOND, 5_000);
        let tally = tallies.of(&acme).expect("known");
        assert_eq!(
            (tally.starts, tally.denials, tally.line_ends_ms),
            (0, 0, 9_000)
        );
        tallies.starts(&acme, false);
        assert_eq!(tallies.of(&acme).expect("known").line_ends_ms, 9_000);
        tallies.report(SECOND, 9_000);
        assert!(tallies.tenants.is_empty(), "it is over");
    }

    #[test]
    fn a_job_that_did_not_wait_ends_the_waitlist() {
        let (mut tallies, acme) = (Tallies::default(), tenant("acme"));
        tallies.waits(&acme, "hour", 9_000);
        tallies.starts(&acme, true);
        assert_eq!(tallies.of(&acme).expect("known").line_ends_ms, 9_000);
        tallies.report(SECOND, 1_000);
        tallies.starts(&acme, true);
        assert_eq!(tallies.of(&acme).expect("known").line_ends_ms, 0);
    }

    #[test]
    fn a_bounded_number_of_tenants_has_counts_and_the_rest_is_summed_up() {
        let mut tallies = Tallies::default();
        for number in 0..MAX_TENANTS + 3 {
            tallies.waits(&tenant(number), "hour", 9_000);
            tallies.starts(&tenant(number), false);
        }
        assert_eq!(
            (tallies.tenants.len(), tallies.others),
            (MAX_TENANTS, (3, 3))
        );
        tallies.report(SECOND, 1_000);
        assert_eq!(tallies.others, (0, 0));
        assert_eq!(tallies.tenants.len(), MAX_TENANTS, "their lines are known");
        // These tenants make room when they do nothing.
        tallies.starts(&tenant("7"), false);
        tallies.report(SECOND, 1_000);
        assert_eq!(tallies.tenants.len(), 1);
    }
}
