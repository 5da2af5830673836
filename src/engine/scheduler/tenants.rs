//! How the tenants stand, for whoever looks at the fleet: counted as jobs start and are denied, and put together once in a while, since
//! that takes a look at each job in memory.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;

use super::Scheduler;
use super::entry::Phase;
use super::questions::Question;
use crate::engine::facts::Tenants;
use crate::gate::{Answer, TenantReply};
use crate::rules::job::Claims;
use crate::rules::report::{LeftOut, OfTenant, busiest};
use crate::rules::tenant::Tenant;

/// So many tenants are told apart. Those whose jobs did nothing lately make room first.
const MOST_TENANTS: usize = 10_000;

/// What happened to the jobs of one tenant.
#[derive(Debug, Default)]
struct Tally {
    starts: u64,
    denials: u64,
    /// When the last of them has its turn that was told of, by the store's clock in milliseconds; 0: the waitlist was empty since.
    line_ends_ms: u64,
    /// The limit that made one of them wait last.
    waits_for: String,
}

/// What happened to the jobs of all tenants since it was told last.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    tenants: HashMap<Tenant, Tally, RandomState>,
    /// Since when.
    since: Duration,
    /// Starts and denials of tenants for which there was no room.
    others: (u64, u64),
}

impl Tallies {
    fn of(&mut self, tenant: &Tenant) -> Option<&mut Tally> {
        if self.tenants.len() >= MOST_TENANTS {
            return self.tenants.get_mut(tenant);
        }
        Some(self.tenants.entry(tenant.clone()).or_default())
    }

    /// A job starts.
    pub(super) fn started(&mut self, claims: &Claims) {
        // A new job is admitted where none waits.
        self.starts(&claims.tenant, claims.ticket.is_none());
    }

    /// A job of `tenant` starts; where there was no line, that is known.
    fn starts(&mut self, tenant: &Tenant, has_no_line: bool) {
        let Some(tally) = self.of(tenant) else {
            self.others.0 += 1;
            return;
        };
        tally.starts += 1;
        // A job that was asked for with it may have begun one.
        if has_no_line && tally.denials == 0 {
            tally.line_ends_ms = 0;
        }
    }

    /// What the gate denied to the jobs of a question.
    pub(super) fn denied(&mut self, question: &Question, reply: &TenantReply) {
        for answer in &reply.answers {
            if let Answer::Wait { limit, ttl_ms, .. } = answer {
                let limits = &question.limits;
                let limit = &limits[(*limit).min(limits.len() - 1)];
                let until_ms = reply.now_ms.saturating_add(*ttl_ms);
                self.waits(&question.tenant, limit.name(), until_ms);
            }
        }
    }

    /// A job of `tenant` must wait for `limit` until `until_ms` by the store's clock.
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

    /// It is told now, when the store's clock says `store_ms`: counts begin anew, and who neither did anything nor has a waitlist is
    /// forgotten.
    fn told(&mut self, now: Duration, store_ms: u64) {
        self.since = now;
        self.others = (0, 0);
        let is_busy = |tally: &Tally| tally.starts + tally.denials > 0;
        // Who comes next must find room.
        let is_full = self.tenants.len() > MOST_TENANTS / 2;
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
    /// How the tenants stand. Starts and denials are those since this was asked last.
    pub fn tenants(&mut self, now: Duration) -> Tenants {
        let mut all: HashMap<&Tenant, OfTenant, RandomState> = HashMap::default();
        let new = |tenant: &Tenant| OfTenant::new(tenant.clone());
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
        let mut left_out = LeftOut {
            starts,
            denials,
            uncounted: starts + denials > 0,
            ..LeftOut::default()
        };
        let mut busiest = busiest(all.into_values().collect(), &mut left_out);
        for one in &mut busiest {
            if let Some(tally) = self.tallies.tenants.get(&one.tenant) {
                one.waits_for.clone_from(&tally.waits_for);
            }
        }
        let tenants = Tenants {
            over: now.saturating_sub(self.tallies.since),
            waiting,
            busiest,
            left_out,
        };
        let store_ms = self.clock.at_least(now).unwrap_or_default();
        self.tallies.told(now, store_ms);
        tenants
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn tenant(name: &str) -> Tenant {
        Tenant::parse(name).expect("a tenant")
    }

    #[test]
    fn counts_begin_anew_and_a_line_is_known_until_its_end() {
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
        tallies.told(SECOND, 5_000);
        let tally = tallies.of(&acme).expect("known");
        assert_eq!(
            (tally.starts, tally.denials, tally.line_ends_ms),
            (0, 0, 9_000)
        );
        tallies.starts(&acme, false);
        assert_eq!(tallies.of(&acme).expect("known").line_ends_ms, 9_000);
        tallies.told(SECOND, 9_000);
        assert!(tallies.tenants.is_empty(), "it is over");
    }

    #[test]
    fn a_job_that_did_not_wait_is_the_end_of_the_line() {
        let (mut tallies, acme) = (Tallies::default(), tenant("acme"));
        tallies.waits(&acme, "hour", 9_000);
        tallies.starts(&acme, true);
        assert_eq!(tallies.of(&acme).expect("known").line_ends_ms, 9_000);
        tallies.told(SECOND, 1_000);
        tallies.starts(&acme, true);
        assert_eq!(tallies.of(&acme).expect("known").line_ends_ms, 0);
    }

    #[test]
    fn a_bounded_number_is_told_apart_and_the_others_are_counted_together() {
        let mut tallies = Tallies::default();
        for number in 0..MOST_TENANTS + 3 {
            tallies.waits(&tenant(&number.to_string()), "hour", 9_000);
            tallies.starts(&tenant(&number.to_string()), false);
        }
        assert_eq!(
            (tallies.tenants.len(), tallies.others),
            (MOST_TENANTS, (3, 3))
        );
        tallies.told(SECOND, 1_000);
        assert_eq!(tallies.others, (0, 0));
        assert_eq!(tallies.tenants.len(), MOST_TENANTS, "their lines are known");
        // They make room where they do nothing.
        tallies.starts(&tenant("7"), false);
        tallies.told(SECOND, 1_000);
        assert_eq!(tallies.tenants.len(), 1);
    }
}
