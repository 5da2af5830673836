//! The overview of a fleet: its workers, what stops all of them, and the busiest tenants.

use super::fleet::BusiestTenants;
use super::other_policies::{OtherPolicies, others};
use super::recovery::Recovery;
use config::Config;
use gate::redis::RedisGate;
use gate::reports::{self, Fleet};
use gate::{BreakerEvent, BreakerScope, Gate as _, GateError, Rule, Standing};
use rules::report::view::Sort;

/// Selects tenants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantSelection {
    /// Order of the tenants.
    pub sort: Sort,
    /// Maximum number of tenants.
    pub max: usize,
    /// Text that a tenant's name must contain, ignoring case.
    pub name: String,
}

/// Result of a look at the fleet.
#[derive(Debug, Default)]
pub struct Overview {
    /// Workers, and operators' instructions to them.
    pub fleet: Fleet,
    /// Selected tenants, or `None` if none were requested.
    pub shown: Option<BusiestTenants>,
    /// State of the recovery wait at Redis, or at each primary of a cluster.
    pub recovery: Vec<Recovery>,
    /// The state that may stop the calls of all tenants, or the error that hides it.
    pub all: Option<Result<Standing, String>>,
    /// Policies that workers enforce in addition to this configuration, or `None` if unknown.
    pub others: Option<OtherPolicies>,
}

impl Overview {
    /// Looks at the fleet, and at the tenants of `selection`.
    ///
    /// # Errors
    /// [`GateError`] if nothing can be read.
    pub async fn of(
        gate: &RedisGate,
        config: &Config,
        selection: Option<&TenantSelection>,
    ) -> Result<Self, GateError> {
        let mut fleet = reports::see(gate).await?;
        let policy = &config.rate_limiter.policy;
        let looks = gate.outlook(None, policy.default_limits(), policy).await?;
        let asked = [(BreakerScope::Api, BreakerEvent::Read)];
        let all = gate.report(&Rule::NONE, &asked).await?.into_iter().next();
        let shown = match selection {
            None => None,
            Some(selection) => {
                let reported = fleet.view.tenants.clone();
                fleet.view.keep(&selection.name);
                let order = (selection.sort, selection.max);
                let shown = BusiestTenants::of(gate, config, &fleet, order).await;
                // A shorter search may match all of them again before the next look.
                fleet.view.tenants = reported;
                Some(shown)
            }
        };
        Ok(Self {
            fleet,
            shown,
            recovery: looks.into_iter().map(Recovery::from).collect(),
            all: all.map(|all| all.map_err(|why| why.to_string())),
            // An error here is ignored: the same Redis has answered everything else.
            others: others(gate, policy).await.ok(),
        })
    }
}
