//! Adaptive limits: the model, and the scripts on a real and on a fake Redis give equal answers.

use std::time::Duration;

use gate::redis::RedisGate;
use gate::{
    Answer, Change, Evidence, Gate, Inspection, LimitEvidence, MaxChange, Question, TenantAsk,
    TenantReply,
};
use kit::gate::{BEGIN_US, FRESH, LONG, LimitedGate, ask, gate_at, started, tenant, three, waits};
use kit::servers::{Redis, unique};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rules::limit::{Algorithm, Limit, Limits};
use rules::scope::{Labels, Scope};

const WINDOW_MS: u64 = 2_000;

fn limit(name: &str, algorithm: Algorithm, max: u64) -> Limit {
    let (window, guard) = (Duration::from_millis(WINDOW_MS), Duration::from_millis(20));
    let limit = Limit::new(name, algorithm, max, window, guard).expect("in range");
    limit.with_band(40)
}

/// Returns each algorithm alone, with its default burst and another one; and several limits, some
/// of which all tenants share.
fn sets() -> Vec<Limits> {
    let mut sets: Vec<Limits> = Vec::new();
    for algorithm in Algorithm::ALL {
        let alone = limit("default", algorithm, 30);
        if algorithm.has_burst() {
            let bursts = [7, 25, 60].map(|burst| alone.clone().with_burst(burst));
            sets.extend(bursts.map(|limit| limit.expect("in range").into()));
        }
        sets.push(alone.into());
    }
    let all = |limit: Limit| limit.with_scope(Scope::Global);
    let several = [
        vec![
            limit("default", Algorithm::TokenBucket, 20),
            all(limit("all", Algorithm::SlidingCounter, 35)),
        ],
        vec![
            limit("default", Algorithm::SlidingCounter, 150),
            all(limit("all", Algorithm::LeakyBucket, 150)),
        ],
        vec![all(limit("all", Algorithm::TokenBucket, 25))],
    ];
    sets.extend(several.map(|limits| Limits::new(limits).expect("their names differ")));
    sets
}

#[derive(Debug)]
enum Step {
    Ask(TenantAsk),
    Learn(LimitEvidence),
    Change(Change),
}

/// The results of a step, and the visible state after it.
type Seen = (Option<TenantReply>, Vec<MaxChange>, Inspection);

async fn play(gate: &impl Gate, limits: &Limits, step: &Step) -> Seen {
    let (mut reply, mut sunk, mut of) = (None, Vec::new(), tenant("acme"));
    match step {
        Step::Ask(asked) => {
            let replies = gate.ask(std::slice::from_ref(asked)).await;
            let decided = replies.expect("it answers").remove(0);
            reply = Some(decided.expect("a decision"));
            of = asked.tenant.clone();
        }
        Step::Learn(lesson) => {
            let learned = gate.learn(std::slice::from_ref(lesson)).await;
            sunk = learned
                .expect("it answers")
                .remove(0)
                .expect("it is stored");
            of = lesson.tenant.clone();
        }
        Step::Change(change) => {
            let scope = of.clone().into();
            gate.change(&scope, change).await.expect("it answers");
        }
    }
    let seen = gate.inspect(&of, &Labels::default(), limits).await;
    (reply, sunk, seen.expect("it answers"))
}

/// Returns any possible step. `started` are the calls without an answer so far.
fn any(random: &mut SmallRng, limits: &Limits, now_ms: u64, started: &[(u64, u64)]) -> Step {
    let of = tenant(["acme", "beta"][usize::from(random.random_bool(0.3))]);
    match random.random_range(0..10) {
        0..5 => Step::Ask(TenantAsk {
            tenant: of,
            labels: Labels::default(),
            limits: limits.clone(),
            budget: 100,
            permits: format!("p{now_ms}"),
            asks: (0..random.random_range(1..40))
                .map(|_| Question {
                    cost: random.random_range(1..3),
                    ..FRESH
                })
                .collect(),
        }),
        5..9 => {
            let (started_ms, cost) = match started {
                [] => (now_ms, 1),
                some => some[random.random_range(0..some.len())],
            };
            let evidence = match random.random_bool(0.8) {
                true => Evidence::Refused {
                    started_ms,
                    cost,
                    after_ms: [0, 1_000, 3_000, 90_000][random.random_range(0..4)],
                    closed_ms: [0, 300, 1_000, 90_000][random.random_range(0..4)],
                },
                false => {
                    let max =
                        |_: &Limit| random.random_bool(0.9).then(|| random.random_range(0..40));
                    Evidence::Advertised(limits.iter().map(max).collect())
                }
            };
            Step::Learn(LimitEvidence {
                tenant: of,
                labels: Labels::default(),
                limits: limits.clone(),
                evidence,
            })
        }
        _ => Step::Change(match random.random_range(0..3) {
            0 => Change::Reset,
            1 => Change::Unlimit {
                name: "default".to_owned(),
            },
            _ => Change::Limit {
                name: "default".to_owned(),
                max: random.random_range(5..60),
                duration_ms: 20_000,
            },
        }),
    }
}

