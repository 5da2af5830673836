//! What must hold: no window is too full, and after the trouble everybody goes on.

use std::time::Duration;

use sluicegate::rules::epoch::{DOUBT_MS, SETTLE_MS};
use tokio::time::sleep;

use super::{GUARD, TENANTS, World};

/// Waits until all tenants have gone on after the trouble; the error says which one does not.
pub async fn go_on(world: &World) -> Option<String> {
    let over = world.now();
    for (name, _, window) in TENANTS {
        // Who does not vouch is waited for, then its span. What was charged and did not start takes a span, and one more where the
        // clock was stepped back.
        let span = window + GUARD;
        let wait = span.max(Duration::from_millis(DOUBT_MS)) + Duration::from_millis(SETTLE_MS);
        // The last that died comes back, or who stood still goes on.
        let by = over + Duration::from_secs(40) + wait + 2 * span;
        let last = || world.starts.borrow().get(name)?.last().copied();
        while last().is_none_or(|last| last < over) {
            if world.now() > by {
                return Some(format!("{name} does not go on from {over:?} until {by:?}"));
            }
            sleep(Duration::from_secs(1)).await;
        }
    }
    None
}

/// Whether some window of the tenant has too many starts.
pub fn full(world: &World, (name, max, window): (&str, u64, Duration)) -> Option<String> {
    let starts = world.starts.borrow();
    let starts = starts.get(name).map_or(&[][..], Vec::as_slice);
    let most = max + 1;
    starts.iter().enumerate().find_map(|(at, first)| {
        let inside = starts[at..]
            .iter()
            .take_while(|start| **start < *first + window);
        let inside = inside.count() as u64;
        (inside > most).then(|| format!("{name} has {inside} of {most} from {first:?} on"))
    })
}
