//! The conformance of gates: the model in memory, and the client code for Redis over a store in
//! memory.

use kit::gate::conformance::conforms;
use kit::gate::shares::shares_conform;
use kit::gate::{LONG, fake_gate, limit, memory_gate};
use rules::limit::Algorithm;

#[tokio::test(start_paused = true)]
async fn the_memory_gate_conforms() {
    for algorithm in Algorithm::ALL
        .into_iter()
        .chain([Algorithm::CalendarWindow])
    {
        let long = memory_gate(limit(algorithm, 5, LONG));
        conforms(algorithm, long, memory_gate(limit(algorithm, 1, 400))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_scripts_on_a_fake_redis_conform() {
    for algorithm in Algorithm::ALL
        .into_iter()
        .chain([Algorithm::CalendarWindow])
    {
        let long = fake_gate(limit(algorithm, 5, LONG));
        conforms(algorithm, long, fake_gate(limit(algorithm, 1, 400))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_memory_gate_shares_as_every_gate() {
    shares_conform(|| memory_gate(limit(Algorithm::SlidingWindow, 1, LONG)).gate).await;
}

#[tokio::test(start_paused = true)]
async fn the_scripts_on_a_fake_redis_share_as_every_gate() {
    shares_conform(|| fake_gate(limit(Algorithm::SlidingWindow, 1, LONG)).gate).await;
}
