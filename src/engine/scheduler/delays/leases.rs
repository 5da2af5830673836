//! Jobs that wait in memory for the lease of a call that is under way: when it ends, nobody knows, so one of them asks as soon as
//! this worker has told the gate that one of its own calls has ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::engine::action::Key;
use crate::rules::limit::{Algorithm, Limit, Limits};
use crate::rules::tenant::Tenant;

/// Whose calls are counted together: those of a limit's name, and of one tenant unless all share it. Labels are left out: who
/// is woken in vain waits again.
type Budget = (String, Option<Tenant>);

/// Which jobs wait for which leases. As many as wait in memory, at most.
#[derive(Debug, Default)]
pub struct Leases {
    /// The first to come back by itself is the first of its waitlist.
    waiting: BTreeMap<Budget, BTreeSet<(Duration, Key)>>,
    budgets: HashMap<Key, (Budget, Duration)>,
}

impl Leases {
    /// A job of `tenant` is held until then because of `limit`.
    pub fn add(&mut self, tenant: &Tenant, limit: &Limit, until: Duration, key: Key) {
        if limit.algorithm() != Algorithm::Concurrency {
            return;
        }
        self.forget(key);
        let budget = budget(tenant, limit);
        let waiting = self.waiting.entry(budget.clone()).or_default();
        waiting.insert((until, key));
        self.budgets.insert(key, (budget, until));
    }

    /// It is held no longer.
    pub fn forget(&mut self, key: Key) {
        let Some((budget, until)) = self.budgets.remove(&key) else {
            return;
        };
        if let Some(waiting) = self.waiting.get_mut(&budget) {
            waiting.remove(&(until, key));
            if waiting.is_empty() {
                self.waiting.remove(&budget);
            }
        }
    }

    /// Nobody is held any more.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.budgets.clear();
    }

    /// So many calls of `tenant` have ended: as many jobs may have a lease.
    pub fn freed(&mut self, tenant: &Tenant, limits: &Limits, calls: usize) -> Vec<Key> {
        let mut woken = Vec::new();
        for limit in limits.iter() {
            if limit.algorithm() != Algorithm::Concurrency {
                continue;
            }
            let waiting = self.waiting.get(&budget(tenant, limit));
            let first = waiting.into_iter().flatten().take(calls);
            woken.extend(first.map(|(_, key)| *key));
        }
        woken.sort_unstable();
        woken.dedup();
        for key in &woken {
            self.forget(*key);
        }
        woken
    }
}

fn budget(tenant: &Tenant, limit: &Limit) -> Budget {
    let owner = (!limit.is_global()).then(|| tenant.clone());
    (limit.name().to_owned(), owner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::scope::Scope;

    fn tenant(id: &str) -> Tenant {
        Tenant::parse(id).expect("a good id")
    }

    fn running(name: &str) -> Limit {
        Limit::concurrent(name, 3).expect("in range")
    }

    #[test]
    fn the_first_of_those_who_share_the_lease_are_woken_once() {
        let (a, b) = (tenant("a"), tenant("b"));
        let (own, all) = (running("own"), running("all").with_scope(Scope::Global));
        let limits = Limits::new(vec![own.clone(), all.clone()]).expect("two limits");
        let at = Duration::from_millis;
        let mut leases = Leases::default();
        leases.add(&a, &own, at(30), Key(1));
        leases.add(&a, &own, at(10), Key(2));
        leases.add(&b, &own, at(1), Key(3));
        leases.add(&b, &all, at(5), Key(4));
        assert_eq!(leases.freed(&a, &limits, 1), [Key(2), Key(4)]);
        assert_eq!(leases.freed(&a, &limits, 9), [Key(1)]);
        leases.forget(Key(3));
        assert!(leases.freed(&b, &limits, 9).is_empty());
        assert!(leases.waiting.is_empty() && leases.budgets.is_empty());
    }

    #[test]
    fn only_a_lease_is_waited_for_so() {
        let mut leases = Leases::default();
        let limit = Limit::new(
            "window",
            Algorithm::SlidingWindow,
            3,
            Duration::from_secs(1),
            Duration::ZERO,
        );
        let limit = limit.expect("in range");
        leases.add(&tenant("a"), &limit, Duration::ZERO, Key(1));
        assert!(leases.freed(&tenant("a"), &limit.into(), 9).is_empty());
    }
}
