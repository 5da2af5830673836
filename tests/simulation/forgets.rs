//! A store that loses data, behind the gate's client code for Redis, in simulated time. Workers
//! ask, settle, agree on changing policies, die, stand still and stop. Meanwhile the store is
//! emptied, restarts or fails over without its last writes, evicts keys, has its clock stepped,
//! refuses, and is near or far. No window is ever too full, and starts resume within the times in
//! docs/OPERATIONS.md.
//!
//! There is no broker, because jobs are always waiting, and no API, because it would only count.

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
use gate::EarlierStarts;
use gate::fleet::registry::NamedPolicy;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rules::limit::{Algorithm, Limit, Limits};
use rules::policy::{EntryLimits, Pattern, Policy};
use simulator::environment::in_simulated_time;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

use super::Report;
use net::Net;

/// First seed of this module's simulations.
pub const FORGETS: u64 = 5_000_000;
/// First seed after this module's.
pub const UNTIL: u64 = 6_000_000;
/// Prefix of all keys.
const PREFIX: &str = "p";
const EPOCH_US: u64 = 1_700_000_000_000_000;
const GUARD: Duration = Duration::from_millis(400);
/// Tenants, each with a number of starts and a window. A policy may allow one more. The last tenant
/// has a number of calls at once instead.
const TENANTS: [(&str, u64, Duration); 4] = [
    ("short", 3, Duration::from_secs(2)),
    ("middle", 4, Duration::from_secs(15)),
    ("long", 5, Duration::from_secs(60)),
    ("calls", 2, Duration::ZERO),
];
/// Policies: exact, one more, smooth, by running calls.
const POLICIES: [(Algorithm, u64); 4] = [
    (Algorithm::SlidingWindow, 0),
    (Algorithm::SlidingWindow, 1),
    (Algorithm::TokenBucket, 0),
    (Algorithm::Strict, 0),
];
/// Maximum duration of that tenant's calls. Other tenants' calls take at most a hundredth of it.
const MAX_CALL: Duration = Duration::from_secs(20);
const WORKERS: usize = 3;
/// Maximum number of writes that may be lost; it covers several seconds.
const MAY_LOSE: usize = 120;
/// Minimum round trip times, one for each seed.
const WAYS_MS: [u64; 5] = [1, 5, 40, 200, 500];

/// Deliberate defects of workers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// Workers do not check whether Redis lost data.
    Blind,
    /// Workers ignore the policies of other workers.
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

/// State of the current worker of a slot.
#[derive(Clone, Copy, Default)]
struct Life {
    /// Time of the gate's first answer.
    first: Option<Instant>,
    /// Send time of the newest question that was answered.
    last: Option<Instant>,
}

/// A call of the tenant with a limit on concurrent calls.
struct Call {
    from: Instant,
    until: Instant,
    slot: usize,
}

struct World {
    net: Arc<Net>,
    /// How far the store's clock is ahead, in microseconds. It starts above the sum of all steps
    /// back.
    ahead_us: Arc<AtomicU64>,
    began: Instant,
    bug: Bug,
    /// Whether the store may evict keys.
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
    /// Whether a worker is dead or stands still. At most one is at a time; otherwise no other
    /// worker would know its starts.
    away: Cell<bool>,
    /// When a worker last resumed after standing still.
    back: Cell<Duration>,
    /// When a worker last started.
    last_start: Cell<Duration>,
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

    /// Ends the calls of the worker in `slot`, which is gone.
    fn end_calls(&self, slot: usize) {
        let now = Instant::now();
        let mut calls = self.calls.borrow_mut();
        for call in calls.iter_mut().filter(|call| call.slot == slot) {
            call.until = call.until.min(now);
        }
    }

    /// Returns the tenant's limits under each policy.
    fn limits(&self, tenant: usize) -> impl Iterator<Item = Limits> {
        let name = worker::tenant(tenant);
        let limits = move |it: &NamedPolicy| it.policy.limits(&name, None).clone();
        self.policies.iter().map(limits)
    }

    /// Returns the longest look-back of a tenant's limits.
    fn span(&self, tenant: usize) -> Duration {
        let spans = self.limits(tenant).map(|limits| limits.memory_ms());
        Duration::from_millis(spans.max().unwrap_or(0))
    }

    /// Returns the maximum number of starts of a tenant in a window, under the larger policy.
    fn max_starts(&self, tenant: usize) -> u64 {
        let worst = self.limits(tenant).map(|limits| limits[0].worst_case());
        worst.max().unwrap_or(0)
    }

    /// Reports whether the other workers know what the worker in `slot` did. If Redis loses it,
    /// they notice.
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
    let ahead_us = Arc::new(AtomicU64::new(faults::MAX_BACK_MS * 1_000));
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
    let latency_ms = WAYS_MS[random.random_range(0..WAYS_MS.len())];
    let net = Net::new(store, SmallRng::seed_from_u64(!seed), latency_ms);
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
        last_start: Cell::default(),
    }
}

/// Returns what a worker reports when it starts. The first one knows that nothing has started
/// before.
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
        canceled: 0,
        wrongs: world.wrongs.take(),
        lines,
    }
}

/// Shows that the checks can fail.
#[test]
fn workers_that_do_not_look_or_do_not_agree_are_noticed() {
    for bug in [Bug::Blind, Bug::Alone] {
        let seeds = FORGETS..FORGETS + 20;
        let wrong = |seed: &u64| !simulate_with(*seed, bug).wrongs.is_empty();
        let noticed = seeds.filter(wrong).count();
        assert!(noticed > 5, "{noticed} of 20");
    }
}
