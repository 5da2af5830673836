//! Random histories in which keys expire: the scripts forget nothing before the model does.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fake_redis::FakeRedis;
use gate::memory::MemoryGate;
use gate::redis::RedisGate;
use gate::{
    BreakerScope, End, Gate, LimitEvidence, Question, Receipt, StartSettlement, TenantAsk,
    TenantSettlements,
};
use kit::gate::history::{
    Family, IssuedTickets, RULE, Scale, Step, ask, evidence, history, labels_of,
};
use kit::gate::{BEGIN_US, FRESH, gate_on, limit, tenant};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::{Value, cmd};
use rules::answers::Quotas;
use rules::limit::{Algorithm, Limits};
use rules::scope::Labels;
use rules::tenant::Tenant;

/// Number of histories with each set of limits.
const HISTORIES: u32 = 30;
/// The scripts on a Redis where keys expire by the histories' clock, and the model.
struct Bed<C> {
    clock: Arc<AtomicU64>,
    server: Arc<FakeRedis>,
    fake: RedisGate,
    model: MemoryGate<C>,
    /// Number of questions and settlements.
    calls: u64,
    given: HashMap<(Tenant, Labels), IssuedTickets>,
}

fn bed() -> Bed<impl Fn() -> u64 + Send + Sync + 'static> {
    let clock = Arc::new(AtomicU64::new(BEGIN_US));
    let read = {
        let clock = Arc::clone(&clock);
        move || clock.load(Ordering::Relaxed)
    };
    let server = Arc::new(FakeRedis::new(read.clone()));
    Bed {
        fake: gate_on(&server, "p"),
        server,
        model: MemoryGate::new(read),
        clock,
        calls: 0,
        given: HashMap::new(),
    }
}

/// Asks both gates. Their answers must be equal.
macro_rules! equal {
    ($bed:expr, $call:ident($($argument:expr),+)) => {{
        let fake = $bed.fake.$call($($argument),+).await.expect("the gate answers");
        let model = $bed.model.$call($($argument),+).await.expect("the gate answers");
        prop_assert_eq!(format!("{fake:?}"), format!("{model:?}"));
        model
    }};
}

impl<C: Fn() -> u64 + Send + Sync + 'static> Bed<C> {
    async fn ask(
        &mut self,
        (tenant, labels): (&Tenant, &Labels),
        limits: &Limits,
        (budget, asks): (u32, Vec<Question>),
    ) -> Result<(), TestCaseError> {
        self.calls += 1;
        let batch = [TenantAsk {
            tenant: tenant.clone(),
            labels: labels.clone(),
            limits: limits.clone(),
            budget,
            permits: format!("p{}", self.calls),
            asks,
        }];
        let replies = equal!(self, ask(&batch));
        let reply = replies[0].as_ref().expect("a decision");
        let given = self.given.entry((tenant.clone(), labels.clone()));
        let TenantAsk { permits, asks, .. } = &batch[0];
        given
            .or_default()
            .add(permits, asks, &reply.answers, reply.now_ms);
        Ok(())
    }

    async fn settle(
        &mut self,
        (tenant, labels): (&Tenant, &Labels),
        limits: &Limits,
        settled: StartSettlement,
        times: usize,
    ) -> Result<(), TestCaseError> {
        self.calls += 1;
        let batch = [TenantSettlements {
            tenant: tenant.clone(),
            labels: labels.clone(),
            limits: limits.clone(),
            call: format!("c{}", self.calls),
            settled: vec![settled],
        }];
        for _ in 0..times {
            equal!(self, settle(&batch));
        }
        Ok(())
    }

    /// Plays a step that concerns the jobs of `tenant` with `labels`.
    async fn step(
        &mut self,
        (tenant, labels): (&Tenant, &Labels),
        limits: &Limits,
        step: &Step,
    ) -> Result<(), TestCaseError> {
        let now_ms = self.clock.load(Ordering::Relaxed) / 1_000;
        let own = BreakerScope::from(tenant.clone());
        let given = self.given.entry((tenant.clone(), labels.clone()));
        let IssuedTickets { tickets, receipts } = given.or_default();
        let chosen = |which: &prop::sample::Index, receipts: &[Receipt]| {
            (!receipts.is_empty()).then(|| which.get(receipts).clone())
        };
        match step {
            Step::Ask { budget, jobs } => {
                let generation = tickets.last().map_or(0, |(ticket, _)| ticket.generation);
                let asks = jobs.iter().map(|job| ask(job, tickets, generation));
                let asks = (*budget, asks.collect());
                self.ask((tenant, labels), limits, asks).await?;
            }
            Step::Settle { which, end, twice } => {
                // The model may remember a late call whose start Redis has forgotten.
                let shortest = limits.iter().map(|limit| limit.window_ms()).min();
                let counts = |one: &Receipt| now_ms < one.started_ms + shortest.unwrap_or(0);
                let receipt = chosen(which, receipts);
                if let Some(receipt) = receipt.filter(|one| *end != End::Late || counts(one)) {
                    let (end, times) = (*end, 1 + usize::from(*twice));
                    let settled = StartSettlement { receipt, end };
                    self.settle((tenant, labels), limits, settled, times)
                        .await?;
                }
            }
            Step::Block { millis } => {
                let millis = *millis;
                equal!(self, block(&own, Duration::from_millis(millis), "test"));
                let quotas = Quotas::read(&format!("{millis}/{},7/9", millis % 5));
                let batch = [(tenant.clone(), quotas)];
                equal!(self, advertised(&batch));
            }
            Step::Report { event, millis_ago } => {
                let batch = [(own, event.event(now_ms - millis_ago))];
                equal!(self, report(&RULE, &batch));
            }
            Step::Change { change } => _ = equal!(self, change(&own, change)),
            Step::Learn {
                which,
                after_ms,
                maxima,
            } => {
                let started = which.and_then(|which| chosen(&which, receipts));
                let batch = [LimitEvidence {
                    tenant: tenant.clone(),
                    labels: labels.clone(),
                    limits: limits.clone(),
                    evidence: evidence(started.as_ref(), now_ms, *after_ms, maxima),
                }];
                equal!(self, learn(&batch));
            }
            Step::Forward { micros } => self.forward(*micros),
            // This test has no faults; these steps let a key expire.
            Step::Back { micros: any } => self.expire(*any),
            Step::Foreign { millis_ago: any } => self.expire(any.unsigned_abs()),
            Step::Turn { .. } | Step::Limit { .. } | Step::Forget => {}
        }
        Ok(())
    }

    fn forward(&self, micros: u64) {
        self.clock.fetch_add(micros, Ordering::Relaxed);
    }

    /// Returns in how many milliseconds each key expires.
    fn expiries(&self) -> Vec<u64> {
        let left = |key: Vec<u8>| match self.server.command(cmd("PTTL").arg(&key)) {
            Value::Int(left @ 0..) => left.cast_unsigned(),
            never => panic!("{never:?}: {}", String::from_utf8_lossy(&key)),
        };
        self.server.keys().into_iter().map(left).collect()
    }

    /// Moves the clock to the moment in which `any` key expires, or to the millisecond before.
    fn expire(&self, any: u64) {
        let all = self.expiries();
        let index = usize::try_from(any / 2).expect("it fits");
        if let Some(left) = all.get(index % all.len().max(1)) {
            self.forward((left - any % 2) * 1_000);
        }
    }
}

