//! What every gate does, whatever keeps its state: in real time, on the model in memory and on Redis.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kit::servers::{shared_redis, unique};
use sluicegate::config::SecretUrl;
use sluicegate::gate::memory::MemoryGate;
use sluicegate::gate::memory::store::MemoryStore;
use sluicegate::gate::redis::RedisGate;
use sluicegate::gate::{
    Answer, Ask, Change, Event, Gate, GateError, Inspection, Replies, Rule, TenantAsk, Ticket,
    Usage, Whose,
};
use sluicegate::rules::answers::Quotas;
use sluicegate::rules::limit::{Algorithm, Limit, Limits};
use sluicegate::rules::scope::Labels;
use sluicegate::rules::tenant::Tenant;

pub const FRESH: Ask = Ask {
    ticket: None,
    cost: 1,
    again: false,
};

/// The longest window: none of these ends while a test runs.
pub const LONG: u64 = 31 * 86_400_000;

/// `max` in each `window_ms`, without a guard; a bucket has room for all of them at once.
pub fn limit(algorithm: Algorithm, max: u64, window_ms: u64) -> Limit {
    let window = Duration::from_millis(window_ms);
    let limit = Limit::new("default", algorithm, max, window, Duration::ZERO).expect("in range");
    if algorithm.has_burst() {
        limit.with_burst(max).expect("in range")
    } else {
        limit
    }
}

/// A gate and what it is to enforce for every tenant.
pub struct Limited<G> {
    pub gate: G,
    pub limits: Limits,
}

impl<G: Gate> Limited<G> {
    pub fn new(gate: G, limits: impl Into<Limits>) -> Self {
        Self {
            gate,
            limits: limits.into(),
        }
    }

    /// One question of one tenant.
    pub fn question(&self, id: &str, budget: u32, asks: &[Ask]) -> TenantAsk {
        TenantAsk {
            tenant: tenant(id),
            labels: Labels::default(),
            limits: self.limits.clone(),
            budget,
            permits: unique("permit"),
            asks: asks.to_vec(),
        }
    }

    pub async fn inspect(&self, tenant: &Tenant) -> Result<Inspection, GateError> {
        self.gate
            .inspect(tenant, &Labels::default(), &self.limits)
            .await
    }
}

impl<G> Deref for Limited<G> {
    type Target = G;

    fn deref(&self) -> &G {
        &self.gate
    }
}

pub fn redis_gate(limits: impl Into<Limits>) -> Limited<RedisGate> {
    let url = SecretUrl::new(shared_redis().url());
    let gate = RedisGate::connect(&url, &unique("gate")).expect("a good url");
    Limited::new(gate, limits)
}

fn clock() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    u64::try_from(now.as_micros()).expect("before the year 500000")
}

pub fn memory_gate(limits: impl Into<Limits>) -> Limited<MemoryGate<impl Fn() -> u64>> {
    Limited::new(MemoryGate::new(clock), limits)
}

/// The client code for Redis, on a store in memory.
pub fn stored_gate(limits: impl Into<Limits>) -> Limited<RedisGate> {
    let store = Arc::new(MemoryStore::new(clock, 0, false));
    Limited::new(RedisGate::on(store, "p"), limits)
}

/// What must say the same: the scripts on a real Redis, the model, and the client code for Redis on a store in memory. They have one
/// clock, which stands until it is set.
pub struct Three<F> {
    pub redis: RedisGate,
    pub model: MemoryGate<F>,
    pub stored: RedisGate,
    clock: Arc<AtomicU64>,
}

impl<F> Three<F> {
    pub fn set_clock(&self, micros: u64) {
        self.clock.store(micros, Ordering::Relaxed);
    }
}

