//! A store that forgets, behind the client code that the gate has for Redis, in simulated time: it is emptied, restarted without its
//! last writes, throws keys away, or steps its clock back, while workers ask, agree on changing policies, die and stand still, and
//! answers are late or lost. No window is too full, and starts go on after the waits that are stated.

mod judge;
mod net;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sluicegate::gate::memory::store::MemoryStore;
use sluicegate::gate::redis::RedisGate;
use sluicegate::gate::registry::{Named, Registry};
use sluicegate::gate::store::Store;
use sluicegate::gate::{Answer, Ask, Gate, Start, TenantAsk, Ticket};
use sluicegate::rules::fleet::Fleet;
use sluicegate::rules::limit::{Algorithm, Limit, Limits};
use sluicegate::rules::policy::{Own, Pattern, Policy};
use sluicegate::rules::scope::Labels;
use sluicegate::rules::tenant::Tenant;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

use super::Report;
use judge::{full, go_on};
use net::Net;

/// Simulations from this seed on are those of this module.
pub const FORGETS: u64 = 5_000_000;
const EPOCH_US: u64 = 1_700_000_000_000_000;
const GUARD: Duration = Duration::from_millis(400);
/// What the tenants may do: so many in so long, and one more at once where the policy has buckets.
const TENANTS: [(&str, u64, Duration); 3] = [
    ("short", 3, Duration::from_secs(2)),
    ("middle", 4, Duration::from_secs(15)),
    ("long", 5, Duration::from_secs(90)),
];
/// What the policies count with. Workers have either of them, and change over.
const POLICIES: [Algorithm; 2] = [Algorithm::SlidingWindow, Algorithm::TokenBucket];
const WORKERS: usize = 3;
const MAY_LOSE: usize = 60;
/// Trouble comes for so long.
const TROUBLE: Duration = Duration::from_secs(240);
/// Who has lived for so long was heard of by the others.
const HEARD: Duration = Duration::from_secs(5);
const EXCHANGE: Duration = Duration::from_secs(1);
/// Clocks are stepped back by up to so much.
const MOST_BACK_MS: u64 = 200_000;

/// What may be wrong with the workers on purpose.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// They do not look whether Redis forgot something.
    Blind,
    /// They do not ask what others have in force.
    Alone,
}

fn limits((_, max, window): (&str, u64, Duration), algorithm: Algorithm) -> Limits {
    let limit = Limit::new("default", algorithm, max, window, GUARD).expect("in range");
    let limit = match algorithm.has_burst() {
        true => limit.with_burst(1).expect("in range"),
        false => limit,
    };
    limit.into()
}

fn policy(algorithm: Algorithm) -> Named {
    let own = TENANTS.map(|tenant| {
        let limits = limits(tenant, algorithm);
        (Pattern::parse(tenant.0), Own::Limits(limits))
    });
    let policy = Policy::common(limits(TENANTS[0], algorithm)).with_tenants(own.to_vec());
    Named::new(policy).expect("it is small")
}

struct World {
    net: Arc<Net>,
    back_us: Arc<AtomicU64>,
    began: Instant,
    bug: Bug,
    random: RefCell<SmallRng>,
    starts: RefCell<BTreeMap<&'static str, Vec<Duration>>>,
    lines: RefCell<Vec<String>>,
    faults: Cell<u64>,
    /// One worker at a time is dead or stands still: nobody else would know of what it did.
    away: Cell<bool>,
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

    fn is_troubled(&self) -> bool {
        self.now() < TROUBLE
    }

    async fn pass(&self, most_ms: u64) {
        let wait = Duration::from_millis(self.below(most_ms) + 1);
        sleep(wait).await;
    }

    fn any_policy(&self) -> Named {
        policy(POLICIES[usize::from(self.below(2) == 0)])
    }
}

/// A worker, from its start to its death.
struct Worker<'a> {
    world: &'a World,
    gate: Arc<RedisGate>,
    registry: Registry,
    fleet: Fleet,
    /// Until when it may ask, and when it agrees again.
    agreed: Instant,
    next: Instant,
    tickets: BTreeMap<&'static str, Ticket>,
}

impl<'a> Worker<'a> {
    fn new(world: &'a World) -> Self {
        let store: Arc<dyn Store> = Arc::<Net>::clone(&world.net);
        let own = world.any_policy();
        let mut gate = RedisGate::on(store, "p");
        if world.bug != Bug::Blind {
            gate = gate.watching(own.policy.memory());
        }
        let gate = Arc::new(gate);
        let now = Instant::now();
        Self {
            world,
            fleet: Fleet::alone(Arc::clone(&own.policy)),
            registry: Registry::new(Arc::clone(&gate), own),
            gate,
            agreed: now,
            next: now,
            tickets: BTreeMap::new(),
        }
    }

    async fn live(&mut self, start: Start) {
        let world = self.world;
        // It may not be able to say it at once: it asks all the same.
        let _ = self.gate.begin(start).await;
        let born = world.now();
        loop {
            world.pass(700).await;
            if Instant::now() >= self.next {
                self.agree().await;
            }
            let may_go = world.is_troubled() && !world.away.get() && world.now() > born + HEARD;
            match world.below(100) {
                0 if may_go => {
                    world.fault("a worker dies");
                    world.away.set(true);
                    return;
                }
                1 if may_go => {
                    world.fault("a worker stands still");
                    world.away.set(true);
                    world.pass(30_000).await;
                    world.away.set(false);
                }
                2..10 => {
                    let _ = self.gate.ping().await;
                }
                _ if Instant::now() < self.agreed => self.ask().await,
                _ => {}
            }
        }
    }

