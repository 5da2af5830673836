//! The conformance of gates on Redis, in real time: that of each algorithm is in `access`, with the
//! documented rights. tests/quick/gate/conformance.rs tests the gates in memory.

use kit::gate::shares::shares_conform;
use kit::gate::{FRESH, LONG, LimitedGate, ask, gate_at, limit, redis_gate, started};
use kit::servers::{shared_redis, unique};
use rules::limit::Algorithm;

/// Several workers on one Redis, each with its own connection, never start more than the limit
/// together.
#[tokio::test]
async fn workers_share_the_limit() {
    let prefix = unique("shared");
    let limit = limit(Algorithm::SlidingWindow, 20, LONG);
    let workers = (0..4).map(|_| {
        let gate = gate_at(shared_redis().url(), &prefix);
        let gate = LimitedGate::new(gate, limit.clone());
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

#[tokio::test]
async fn the_redis_gate_shares_as_every_gate() {
    shares_conform(|| redis_gate(limit(Algorithm::SlidingWindow, 1, LONG)).gate).await;
}