/// With keys of their own, whose names have `name` in them.
pub fn three(name: &str) -> Three<impl Fn() -> u64> {
    let clock = Arc::<AtomicU64>::default();
    let read = {
        let clock = Arc::clone(&clock);
        move || clock.load(Ordering::Relaxed)
    };
    let url = SecretUrl::new(shared_redis().url());
    let redis = RedisGate::connect(&url, &unique(name)).expect("a good url");
    let store = MemoryStore::new(read.clone(), 0, false);
    Three {
        redis: redis.with_test_clock(Arc::new(read.clone())),
        model: MemoryGate::new(read),
        stored: RedisGate::on(Arc::new(store), "p"),
        clock,
    }
}

pub fn tenant(id: &str) -> Tenant {
    Tenant::parse(id).expect("a good id")
}

/// The answers to one tenant's question.
pub fn decided(replies: &Replies, index: usize) -> &[Answer] {
    &replies[index].as_ref().expect("a decision").answers
}

/// Asks for one tenant.
pub async fn ask(gate: &Limited<impl Gate>, id: &str, budget: u32, asks: &[Ask]) -> Vec<Answer> {
    let batch = [gate.question(id, budget, asks)];
    let replies = gate.gate.ask(&batch).await.expect("the gate answers");
    decided(&replies, 0).to_vec()
}

pub fn started(answers: &[Answer]) -> usize {
    answers
        .iter()
        .filter(|answer| matches!(answer, Answer::Start { .. }))
        .count()
}

/// The tickets and waits of those who wait.
pub fn waits(answers: &[Answer]) -> Vec<(Ticket, u64)> {
    answers
        .iter()
        .filter_map(|answer| match answer {
            Answer::Wait { ticket, ttl_ms, .. } => Some((*ticket, *ttl_ms)),
            _ => None,
        })
        .collect()
}

