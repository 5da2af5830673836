//! Checks: no window is too full, and after trouble every tenant resumes within the promised time.

use std::time::Duration;

use gate::epoch::{DOUBT_MS, SETTLE_MS};
use tokio::time::{Instant, sleep};

use super::{MAX_CALL, TENANTS, World};

/// Time until a loss is noticed and the first start after the last wait is known: workers look
/// every 2 s, and a question may take 4 s.
const SLACK: Duration = Duration::from_secs(10);

/// Waits until all tenants have resumed after trouble that is over now. Besides the longest span of
/// the tenant's own limits, this only waits for workers that do not vouch for the past. `stepped`
/// says that the clock was stepped back, so all may have to begin once more.
pub async fn go_on(world: &World, stepped: bool) {
    let over = world.now();
    let doubt = Duration::from_millis(DOUBT_MS + SETTLE_MS);
    for (number, (name, max, window)) in TENANTS.into_iter().enumerate() {
        // Late permits are given back, such as those of the first question to a server without
        // scripts. A job that was told to wait meanwhile does not learn of it and waits for its
        // turn. Running calls keep their leases for longer.
        let turn = match window.is_zero() {
            true => 3 * MAX_CALL,
            false => window / u32::try_from(max).expect("small"),
        };
        let wait = world.span(number).max(doubt) + turn;
        let promised = if stepped { 2 * wait } else { wait } + SLACK;
        let last = || world.starts.borrow()[number].last().copied();
        while last().is_none_or(|last| last < over) {
            // A worker that stood still reports when it resumes, because its last answer may seem
            // that recent to it. By a clock that was stepped back, a worker that starts finds a
            // wait that was over.
            let started = if stepped {
                world.last_start.get()
            } else {
                Duration::ZERO
            };
            let from = over.max(world.back.get()).max(started);
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

/// Checks whether some window was too full.
pub fn full(world: &World) {
    for (number, (name, _, window)) in TENANTS.into_iter().enumerate() {
        let starts = &world.starts.borrow()[number];
        let most = world.max_starts(number);
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
