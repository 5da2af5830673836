//! The gate's notes on suspects: the script on a real Redis compared with the model, and the data
//! it leaves behind.

use gate::redis::RedisGate;
use gate::{Gate, GateError, Note, SuspectDecision, SuspectNote};
use kit::gate::{gate_at, tenant, three};
use kit::servers::{shared_redis, unique};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rules::failures::crash::{KEEP_MS, NOTE_LEASE_MS};

fn connect(prefix: &str) -> RedisGate {
    gate_at(shared_redis().url(), prefix)
}

fn suspected(job: &str, owner: &str, note: Note) -> SuspectNote {
    SuspectNote {
        tenant: tenant("a:{b}"),
        job: job.to_owned(),
        owner: owner.to_owned(),
        note,
    }
}

const BEGIN: Note = Note::Begin {
    max: 3,
    alone: true,
};

/// Returns any note on one of a few jobs by one of a few workers, some with a comma in their names.
fn any(random: &mut SmallRng) -> SuspectNote {
    let note = match random.random_range(0..8) {
        0..4 => Note::Begin {
            max: random.random_range(1..=4),
            alone: random.random_bool(0.6),
        },
        4 => Note::Renew,
        5 | 6 => Note::End { answered: false },
        _ => Note::End { answered: true },
    };
    let job = ["1", "x:{y}%*\u{e4}", ""][random.random_range(0..3)];
    let owner = ["w1-1", "w1-2", "w2,-1"][random.random_range(0..3)];
    suspected(job, owner, note)
}

#[tokio::test]
async fn the_script_agrees_with_the_model() {
    let mut verdicts = [0; 4];
    for seed in 0..40 {
        let mut random = SmallRng::seed_from_u64(seed);
        let gates = three("crash");
        let mut now_ms = 1_700_000_000_000_u64;
        for step in 0..30 {
            let forward = [
                0,
                1,
                NOTE_LEASE_MS / 4,
                NOTE_LEASE_MS - 1,
                NOTE_LEASE_MS,
                3 * NOTE_LEASE_MS,
            ];
            now_ms += forward[random.random_range(0..forward.len())];
            // The clock is stepped back at times.
            now_ms -= u64::from(random.random_bool(0.1)) * 10 * NOTE_LEASE_MS;
            gates.set_clock(now_ms * 1000 + random.random_range(0..1000));
            let batch: Vec<_> = (0..random.random_range(1..6))
                .map(|_| any(&mut random))
                .collect();
            let redis = gates.redis.suspect(&batch).await.expect("Redis answers");
            let model = gates.model.suspect(&batch).await.expect("it always does");
            let again = gates.fake.suspect(&batch).await.expect("it always does");
            let all = batch.iter().zip(redis).zip(model).zip(again);
            for (((word, redis), model), again) in all {
                let (redis, model) = (redis.expect("decided"), model.expect("decided"));
                assert_eq!(redis, model, "seed {seed}, step {step}: {word:?}");
                assert_eq!(again.expect("decided"), model, "through the store");
                verdicts[match model {
                    SuspectDecision::Proceed => 0,
                    SuspectDecision::Wait { .. } => 1,
                    SuspectDecision::RunAlone { .. } => 2,
                    SuspectDecision::Dead { .. } => 3,
                }] += 1;
            }
        }
    }
    assert!(verdicts.iter().all(|seen| *seen > 50), "{verdicts:?}");
}

#[tokio::test]
async fn a_batch_is_one_round_trip_and_leaves_no_expired_keys() {
    let prefix = unique("crash");
    let gate = connect(&prefix);
    let jobs: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    let all = |note| {
        jobs.iter()
            .map(|job| suspected(job, "w-1", note))
            .collect::<Vec<_>>()
    };
    gate.suspect(&all(Note::Renew))
        .await
        .expect("the script is there");
    let before = gate.round_trips();
    let verdicts = gate.suspect(&all(BEGIN)).await.expect("Redis answers");
    assert_eq!(gate.round_trips(), before + 1);
    assert!(
        verdicts
            .iter()
            .all(|verdict| matches!(verdict, Ok(SuspectDecision::Proceed)))
    );
    let redis = shared_redis();
    let keys = redis.ctl(&["keys", &format!("{prefix}:*")]);
    assert_eq!(keys.lines().count(), 100, "{keys}");
    let ttl = redis.ctl(&["pttl", keys.lines().next().expect("a key")]);
    let ttl: u64 = ttl.trim().parse().expect("it expires");
    assert!((1..=KEEP_MS).contains(&ttl) && ttl > KEEP_MS / 2, "{ttl}");
    let end = Note::End { answered: false };
    gate.suspect(&all(end)).await.expect("Redis answers");
    let keys = redis.ctl(&["keys", &format!("{prefix}:*")]);
    assert_eq!(keys.trim(), "");
}

#[tokio::test]
async fn a_key_of_another_type_is_named() {
    let prefix = unique("crash");
    let gate = connect(&prefix);
    gate.suspect(&[suspected("1", "w-1", BEGIN)])
        .await
        .expect("Redis answers");
    let redis = shared_redis();
    let key = redis
        .ctl(&["keys", &format!("{prefix}:*")])
        .trim()
        .to_owned();
    redis.ctl(&["del", &key]);
    redis.ctl(&["lpush", &key, "x"]);
    let batch = [suspected("1", "w-1", BEGIN), suspected("2", "w-1", BEGIN)];
    let verdicts = gate.suspect(&batch).await.expect("it concerns one alone");
    let why = match &verdicts[0] {
        Err(GateError::Refused(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(why.contains(&key) && why.contains("list"), "{why}");
    assert!(matches!(verdicts[1], Ok(SuspectDecision::Proceed)));
}
