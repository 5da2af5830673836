//! Estimates which part of their reserved cost the calls of each tenant use. Pure.
//!
//! The gate computes a job's turn from the reserved costs of the jobs ahead. If these use less, the
//! job can start earlier: after about the same part of its wait. It asks then, and the gate decides.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::tenant::Tenant;

/// Maximum number of tenants with an estimate. The use of further tenants' calls stays unknown.
const MAX_TENANTS: usize = 10_000;
/// A job that has waited in this many delay queues asks at its turns. If calls return nothing while
/// it waits, its questions are in vain.
const MAX_WAITS: u32 = 3;
/// A part that is used is counted in units of 1 / `WHOLE`.
const WHOLE: u64 = 1_024;
/// An estimate moves this part of the way to each call.
const STEP: u64 = 8;
/// Jobs wait for their turns if the estimate is above this: an earlier question would be in vain.
const NEARLY_WHOLE: u64 = WHOLE * 15 / 16;
/// The least part of a wait after which a job asks.
const LEAST: u64 = WHOLE / 8;
/// The longest first wait of a job if it is unknown what its tenant's calls use.
const FIRST_LOOK_MS: u64 = 5_000;

/// The estimates, by tenant.
#[derive(Debug, Default)]
pub struct CostEstimator {
    used: HashMap<Tenant, u64, RandomState>,
}

impl CostEstimator {
    /// Records a call that used `used` units of the cost `reserved`.
    pub fn record(&mut self, tenant: &Tenant, reserved: u64, used: u64) {
        let part = used.min(reserved).saturating_mul(WHOLE) / reserved.max(1);
        if let Some(estimate) = self.used.get_mut(tenant) {
            *estimate = (*estimate * (STEP - 1) + part) / STEP;
        } else if (reserved > 1 || used < reserved) && self.used.len() < MAX_TENANTS {
            self.used.insert(tenant.clone(), part);
        }
    }

    /// Returns after which part of a wait of `wait_ms` a job of `cost` units asks again, at least
    /// `least_ms`. It has waited in `waits` delay queues.
    pub fn look_ms(
        &self,
        tenant: &Tenant,
        (cost, waits): (u64, u32),
        wait_ms: u64,
        least_ms: u64,
    ) -> u64 {
        if waits >= MAX_WAITS {
            return wait_ms;
        }
        let look = match self.used.get(tenant) {
            Some(&part) if part > NEARLY_WHOLE => wait_ms,
            Some(&part) => wait_ms.saturating_mul(part.max(LEAST)) / WHOLE,
            None if cost > 1 && waits == 0 => FIRST_LOOK_MS,
            None => wait_ms,
        };
        look.max(least_ms).min(wait_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::tenant;

    #[test]
    fn jobs_ask_after_the_part_of_the_wait_that_calls_use() {
        let acme = tenant("acme");
        let mut costs = CostEstimator::default();
        costs.record(&acme, 100, 50);
        assert_eq!(costs.look_ms(&acme, (100, 0), 60_000, 80), 30_000);
        assert_eq!(costs.look_ms(&acme, (100, 2), 60_000, 80), 30_000);
        assert_eq!(costs.look_ms(&acme, (100, 3), 60_000, 80), 60_000);
        assert_eq!(costs.look_ms(&acme, (100, 0), 100, 80), 80);
        assert_eq!(costs.look_ms(&acme, (100, 0), 60, 80), 60);
        for _ in 0..50 {
            costs.record(&acme, 100, 0);
        }
        assert_eq!(costs.look_ms(&acme, (100, 0), 60_000, 80), 7_500);
        for _ in 0..50 {
            costs.record(&acme, 100, 200);
        }
        assert_eq!(costs.look_ms(&acme, (100, 0), 60_000, 80), 60_000);
    }

    #[test]
    fn the_first_jobs_of_a_tenant_look_soon_and_once() {
        let acme = tenant("acme");
        let mut costs = CostEstimator::default();
        costs.record(&acme, 1, 1);
        assert_eq!(costs.look_ms(&acme, (1, 0), 60_000, 80), 60_000);
        assert_eq!(costs.look_ms(&acme, (2, 0), 60_000, 80), 5_000);
        assert_eq!(costs.look_ms(&acme, (2, 1), 60_000, 80), 60_000);
        assert_eq!(costs.look_ms(&acme, (2, 0), 60_000, 8_000), 8_000);
        costs.record(&acme, 2, 2);
        assert_eq!(costs.look_ms(&acme, (2, 0), 60_000, 80), 60_000);
    }

    #[test]
    fn the_number_of_tenants_is_bounded() {
        let mut costs = CostEstimator::default();
        for number in 0..=MAX_TENANTS {
            costs.record(&tenant(number), 2, 1);
        }
        assert_eq!(costs.used.len(), MAX_TENANTS);
    }
}
