//! Helpers that the gate's suites share: gates of each kind, and short ways to ask them.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use config::SecretUrl;
use fake_redis::FakeRedis;
use gate::memory::MemoryGate;
use gate::redis::RedisGate;
use gate::{
    Answer, End, Evidence, Gate, GateError, Inspection, LimitEvidence, Question, Receipt, Replies,
    StartSettlement, TenantAsk, TenantReply, TenantSettlements, Ticket,
};
use redis::Pipeline;
use rules::limit::{Algorithm, Limit, Limits};
use rules::scope::Labels;
use rules::tenant::Tenant;
use tokio::time::Instant;

use crate::servers::{shared_redis, unique};

pub mod conformance;
pub mod history;
pub mod rewritten;
pub mod shares;

pub use rewritten::clocked;

/// Start of the test clocks, in microseconds since 1970, the same in each run. It is in 2100, so
/// that no key expires in a real Redis while a history runs.
pub const BEGIN_US: u64 = 4_102_444_800_000_000;

/// A job that asks for the first time.
pub const FRESH: Question = Question {
    ticket: None,
    cost: 1,
    readmitted: false,
};

/// The longest window, in milliseconds: it does not end while a test runs.
pub const LONG: u64 = 31 * 86_400_000;

/// Returns a limit of `max` per `window_ms` without a guard, or of `max` calls at once. A bucket has
/// room for all of them at once.
pub fn limit(algorithm: Algorithm, max: u64, window_ms: u64) -> Limit {
    if algorithm == Algorithm::Concurrency {
        return Limit::concurrent("default", max).expect("in range");
    }
    let limit = guarded_limit("default", algorithm, (max, window_ms, 0));
    if algorithm.has_burst() {
        limit.with_burst(max).expect("in range")
    } else {
        limit
    }
}

/// Returns a limit of `max` per window. Window and guard are in milliseconds.
pub fn guarded_limit(
    name: &str,
    algorithm: Algorithm,
    (max, window, guard): (u64, u64, u64),
) -> Limit {
    let (window, guard) = (Duration::from_millis(window), Duration::from_millis(guard));
    Limit::new(name, algorithm, max, window, guard).expect("in range")
}

/// Returns a limit without a guard.
pub fn named_limit(name: &str, algorithm: Algorithm, max: u64, window: Duration) -> Limit {
    Limit::new(name, algorithm, max, window, Duration::ZERO).expect("in range")
}

/// A gate and the limits that it enforces for every tenant.
pub struct LimitedGate<G> {
    pub gate: G,
    pub limits: Limits,
}

impl<G: Gate> LimitedGate<G> {
    pub fn new(gate: G, limits: impl Into<Limits>) -> Self {
        Self {
            gate,
            limits: limits.into(),
        }
    }

    /// Returns a question of one tenant.
    pub fn question(&self, id: &str, budget: u32, asks: &[Question]) -> TenantAsk {
        TenantAsk {
            budget,
            ..asking(id, &self.limits, asks)
        }
    }

    pub async fn inspect(&self, tenant: &Tenant) -> Result<Inspection, GateError> {
        self.gate
            .inspect(tenant, &Labels::default(), &self.limits)
            .await
    }
}

impl<G> Deref for LimitedGate<G> {
    type Target = G;

    fn deref(&self) -> &G {
        &self.gate
    }
}

/// Returns a gate that runs the scripts on the Redis at `url`, with keys that begin with `prefix`.
pub fn gate_at(url: &str, prefix: &str) -> RedisGate {
    RedisGate::new(&SecretUrl::new(url), prefix).expect("a good url")
}

/// Returns a gate that runs the scripts on the shared Redis, with a prefix of its own.
pub fn redis_gate(limits: impl Into<Limits>) -> LimitedGate<RedisGate> {
    LimitedGate::new(gate_at(shared_redis().url(), &unique("gate")), limits)
}

/// Returns a clock that follows tokio's: a test that pauses tokio's clock does not wait.
pub fn clock() -> impl Fn() -> u64 + Clone {
    let started = Instant::now();
    move || BEGIN_US + u64::try_from(started.elapsed().as_micros()).expect("before the year 500000")
}

/// Returns the model in memory.
pub fn memory_gate(limits: impl Into<Limits>) -> LimitedGate<MemoryGate<impl Fn() -> u64>> {
    LimitedGate::new(MemoryGate::new(clock()), limits)
}

/// Returns a gate that runs the scripts on a fake Redis.
pub fn fake_gate(limits: impl Into<Limits>) -> LimitedGate<RedisGate> {
    LimitedGate::new(gate_on(&Arc::new(FakeRedis::new(clock())), "p"), limits)
}

/// Returns a gate on `server`, with keys that begin with `prefix`.
pub fn gate_on(server: &Arc<FakeRedis>, prefix: &str) -> RedisGate {
    let server = Arc::clone(server);
    RedisGate::on(
        Arc::new(move |pipeline: &Pipeline| server.run(pipeline)),
        prefix,
    )
}

