//! Faults at exact polls of a worker, faults between the gate and single tenants, and changes while
//! a worker runs. Simulations with seeds from [`LATER`] have them; histories of lower seeds are
//! unchanged.

use std::sync::Arc;
use std::time::Duration;

use engine::action::{LiveSettings, Update};
use gate::GateError;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rules::tenant::Tenant;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};

use super::plan::{Trouble as All, ms, pick};
use super::steering::{self, Follows};
use super::world::{Life, World};

/// First seed with the faults of this module.
pub const LATER: u64 = 2_000_000;
/// First seed with an API that may stand still, so that a call that was given up keeps running.
pub const STANDS_STILL: u64 = 3_000_000;
/// How long an agreement holds, as with Redis's registry.
const AGREED_FOR: Duration = Duration::from_secs(5);
/// The longest time without an exchange, or without decisions for a tenant.
const MAX_MS: u64 = 20_000;
/// How long jobs wait after the gate refused their question.
pub const SET_ASIDE_MS: u64 = 60_000;

/// Probability of each fault, each time that it could happen.
#[derive(Debug, Default, Clone)]
pub struct Trouble {
    /// A fault strikes at some poll of a worker.
    pub at_poll: f64,
    /// One tenant's question does not arrive.
    pub ask_misses: f64,
    /// The gate's answer to one tenant's question is lost.
    pub ask_reply_lost: f64,
    /// The answer to one tenant's settlement is lost.
    pub settle_reply_lost: f64,
    /// The session ends after some acks have arrived.
    pub ack_half: f64,
    /// An exchange with the other workers fails, and those after it for a while.
    pub unagreed: f64,
    /// The settings change.
    pub changes: f64,
    /// The API advertises its limits.
    pub quotas: f64,
    /// Mean time between outages of the gate, or of some tenant's part of it; zero means none.
    pub outages_every: Duration,
}

impl Trouble {
    /// Removes faults that lose answers of the gate or workers, or that last until settlements are
    /// given up.
    pub fn lossless(&mut self) {
        (self.at_poll, self.ask_reply_lost) = (0.0, 0.0);
        self.outages_every = Duration::ZERO;
    }

    /// Reports whether the gate's final counts may differ from actual usage.
    pub fn is_lossy(&self) -> bool {
        self.at_poll > 0.0 || self.ask_reply_lost > 0.0 || !self.outages_every.is_zero()
    }
}

/// Adds these faults to the trouble of `seed`, from a random stream of its own. A third of the
/// seeds has only faults at polls.
pub fn add(all: &mut All, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed.rotate_left(32) ^ 0x5EED);
    let mut rate = |max: f64| match random.random_bool(0.5) {
        true => random.random_range(0.0..max),
        false => 0.0,
    };
    let mut later = Trouble {
        at_poll: rate(1.0),
        ask_misses: rate(0.2),
        ask_reply_lost: rate(0.2),
        settle_reply_lost: rate(0.2),
        ack_half: rate(0.1),
        unagreed: rate(0.2),
        changes: rate(0.5),
        quotas: rate(0.5),
        outages_every: Duration::ZERO,
    };
    if random.random_bool(0.5) {
        later.outages_every = ms(pick(&mut random, &[1000, 5000, 20_000]));
    }
    if random.random_bool(1.0 / 3.0) {
        *all = All::default();
        later = Trouble {
            at_poll: 1.0,
            ..Trouble::default()
        };
    }
    all.later = later;
}

/// A fault at a worker's poll `number`, counted from 1.
#[derive(Debug, Clone, Copy)]
pub struct AtPoll {
    pub number: u64,
    pub what: Strike,
}

#[derive(Debug, Clone, Copy)]
pub enum Strike {
    /// Killed: the poll does not run.
    KillBefore,
    /// Killed: tasks that the poll has begun have done nothing yet.
    KillAfter,
    Freeze,
    Cut,
    SoftStop,
    HardStop,
}

/// Returns the next fault of a life, at a poll later than `after`, or `None`.
pub fn at_poll(world: &World, after: u64) -> Option<AtPoll> {
    use Strike::{Cut, Freeze, HardStop, KillAfter, KillBefore, SoftStop};
    if !world.chance(|t| t.later.at_poll) {
        return None;
    }
    // Early polls are few; they are as likely as late ones.
    let max = 1 << (2 + world.below(9));
    let number = after + 1 + world.below(max) as u64;
    let strikes = [
        KillBefore, KillBefore, KillAfter, KillAfter, Freeze, Cut, SoftStop, HardStop,
    ];
    let what = strikes[world.below(strikes.len())];
    Some(AtPoll { number, what })
}

