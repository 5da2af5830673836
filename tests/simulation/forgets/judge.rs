//! What must hold: no window is too full, and after trouble everybody goes on within the promised time.

use std::time::Duration;

use sluicegate::gate::epoch::{DOUBT_MS, SETTLE_MS};
use tokio::time::{Instant, sleep};

use super::{LONGEST_CALL, TENANTS, World};

/// Until a loss is noticed, and the first start after the last wait is heard of: workers look every 2 s, a question may take 4 s.
const SLACK: Duration = Duration::from_secs(10);

/// Waits until all tenants have gone on after trouble that is over now. Beside a whole span of the tenant's own limits, only who does
/// not vouch is waited for. `stepped`: the clock was stepped back, so that all may begin once more.
pub async fn go_on(world: &World, stepped: bool) {
    let over = world.now();
    let doubt = Duration::from_millis(DOUBT_MS + SETTLE_MS);
    for (number, (name, max, window)) in TENANTS.into_iter().enumerate() {
        // Permits are given back that came too late, such as those of the first question to a server that has no scripts yet: who was
        // told to wait meanwhile does not hear of it, and waits for a turn. Calls that run keep their leases for longer.
        let turn = match window.is_zero() {
            true => 3 * LONGEST_CALL,
            false => window / u32::try_from(max).expect("small"),
        };
        let wait = world.span(number).max(doubt) + turn;
        let promised = if stepped { 2 * wait } else { wait } + SLACK;
        let last = || world.starts.borrow()[number].last().copied();
        while last().is_none_or(|last| last < over) {
            // One that stood still has its word when it goes on: its last answer may be as new as that to it. By a clock that was stepped
            // back, whoever begins finds a wait that was over.
            let begun = if stepped {
                world.begun.get()
            } else {
                Duration::ZERO
            };
            let from = over.max(world.back.get()).max(begun);
            if world.now() > from + promised {
                world.wrong(format!("{name} does not go on within {promised:?}"));
                break;
            }
            sleep(Duration::from_millis(500)).await;
        }
        let took = world.now().saturating_sub(over);
        world.note(&format!("{name} has gone on by {took:?} after the trouble"));
    }
}

/// Whether some window was too full.
pub fn full(world: &World) {
    for (number, (name, _, window)) in TENANTS.into_iter().enumerate() {
        let starts = &world.starts.borrow()[number];
        let most = world.most(number);
        let wrong = starts.iter().enumerate().find_map(|(at, first)| {
            let inside = starts[at..].iter();
            let inside = inside.take_while(|start| **start < *first + window);
            let inside = inside.count() as u64;
            (inside > most).then(|| format!("{name} has {inside} of {most} from {first:?} on"))
        });
        wrong.into_iter().for_each(|wrong| world.wrong(wrong));
    }
    let (name, max, _) = TENANTS[TENANTS.len() - 1];
    let calls = world.calls.borrow();
    let at_once = |at: Instant| {
        let running = calls
            .iter()
            .filter(|call| call.from <= at && at < call.until);
        running.count() as u64
    };
    let wrong = calls.iter().find(|call| at_once(call.from) > max);
    if let Some(call) = wrong {
        let (from, inside) = (call.from - world.began, at_once(call.from));
        world.wrong(format!("{name} has {inside} of {max} at once at {from:?}"));
    }
}
