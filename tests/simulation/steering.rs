//! Operators' instructions to workers. Simulations with seeds from [`STEERED`] have canceled jobs,
//! and times in which all tenants are paused or drained; from [`HANDED`] on, tenants are also
//! woken. Histories of lower seeds are unchanged. Workers read the board in each exchange.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use engine::action::Update;
use gate::instructions::LIVE_MS;
use rules::steering::{CANCELED, Hold, Instruction, SightedState, Steering};
use rules::tenant::Tenant;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::handed::HANDED;
use super::history::Detail;
use super::instruction_board::Board;
use super::plan::ms;
use super::world::{Life, World};

/// First seed with instructions.
pub const STEERED: u64 = 11_000_000;
/// Longer than any simulation.
const FOR_MS: u64 = 365 * 86_400_000;
/// Maximum time that an engine takes to apply an instruction, unless it stands still.
const APPLIED_WITHIN: Duration = Duration::from_secs(2);
/// Maximum time that all tenants are paused or drained.
const HELD_MS: u64 = 20_000;

/// Operators' instructions, and which of them are known to be in effect.
#[derive(Default)]
pub struct Steered(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    board: Board,
    asked: BTreeSet<String>,
    /// Canceled jobs, and since when every worker knows of each.
    canceled: BTreeMap<String, Instant>,
    /// Since when all tenants are known to be paused.
    paused: Option<Instant>,
}

/// The version of the board that a worker follows.
#[derive(Default)]
pub struct Follows {
    version: u64,
    is_reported: bool,
}

impl Steered {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no panic")
    }

    /// Reports whether a job may be a dead letter for `reason`.
    pub fn is_right(&self, id: &str, reason: &str) -> bool {
        reason == CANCELED && self.inner().asked.contains(id)
    }
}

fn now_ms(world: &World) -> u64 {
    world.now_us() / 1000
}

/// Reads the board before a worker's exchange, and sends its instructions to the worker. Returns
/// false if the worker did not apply them.
pub async fn follow(life: &Life, follows: &mut Follows, updates: &mpsc::Sender<Update>) -> bool {
    let world = &life.world;
    if world.plan.seed < STEERED {
        return true;
    }
    let (version, steering) = {
        let mut inner = world.steered.inner();
        let now = now_ms(world);
        inner.board.record_worker(now, &life.name, follows.version);
        let posted = inner.board.instructions(now);
        let read = posted.filter_map(|(name, text)| Instruction::read(name, text));
        (inner.board.version(), Steering::of(read))
    };
    if follows.is_reported && version == follows.version {
        return true;
    }
    let (applied, is_applied) = oneshot::channel();
    let update = Update::Steer {
        steering: Arc::new(steering),
        applied,
    };
    let sent = updates.send(update).await.is_ok();
    let is_applied = matches!(timeout(APPLIED_WITHIN, is_applied).await, Ok(Ok(())));
    if sent && is_applied {
        (follows.version, follows.is_reported) = (version, true);
    }
    sent && is_applied
}

/// Checks the start of a job's call against the instructions.
pub fn begins(life: &Life, id: &str) {
    let steered = life.world.steered.inner();
    let since = |known: Option<&Instant>| known.map(Instant::elapsed);
    let canceled = since(steered.canceled.get(id));
    let paused = since(steered.paused.as_ref());
    drop(steered);
    for (what, since) in [("canceled", canceled), ("paused", paused)] {
        if let Some(since) = since {
            let (name, mut history) = (&life.name, life.world.history());
            history.wrong(format_args!(
                "{name} begins a call of {id}, which is {what} since {since:?}"
            ));
        }
    }
}

/// Gives random instructions.
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

/// Ends the instructions for all tenants, so that the remaining jobs can end.
pub fn end(world: &World) {
    if world.plan.seed >= STEERED {
        let mut steered = world.steered.inner();
        steered.paused = None;
        for hold in Hold::EVERY {
            steered.board.drop_one(now_ms(world), hold.keyword());
        }
    }
}

/// Returns the additional time that the remaining jobs may need after that.
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
    steered.board.put(now, &name, now + FOR_MS, &text)
}

/// Reports whether all living workers follow `version` or a newer one.
fn all_follow(world: &World, version: u64) -> bool {
    let (now, mut steered) = (now_ms(world), world.steered.inner());
    let mut followed = steered.board.followed(now, LIVE_MS);
    followed.all(|follows| follows >= version)
}

/// Wakes a tenant as after `resume`: its waiting jobs ask again.
fn wake(world: &World) {
    let planned = &world.plan.jobs[world.below(world.plan.jobs.len())];
    let tenant = planned.tenant.as_deref();
    let tenant = tenant.map(|tenant| Tenant::parse(tenant).expect("a tenant"));
    put(world, &Instruction::Wake(tenant, now_ms(world)));
}

async fn hold(world: &World) {
    let hold = Hold::EVERY[world.below(2)];
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
    // Repeats until the simulation ends.
    loop {
        sleep(ms(200)).await;
        let seen = world.gate.sighting(&tenant, &planned.id);
        let seen = seen.filter(|seen| seen.cancel == Some(number));
        match seen.map(|seen| seen.state) {
            Some(SightedState::Canceled) if all_follow(world, version) => break,
            _ if world.finish.is_cancelled() => return,
            _ => {}
        }
    }
    world.note(format_args!("{} is known to be canceled", planned.id));
    let mut steered = world.steered.inner();
    (steered.canceled).insert(planned.id.clone(), Instant::now());
}

/// Returns the number of jobs that are known to be canceled.
pub fn canceled(world: &World) -> usize {
    world.steered.inner().canceled.len()
}

#[test]
fn operators_learn_of_canceled_jobs_in_some_simulations() {
    let seeds = STEERED + 1..STEERED + 8;
    let canceled: usize = seeds
        .map(|seed| super::simulate(seed, Detail::Number).canceled)
        .sum();
    assert!(canceled > 0);
}
