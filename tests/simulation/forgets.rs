//! A store that forgets, behind the client code that the gate has for Redis, in simulated time. Workers ask it, settle, agree on changing
//! policies, die, stand still and end in order, while the store is emptied, restarts or fails over without its last writes, throws keys
//! away, has its clock stepped, refuses, and is near or far. No window is ever too full, and starts go on within the times that
//! docs/OPERATIONS.md has.
//!
//! It has no broker and no downstream: jobs are always there, and an API would only count.

mod faults;
mod judge;
mod net;
mod worker;

use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fake_redis::FakeRedis;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use simulator::environment::in_simulated_time;
use sluicegate::gate::EarlierStarts;
use sluicegate::gate::fleet::registry::NamedPolicy;
use sluicegate::rules::limit::{Algorithm, Limit, Limits};
use sluicegate::rules::policy::{EntryLimits, Pattern, Policy};
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

use super::Report;
use net::Net;

/// Simulations from this seed on are those of this module.
pub const FORGETS: u64 = 5_000_000;
/// The next ones that are of another module.
pub const UNTIL: u64 = 6_000_000;
/// What all keys begin with.
const PREFIX: &str = "p";
const EPOCH_US: u64 = 1_700_000_000_000_000;
const GUARD: Duration = Duration::from_millis(400);
/// What the tenants may do: so many in so long, and one more where a policy says so; the last one has so many calls at once.
const TENANTS: [(&str, u64, Duration); 4] = [
    ("short", 3, Duration::from_secs(2)),
    ("middle", 4, Duration::from_secs(15)),
    ("long", 5, Duration::from_secs(60)),
    ("calls", 2, Duration::ZERO),
];
/// How the policies count: exactly, one more, smoothly, by calls that are under way.
const POLICIES: [(Algorithm, u64); 4] = [
    (Algorithm::SlidingWindow, 0),
    (Algorithm::SlidingWindow, 1),
    (Algorithm::TokenBucket, 0),
    (Algorithm::Strict, 0),
];
/// Calls of that tenant take at most so long, and others' a hundredth of it.
const LONGEST_CALL: Duration = Duration::from_secs(20);
const WORKERS: usize = 3;
/// So many writes may be lost: some seconds of them, or more.
const MAY_LOSE: usize = 120;
/// Round trips take so long at least, by the seed.
const WAYS_MS: [u64; 5] = [1, 5, 40, 200, 500];

/// What may be wrong with the workers on purpose.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// They do not look whether Redis forgot something.
    Blind,
    /// They do not ask what others have in force.
    Alone,
}

fn limits((_, max, window): (&str, u64, Duration), (algorithm, more): (Algorithm, u64)) -> Limits {
    if window.is_zero() {
        let limit = Limit::concurrent("default", max);
        return limit.expect("in range").into();
    }
    let limit = Limit::new("default", algorithm, max + more, window, GUARD).expect("in range");
    let limit = match algorithm.has_burst() {
        true => limit.with_burst(1).expect("in range"),
        false => limit,
    };
    limit.into()
}

fn policy(how: (Algorithm, u64)) -> NamedPolicy {
    let own = TENANTS.map(|tenant| {
        let limits = limits(tenant, how);
        (Pattern::parse(tenant.0), EntryLimits::Limits(limits))
    });
    let policy = Policy::common(limits(TENANTS[0], how)).with_tenants(own.to_vec());
    NamedPolicy::new(policy).expect("it is small")
}

/// What is known of the worker that has a slot by now.
#[derive(Clone, Copy, Default)]
struct Life {
    /// When the gate first answered it.
    first: Option<Instant>,
    /// The newest question that was answered was sent then.
    last: Option<Instant>,
}

/// A call of the tenant that has so many at once.
struct Call {
    from: Instant,
    until: Instant,
    slot: usize,
}

struct World {
    net: Arc<Net>,
    /// How far its clock is ahead, in microseconds, and more than it may ever be stepped back.
    ahead_us: Arc<AtomicU64>,
    began: Instant,
    bug: Bug,
    /// It may throw keys away.
    evicts: bool,
    policies: Vec<NamedPolicy>,
    random: RefCell<SmallRng>,
    starts: RefCell<[Vec<Duration>; TENANTS.len()]>,
    calls: RefCell<Vec<Call>>,
    lines: RefCell<Vec<String>>,
    wrongs: RefCell<Vec<String>>,
    faults: Cell<u64>,
    troubled: Cell<bool>,
    lives: RefCell<[Life; WORKERS]>,
    /// One worker at a time is dead or stands still: nobody else would know of what it did.
    away: Cell<bool>,
    /// When one last went on that had stood still.
    back: Cell<Duration>,
    /// When one last began.
    begun: Cell<Duration>,
}

