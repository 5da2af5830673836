//! What operators ask of workers: simulations from [`STEERED`] on have jobs that are cancelled, tenants that are not, and times in which all
//! are paused or drained, and from [`HANDED`] on ones that wake; those below keep the histories that they had. The board is the one that `lua/steer.lua` must equal, and
//! workers read it in each exchange.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use sluicegate::engine::action::Update;
use sluicegate::gate::fleet::instruction_board::{Board, SILENT_MS};
use sluicegate::gate::instructions::LIVE_MS;
use sluicegate::rules::steering::{
    ALL, CANCELLED, Hold, Instruction, MAX_INSTRUCTIONS, SightedState, Steering,
};
use sluicegate::rules::tenant::Tenant;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::handed::HANDED;
use super::plan::ms;
use super::world::{Life, World};

/// Simulations from this seed on have what this module adds.
pub const STEERED: u64 = 11_000_000;
/// Longer than any simulation.
const FOR_MS: u64 = 365 * 86_400_000;
/// An engine that stands still is not waited for longer.
const APPLIED_WITHIN: Duration = Duration::from_secs(2);
/// All are held for so long at most.
const HELD_MS: u64 = 20_000;

/// What operators ask, and what they know.
#[derive(Default)]
pub struct Steered(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    board: Board,
    asked: BTreeSet<String>,
    /// Since when jobs are known to be cancelled.
    cancelled: BTreeMap<String, Instant>,
    /// Since when all are known to be paused.
    paused: Option<Instant>,
}

/// What a worker follows.
#[derive(Default)]
pub struct Follows {
    version: u64,
    told: bool,
}

impl Steered {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("nobody panics with it")
    }

    /// A job may be a dead letter for `reason`.
    pub fn is_right(&self, id: &str, reason: &str) -> bool {
        reason == CANCELLED && self.inner().asked.contains(id)
    }
}

fn now_ms(world: &World) -> u64 {
    world.now_us() / 1000
}

/// A worker's look at the board before an exchange; false: it does not follow what stands there.
pub async fn follow(life: &Life, follows: &mut Follows, updates: &mpsc::Sender<Update>) -> bool {
    let world = &life.world;
    if world.plan.seed < STEERED {
        return true;
    }
    let (version, steering) = {
        let mut inner = world.steered.inner();
        let now = now_ms(world);
        inner.board.hear(now, &life.name, follows.version, "");
        let posted = inner.board.instructions(now);
        let read = posted.filter_map(|(name, posted)| Instruction::read(name, &posted.text));
        (inner.board.version(), Steering::of(read))
    };
    if follows.told && version == follows.version {
        return true;
    }
    let (applied, heard) = oneshot::channel();
    let update = Update::Steer {
        steering: Arc::new(steering),
        applied,
    };
    let sent = updates.send(update).await.is_ok();
    let heard = matches!(timeout(APPLIED_WITHIN, heard).await, Ok(Ok(())));
    if sent && heard {
        (follows.version, follows.told) = (version, true);
    }
    sent && heard
}

/// A call of a job begins.
pub fn begins(life: &Life, id: &str) {
    let steered = life.world.steered.inner();
    let since = |known: Option<&Instant>| known.map(Instant::elapsed);
    let cancelled = since(steered.cancelled.get(id));
    let paused = since(steered.paused.as_ref());
    drop(steered);
    for (what, since) in [("cancelled", cancelled), ("paused", paused)] {
        if let Some(since) = since {
            let (name, mut history) = (&life.name, life.world.history());
            history.wrong(format_args!(
                "{name} begins a call of {id}, which is {what} since {since:?}"
            ));
        }
    }
}

/// Asks this and that.
pub async fn operate(world: Arc<World>) {
    if world.plan.seed < STEERED || world.plan.ideal {
        return;
    }
    let until = world.plan.trouble_until;
    while world.began.elapsed() < until {
        sleep(world.up_to(4000) + ms(1)).await;
        match world.below(4) {
            0 => hold(&world).await,
            1 if world.plan.seed >= HANDED => wake(&world),
            _ => {
                let world = Arc::clone(&world);
                tokio::spawn(async move { cancel(&world).await });
            }
        }
    }
}

