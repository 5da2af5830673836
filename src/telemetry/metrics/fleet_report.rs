//! This worker's figures for the report to the fleet (`app::report`). Tenants have no series; their
//! counts are kept here for that report.

use std::sync::{Arc, PoisonError};

use super::{Metrics, number};
use rules::report::Load;
use rules::report::load::{MissingResource, TenantLoads};

impl Metrics {
    /// Stores the current counts of tenants.
    pub fn set_tenants(&self, tenants: TenantLoads) {
        *(self.tenant_loads.lock()).unwrap_or_else(PoisonError::into_inner) = Arc::new(tenants);
    }

    /// Returns the latest counts of tenants.
    pub fn tenants(&self) -> Arc<TenantLoads> {
        let tenants = self.tenant_loads.lock();
        Arc::clone(&tenants.unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns how many jobs the gate admitted and how many it denied since the worker started.
    pub fn decided_so_far(&self) -> [u64; 2] {
        ["start", "wait"].map(|answer| self.decisions.of(answer).get())
    }

    /// Returns the worker's current load.
    pub fn load_now(&self) -> Load {
        let idle = MissingResource::NAMES.map(|(_, lacks)| number(&self.quota_idle.of(lacks)));
        Load {
            running: number(&self.calls_in_flight),
            slots: number(&self.worker_slots),
            saturation: self.saturation.get(),
            in_memory: number(&self.in_memory),
            delayed: number(&self.delayed_in_memory),
            idle: idle.into_iter().sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use rules::report::load::Census;

    #[test]
    fn fleet_reports_match_the_metrics() {
        let metrics = Metrics::new();
        assert_eq!(*metrics.tenants(), TenantLoads::default());
        metrics.set_memory(3, 2, 5);
        metrics.used_slots((3, 8), Duration::from_millis(500));
        metrics.saturation.set(0.375);
        let census = Census {
            idle: [1, 0, 2, 0],
            ..Census::default()
        };
        metrics.set_census(&census);
        let load = Load {
            running: 3,
            slots: 8,
            saturation: 0.375,
            in_memory: 5,
            delayed: 2,
            idle: 3,
        };
        assert_eq!(metrics.load_now(), load);
        let tenants = TenantLoads {
            waiting: 7,
            ..TenantLoads::default()
        };
        metrics.set_tenants(tenants.clone());
        assert_eq!(*metrics.tenants(), tenants);
        metrics.set_stopped();
        assert_eq!(*metrics.tenants(), TenantLoads::default());
    }
}