    /// One exchange; now and then another policy is in force from then on.
    async fn agree(&mut self) {
        let world = self.world;
        self.next = Instant::now() + EXCHANGE;
        let own = match world.is_troubled() && world.below(20) == 0 {
            true => world.any_policy(),
            false => self.registry.own().clone(),
        };
        if world.bug == Bug::Alone {
            self.fleet = Fleet::alone(own.policy);
            self.agreed = self.next + EXCHANGE;
        } else if let Ok(agreed) = self.registry.switch_to(own).await {
            self.registry.open(&agreed);
            self.fleet = agreed.fleet;
            self.agreed = agreed.until;
        }
    }

    /// A job of some tenant asks, and starts if it may.
    async fn ask(&mut self) {
        let world = self.world;
        let (name, ..) = TENANTS[usize::try_from(world.below(3)).expect("small")];
        let tenant = Tenant::parse(name).expect("a tenant");
        let job = Ask {
            ticket: self.tickets.get(name).copied(),
            cost: 1,
        };
        let ask = TenantAsk {
            limits: self.fleet.limits(&tenant, None),
            tenant,
            labels: Labels::default(),
            budget: 1,
            permits: String::new(),
            asks: vec![job],
        };
        let asked = Instant::now();
        let batch = [ask];
        let replies = self.gate.ask(&batch).await;
        let Ok(reply) = replies.and_then(|mut replies| replies.remove(0)) else {
            return;
        };
        match reply.answers[0] {
            Answer::Start { .. } if asked.elapsed() <= GUARD / 2 => {
                self.tickets.remove(name);
                world.note(&format!("{name} starts"));
                let mut starts = world.starts.borrow_mut();
                starts.entry(name).or_default().push(world.now());
            }
            Answer::Wait { ticket, .. } => {
                self.tickets.insert(name, ticket);
            }
            _ => {}
        }
    }
}

async fn keep(world: Rc<World>, first: Start) {
    let mut start = first;
    loop {
        Worker::new(&world).live(start).await;
        world.pass(20_000).await;
        world.away.set(false);
        start = Start::Unknown;
    }
}

async fn forget(world: &World) {
    let store = &world.net.store;
    while world.is_troubled() {
        world.pass(40_000).await;
        match world.below(6) {
            0 => {
                world.fault("it is emptied");
                store.flush();
            }
            1 => {
                world.fault("it throws keys away");
                store.evict();
            }
            2 => {
                world.fault("it restarts");
                store.restart(0);
            }
            3 => {
                let ms = world.below(MOST_BACK_MS);
                world.fault(&format!("its clock is stepped back by {ms} ms"));
                world.back_us.fetch_add(ms * 1_000, Ordering::Relaxed);
            }
            _ => {
                let lost = world.below(MAY_LOSE as u64);
                world.fault(&format!("it restarts without the last {lost} writes"));
                store.restart(usize::try_from(lost).expect("small"));
            }
        }
    }
    world.net.heal();
}

pub fn simulate(seed: u64) -> Report {
    simulate_with(seed, Bug::None)
}

fn simulate_with(seed: u64, bug: Bug) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, async move {
        let began = Instant::now();
        let back_us = Arc::new(AtomicU64::new(0));
        let clock = {
            let back_us = Arc::clone(&back_us);
            move || {
                let since = u64::try_from(began.elapsed().as_micros()).expect("short");
                EPOCH_US + since - back_us.load(Ordering::Relaxed)
            }
        };
        let net = Net::new(
            MemoryStore::new(Box::new(clock), MAY_LOSE),
            SmallRng::seed_from_u64(!seed),
        );
        let world = Rc::new(World {
            net: Arc::new(net),
            back_us,
            began,
            bug,
            random: RefCell::new(SmallRng::seed_from_u64(seed)),
            starts: RefCell::default(),
            lines: RefCell::default(),
            faults: Cell::new(0),
            away: Cell::new(false),
        });
        for number in 0..WORKERS {
            let start = match number {
                0 => Start::Idle,
                _ => Start::Unknown,
            };
            tokio::task::spawn_local(keep(Rc::clone(&world), start));
            sleep(Duration::from_millis(200)).await;
        }
        forget(&world).await;
        let idle = go_on(&world).await;
        let mut wrongs: Vec<String> = TENANTS.iter().filter_map(|it| full(&world, *it)).collect();
        wrongs.extend(idle);
        report(&world, wrongs)
    })
}

fn report(world: &World, wrongs: Vec<String>) -> Report {
    let lines = world.lines.take();
    let mut hasher = DefaultHasher::new();
    lines.hash(&mut hasher);
    Report {
        hash: hasher.finish(),
        events: lines.len() as u64,
        faults: world.faults.get(),
        arrivals: world.starts.borrow().values().map(Vec::len).sum(),
        lasted: world.now(),
        makespan: None,
        deliveries: 0.0,
        wrongs,
        lines,
    }
}

/// The evidence can fail.
#[test]
fn workers_that_do_not_look_or_do_not_agree_are_noticed() {
    for bug in [Bug::Blind, Bug::Alone] {
        let seeds = FORGETS..FORGETS + 10;
        let wrong = |seed: &u64| !simulate_with(*seed, bug).wrongs.is_empty();
        let noticed = seeds.filter(wrong).count();
        assert!(noticed > 5, "{noticed} of 10");
    }
}
