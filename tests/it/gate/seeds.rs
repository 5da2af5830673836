//! Errors of the reference scripts, shown on them and absent here. Each script has the reference's
//! behavior in our own words. A test sets the clock, so that none waits for a window's end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gate::Answer;
use gate::redis::RedisGate;
use kit::gate::{BEGIN_US, FRESH, LimitedGate, ask, clocked, started, tenant, waits};
use kit::servers::{shared_redis, unique};
use rules::limit::{Algorithm, Limit};

/// Counts all attempts. The key lives for a whole window from the first.
const SEED_FIXED: &str = "
    local key = KEYS[1] .. ':' .. math.floor(ARGV[1] / ARGV[2])
    local count = redis.call('INCR', key)
    if count == 1 then redis.call('EXPIRE', key, ARGV[2]) end
    return { count > tonumber(ARGV[3]) and 0 or 1, count, redis.call('TTL', key) }";

/// Uses the client's clock, a random member (before Redis 7 the same in every run), and a TTL of
/// the whole window.
const SEED_SLIDING: &str = "
    math.randomseed(0)
    redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, ARGV[1] - ARGV[2])
    local count = redis.call('ZCARD', KEYS[1])
    redis.call('PEXPIRE', KEYS[1], ARGV[2] * 2)
    if count >= tonumber(ARGV[3]) then return { 0, count, tonumber(ARGV[2]) } end
    redis.call('ZADD', KEYS[1], ARGV[1], ARGV[1] .. '-' .. math.random())
    return { 1, count, tonumber(ARGV[2]) }";

/// Returns whether it is allowed, the count and the TTL in the script's own unit (seconds for
/// fixed, milliseconds for sliding).
fn seed(script: &str, key: &str, now: u64, window: u64, max: u64) -> (u64, u64, u64) {
    let client = redis::Client::open(shared_redis().url()).expect("a good url");
    redis::cmd("EVAL")
        .arg(script)
        .arg(1)
        .arg(key)
        .arg(now)
        .arg(window)
        .arg(max)
        .query(&mut client.get_connection().expect("Redis answers"))
        .expect("the script runs")
}

/// Returns our gate with a clock in microseconds.
fn ours(
    algorithm: Algorithm,
    max: u64,
    window_ms: u64,
    clock: &Arc<AtomicU64>,
) -> LimitedGate<RedisGate> {
    let window = Duration::from_millis(window_ms);
    let limit = Limit::new("default", algorithm, max, window, Duration::ZERO).expect("in range");
    let gate = clocked(shared_redis().url(), &unique("seeds"), clock);
    LimitedGate::new(gate, limit)
}

/// A multiple of 10 s, in milliseconds.
const BEGIN_MS: u64 = BEGIN_US / 1000;

#[tokio::test]
async fn a_first_hit_late_in_a_fixed_window_waits_only_for_the_rest() {
    let now = BEGIN_MS + 9_000;
    assert_eq!(seed(SEED_FIXED, &unique("seed"), now / 1000, 10, 1).0, 1);
    // Redis's own clock does not move on between two hits in one script.
    let twice = format!("local function hit() {SEED_FIXED} end hit() return hit()");
    assert_eq!(
        seed(&twice, &unique("seed"), now / 1000, 10, 1),
        (0, 2, 10),
        "1 s is left, it says 10"
    );

    let clock = Arc::new(AtomicU64::new(now * 1000));
    let gate = ours(Algorithm::FixedWindow, 1, 10_000, &clock);
    let answers = ask(&gate, "t", 9, &[FRESH; 2]).await;
    assert_eq!((started(&answers), waits(&answers)[0].1), (1, 1000));
}

#[tokio::test]
async fn denied_attempts_are_not_counted() {
    let now = BEGIN_MS;
    let key = unique("seed");
    let counts: Vec<u64> = (0..5)
        .map(|_| seed(SEED_FIXED, &key, now / 1000, 10, 1).1)
        .collect();
    assert_eq!(counts, [1, 2, 3, 4, 5], "the limit is 1");

    let clock = Arc::new(AtomicU64::new(now * 1000));
    let gate = ours(Algorithm::FixedWindow, 1, 10_000, &clock);
    let answers = ask(&gate, "t", 9, &[FRESH; 5]).await;
    assert!(matches!(answers[4], Answer::Wait { count: 1, .. }));
}

