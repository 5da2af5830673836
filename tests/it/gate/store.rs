//! A fake Redis runs the scripts of the epoch and the registry as Redis does: workers with the same
//! random histories on both get the same answers.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use fake_redis::FakeRedis;
use gate::fleet::registry::{NamedPolicy, Registry, RegistryAgreement, read_policies};
use gate::instructions::{self, EndInstruction};
use gate::redis::RedisGate;
use gate::{EarlierStarts, Gate, GateError, TenantAsk};
use kit::gate::{FRESH, clocked, gate_on, named_limit, tenant};
use kit::servers::{Redis, unique};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rules::limit::Algorithm;
use rules::policy::Policy;
use rules::scope::Labels;
use rules::steering::{Hold, Instruction};

const SEEDS: u64 = 24;
const STEPS: usize = 60;
const WORKERS: usize = 3;
const WINDOW: Duration = Duration::from_secs(600);
/// How far the clock moves between two steps, in microseconds: nothing, or more than a step takes
/// on any machine, since a worker measures its idleness by its own clock; or as long as a silent
/// worker is kept; or backwards.
const TICK_US: Range<u64> = 20_000_000..60_000_000;
const LEAP_US: Range<u64> = 60_000_000..2_000_000_000;
const BACK_US: Range<u64> = 20_000_000..300_000_000;
/// Redis drops keys by its own clock, which is always behind the test's.
const AHEAD_US: u64 = 1_000_000_000_000;

type Clock = Arc<AtomicU64>;

fn policy(max: u64) -> Policy {
    let algorithm = Algorithm::SlidingWindow;
    Policy::from(named_limit("default", algorithm, max, WINDOW))
}

fn named(max: u64) -> NamedPolicy {
    NamedPolicy::new(policy(max)).expect("it is small")
}

struct Worker {
    gate: Arc<RedisGate>,
    registry: Registry,
}

fn workers(new: impl Fn() -> RedisGate) -> Vec<Worker> {
    let worker = |_| {
        let gate = Arc::new(new().watching(policy(1).memory()));
        Worker {
            registry: Registry::new(Arc::clone(&gate), named(1)),
            gate,
        }
    };
    (0..WORKERS).map(worker).collect()
}

fn shown<T: Debug>(result: Result<T, GateError>) -> String {
    format!("{result:?}")
}