/// Nothing is asked of all any more: what is left is to end.
pub fn end(world: &World) {
    if world.plan.seed >= STEERED {
        let mut steered = world.steered.inner();
        steered.paused = None;
        steered.board.drop_all(now_ms(world), &[ALL]);
    }
}

/// For the rest, after that.
pub fn patience(world: &World) -> Duration {
    match world.plan.seed {
        STEERED.. => ms(60_000),
        _ => Duration::ZERO,
    }
}

fn put(world: &World, instruction: &Instruction) -> u64 {
    let now = now_ms(world);
    world.note(format_args!("operator: {instruction:?}"));
    let (name, text) = (instruction.name(), instruction.text());
    let mut steered = world.steered.inner();
    let put = (steered.board).put(now, &name, now + FOR_MS, &text, MAX_INSTRUCTIONS);
    put.expect("there are few")
}

/// All workers that live follow `version`.
fn all_follow(world: &World, version: u64) -> bool {
    let (now, mut steered) = (now_ms(world), world.steered.inner());
    steered.board.forget_silent(now, SILENT_MS);
    let mut workers = steered.board.workers(now, LIVE_MS);
    workers.all(|(_, worker)| worker.follows >= version)
}

/// As after a tenant was resumed: who waits asks anew.
fn wake(world: &World) {
    let planned = &world.plan.jobs[world.below(world.plan.jobs.len())];
    let tenant = planned.tenant.as_deref();
    let tenant = tenant.map(|tenant| Tenant::parse(tenant).expect("a tenant"));
    put(world, &Instruction::Wake(tenant, now_ms(world)));
}

async fn hold(world: &World) {
    let hold = [Hold::Paused, Hold::Draining][world.below(2)];
    let version = put(world, &Instruction::All(hold));
    let until = Instant::now() + world.up_to(HELD_MS);
    while Instant::now() < until {
        sleep(ms(200)).await;
        if hold == Hold::Paused && all_follow(world, version) {
            let mut steered = world.steered.inner();
            if steered.paused.is_none() {
                steered.paused = Some(Instant::now());
                drop(steered);
                world.note(format_args!("all are paused"));
            }
        }
    }
    end(world);
    world.note(format_args!("operator: all go on"));
}

async fn cancel(world: &World) {
    let planned = &world.plan.jobs[world.below(world.plan.jobs.len())];
    let Some(tenant) = &planned.tenant else {
        return;
    };
    let tenant = Tenant::parse(tenant).expect("a tenant");
    if !world.steered.inner().asked.insert(planned.id.clone()) {
        return;
    }
    let number = world.below(1 << 30) as u64;
    let cancel = Instruction::Cancel(tenant.clone(), planned.id.clone(), number);
    let version = put(world, &cancel);
    // Until the simulation is over: whoever asks may wait for long.
    loop {
        sleep(ms(200)).await;
        let seen = world.gate.sighting(&tenant, &planned.id);
        let seen = seen.filter(|seen| seen.cancel == Some(number));
        match seen.map(|seen| seen.state) {
            Some(SightedState::Cancelled) if all_follow(world, version) => break,
            _ if world.finish.is_cancelled() => return,
            _ => {}
        }
    }
    world.note(format_args!("{} is known to be cancelled", planned.id));
    let mut steered = world.steered.inner();
    (steered.cancelled).insert(planned.id.clone(), Instant::now());
}

/// How many jobs are known to be cancelled.
pub fn cancelled(world: &World) -> usize {
    world.steered.inner().cancelled.len()
}

#[test]
fn operators_learn_of_cancelled_jobs_in_some_simulations() {
    let seeds = STEERED + 1..STEERED + 8;
    let cancelled: usize = seeds
        .map(|seed| super::simulate(seed, false).cancelled)
        .sum();
    assert!(cancelled > 0);
}