/// All that a gate must do: `long` allows 5 in each [`LONG`], `short` 1 in each 400 ms.
pub async fn conforms(algorithm: Algorithm, long: Limited<impl Gate>, short: Limited<impl Gate>) {
    // A limit's worth starts, in order; the rest waits with tickets in order.
    let answers = ask(&long, "a", 10, &[FRESH; 8]).await;
    assert_eq!(started(&answers), 5);
    assert!(matches!(answers[4], Answer::Start { .. }));
    let waiting = waits(&answers);
    assert_eq!(
        waiting.iter().map(|(t, _)| t.number).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    assert!(
        waiting
            .windows(2)
            .all(|pair| pair[0].0.generation == pair[1].0.generation)
    );
    // The counter still sees the last window.
    assert!(waiting.iter().all(|(_, ttl)| (1..=2 * LONG).contains(ttl)));

    // Another tenant feels nothing of it; a batch is answered in its order.
    let batch: Vec<TenantAsk> = ["b", "a", "c"]
        .into_iter()
        .map(|id| long.question(id, 1, &[FRESH]))
        .collect();
    let replies = long.ask(&batch).await.expect("the gate answers");
    assert_eq!(
        [0, 1, 2].map(|index| started(decided(&replies, index))),
        [1, 0, 1]
    );
    assert!(long.ask(&[]).await.expect("the gate answers").is_empty());

    // A question without jobs reads the clock, whether anybody waits or not.
    let batch = ["nobody", "a"].map(|id| long.question(id, 0, &[]));
    let replies = long.ask(&batch).await.expect("the gate answers");
    for reply in replies {
        let reply = reply.expect("the clock");
        assert!(reply.now_ms > 1_700_000_000_000 && reply.answers.is_empty());
    }

    // A ticket keeps its number; one of another generation is as good as none.
    let (first, _) = waiting[0];
    let again = ask(
        &long,
        "a",
        1,
        &[Ask {
            ticket: Some(first),
            cost: 1,
            again: false,
        }],
    )
    .await;
    assert_eq!(waits(&again)[0].0, first);
    let foreign = Ticket {
        generation: first.generation + 1,
        number: 1,
    };
    let again = ask(
        &long,
        "a",
        1,
        &[Ask {
            ticket: Some(foreign),
            cost: 1,
            again: false,
        }],
    )
    .await;
    assert_eq!(waits(&again)[0].0.number, 5);

    // Costs are units; a cost of 0 or above the limit counts as the nearest that is possible.
    let answers = ask(
        &long,
        "costs",
        9,
        &[
            Ask {
                ticket: None,
                cost: 3,
                again: false,
            },
            Ask {
                ticket: None,
                cost: 0,
                again: false,
            },
        ],
    )
    .await;
    assert!(matches!(
        answers[..],
        [Answer::Start { .. }, Answer::Start { .. }]
    ));
    let answers = ask(
        &long,
        "costs",
        9,
        &[Ask {
            ticket: None,
            cost: 99,
            again: false,
        }],
    )
    .await;
    assert_eq!(waits(&answers)[0].0.number, 5);

    // The budget: what has room beyond it is told so, and nothing changes; fresh jobs behind it take no ticket.
    let answers = ask(&long, "budget", 2, &[FRESH; 7]).await;
    assert_eq!(started(&answers), 2);
    assert!(answers[2..].iter().all(|a| matches!(a, Answer::Capacity)));
    let shown = long
        .inspect(&tenant("budget"))
        .await
        .expect("the gate answers");
    let Usage { count, free, .. } = shown.limits[0];
    assert_eq!((count, free, shown.waiting), (2, 3, 0));

    // Closed: nobody starts, waits reach beyond it, and it is only ever put off.
    let closed = tenant("closed");
    let whose = closed.clone().into();
    long.block(&whose, Duration::from_secs(1000), "429 from the downstream")
        .await
        .expect("the gate answers");
    long.block(&whose, Duration::from_secs(10), "shorter")
        .await
        .expect("the gate answers");
    let answers = ask(&long, "closed", 5, &[FRESH]).await;
    assert!(waits(&answers)[0].1 > 990_000);
    let shown = long.inspect(&closed).await.expect("the gate answers");
    assert_eq!(shown.blocked_by, "429 from the downstream");
    assert!(shown.blocked_until_ms > shown.now_ms + 990_000);
    let Usage { next_ms, free, .. } = shown.limits[0];
    assert!(next_ms > 990_000 && free == 0 && shown.waiting == 1);

    // All are closed: who looks is told, a tenant's question is not, and an operator ends it.
    let (all, how) = (Whose::Api, "429 for all");
    (long.block(&all, Duration::from_secs(1000), how).await).expect("the gate answers");
    let look = async || {
        let told = long.report(&Rule::NONE, &[(Whose::Api, Event::Look)]).await;
        let told = told.expect("the gate answers").remove(0);
        told.expect("the gate answers")
    };
    let told = look().await;
    assert!(told.named_until_ms > told.now_ms + 990_000 && !told.is_open);
    assert_eq!(
        (told.closed_until_ms, told.by.as_str()),
        (told.named_until_ms, how)
    );
    assert_eq!(started(&ask(&long, "not closed", 5, &[FRESH]).await), 1);
    (long.change(&all, &Change::Resume).await).expect("the gate answers");
    assert_eq!(look().await.named_until_ms, 0);

    // An operator's pause, its end, another limit, and a waitlist that is forgotten.
    let operated = tenant("operated");
    let whose = operated.clone().into();
    let change = async |change| long.change(&whose, &change).await.expect("it answers");
    let duration_ms = 1_000_000;
    assert!(change(Change::Pause { duration_ms }).await > shown.now_ms + 990_000);
    let paused = waits(&ask(&long, "operated", 5, &[FRESH]).await)[0];
    assert!(paused.1 > 990_000);
    let shown = long.inspect(&operated).await.expect("the gate answers");
    assert!(shown.blocked_by.contains("operator"), "{shown:?}");
    assert_eq!(change(Change::Resume).await, 0);
    let set = Change::Limit {
        name: "default".to_owned(),
        max: 2,
        duration_ms,
    };
    change(set).await;
    let returned = Ask {
        ticket: Some(paused.0),
        cost: 1,
        again: false,
    };
    let answers = ask(&long, "operated", 5, &[returned, FRESH, FRESH]).await;
    // A burst that was set is not the max: it stays.
    let most = match algorithm {
        Algorithm::LeakyBucket => 3,
        _ => 2,
    };
    assert_eq!(started(&answers), most);
    let shown = long.inspect(&operated).await.expect("the gate answers");
    assert_eq!((shown.limits[0].max, shown.waiting), (2, 3 - most as u64));
    assert!(shown.limits[0].override_until_ms > shown.now_ms + 900_000);
    change(Change::Reset).await;
    let unlimit = Change::Unlimit {
        name: "default".to_owned(),
    };
    change(unlimit).await;
    let shown = long.inspect(&operated).await.expect("the gate answers");
    assert_eq!((shown.limits[0].max, shown.waiting), (5, 0));
    assert_eq!(shown.limits[0].override_until_ms, 0);

    // What the downstream says of its limits is shown, and decides nothing.
    let said = |text| [(tenant("advertised"), Quotas::read(text))];
    for text in ["7/1", "1/1,100/60,5/0"] {
        long.advertised(&said(text))
            .await
            .expect("the gate answers");
        let shown = long.inspect(&tenant("advertised")).await;
        let shown = shown.expect("the gate answers");
        assert_eq!(shown.quotas.text(), text);
        assert!((1..=shown.now_ms).contains(&shown.quotas_at_ms));
    }
    assert_eq!(started(&ask(&long, "advertised", 9, &[FRESH; 6]).await), 5);
    let shown = long.inspect(&tenant("advertised")).await;
    assert!(!shown.expect("the gate answers").quotas.is_empty());
    let shown = long.inspect(&closed).await.expect("the gate answers");
    assert_eq!((shown.quotas.is_empty(), shown.quotas_at_ms), (true, 0));

    // The wait is enough: who comes back after it starts.
    let id = "time";
    let (ticket, ttl) = waits(&ask(&short, id, 9, &[FRESH; 3]).await)[0];
    // The sliding counter's windows are longer by what it forgives.
    assert!(
        ttl <= 2 * short.limits[0].span() + 1,
        "{algorithm:?}: {ttl}"
    );
    tokio::time::sleep(Duration::from_millis(ttl)).await;
    let answers = ask(
        &short,
        id,
        9,
        &[Ask {
            ticket: Some(ticket),
            cost: 1,
            again: false,
        }],
    )
    .await;
    assert_eq!(started(&answers), 1, "{algorithm:?}: {answers:?}");
}

#[tokio::test]
async fn the_memory_gate_conforms() {
    for algorithm in Algorithm::ALL {
        let long = memory_gate(limit(algorithm, 5, LONG));
        conforms(algorithm, long, memory_gate(limit(algorithm, 1, 400))).await;
    }
}

#[tokio::test]
async fn the_store_in_memory_conforms() {
    for algorithm in Algorithm::ALL {
        let long = stored_gate(limit(algorithm, 5, LONG));
        conforms(algorithm, long, stored_gate(limit(algorithm, 1, 400))).await;
    }
}

#[tokio::test]
async fn the_redis_gate_conforms() {
    for algorithm in Algorithm::ALL {
        let long = redis_gate(limit(algorithm, 5, LONG));
        conforms(algorithm, long, redis_gate(limit(algorithm, 1, 400))).await;
    }
}

/// Several workers on one Redis, each with a connection of its own, never start more than the limit together.
#[tokio::test]
async fn workers_share_the_limit() {
    let prefix = unique("shared");
    let limit = limit(Algorithm::SlidingWindow, 20, LONG);
    let workers = (0..4).map(|_| {
        let url = SecretUrl::new(shared_redis().url());
        let gate = RedisGate::connect(&url, &prefix).expect("a good url");
        let gate = Limited::new(gate, limit.clone());
        tokio::spawn(async move {
            let mut count = 0;
            for _ in 0..10 {
                count += started(&ask(&gate, "t", 3, &[FRESH; 3]).await);
            }
            count
        })
    });
    let mut total = 0;
    for worker in workers.collect::<Vec<_>>() {
        total += worker.await.expect("no panic");
    }
    assert_eq!(total, 20);
}