#[tokio::test]
async fn every_gate_learns_the_same() {
    let (mut sunk, mut risen) = (0, 0);
    for (number, limits) in sets().iter().enumerate() {
        for seed in 0..8 {
            let mut random = SmallRng::seed_from_u64(100 * number as u64 + seed);
            let gates = three("learn");
            let mut micros = BEGIN_US;
            let (mut started, mut last): (Vec<(u64, u64)>, Vec<u64>) = (Vec::new(), Vec::new());
            for place in 0..40 {
                // All of these are within the hour that a waitlist is kept.
                let forward = [0, 40, 700, WINDOW_MS, 3 * WINDOW_MS, 40 * WINDOW_MS];
                micros += 1_000 * forward[random.random_range(0..forward.len())];
                gates.set_clock(micros);
                let now_ms = micros / 1_000;
                let step = any(&mut random, limits, now_ms, &started);
                let redis = play(&gates.redis, limits, &step).await;
                let model = play(&gates.model, limits, &step).await;
                let fake = play(&gates.fake, limits, &step).await;
                let what = format!("{limits:?}, seed {seed}, step {place}: {step:?}");
                assert_eq!(redis, model, "{what}");
                assert_eq!(fake, model, "on the fake Redis: {what}");
                if let (Step::Ask(asked), Some(reply)) = (&step, &model.0) {
                    let starts = asked.asks.iter().zip(&reply.answers);
                    let starts = starts.filter(|(_, it)| matches!(it, Answer::Start { .. }));
                    started.extend(starts.map(|(ask, _)| (now_ms, ask.cost)));
                }
                sunk += model.1.iter().filter(|sunk| sunk.to < sunk.from).count();
                let now: Vec<u64> = model.2.limits.iter().map(|usage| usage.max).collect();
                risen += last
                    .iter()
                    .zip(&now)
                    .filter(|(last, now)| last < now)
                    .count();
                last = now;
            }
        }
    }
    assert!(sunk > 200 && risen > 200, "{sunk} sank, {risen} rose");
}

/// Returns the number of commands that scripts run during `call`, without the calls of the scripts
/// themselves.
async fn commands<T>(redis: &Redis, call: impl Future<Output = T>) -> (u64, T) {
    redis.reset_stats();
    let came = call.await;
    (redis.command_stats().in_scripts().values().sum(), came)
}

/// The commands of a start, and of a job that must wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    start: u64,
    wait: u64,
}

async fn cost(redis: &Redis, gate: &LimitedGate<RedisGate>, id: &str) -> Cost {
    // A tenant's first question creates its keys.
    ask(gate, id, 1, &[FRESH]).await;
    let (start, answers) = commands(redis, ask(gate, id, 1, &[FRESH])).await;
    assert_eq!(started(&answers), 1, "{answers:?}");
    let answers = ask(gate, id, 100, &[FRESH; 100]).await;
    assert!(!waits(&answers).is_empty(), "{answers:?}");
    let (wait, answers) = commands(redis, ask(gate, id, 1, &[FRESH])).await;
    assert_eq!(waits(&answers).len(), 1, "{answers:?}");
    Cost { start, wait }
}

/// An adaptive limit costs nothing until it has learned, and then as much as an operator's
/// override.
#[tokio::test]
async fn learned_limits_cost_no_more_commands_than_overrides() {
    let redis = Redis::start();
    for algorithm in Algorithm::ALL {
        let window = Duration::from_millis(LONG);
        let limit = Limit::new("default", algorithm, 100, window, Duration::ZERO);
        let limit = limit.expect("in range");
        let limit = match algorithm.has_burst() {
            true => limit.with_burst(100).expect("in range"),
            false => limit,
        };
        let gate = |limit: Limit| LimitedGate::new(gate_at(redis.url(), &unique("cost")), limit);
        let fixed = cost(&redis, &gate(limit.clone()), "acme").await;
        let adaptive = gate(limit.with_band(50));
        let whole = cost(&redis, &adaptive, "acme").await;
        let by_operator = Change::Limit {
            name: "default".to_owned(),
            max: 90,
            duration_ms: 3_600_000,
        };
        let set = tenant("set").into();
        (adaptive.change(&set, &by_operator).await).expect("it answers");
        let set = cost(&redis, &adaptive, "set").await;
        let commands_to_learn = async |id: &str, evidence| {
            let lesson = [LimitEvidence {
                tenant: tenant(id),
                labels: Labels::default(),
                limits: adaptive.limits.clone(),
                evidence,
            }];
            let (commands, replies) = commands(&redis, adaptive.learn(&lesson)).await;
            let sunk = replies
                .expect("it answers")
                .remove(0)
                .expect("it is stored");
            assert!(sunk.len() == 1 && sunk[0].to < 100, "{sunk:?}");
            commands
        };
        let advertised = commands_to_learn("lowered", Evidence::Advertised(vec![Some(90)])).await;
        let learned = cost(&redis, &adaptive, "lowered").await;
        let seen = adaptive.inspect(&tenant("lowered")).await;
        let refused = Evidence::Refused {
            started_ms: seen.expect("it answers").now_ms,
            cost: 1,
            after_ms: 1_000,
            closed_ms: 1_000,
        };
        let refused = commands_to_learn("lowered", refused).await;
        println!("{}: {fixed:?}, learned {learned:?}", algorithm.name());
        println!("  an answer: {refused} (429), {advertised} (RateLimit says less)");
        assert_eq!(whole, fixed, "{algorithm:?}: nothing is learned yet");
        assert_eq!(learned.start, set.start, "{algorithm:?}");
        // If it denies a job, an override also finds out when the job may start once it ends.
        let waits = learned.wait..=learned.wait + 1;
        assert!(waits.contains(&set.wait), "{algorithm:?}: {set:?}");
        assert!(refused <= 16 && advertised <= 16, "{algorithm:?}");
    }
}