/// A worker's action.
#[derive(Debug, Clone, Copy)]
enum Step {
    Begin(EarlierStarts),
    Beat,
    Ask,
    Leave,
    Switch(u64),
    Look,
    Put(usize, u64),
    /// Posts the second instruction. The first one ends if it has this text.
    Instead(usize, Option<&'static str>, usize, u64),
    Drop(usize),
    DropOwn(usize),
    See,
}

/// Returns an operator's instruction.
fn instruction(number: usize) -> Instruction {
    let job = |id: &str| (tenant("t:{x}"), id.to_owned(), 7);
    match number {
        0 => Instruction::All(Hold::Paused),
        1 => Instruction::All(Hold::Draining),
        2 => {
            let (tenant, id, number) = job("1");
            Instruction::Cancel(tenant, id, number)
        }
        3 => Instruction::Try(tenant("t:{x}"), "hour".to_owned(), 7),
        _ => {
            let (tenant, id, number) = job("ä:2");
            Instruction::Show(tenant, id, number)
        }
    }
}

impl Worker {
    async fn does(&mut self, step: Step) -> String {
        match step {
            Step::Begin(start) => shown(self.gate.begin(start).await),
            Step::Beat => shown(self.gate.ping().await),
            Step::Leave => shown(self.gate.leave().await),
            Step::Ask => {
                let tenant = tenant("t");
                let question = TenantAsk {
                    limits: self.registry.own().policy.limits(&tenant, None).clone(),
                    tenant,
                    labels: Labels::default(),
                    budget: 1,
                    permits: String::new(),
                    asks: vec![FRESH],
                };
                let replies = self.gate.ask(&[question]).await;
                shown(replies.map(|replies| replies[0].as_ref().map(|reply| reply.now_ms).ok()))
            }
            Step::Switch(max) => {
                let agreed = self.registry.switch_to(named(max)).await;
                if let Ok(agreed) = &agreed {
                    self.registry.follows(agreed);
                }
                shown(agreed.map(|agreed| {
                    let RegistryAgreement {
                        fleet, steering, ..
                    } = agreed;
                    let wishes = ["1", "ä:2"].map(|id| steering.of_job(&tenant("t:{x}"), id));
                    (fleet.policies(), steering.hold, wishes)
                }))
            }
            Step::Put(number, for_ms) => {
                shown(instructions::put(&self.gate, &instruction(number), for_ms).await)
            }
            Step::Instead(ends, text, number, for_ms) => {
                let ends = EndInstruction {
                    name: instruction(ends).name(),
                    text: text.map(str::to_owned),
                };
                let instruction = instruction(number);
                let put = instructions::put_instead(&self.gate, Some(ends), &instruction, for_ms);
                shown(put.await)
            }
            Step::Drop(number) => {
                let names = [instruction(number).name()];
                shown(instructions::drop_all(&self.gate, &names).await)
            }
            Step::DropOwn(number) => {
                shown(instructions::drop_own(&self.gate, &instruction(number)).await)
            }
            Step::See => shown(instructions::see(&self.gate).await.map(|mut seen| {
                for board in &mut seen {
                    board
                        .posted
                        .sort_by_key(|(instruction, _)| instruction.name());
                    // The workers' names differ.
                    let workers = board.workers.drain(..);
                    let mut workers: Vec<_> =
                        workers.map(|(_, it)| (it.at_ms, it.follows)).collect();
                    workers.sort_unstable();
                    board.board = format!("{workers:?}");
                }
                seen
            })),
            Step::Look => shown(read_policies(&self.gate).await.map(|seen| {
                let policies = seen.known.policies().iter();
                let policies = policies.map(|it| (it.id.clone(), it.since_ms, it.used_ms));
                let mut policies: Vec<_> = policies.collect();
                policies.sort();
                (policies, seen.now_ms)
            })),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fake_redis_answers_as_redis_does() {
    let redis = Redis::start();
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970");
    for seed in 0..SEEDS {
        let mut random = SmallRng::seed_from_u64(seed);
        let now = u64::try_from(now.as_micros()).expect("before the year 500,000");
        let clock = Clock::new((now + AHEAD_US).into());
        let prefix = unique("store");
        let server = {
            let clock = Arc::clone(&clock);
            Arc::new(FakeRedis::new(move || clock.load(Ordering::Relaxed)))
        };
        let mut real = workers(|| clocked(redis.url(), &prefix, &clock));
        let mut fake = workers(|| gate_on(&server, &prefix));
        for step in 0..STEPS {
            match random.random_range(0..20) {
                0 => clock.fetch_add(random.random_range(LEAP_US), Ordering::Relaxed),
                1 => clock.fetch_sub(random.random_range(BACK_US), Ordering::Relaxed),
                2..8 => clock.fetch_add(random.random_range(TICK_US), Ordering::Relaxed),
                _ => 0,
            };
            let who = random.random_range(0..WORKERS);
            let does = match random.random_range(0..18) {
                12 => Step::Put(random.random_range(0..5), random.random_range(1..400_000)),
                13 => Step::Drop(random.random_range(0..5)),
                14 => Step::See,
                17 => Step::DropOwn(random.random_range(0..5)),
                15 => Step::Instead(
                    random.random_range(0..5),
                    [None, Some("7"), Some("8")][random.random_range(0..3)],
                    random.random_range(0..5),
                    random.random_range(1..400_000),
                ),
                0 => Step::Begin(
                    [
                        EarlierStarts::Unknown,
                        EarlierStarts::Idle,
                        EarlierStarts::Fresh,
                    ][random.random_range(0..3)],
                ),
                1 | 2 => Step::Beat,
                3..6 => Step::Ask,
                6 => Step::Leave,
                7..10 => Step::Switch(random.random_range(1..40)),
                10 => Step::Look,
                _ if random.random_bool(0.5) => {
                    redis.ctl(&["script", "flush"]);
                    server.forget_scripts();
                    continue;
                }
                _ => {
                    redis.ctl(&["flushall"]);
                    server.flush();
                    continue;
                }
            };
            let (one, two) = (real[who].does(does).await, fake[who].does(does).await);
            assert_eq!(one, two, "seed {seed}, step {step}: {who} {does:?}");
        }
    }
}
