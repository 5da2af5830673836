//! The state of many tenants at the gate, for lists of tenants.

use futures_util::future::{join_all, try_join_all};

use crate::fleet::registry::{self, NamedPolicy};
use crate::redis::RedisGate;
use crate::{Gate as _, GateError, UsageOfLimit};
use rules::decision::TrialStatus;
use rules::job::priority::Priorities;
use rules::limit::{Limit, Limits};
use rules::policy::Policy;
use rules::report::view::WaitlistState;
use rules::scope::{Labels, Scope};
use rules::steering::Steering;
use rules::tenant::Tenant;

/// Maximum number of waitlists that are read.
const MAX_TENANTS_READ: usize = 1_000;
/// Maximum number of tenants that are read at once.
const AT_ONCE: usize = 20;

/// A tenant's state at the gate.
#[derive(Debug, Clone, Default)]
pub struct TenantStanding {
    /// The tenant's waiting jobs and suspension.
    pub waitlist: WaitlistState,
    /// The tenant's limits with their usage. For a limit with a scope that distinguishes jobs by a
    /// value, this is the usage of jobs without that value.
    pub limits: Vec<(Limit, UsageOfLimit)>,
    /// The tenant's shadow limits with their usage and trials.
    pub shadows: Vec<(Limit, UsageOfLimit, TrialStatus)>,
}

/// Returns the state of the first of `tenants`, up to 1,000 waitlists in total. The limits are
/// those of `policy` without a plan and those that other workers enforce, including the shadows
/// that `steering` tries.
///
/// # Errors
/// [`GateError`] if no tenant's state can be read. In a cluster, a single tenant's error is its
/// own: other tenants are on other primaries.
pub async fn read_standings(
    gate: &RedisGate,
    policy: &Policy,
    (priorities, steering): (&Priorities, &Steering),
    tenants: &[Tenant],
) -> Result<Vec<Result<TenantStanding, GateError>>, GateError> {
    let own = NamedPolicy::new(policy.clone())?;
    let mut fleet = registry::read_policies(gate).await?.fleet(&own);
    let levels = priorities.waitlists();
    let mut waitlists: Vec<Labels> = levels
        .map(|(_, waitlist)| Labels::default().with_level(waitlist))
        .collect();
    if waitlists.is_empty() {
        waitlists.push(Labels::default());
    }
    let max = MAX_TENANTS_READ / waitlists.len().min(MAX_TENANTS_READ);
    let mut standings = Vec::new();
    for some in tenants[..max.min(tenants.len())].chunks(AT_ONCE) {
        let some: Vec<_> = (some.iter())
            .map(|tenant| {
                let limits = fleet.limits(tenant, None);
                (tenant, steering.with_tried(tenant, limits))
            })
            .collect();
        let looks = some
            .iter()
            .map(|(tenant, limits)| read_waitlists(gate, tenant, limits, &waitlists));
        standings.extend(join_all(looks).await);
    }
    Ok(standings)
}

/// Reads all `waitlists` of a tenant and merges them into one.
async fn read_waitlists(
    gate: &RedisGate,
    tenant: &Tenant,
    limits: &Limits,
    waitlists: &[Labels],
) -> Result<TenantStanding, GateError> {
    let looks = waitlists
        .iter()
        .map(|labels| gate.inspect(tenant, labels, limits));
    let mut waitlist = WaitlistState::default();
    let (mut waiting, mut usages, mut tried) = (0, Vec::new(), Vec::new());
    for found in try_join_all(looks).await? {
        waiting += found.waiting;
        if found.waitlist_end_ms > 0 {
            waitlist.ends_ms = waitlist.ends_ms.max(found.now_ms + found.waitlist_end_ms);
        }
        waitlist.closed_until_ms = found.blocked_until_ms;
        waitlist.closed_by = found.blocked_by;
        (usages, tried) = (found.limits, found.shadows);
    }
    // With such scopes a tenant has one waitlist per value, and the values are not known here.
    let mut scopes = limits.iter().map(Limit::scope);
    let by_value = scopes.any(|scope| matches!(scope, Scope::Header(_) | Scope::RoutingKey));
    waitlist.waiting = (!by_value).then_some(waiting);
    Ok(TenantStanding {
        waitlist,
        limits: limits.iter().cloned().zip(usages).collect(),
        shadows: (limits.shadows().iter().cloned().zip(tried))
            .map(|(limit, (usage, tried))| (limit, usage, tried))
            .collect(),
    })
}
