//! An operator who pauses, resumes, limits and resets tenants at random.

use std::sync::Arc;

use gate::{Change, Gate};
use rules::tenant::Tenant;

use super::closing;
use super::world::{World, micros};

/// Maximum duration of a change, in milliseconds.
pub const MAX_MS: u64 = 20_000;

pub async fn operate(world: Arc<World>) {
    while world.trouble_comes(world.plan.operator_every).await {
        closing::resume(&world).await;
        let tenant = format!("t{}", world.below(4));
        let change = some_change(&world);
        world.note(format_args!("operator: {change:?} of {tenant}"));
        let now = world.now_us() / 1000;
        {
            let mut history = world.history();
            let record = history.tenant(&tenant);
            match &change {
                Change::Pause { duration_ms } => record.paused_until = now + duration_ms,
                Change::Resume => (record.paused_until, record.closed_until) = (0, 0),
                Change::Limit { name, max, .. } => {
                    let most = history.max.entry(name.clone()).or_default();
                    *most = (*most).max(*max);
                }
                Change::Unlimit { .. } | Change::Reset => {}
            }
        }
        let tenant = Tenant::parse(&tenant).expect("a tenant");
        let done = world.gate.change(&tenant.into(), &change).await;
        assert!(done.is_ok(), "the gate in memory never fails");
    }
}

fn some_change(world: &World) -> Change {
    let duration_ms = 1 + micros(world.up_to(MAX_MS - 1)) / 1000;
    let limits = &world.plan.limits;
    let name = limits[world.below(limits.len().min(2))].name().to_owned();
    match world.below(8) {
        0 | 1 => Change::Pause { duration_ms },
        2 => Change::Resume,
        3..=5 => Change::Limit {
            name,
            max: 1 + world.below(15) as u64,
            duration_ms,
        },
        6 => Change::Unlimit { name },
        _ => Change::Reset,
    }
}
