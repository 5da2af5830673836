//! The tenants that had a worker slot lately.

use std::collections::HashSet;
use std::time::Duration;

use foldhash::fast::RandomState;

use rules::tenant::Tenant;

/// Minimum time for which a tenant is remembered. The maximum is twice that.
const REMEMBERED_FOR: Duration = Duration::from_secs(5);

/// Maximum number of tenants that are remembered in each period.
const MAX_TENANTS: usize = 64;

type Tenants = HashSet<Tenant, RandomState>;

/// Tenants that got slots in the current period and in the one before.
#[derive(Debug, Default)]
pub(super) struct RecentCallers {
    current: Tenants,
    before: Tenants,
    since: Duration,
}

impl RecentCallers {
    /// Records that `tenant` got a slot.
    pub(super) fn record(&mut self, tenant: &Tenant) {
        if self.current.len() < MAX_TENANTS && !self.current.contains(tenant) {
            self.current.insert(tenant.clone());
        }
    }

    /// Forgets tenants that got no slot lately.
    pub(super) fn forget_old(&mut self, now: Duration) {
        let age = now.saturating_sub(self.since);
        if age >= REMEMBERED_FOR {
            self.before = match age < 2 * REMEMBERED_FOR {
                true => std::mem::take(&mut self.current),
                false => Tenants::default(),
            };
            self.current = Tenants::default();
            self.since = now;
        }
    }

    /// Returns when [`RecentCallers::forget_old`] next has something to forget.
    pub(super) fn ends_at(&self) -> Option<Duration> {
        self.tenants().next().map(|_| self.since + REMEMBERED_FOR)
    }

    /// Returns the tenants that got a slot lately.
    pub(super) fn tenants(&self) -> impl Iterator<Item = &Tenant> {
        let before = self.before.iter();
        let others = before.filter(|tenant| !self.current.contains(*tenant));
        self.current.iter().chain(others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::SECOND;
    use kit::gate::tenant;

    #[test]
    fn another_tenant_is_remembered_for_five_to_ten_seconds() {
        let mut callers = RecentCallers::default();
        let others = |callers: &RecentCallers| {
            ["a", "b"].map(|it| callers.tenants().any(|other| *other != tenant(it)))
        };
        callers.record(&tenant("a"));
        callers.record(&tenant("a"));
        assert_eq!(others(&callers), [false, true]);
        for name in ["b", "c", "d"] {
            callers.record(&tenant(name));
        }
        assert_eq!(others(&callers), [true, true]);
        callers.forget_old(5 * SECOND);
        callers.record(&tenant("a"));
        assert_eq!(others(&callers), [true, true]);
        callers.forget_old(9 * SECOND);
        assert_eq!(others(&callers), [true, true]);
        callers.forget_old(10 * SECOND);
        assert_eq!(others(&callers), [false, true]);
        assert_eq!(callers.ends_at(), Some(15 * SECOND));
        callers.forget_old(100 * SECOND);
        assert_eq!((others(&callers), callers.ends_at()), ([false; 2], None));
    }
}
