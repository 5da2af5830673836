//! Jobs that wait in memory for the lease of a running call. Its end can't be predicted, so one of
//! the jobs asks as soon as this worker has settled the end of one of its own calls with the gate.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::action::JobKey;
use rules::limit::{Algorithm, Limit, Limits};
use rules::tenant::Tenant;

/// The name of a limit, and the tenant unless all tenants share the limit. Calls of one budget are
/// counted together. Labels are left out: a job that is woken in vain waits again.
type LeaseKey = (String, Option<Tenant>);

/// Maximum number of budgets for which idle leases are remembered without a waiting job.
const MAX_IDLE_KEYS: usize = 1024;

/// The jobs that wait for leases, by budget. They wait in memory, which bounds their number.
#[derive(Debug, Default)]
pub struct Leases {
    budgets: BTreeMap<LeaseKey, LeaseWaiters>,
    waiting: HashMap<JobKey, (LeaseKey, Duration), RandomState>,
}

/// The jobs that wait for leases of one budget.
#[derive(Debug, Default)]
struct LeaseWaiters {
    /// The waiting jobs. The first to come back on its own is the first of its waitlist.
    waiting: BTreeSet<(Duration, JobKey)>,
    /// Leases that calls of this worker gave back and for which it has woken no job: idle ones, as
    /// far as is known.
    idle: usize,
}

impl Leases {
    /// Lets a job of `tenant` wait for a lease of `limit`, all of which are taken, at most until
    /// `until`.
    pub fn add(&mut self, tenant: &Tenant, limit: &Limit, until: Duration, key: JobKey) {
        if limit.algorithm() == Algorithm::Concurrency {
            self.hold(budget(tenant, limit), until, key).idle = 0;
        }
    }

    /// Lets a job that has come back before its turn wait for a lease of `limit`, at most until
    /// `until`. Returns true if a lease is idle instead, so that the job may ask for it.
    pub fn take_idle(
        &mut self,
        tenant: &Tenant,
        limit: &Limit,
        until: Duration,
        key: JobKey,
    ) -> bool {
        if limit.algorithm() != Algorithm::Concurrency {
            return false;
        }
        let budget = budget(tenant, limit);
        match self.budgets.get_mut(&budget) {
            Some(holders) if holders.idle > 0 => {
                holders.idle -= 1;
                self.tidy(&budget);
                true
            }
            _ => {
                self.hold(budget, until, key);
                false
            }
        }
    }

    fn hold(&mut self, budget: LeaseKey, until: Duration, key: JobKey) -> &mut LeaseWaiters {
        self.forget(key);
        self.waiting.insert(key, (budget.clone(), until));
        let holders = self.budgets.entry(budget).or_default();
        holders.waiting.insert((until, key));
        holders
    }

    /// Ends the job's wait.
    pub fn forget(&mut self, key: JobKey) {
        let Some((budget, until)) = self.waiting.remove(&key) else {
            return;
        };
        if let Some(holders) = self.budgets.get_mut(&budget) {
            holders.waiting.remove(&(until, key));
            self.tidy(&budget);
        }
    }

    /// Forgets a budget without waiting jobs and idle leases.
    fn tidy(&mut self, budget: &LeaseKey) {
        let holders = self.budgets.get(budget);
        if holders.is_some_and(|it| it.waiting.is_empty() && it.idle == 0) {
            self.budgets.remove(budget);
        }
    }

    /// Forgets all jobs and leases.
    pub fn clear(&mut self) {
        self.budgets.clear();
        self.waiting.clear();
    }

    /// Frees the leases of `calls` calls of `tenant` that have ended. Returns the jobs that may
    /// have them.
    pub fn freed(&mut self, tenant: &Tenant, limits: &Limits, calls: usize) -> Vec<JobKey> {
        let mut woken = Vec::new();
        for limit in limits.iter() {
            if limit.algorithm() != Algorithm::Concurrency {
                continue;
            }
            let budget = budget(tenant, limit);
            if self.budgets.len() >= MAX_IDLE_KEYS && !self.budgets.contains_key(&budget) {
                continue;
            }
            let holders = self.budgets.entry(budget.clone()).or_default();
            let max = usize::try_from(limit.max()).unwrap_or(usize::MAX);
            let idle = (holders.idle + calls).min(max);
            let first = holders.waiting.iter().take(idle);
            let before = woken.len();
            woken.extend(first.map(|(_, key)| *key));
            holders.idle = idle - (woken.len() - before);
            if self.budgets.len() > MAX_IDLE_KEYS
                && let Some(holders) = self.budgets.get_mut(&budget)
            {
                holders.idle = 0;
            }
            self.tidy(&budget);
        }
        woken.sort_unstable();
        woken.dedup();
        for key in &woken {
            self.forget(*key);
        }
        woken
    }
}

