//! The gate's dedupe keys: the script on a real Redis compared with the model, and the data it
//! leaves behind.

use std::time::Duration;

use gate::redis::RedisGate;
use gate::{Candidate, DedupeAnswer, Gate, GateError};
use kit::gate::{gate_at, tenant, three};
use kit::servers::{shared_redis, unique};
use kit::until;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Longer than a test, so that no key expires by Redis's own clock.
const LASTS_MS: u64 = 600_000;

fn connect(prefix: &str) -> RedisGate {
    gate_at(shared_redis().url(), prefix)
}

fn candidate(key: &str, job: &str, owner: &str) -> Candidate {
    Candidate {
        tenant: tenant("a:{b}"),
        key: key.to_owned(),
        job: job.to_owned(),
        owner: owner.to_owned(),
        seen_before: false,
        lasts_ms: LASTS_MS,
    }
}

/// Returns one of a few jobs with one of a few keys, at one of a few workers.
fn any(random: &mut SmallRng) -> Candidate {
    let mut any = |of: [&'static str; 3]| of[random.random_range(0..3)];
    let (key, job) = (any(["k", "x:{y}%*\u{e4}", "7"]), any(["1", "a,b\n,", ""]));
    Candidate {
        seen_before: random.random_bool(0.5),
        lasts_ms: LASTS_MS * random.random_range(1..3),
        ..candidate(key, job, ["w-1", "w-2", "f-1"][random.random_range(0..3)])
    }
}

#[tokio::test]
async fn the_script_agrees_with_the_model() {
    let mut seen = [0; 2];
    for seed in 0..40 {
        let mut random = SmallRng::seed_from_u64(seed);
        let gates = three("dedupe");
        let mut now_ms = 1_700_000_000_000_u64;
        for step in 0..30 {
            let forward = [0, 1, LASTS_MS / 4, LASTS_MS - 1, LASTS_MS, 3 * LASTS_MS];
            now_ms += forward[random.random_range(0..forward.len())];
            // The clock is stepped back at times.
            now_ms -= u64::from(random.random_bool(0.1)) * LASTS_MS;
            let micros = now_ms * 1000 + random.random_range(0..1000);
            gates.set_clock(micros);
            let batch: Vec<_> = (0..random.random_range(1..6))
                .map(|_| any(&mut random))
                .collect();
            let redis = gates.redis.dedupe(&batch).await.expect("Redis answers");
            let model = gates.model.dedupe(&batch).await.expect("it always does");
            let again = gates.fake.dedupe(&batch).await.expect("it always does");
            for (((asked, redis), model), again) in batch.iter().zip(redis).zip(model).zip(again) {
                let (redis, model) = (redis.expect("decided"), model.expect("decided"));
                assert_eq!(redis, model, "seed {seed}, step {step}: {asked:?}");
                assert_eq!(again.expect("decided"), model, "through the store");
                seen[usize::from(model == DedupeAnswer::First)] += 1;
            }
        }
    }
    assert!(seen.iter().all(|seen| *seen > 500), "{seen:?}");
}

#[tokio::test]
async fn a_batch_is_one_round_trip_and_its_keys_expire_by_themselves() {
    let prefix = unique("dedupe");
    let gate = connect(&prefix);
    let keys: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    let all = |lasts_ms| {
        let one = |key: &String| Candidate {
            lasts_ms,
            ..candidate(key, "1", "w-1")
        };
        keys.iter().map(one).collect::<Vec<_>>()
    };
    gate.dedupe(&all(1)[..1])
        .await
        .expect("the script is there");
    let before = gate.round_trips();
    let deduped = gate.dedupe(&all(1)[1..]).await.expect("Redis answers");
    assert_eq!(gate.round_trips(), before + 1);
    assert!(
        deduped
            .iter()
            .all(|it| matches!(it, Ok(DedupeAnswer::First)))
    );
    let left = || shared_redis().ctl(&["keys", &format!("{prefix}:*")]);
    until("the end of each", || left().trim().is_empty()).await;
    let lasts = Duration::from_secs(60);
    gate.dedupe(&all(60_000)[..1]).await.expect("Redis answers");
    let ttl = shared_redis().ctl(&["pttl", left().trim()]);
    let ttl: u128 = ttl.trim().parse().expect("it expires");
    assert!((1..=lasts.as_millis()).contains(&ttl), "{ttl}");
}

#[tokio::test]
async fn a_key_of_another_type_is_named_and_an_unreadable_one_is_replaced() {
    let prefix = unique("dedupe");
    let gate = connect(&prefix);
    gate.dedupe(&[candidate("1", "j", "w-1")])
        .await
        .expect("Redis answers");
    let redis = shared_redis();
    let key = redis
        .ctl(&["keys", &format!("{prefix}:*")])
        .trim()
        .to_owned();
    assert!(key.ends_with(":%first:1"), "{key}");
    redis.ctl(&["set", &key, "somebody's own"]);
    let deduped = gate
        .dedupe(&[candidate("1", "k", "w-2")])
        .await
        .expect("it can be");
    assert!(matches!(deduped[0], Ok(DedupeAnswer::First)), "{deduped:?}");
    redis.ctl(&["del", &key]);
    redis.ctl(&["lpush", &key, "x"]);
    let batch = [candidate("1", "j", "w-1"), candidate("2", "j", "w-1")];
    let deduped = gate.dedupe(&batch).await.expect("it concerns one alone");
    let why = match &deduped[0] {
        Err(GateError::Refused(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(why.contains(&key) && why.contains("list"), "{why}");
    assert!(matches!(deduped[1], Ok(DedupeAnswer::First)));
}
