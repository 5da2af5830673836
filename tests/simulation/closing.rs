//! A 429 that closes all tenants, and the operator who opens them. Simulations with seeds from
//! [`CLOSES_ALL`] have this; histories of lower seeds are unchanged.

use gate::{BreakerEvent, BreakerScope, Change, Gate, Standings};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rules::answers::ThrottleScope;
use tokio::time::Instant;

use super::plan::pick;
use super::world::{Life, World};

/// First seed with the closings of this module.
pub const CLOSES_ALL: u64 = 6_000_000;

/// Returns which tenants a 429 closes, from a random stream of its own.
pub fn scope(seed: u64) -> ThrottleScope {
    use ThrottleScope::{Auto, Global, Tenant};
    if seed < CLOSES_ALL {
        return Tenant;
    }
    let mut random = SmallRng::seed_from_u64(seed.rotate_left(24) ^ 0xC105);
    pick(&mut random, &[Auto, Global, Global, Tenant])
}

/// Closings of all tenants that a worker knows. Each has its end (milliseconds of the gate's
/// clock), when the worker learned it, and the number of the report whose answer said so.
#[derive(Debug, Default)]
pub struct KnownClosings {
    facts: Vec<(u64, Instant, u64)>,
    sent: u64,
}

impl KnownClosings {
    /// Counts a report. Returns its number.
    pub fn sends(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }

    /// Records the answer to report `number`. It replaces the answers to earlier reports.
    pub fn record_answer(
        &mut self,
        number: u64,
        batch: &[(BreakerScope, BreakerEvent)],
        standings: &Standings,
    ) {
        for ((whose, _), standing) in batch.iter().zip(standings) {
            if let (BreakerScope::Api, Ok(standing)) = (whose, standing) {
                self.facts.retain(|(_, _, sent)| *sent >= number);
                (self.facts).push((standing.named_until_ms, Instant::now(), number));
            }
        }
    }

    fn until(&self, since: Instant) -> u64 {
        let now = Instant::now();
        // A worker may still finish its current action at the moment when it learns of a closing or
        // resumes.
        let known = self.facts.iter().filter(|(_, at, _)| *at.max(&since) < now);
        known.map(|(until, ..)| *until).max().unwrap_or_default()
    }
}

/// Checks that no worker asks while it knows that all tenants are closed.
pub fn asks(life: &Life) {
    let (world, name) = (&life.world, &life.name);
    let until = life.closings().until(life.last_thawed());
    if world.now_us() / 1000 < until {
        let mut history = world.history();
        history.wrong(format_args!("{name} asks and knows that all are closed"));
    }
}

/// Lets an operator open all tenants.
pub async fn resume(world: &World) {
    if world.plan.seed >= CLOSES_ALL && world.below(4) == 0 {
        world.note(format_args!("operator: all are resumed"));
        let done = world.gate.change(&BreakerScope::Api, &Change::Resume).await;
        assert!(done.is_ok(), "the gate in memory never fails");
    }
}