#[tokio::test]
async fn a_sliding_denial_waits_until_the_oldest_leaves() {
    let now = BEGIN_MS;
    let key = unique("seed");
    seed(SEED_SLIDING, &key, now, 10_000, 1);
    assert_eq!(
        seed(SEED_SLIDING, &key, now + 9_900, 10_000, 1).2,
        10_000,
        "100 ms are left"
    );

    let clock = Arc::new(AtomicU64::new(now * 1000));
    let gate = ours(Algorithm::SlidingWindow, 1, 10_000, &clock);
    ask(&gate, "t", 1, &[FRESH]).await;
    clock.fetch_add(9_900_000, Ordering::SeqCst);
    assert_eq!(waits(&ask(&gate, "t", 1, &[FRESH]).await)[0].1, 100);
}

#[tokio::test]
async fn the_clients_clock_does_not_count() {
    let now = BEGIN_MS;
    let key = unique("seed");
    assert_eq!(seed(SEED_SLIDING, &key, now, 10_000, 1).0, 1);
    assert_eq!(
        seed(SEED_SLIDING, &key, now + 10_000, 10_000, 1).0,
        1,
        "a client whose clock is ahead passes at once"
    );

    // Our gate ignores the client's clock.
    let gate = kit::gate::redis_gate(kit::gate::limit(Algorithm::SlidingWindow, 1, 10_000));
    assert_eq!(started(&ask(&gate, "t", 2, &[FRESH; 2]).await), 1);
    let client = redis::Client::open(shared_redis().url()).expect("a good url");
    let mut connection = client.get_connection().expect("Redis answers");
    let mut clock_ms = || -> u64 {
        let time = redis::cmd("TIME").query(&mut connection);
        let (seconds, micros): (u64, u64) = time.expect("Redis answers");
        seconds * 1000 + micros / 1000
    };
    let before = clock_ms();
    let shown = gate.inspect(&tenant("t")).await.expect("Redis answers");
    assert!((before..=clock_ms()).contains(&shown.now_ms), "{shown:?}");
}

#[tokio::test]
async fn starts_within_one_millisecond_all_count() {
    let now = BEGIN_MS;
    let key = unique("seed");
    let passed: u64 = (0..10)
        .map(|_| seed(SEED_SLIDING, &key, now, 10_000, 2).0)
        .sum();
    assert_eq!(
        passed, 10,
        "the limit is 2; the members overwrite each other"
    );

    let clock = Arc::new(AtomicU64::new(now * 1000));
    let gate = ours(Algorithm::SlidingWindow, 2, 10_000, &clock);
    let mut passed = 0;
    for _ in 0..5 {
        passed += started(&ask(&gate, "t", 2, &[FRESH; 2]).await);
    }
    assert_eq!(passed, 2);
}

#[tokio::test]
async fn each_waiting_job_has_its_own_wait() {
    let now = BEGIN_MS;
    let key = unique("seed");
    let mut ttls: Vec<u64> = (0..7)
        .map(|_| seed(SEED_SLIDING, &key, now, 10_000, 1).2)
        .collect();
    ttls.dedup();
    assert_eq!(ttls, [10_000], "all come back together");

    for algorithm in [Algorithm::SlidingWindow, Algorithm::FixedWindow] {
        let clock = Arc::new(AtomicU64::new(now * 1000));
        let gate = ours(algorithm, 2, 10_000, &clock);
        let ttls: Vec<u64> = waits(&ask(&gate, "t", 9, &[FRESH; 7]).await)
            .into_iter()
            .map(|(_, ttl)| ttl)
            .collect();
        assert_eq!(
            ttls,
            [10_000, 10_000, 20_000, 20_000, 30_000],
            "{algorithm:?}"
        );
    }
}