fn budget(tenant: &Tenant, limit: &Limit) -> LeaseKey {
    let owner = (!limit.is_global()).then(|| tenant.clone());
    (limit.name().to_owned(), owner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::gate::{named_limit as limit, tenant};
    use rules::scope::Scope;

    fn running(name: &str) -> Limit {
        Limit::concurrent(name, 3).expect("in range")
    }

    const AT: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn the_first_jobs_that_share_a_lease_are_woken_once() {
        let (a, b) = (tenant("a"), tenant("b"));
        let (own, all) = (running("own"), running("all").with_scope(Scope::Global));
        let limits = Limits::new(vec![own.clone(), all.clone()]).expect("two limits");
        let mut leases = Leases::default();
        leases.add(&a, &own, AT(30), JobKey(1));
        leases.add(&a, &own, AT(10), JobKey(2));
        leases.add(&b, &own, AT(1), JobKey(3));
        leases.add(&b, &all, AT(5), JobKey(4));
        assert_eq!(leases.freed(&a, &limits, 1), [JobKey(2), JobKey(4)]);
        assert_eq!(leases.freed(&a, &limits, 9), [JobKey(1)]);
        leases.forget(JobKey(3));
        leases.clear();
        assert!(leases.freed(&b, &limits, 9).is_empty());
    }

    #[test]
    fn a_returning_job_takes_a_lease_that_seems_idle() {
        let (a, own) = (tenant("a"), running("own"));
        let limits: Limits = own.clone().into();
        let mut leases = Leases::default();
        let comes = |leases: &mut Leases, key| leases.take_idle(&a, &own, AT(50), JobKey(key));
        assert!(!comes(&mut leases, 1), "none is known to be");
        // Two leases, one of which is for the waiting job.
        assert_eq!(leases.freed(&a, &limits, 2), [JobKey(1)]);
        assert!(comes(&mut leases, 2) && !comes(&mut leases, 3));
        // There are at most three leases.
        assert_eq!(leases.freed(&a, &limits, 9), [JobKey(3)]);
        assert!(comes(&mut leases, 4) && comes(&mut leases, 5) && !comes(&mut leases, 6));
        // Other jobs took the idle lease.
        leases.forget(JobKey(6));
        assert_eq!(leases.freed(&a, &limits, 3), []);
        leases.add(&a, &own, AT(20), JobKey(7));
        assert!(!comes(&mut leases, 8));
        assert_eq!(leases.freed(&a, &limits, 1), [JobKey(7)]);
    }

    /// Each tenant may have a budget, which costs memory.
    #[test]
    fn the_number_of_idle_budgets_is_bounded() {
        let mut leases = Leases::default();
        let limits: Limits = running("own").into();
        for number in 0..2 * MAX_IDLE_KEYS {
            leases.freed(&tenant(format!("t-{number}")), &limits, 1);
        }
        assert_eq!(leases.budgets.len(), MAX_IDLE_KEYS);
        // A budget with a waiting job is remembered while the job waits, and no longer.
        for number in (2 * MAX_IDLE_KEYS..4 * MAX_IDLE_KEYS).map(|it| it as u64) {
            let of = tenant(format!("t-{number}"));
            leases.add(&of, &running("own"), AT(1), JobKey(number));
            assert_eq!(leases.freed(&of, &limits, 3), [JobKey(number)]);
        }
        assert_eq!(leases.budgets.len(), MAX_IDLE_KEYS);
    }

    #[test]
    fn only_jobs_that_wait_for_a_lease_are_woken() {
        let mut leases = Leases::default();
        let limit = limit(
            "window",
            Algorithm::SlidingWindow,
            3,
            Duration::from_secs(1),
        );
        leases.add(&tenant("a"), &limit, Duration::ZERO, JobKey(1));
        assert!(leases.freed(&tenant("a"), &limit.into(), 9).is_empty());
    }
}