impl World {
    fn below(&self, end: u64) -> u64 {
        self.random.borrow_mut().random_range(0..end)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn note(&self, what: &str) {
        let line = format!("{:?} {what}", self.now());
        self.lines.borrow_mut().push(line);
    }

    fn fault(&self, what: &str) {
        self.faults.set(self.faults.get() + 1);
        self.note(&format!("fault: {what}"));
    }

    fn wrong(&self, what: String) {
        self.note(&format!("WRONG: {what}"));
        self.wrongs.borrow_mut().push(what);
    }

    async fn pass(&self, most_ms: u64) {
        let wait = Duration::from_millis(self.below(most_ms) + 1);
        sleep(wait).await;
    }

    fn any_policy(&self) -> NamedPolicy {
        let at = self.below(self.policies.len() as u64);
        self.policies[usize::try_from(at).expect("small")].clone()
    }

    /// The worker in `slot` is gone, and its calls with it.
    fn end_calls(&self, slot: usize) {
        let now = Instant::now();
        let mut calls = self.calls.borrow_mut();
        for call in calls.iter_mut().filter(|call| call.slot == slot) {
            call.until = call.until.min(now);
        }
    }

    /// What the policies say of a tenant's limits.
    fn limits(&self, tenant: usize) -> impl Iterator<Item = Limits> {
        let name = worker::tenant(tenant);
        let limits = move |it: &NamedPolicy| it.policy.limits(&name, None).clone();
        self.policies.iter().map(limits)
    }

    /// How far back the limits of a tenant look at most.
    fn span(&self, tenant: usize) -> Duration {
        let spans = self.limits(tenant).map(|limits| limits.memory_ms());
        Duration::from_millis(spans.max().unwrap_or(0))
    }

    /// How many starts of a tenant there may be in a window: what the larger policy allows.
    fn most(&self, tenant: usize) -> u64 {
        let worst = self.limits(tenant).map(|limits| limits[0].worst_case());
        worst.max().unwrap_or(0)
    }

    /// What the worker in `slot` did is known to the others: what Redis loses of it, they miss as well.
    fn is_known(&self, slot: usize) -> bool {
        let lives = self.lives.borrow();
        let Some(first) = lives[slot].first else {
            return false;
        };
        let mut others = (0..WORKERS).filter(|other| *other != slot);
        others.all(|other| lives[other].last.is_some_and(|last| last > first))
    }
}

pub fn simulate(seed: u64) -> Report {
    simulate_with(seed, Bug::None)
}

fn simulate_with(seed: u64, bug: Bug) -> Report {
    in_simulated_time(LocalSet::new().run_until(async move {
        let world = Rc::new(world(seed, bug));
        for slot in 0..WORKERS {
            tokio::task::spawn_local(worker::keep(Rc::clone(&world), slot));
            world.pass(2_000).await;
        }
        faults::go_wrong(&world).await;
        judge::full(&world);
        report(&world)
    }))
}

fn world(seed: u64, bug: Bug) -> World {
    let mut random = SmallRng::seed_from_u64(seed);
    let began = Instant::now();
    let ahead_us = Arc::new(AtomicU64::new(faults::MOST_BACK_MS * 1_000));
    let clock = {
        let ahead_us = Arc::clone(&ahead_us);
        move || {
            let since = u64::try_from(began.elapsed().as_micros()).expect("short");
            EPOCH_US + since + ahead_us.load(Ordering::Relaxed)
        }
    };
    let evicts = random.random_bool(0.3);
    let store = FakeRedis::new(clock).may_lose(MAY_LOSE);
    let store = if evicts { store.evicting() } else { store };
    let way_ms = WAYS_MS[random.random_range(0..WAYS_MS.len())];
    let net = Net::new(store, SmallRng::seed_from_u64(!seed), way_ms);
    let mut policies = POLICIES.to_vec();
    policies.remove(random.random_range(0..policies.len()));
    policies.truncate(random.random_range(1..=policies.len()));
    World {
        net: Arc::new(net),
        ahead_us,
        began,
        bug,
        evicts,
        policies: policies.into_iter().map(policy).collect(),
        random: RefCell::new(random),
        starts: RefCell::default(),
        calls: RefCell::default(),
        lines: RefCell::default(),
        wrongs: RefCell::default(),
        faults: Cell::new(0),
        troubled: Cell::new(true),
        lives: RefCell::default(),
        away: Cell::new(false),
        back: Cell::default(),
        begun: Cell::default(),
    }
}

/// What a worker says when it starts: the first one knows that nothing was started before.
fn first_word(slot: usize) -> EarlierStarts {
    match slot {
        0 => EarlierStarts::Idle,
        _ => EarlierStarts::Unknown,
    }
}

fn report(world: &World) -> Report {
    let lines = world.lines.take();
    let mut hasher = DefaultHasher::new();
    lines.hash(&mut hasher);
    Report {
        hash: hasher.finish(),
        events: lines.len() as u64,
        faults: world.faults.get(),
        arrivals: world.starts.borrow().iter().map(Vec::len).sum(),
        lasted: world.now(),
        makespan: None,
        deliveries: 0.0,
        cancelled: 0,
        wrongs: world.wrongs.take(),
        lines,
    }
}

/// The evidence can fail.
#[test]
fn workers_that_do_not_look_or_do_not_agree_are_noticed() {
    for bug in [Bug::Blind, Bug::Alone] {
        let seeds = FORGETS..FORGETS + 20;
        let wrong = |seed: &u64| !simulate_with(*seed, bug).wrongs.is_empty();
        let noticed = seeds.filter(wrong).count();
        assert!(noticed > 5, "{noticed} of 20");
    }
}
