//! How tenants stand at the gate itself, many of them at once: for whoever looks at a list of them.

use std::sync::Arc;

use futures_util::future::{join_all, try_join_all};

use crate::gate::fleet::registry::{self, Named};
use crate::gate::redis::RedisGate;
use crate::gate::{Gate as _, GateError, Usage};
use crate::rules::decision::Tried;
use crate::rules::job::priority::Priorities;
use crate::rules::limit::{Limit, Limits};
use crate::rules::policy::Policy;
use crate::rules::report::view::Line;
use crate::rules::scope::{Labels, Scope};
use crate::rules::steering::Steering;
use crate::rules::tenant::Tenant;

/// So many waitlists are looked at,
const MOST_LOOKS: usize = 1_000;
/// and of so many tenants at once.
const AT_ONCE: usize = 20;

/// How a tenant stands.
#[derive(Debug, Clone, Default)]
pub struct Stands {
    /// What waits, and what suspends it.
    pub line: Line,
    /// Its limits, and what each has counted. Of a limit that tells its jobs apart it is what those without such a value used.
    pub limits: Vec<(Limit, Usage)>,
    /// Its shadow limits, and what each has counted and seen.
    pub shadows: Vec<(Limit, Usage, Tried)>,
}

/// How the first of `tenants` stand, 1,000 waitlists at most, by the limits of `policy` without a plan, and what other workers
/// enforce beside them; with what is tried of them, as `steering` says.
///
/// # Errors
/// [`GateError`]: none is known. The error of one is its own: in a cluster others are elsewhere.
pub async fn lines(
    gate: &RedisGate,
    policy: &Policy,
    (priorities, steering): (&Priorities, &Steering),
    tenants: &[Tenant],
) -> Result<Vec<Result<Stands, GateError>>, GateError> {
    let own = Named::new(policy.clone())?;
    let registry::Seen { known, now_ms, .. } = registry::look(gate).await?;
    let mut fleet = known.fleet(Arc::clone(&own.policy), &own.id, now_ms);
    let levels = priorities.waitlists();
    let mut waitlists: Vec<Labels> = levels
        .map(|(_, waitlist)| Labels::default().with_level(waitlist))
        .collect();
    if waitlists.is_empty() {
        waitlists.push(Labels::default());
    }
    let most = MOST_LOOKS / waitlists.len().min(MOST_LOOKS);
    let mut lines = Vec::new();
    for some in tenants[..most.min(tenants.len())].chunks(AT_ONCE) {
        let some: Vec<_> = (some.iter())
            .map(|tenant| {
                let limits = fleet.limits(tenant, None);
                (tenant, steering.with_tried(tenant, limits))
            })
            .collect();
        let looks = some
            .iter()
            .map(|(tenant, limits)| line(gate, tenant, limits, &waitlists));
        lines.extend(join_all(looks).await);
    }
    Ok(lines)
}

/// All `waitlists` of a tenant as one line.
async fn line(
    gate: &RedisGate,
    tenant: &Tenant,
    limits: &Limits,
    waitlists: &[Labels],
) -> Result<Stands, GateError> {
    let looks = waitlists
        .iter()
        .map(|labels| gate.inspect(tenant, labels, limits));
    let mut line = Line::default();
    let (mut waiting, mut usages, mut tried) = (0, Vec::new(), Vec::new());
    for found in try_join_all(looks).await? {
        waiting += found.waiting;
        if found.waitlist_end_ms > 0 {
            line.ends_ms = line.ends_ms.max(found.now_ms + found.waitlist_end_ms);
        }
        line.closed_until_ms = found.blocked_until_ms;
        line.closed_by = found.blocked_by;
        (usages, tried) = (found.limits, found.shadows);
    }
    // By such values a tenant has a waitlist for each, and nobody knows which there are.
    let mut scopes = limits.iter().map(Limit::scope);
    let by_value = scopes.any(|scope| matches!(scope, Scope::Header(_) | Scope::RoutingKey));
    line.waiting = (!by_value).then_some(waiting);
    Ok(Stands {
        line,
        limits: limits.iter().cloned().zip(usages).collect(),
        shadows: (limits.shadows().iter().cloned().zip(tried))
            .map(|(limit, (usage, tried))| (limit, usage, tried))
            .collect(),
    })
}