/// Plays a history with the same limits all the time. After a switch to longer windows, the model
/// would know usage that Redis has forgotten.
async fn play(limits: &Limits, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut bed = bed();
    let mut now_of = 0;
    for step in steps {
        if let Step::Turn { who } = step {
            now_of = *who;
        }
        let (tenant, labels) = (tenant(now_of / 4), labels_of(limits.all(), now_of));
        bed.step((&tenant, &labels), limits, step).await?;
        equal!(bed, inspect(&tenant, &labels, limits));
        bed.expiries();
    }
    Ok(())
}

fn forgets_as_the_model(family: Family) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    for (which, limits) in Scale::Few.sets(family).iter().enumerate() {
        let config = Config {
            cases: kit::histories(HISTORIES),
            max_shrink_iters: 2_000,
            ..Config::with_source_file(file!())
        };
        TestRunner::new(config)
            .run(&history(), |steps| runtime.block_on(play(limits, &steps)))
            .unwrap_or_else(|error| panic!("{family:?}, {which}: {error}"));
    }
}

#[test]
fn the_scripts_of_each_algorithm_forget_as_the_model() {
    for algorithm in Algorithm::EVERY {
        forgets_as_the_model(Family::Of(algorithm));
    }
}

#[test]
fn the_scripts_of_several_limits_forget_as_the_model() {
    forgets_as_the_model(Family::Several);
}

#[test]
fn the_scripts_of_shared_partitions_forget_as_the_model() {
    forgets_as_the_model(Family::Shared);
}

#[test]
fn the_scripts_of_shadows_forget_as_the_model() {
    forgets_as_the_model(Family::Shadowed);
}

/// The clock is stepped back by half a window, which no random history here does. Then a question
/// pulls back what lies in the future.
#[tokio::test]
async fn the_scripts_keep_usage_after_a_step_back() {
    for algorithm in Algorithm::EVERY {
        let limit = limit(algorithm, 3, 1_000);
        let (limits, id) = (Limits::from(limit), (tenant("t"), Labels::default()));
        let mut bed = bed();
        bed.forward(700_000);
        let asked = async |bed: &mut Bed<_>, jobs| {
            let asks = (1, vec![FRESH; jobs]);
            bed.ask((&id.0, &id.1), &limits, asks).await?;
            equal!(bed, inspect(&id.0, &id.1, &limits));
            Ok::<(), TestCaseError>(())
        };
        asked(&mut bed, 1)
            .await
            .unwrap_or_else(|why| panic!("{algorithm:?}: {why}"));
        bed.clock.fetch_sub(500_000, Ordering::Relaxed);
        for step in 0..30 {
            let seen = asked(&mut bed, step % 3 / 2).await;
            seen.unwrap_or_else(|why| panic!("{algorithm:?}, {step}: {why}"));
            bed.forward([100_000, 299_000][step % 2]);
        }
    }
}