/// Three gates that must give the same answers: the scripts on a real Redis, the model, and the
/// scripts on a fake Redis. They share one clock, which stands still until it is set.
pub struct ThreeGates<F> {
    pub redis: RedisGate,
    pub model: MemoryGate<F>,
    pub fake: RedisGate,
    clock: Arc<AtomicU64>,
}

impl<F> ThreeGates<F> {
    pub fn set_clock(&self, micros: u64) {
        self.clock.store(micros, Ordering::Relaxed);
    }
}

/// Returns three gates with keys of their own, whose names contain `name`.
pub fn three(name: &str) -> ThreeGates<impl Fn() -> u64> {
    let clock = Arc::<AtomicU64>::default();
    let read = {
        let clock = Arc::clone(&clock);
        move || clock.load(Ordering::Relaxed)
    };
    let server = FakeRedis::new(read.clone());
    ThreeGates {
        redis: clocked(shared_redis().url(), &unique(name), &clock),
        model: MemoryGate::new(read),
        fake: gate_on(&Arc::new(server), "p"),
        clock,
    }
}

/// Returns a question of tenant `id` without labels, for 100 permits with names of their own.
pub fn asking(id: &str, limits: &Limits, asks: &[Question]) -> TenantAsk {
    TenantAsk {
        tenant: tenant(id),
        labels: Labels::default(),
        limits: limits.clone(),
        budget: 100,
        permits: unique("permit"),
        asks: asks.to_vec(),
    }
}

/// Returns the receipt of the job at `number` of a question, which must have started.
#[track_caller]
pub fn receipt(ask: &TenantAsk, reply: &TenantReply, number: usize) -> Receipt {
    let mut all = receipts(&ask.permits, &ask.asks, &reply.answers, reply.now_ms);
    let permit = format!("{}:{number}", ask.permits);
    all.find(|receipt| receipt.permit == permit)
        .unwrap_or_else(|| panic!("{number}: {:?}", reply.answers))
}

/// Returns the receipts of the jobs that start.
pub fn receipts(
    permits: &str,
    asks: &[Question],
    answers: &[Answer],
    now_ms: u64,
) -> impl Iterator<Item = Receipt> {
    let jobs = asks.iter().zip(answers).enumerate();
    jobs.filter_map(move |(number, (ask, answer))| match answer {
        Answer::Start { sequences, .. } => Some(Receipt {
            permit: format!("{permits}:{number}"),
            started_ms: now_ms,
            sequences: sequences.clone(),
            cost: ask.cost,
        }),
        _ => None,
    })
}

/// Returns a report on calls of tenant `id` without labels, with a name of its own.
pub fn settling(
    id: impl ToString,
    limits: &Limits,
    settled: impl IntoIterator<Item = (Receipt, End)>,
) -> TenantSettlements {
    let settled = settled.into_iter();
    TenantSettlements {
        tenant: tenant(id),
        labels: Labels::default(),
        limits: limits.clone(),
        call: unique("call"),
        settled: settled
            .map(|(receipt, end)| StartSettlement { receipt, end })
            .collect(),
    }
}

/// Returns evidence about the limits of tenant `id` without labels.
pub fn lesson(id: &str, limits: &Limits, evidence: Evidence) -> LimitEvidence {
    LimitEvidence {
        tenant: tenant(id),
        labels: Labels::default(),
        limits: limits.clone(),
        evidence,
    }
}

/// Returns the tenant with this name or number.
pub fn tenant(name: impl ToString) -> Tenant {
    Tenant::parse(&name.to_string()).expect("a tenant")
}

/// Returns the answers to the question at `index`.
pub fn decided(replies: &Replies, index: usize) -> &[Answer] {
    &replies[index].as_ref().expect("a decision").answers
}

/// Asks the gate for one tenant.
pub async fn ask(
    gate: &LimitedGate<impl Gate>,
    id: &str,
    budget: u32,
    asks: &[Question],
) -> Vec<Answer> {
    let batch = [gate.question(id, budget, asks)];
    let replies = gate.gate.ask(&batch).await.expect("the gate answers");
    decided(&replies, 0).to_vec()
}

/// Returns the number of jobs that start.
pub fn started(answers: &[Answer]) -> usize {
    answers
        .iter()
        .filter(|answer| matches!(answer, Answer::Start { .. }))
        .count()
}

/// Returns the tickets and waits of the waiting jobs.
pub fn waits(answers: &[Answer]) -> Vec<(Ticket, u64)> {
    answers
        .iter()
        .filter_map(|answer| match answer {
            Answer::Wait { ticket, ttl_ms, .. } => Some((*ticket, *ttl_ms)),
            _ => None,
        })
        .collect()
}
