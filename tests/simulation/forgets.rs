//! A store that forgets, behind the client code that the gate has for Redis, in simulated time: it is emptied, restarted without its
//! last writes, or throws keys away, while workers ask, die and stand still and answers are late or lost. No window is too
//! full, and starts go on after the waits that are stated.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sluicegate::gate::memory::store::MemoryStore;
use sluicegate::gate::redis::RedisGate;
use sluicegate::gate::store::{Command, Store};
use sluicegate::gate::{Answer, Ask, Gate, GateError, Start, TenantAsk, Ticket};
use sluicegate::rules::epoch::{DOUBT_MS, SETTLE_MS};
use sluicegate::rules::limit::{Algorithm, Limit, Limits};
use sluicegate::rules::scope::Labels;
use sluicegate::rules::tenant::Tenant;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

const EPOCH_US: u64 = 1_700_000_000_000_000;
const GUARD: Duration = Duration::from_millis(400);
/// What the tenants may do: so many in so long.
const TENANTS: [(&str, u64, Duration); 3] = [
    ("short", 3, Duration::from_secs(2)),
    ("middle", 4, Duration::from_secs(15)),
    ("long", 5, Duration::from_secs(90)),
];
const WORKERS: usize = 3;
const MAY_LOSE: usize = 60;
/// Trouble comes for so long.
const TROUBLE: Duration = Duration::from_secs(240);
/// Who has lived for so long was heard of by the others.
const HEARD: Duration = Duration::from_secs(5);
const SEEDS: u64 = 60;

type Memory = MemoryStore<Box<dyn Fn() -> u64 + Send + Sync>>;

/// The way to the store.
struct Net {
    store: Arc<Memory>,
    random: Mutex<SmallRng>,
    troubled: AtomicBool,
}

impl Net {
    /// How long it takes, and whether what is sent is lost.
    fn way(&self) -> (Duration, bool) {
        let mut random = self.random.lock().expect("nobody panics with it");
        let troubled = self.troubled.load(Ordering::Relaxed);
        let slow = troubled && random.random_bool(0.02);
        let most = if slow { 1_500 } else { 20 };
        let way = Duration::from_millis(random.random_range(0..=most));
        (way, troubled && random.random_bool(0.02))
    }
}

impl Store for Net {
    fn run<'a>(
        &'a self,
        commands: Vec<Command<'a>>,
    ) -> BoxFuture<'a, Result<Vec<redis::Value>, GateError>> {
        async move {
            let lost = || Err(GateError::Unreachable("lost on its way".to_owned()));
            let ([there, back], [unsent, unheard]) = {
                let (one, two) = (self.way(), self.way());
                ([one.0, two.0], [one.1, two.1])
            };
            sleep(there).await;
            if unsent {
                return lost();
            }
            let answers = self.store.run(commands).await;
            sleep(back).await;
            if unheard { lost() } else { answers }
        }
        .boxed()
    }
}

fn limits((_, max, window): (&str, u64, Duration)) -> Limits {
    let limit = Limit::new("default", Algorithm::SlidingWindow, max, window, GUARD);
    limit.expect("in range").into()
}

struct World {
    net: Arc<Net>,
    began: Instant,
    /// Whether what Redis forgot is noticed.
    watches: bool,
    random: RefCell<SmallRng>,
    starts: RefCell<BTreeMap<&'static str, Vec<Duration>>>,
    lines: RefCell<Vec<String>>,
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
        self.lines
            .borrow_mut()
            .push(format!("{:?} {what}", self.now()));
    }

    fn is_troubled(&self) -> bool {
        self.now() < TROUBLE
    }

    async fn pass(&self, most_ms: u64) {
        let wait = Duration::from_millis(self.below(most_ms) + 1);
        sleep(wait).await;
    }
}

/// A worker, from its start to its death.
async fn live(world: &World, start: Start) {
    let store: Arc<dyn Store> = Arc::<Net>::clone(&world.net);
    let mut gate = RedisGate::on(store, "p");
    if world.watches {
        gate = gate.watching(Duration::from_millis(limits(TENANTS[2]).memory_ms()));
    }
    // It may not be able to say it at once: it asks all the same.
    let _ = gate.begin(start).await;
    let born = world.now();
    let mut tickets: BTreeMap<&str, Ticket> = BTreeMap::new();
    loop {
        world.pass(700).await;
        let may_go = world.is_troubled() && !world.away.get() && world.now() > born + HEARD;
        match world.below(100) {
            0 if may_go => {
                world.note("a worker dies");
                world.away.set(true);
                return;
            }
            1 if may_go => {
                world.note("a worker stands still");
                world.away.set(true);
                world.pass(30_000).await;
                world.away.set(false);
            }
            2..10 => {
                let _ = gate.ping().await;
                continue;
            }
            _ => {}
        }
        let tenant = TENANTS[usize::try_from(world.below(3)).expect("small")];
        let name = tenant.0;
        let job = Ask {
            ticket: tickets.get(name).copied(),
            cost: 1,
        };
        let ask = TenantAsk {
            tenant: Tenant::parse(name).expect("a tenant"),
            labels: Labels::default(),
            limits: limits(tenant),
            budget: 1,
            permits: String::new(),
            asks: vec![job],
        };
        let asked = Instant::now();
        let batch = [ask];
        let replies = gate.ask(&batch).await;
        let Ok(reply) = replies.and_then(|mut replies| replies.remove(0)) else {
            continue;
        };
        match reply.answers[0] {
            Answer::Start { .. } if asked.elapsed() <= GUARD / 2 => {
                tickets.remove(name);
                world
                    .starts
                    .borrow_mut()
                    .entry(name)
                    .or_default()
                    .push(world.now());
            }
            Answer::Wait { ticket, .. } => {
                tickets.insert(name, ticket);
            }
            _ => {}
        }
    }
}

