//! The tenants that had a worker slot lately.

use std::time::Duration;

use crate::rules::tenant::Tenant;

/// Minimum time for which a tenant is remembered. The maximum is twice that.
const REMEMBERED_FOR: Duration = Duration::from_secs(5);

/// The first two tenants of a period that got slots. One of two always differs from a given one.
#[derive(Debug, Default)]
struct Period([Option<Tenant>; 2]);

impl Period {
    fn tenants(&self) -> impl Iterator<Item = &Tenant> {
        self.0.iter().flatten()
    }
}

/// Tenants that got slots in the current period and in the one before.
#[derive(Debug, Default)]
pub(super) struct RecentCallers {
    current: Period,
    before: Period,
    since: Duration,
}

impl RecentCallers {
    /// Records that `tenant` got a slot.
    pub(super) fn record(&mut self, tenant: &Tenant) {
        if !self.current.tenants().any(|known| known == tenant)
            && let Some(free) = self.current.0.iter_mut().find(|known| known.is_none())
        {
            *free = Some(tenant.clone());
        }
    }

    /// Forgets tenants that got no slot lately.
    pub(super) fn forget_old(&mut self, now: Duration) {
        let age = now.saturating_sub(self.since);
        if age >= REMEMBERED_FOR {
            self.before = match age < 2 * REMEMBERED_FOR {
                true => std::mem::take(&mut self.current),
                false => Period::default(),
            };
            self.current = Period::default();
            self.since = now;
        }
    }

    /// Returns when [`RecentCallers::forget_old`] next has something to forget.
    pub(super) fn ends_at(&self) -> Option<Duration> {
        let mut all = self.current.tenants().chain(self.before.tenants());
        all.next().map(|_| self.since + REMEMBERED_FOR)
    }

    /// Returns true if a tenant other than `tenant` got a slot lately.
    pub(super) fn have_other_than(&self, tenant: &Tenant) -> bool {
        let mut all = self.current.tenants().chain(self.before.tenants());
        all.any(|known| known != tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::kit::{SECOND, tenant};

    #[test]
    fn another_tenant_is_remembered_for_five_to_ten_seconds() {
        let mut callers = RecentCallers::default();
        let others =
            |callers: &RecentCallers| ["a", "b"].map(|it| callers.have_other_than(&tenant(it)));
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