/// Why the gate decides nothing.
#[derive(Debug, Clone, Copy)]
pub enum Why {
    Unavailable,
    Refused,
    Cold,
}

/// An outage of the whole gate, or of one tenant's part.
#[derive(Debug, Clone)]
pub struct Outage {
    tenant: Option<String>,
    until: Instant,
    why: Why,
}

impl Outage {
    fn error(&self) -> GateError {
        let why = "injected for a while".to_owned();
        match self.why {
            Why::Unavailable => GateError::Unreachable(why),
            Why::Refused => GateError::Refused(why),
            Why::Cold => {
                let wait = self.until.saturating_duration_since(Instant::now());
                GateError::Cold { wait, why }
            }
        }
    }
}

/// Returns why nothing is decided for `tenant` now, or for all tenants if it is `None`.
pub fn outage(world: &World, tenant: Option<&Tenant>) -> Option<GateError> {
    let outages = world.outages.lock().expect("no panic");
    let of = tenant.map(Tenant::as_str);
    let now = Instant::now();
    let mut found = (outages.iter()).filter(|o| o.tenant.as_deref() == of && o.until > now);
    found.next().map(Outage::error)
}

/// Makes the gate, or the part with some tenant, unavailable.
pub async fn take_away(world: Arc<World>) {
    let every = world.plan.trouble.later.outages_every;
    if every.is_zero() {
        return;
    }
    loop {
        let pause = 2 * u64::try_from(every.as_millis()).expect("it is short");
        sleep(world.up_to(pause) + ms(1)).await;
        if !world.troubled() {
            return;
        }
        world.history().faults += 1;
        let tenant = (world.below(4) > 0).then(|| format!("t{}", world.below(4)));
        let lasts = world.up_to(MAX_MS);
        let why = [Why::Unavailable, Why::Refused, Why::Cold][world.below(3)];
        // The end is left out: it is this process's own time, and the same seed must give the same
        // history.
        world.fault(format_args!("{why:?} for {lasts:?}, {tenant:?}"));
        let outage = Outage {
            tenant,
            until: Instant::now() + lasts,
            why,
        };
        let mut outages = world.outages.lock().expect("no panic");
        outages.retain(|one| one.until > Instant::now());
        outages.push(outage);
    }
}

/// Sends a worker's updates while it runs: agreements with the other workers, some of which fail,
/// and changed settings.
pub async fn update(life: Arc<Life>, updates: mpsc::Sender<Update>) {
    let world = &life.world;
    let mut follows = Follows::default();
    loop {
        life.point("exchange").await;
        if world.dice(|t| t.later.unagreed) {
            let pause = world.up_to(MAX_MS);
            world.fault(format_args!("{}: no exchange for {pause:?}", life.name));
            sleep(pause).await;
        }
        if world.plan.agreed {
            // An exchange's age counts from when it began.
            let until = Instant::now() + AGREED_FOR;
            let followed = steering::follow(&life, &mut follows, &updates).await;
            if updates.is_closed() || followed && agree(&life, until, &updates).await.is_none() {
                return;
            }
        }
        if world.chance(|t| t.later.changes) {
            let changed = LiveSettings {
                concurrency: 1 + world.below(2 * world.plan.concurrency),
                max_in_memory: world.up_to(2000),
                retry: world.plan.retry,
                breaker: world.plan.away.rule,
                max_throttle: world.plan.max_throttle,
                guard_budget: 0.01,
            };
            world.note(format_args!("{}: {changed:?}", life.name));
            if updates.send(Update::Settings(changed)).await.is_err() {
                return;
            }
        }
        sleep(ms(1000)).await;
    }
}

/// Makes one exchange that succeeds. Returns `None` if the worker has ended.
async fn agree(life: &Arc<Life>, until: Instant, updates: &mpsc::Sender<Update>) -> Option<()> {
    life.world.note(format_args!("{} has agreed", life.name));
    let is_confirmed = life.world.below(2) == 0;
    let (applied, is_applied) = oneshot::channel();
    // This precedes the send, because the worker may ask as soon as it has the update.
    let asked = life.agreed(until);
    let update = Update::Agreed {
        fleet: None,
        until,
        clock: None,
        applied: is_confirmed.then_some(applied),
    };
    updates.send(update).await.ok()?;
    if is_confirmed {
        let life = Arc::clone(life);
        tokio::spawn(async move {
            if is_applied.await.is_ok() && life.asks_up_to(asked) {
                life.world.history().wrong(format_args!(
                    "{}: applied, and something is under way that was asked before",
                    life.name
                ));
            }
        });
    }
    Some(())
}