async fn keep(world: Rc<World>, first: Start) {
    let mut start = first;
    loop {
        live(&world, start).await;
        world.pass(20_000).await;
        world.away.set(false);
        start = Start::Unknown;
    }
}

async fn forget(world: Rc<World>) {
    let store = Arc::clone(&world.net.store);
    while world.is_troubled() {
        world.pass(40_000).await;
        match world.below(5) {
            0 => {
                world.note("it is emptied");
                store.flush();
            }
            1 => {
                world.note("it throws keys away");
                store.evict();
            }
            2 => {
                world.note("it restarts");
                store.restart(0);
            }
            _ => {
                let lost = world.below(MAY_LOSE as u64);
                world.note(&format!("it restarts without the last {lost} writes"));
                store.restart(usize::try_from(lost).expect("small"));
            }
        }
    }
    world.net.troubled.store(false, Ordering::Relaxed);
}

/// The error: what is wrong, and what happened.
fn simulate(seed: u64, watches: bool) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, async move {
        let began = Instant::now();
        let clock = move || EPOCH_US + u64::try_from(began.elapsed().as_micros()).expect("short");
        let net = Net {
            store: Arc::new(MemoryStore::new(Box::new(clock), MAY_LOSE)),
            random: Mutex::new(SmallRng::seed_from_u64(!seed)),
            troubled: AtomicBool::new(true),
        };
        let world = Rc::new(World {
            net: Arc::new(net),
            began,
            watches,
            random: RefCell::new(SmallRng::seed_from_u64(seed)),
            starts: RefCell::default(),
            lines: RefCell::default(),
            away: Cell::new(false),
        });
        for number in 0..WORKERS {
            let start = if number == 0 {
                Start::Idle
            } else {
                Start::Unknown
            };
            tokio::task::spawn_local(keep(Rc::clone(&world), start));
            sleep(Duration::from_millis(200)).await;
        }
        forget(Rc::clone(&world)).await;
        let over = world.now();
        // The last death and the last pause are over by then, too.
        let longest = TENANTS[2].2 + GUARD;
        sleep(Duration::from_secs(30) + 2 * longest).await;
        let wrong = judge(&world, over);
        let story = || world.lines.borrow().join("\n");
        wrong.map_or(Ok(()), |wrong| {
            Err(format!("seed {seed}: {wrong}\n{}", story()))
        })
    })
}

fn judge(world: &World, over: Duration) -> Option<String> {
    let starts = world.starts.borrow();
    for (name, max, window) in TENANTS {
        let starts = starts.get(name).map_or(&[][..], Vec::as_slice);
        for (at, first) in starts.iter().enumerate() {
            let inside = starts[at..]
                .iter()
                .filter(|start| **start < *first + window)
                .count();
            if inside as u64 > max {
                return Some(format!("{name} has {inside} of {max} from {first:?} on"));
            }
        }
        // Whoever does not vouch is waited for; then its span; and what was charged and did not start takes a span, too.
        let span = window + GUARD;
        let wait = span.max(Duration::from_millis(DOUBT_MS)) + Duration::from_millis(SETTLE_MS);
        let by = over + wait + span + Duration::from_secs(10);
        if !starts.iter().any(|start| (over..by).contains(start)) {
            return Some(format!("{name} does not go on from {over:?} until {by:?}"));
        }
    }
    None
}

#[test]
fn a_store_that_forgets_lets_no_window_be_too_full_and_goes_on() {
    let seeds = std::env::var("FORGETFUL_SEEDS").ok();
    let seeds = seeds.and_then(|text| {
        let (from, to) = text.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    for seed in seeds.unwrap_or(0..SEEDS) {
        if let Err(why) = simulate(seed, true) {
            panic!(
                "{why}\nagain: FORGETFUL_SEEDS={seed}..{} cargo test --test simulation forget",
                seed + 1
            );
        }
    }
}

/// The evidence can fail: a gate that does not look is found out.
#[test]
fn who_starts_at_once_after_a_loss_is_noticed() {
    let noticed = (0..10)
        .filter(|seed| simulate(*seed, false).is_err())
        .count();
    assert!(noticed > 5, "{noticed} of 10");
}
