//! Faults of the store, in rounds: some faults, then usually a quiet time in which every worker
//! must resume.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::judge::go_on;
use super::{GUARD, MAY_LOSE, PREFIX, TENANTS, World};

const ROUNDS: u64 = 6;
/// Maximum faults in a round.
const MAX_FAULTS: u64 = 3;
/// Maximum sum of all steps back of the clock.
pub const MAX_BACK_MS: u64 = ROUNDS * MAX_FAULTS * STEP_BACK_MS;
const STEP_BACK_MS: u64 = 200_000;
/// A step forward that the guard covers in addition to what a permit uses of it, and the minimum
/// time between two such steps: no window has two.
const STEP_FORWARD: Duration = GUARD.checked_div(4).expect("not by zero");
const STEPS_APART: Duration = Duration::from_secs(180);

pub async fn go_wrong(world: &World) {
    let mut stepped = false;
    let forward = Cell::new(Duration::ZERO);
    for round in 1..=ROUNDS {
        world.troubled.set(true);
        world.net.set_troubled(true);
        for _ in 0..=world.below(MAX_FAULTS) {
            world.pass(20_000).await;
            stepped |= fault(world, &forward);
        }
        if round == ROUNDS || world.below(4) > 0 {
            world.troubled.set(false);
            world.net.set_troubled(false);
            go_on(world, stepped).await;
            stepped = false;
        }
    }
}

/// Injects one fault. Returns whether the clock was stepped back.
fn fault(world: &World, forward: &Cell<Duration>) -> bool {
    let store = &world.net.store;
    let some = |max: usize| usize::try_from(world.below(max as u64)).expect("small");
    match world.below(12) {
        0 => {
            world.fault("it is emptied");
            store.flush();
        }
        1 if world.evicts => {
            let mask = world.below(1 << TENANTS.len());
            let (registries, epochs) = (world.below(2) == 0, world.below(4) == 0);
            world.fault(&format!("it throws away {mask:b} {registries} {epochs}"));
            let mut chosen: Vec<String> = (0..TENANTS.len())
                .filter(|number| mask >> number & 1 == 1)
                .map(|number| format!("{PREFIX}:{}:", TENANTS[number].0))
                .collect();
            let others = [
                (registries, "%policies"),
                (registries, "%board"),
                (epochs, "%epoch"),
            ];
            let others = others.iter().filter(|(is_chosen, _)| *is_chosen);
            chosen.extend(others.map(|(_, name)| format!("{PREFIX}:{name}")));
            store.evict(|key| chosen.iter().any(|begin| key.starts_with(begin.as_bytes())));
        }
        2 => {
            world.fault("it restarts");
            store.restart(0);
        }
        3 | 4 => {
            let lost = some(MAY_LOSE);
            world.fault(&format!("it restarts without the last {lost} writes"));
            store.restart(lost);
            world.net.cut(Duration::from_millis(world.below(3_000)));
        }
        5 | 6 => {
            let lost = some(MAY_LOSE / 4);
            world.fault(&format!(
                "a replica without the last {lost} writes takes over"
            ));
            store.fail_over(lost);
            world.net.cut(Duration::from_millis(world.below(3_000)));
        }
        7 => {
            world.fault("replication begins or ends, and its scripts are gone");
            store.replicate();
            store.forget_scripts();
        }
        8 => {
            let ms = world.below(STEP_BACK_MS);
            world.fault(&format!("its clock is stepped back by {ms} ms"));
            world.ahead_us.fetch_sub(ms * 1_000, Ordering::Relaxed);
            return true;
        }
        9 if world.now() >= forward.get() => {
            world.fault("its clock is stepped forward");
            let step = u64::try_from(STEP_FORWARD.as_micros()).expect("short");
            world.ahead_us.fetch_add(step, Ordering::Relaxed);
            forward.set(world.now() + STEPS_APART);
        }
        10 => {
            world.fault("it can't be reached");
            world.net.cut(Duration::from_millis(world.below(12_000)));
        }
        _ => {
            world.fault("it refuses");
            world.net.refuse(Duration::from_millis(world.below(12_000)));
        }
    }
    false
}
