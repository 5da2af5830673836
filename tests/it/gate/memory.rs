//! The memory that a tenant with an exhausted limit takes in a real Redis, by algorithm and limit,
//! compared with the rules' estimate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kit::gate::{BEGIN_US, FRESH, LimitedGate, ask, clocked, limit, started};
use kit::servers::Redis;
use redis::Connection;
use rules::limit::{Algorithm, Limit};

/// Number of steps over which the starts are spread in the window: more than it has segments.
const STEPS: u64 = 250;
const WINDOW_MS: u64 = 3_600_000;
/// On both sides of 128 entries, up to which Redis stores a sorted set as one text.
const SIZES: [u64; 7] = [10, 100, 128, 129, 1_000, 10_000, 100_000];

/// Returns the bytes of the keys of a limit of `max` that jobs have exhausted.
async fn used_up(redis: &Redis, connection: &mut Connection, limit: &Limit) -> u64 {
    redis.ctl(&["flushall"]);
    // All within one aligned window.
    let span = limit.span().max(1) * 1_000;
    let clock = Arc::new(AtomicU64::new(BEGIN_US / span * span + 1_000));
    let gate = clocked(redis.url(), "rate_limit", &clock);
    let gate = LimitedGate::new(gate, limit.clone());
    let max = limit.max();
    let mut used = 0;
    for step in 1..=STEPS {
        let jobs = usize::try_from(max * step / STEPS - used).expect("few");
        if jobs > 0 {
            let asks = vec![FRESH; jobs];
            let answers = ask(&gate, "tenant-1234", u32::MAX, &asks).await;
            assert_eq!(started(&answers), jobs, "{limit:?}");
            used += jobs as u64;
        }
        // Otherwise calls in flight would be given up.
        if limit.algorithm() != Algorithm::Concurrency {
            let pause = (WINDOW_MS - 10_000) * 1_000 / STEPS;
            clock.fetch_add(pause, Ordering::SeqCst);
        }
    }
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("rate_limit:*")
        .query(connection)
        .expect("Redis answers");
    let mut bytes = 0;
    for key in keys.iter().filter(|key| !key.ends_with(":line")) {
        let of_key: u64 = redis::cmd("MEMORY")
            .arg(&["USAGE", key, "SAMPLES", "0"])
            .query(connection)
            .expect("Redis answers");
        bytes += of_key;
    }
    bytes
}

#[tokio::test]
async fn memory_per_partition_matches_the_rules() {
    let redis = Redis::start_with(&["appendonly no"]);
    let client = redis::Client::open(redis.url()).expect("a good url");
    let mut connection = client.get_connection().expect("Redis answers");
    let mut wrong = Vec::new();
    println!("bytes of Redis for a partition whose quota is used up, and what the rules say");
    for algorithm in Algorithm::EVERY {
        for max in SIZES {
            let limit = limit(algorithm, max, WINDOW_MS);
            let stored = algorithm.rules().stored(limit.terms());
            // No fleet makes this many calls at once.
            if max > 10_000 && algorithm.holds_leases() {
                continue;
            }
            let bytes = used_up(&redis, &mut connection, &limit).await;
            let computed = stored.bytes();
            println!("{:21} {max:6}: {bytes:8} {computed:8}", algorithm.name());
            // Other versions store keys and short texts slightly differently.
            if bytes > computed * 12 / 10 + 100 || computed > bytes * 14 / 10 + 100 {
                wrong.push((algorithm, max, bytes, computed));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
