//! The cost of the pulse at the end of each batch: batches with and without it in one run.

use std::time::{Duration, Instant};

use gate::{EarlierStarts, Gate, TenantAsk};
use kit::gate::{FRESH, asking, gate_at};
use kit::servers::{shared_redis, unique};
use rules::limit::{Algorithm, Limit, Limits};

/// Number of turns of each, so that other load on the machine affects both.
const TURNS: usize = 20;
/// Batches in a turn.
const BATCHES: usize = 200;

/// Measures batches with one job of each of `tenants` tenants.
pub async fn pulse(tenants: usize) {
    let minute = Duration::from_secs(60);
    let limit = Limit::new(
        "default",
        Algorithm::SlidingWindow,
        100,
        minute,
        minute / 1000,
    );
    let limits: Limits = limit.expect("in range").into();
    let gate = || gate_at(shared_redis().url(), &unique("pulse"));
    let memory = Duration::from_millis(limits.memory_ms());
    let gates = [gate(), gate().watching(memory)];
    gates[1]
        .begin(EarlierStarts::Idle)
        .await
        .expect("a first start");
    let batch: Vec<TenantAsk> = (0..tenants)
        .map(|n| asking(&format!("t{n}"), &limits, &[FRESH]))
        .collect();
    let (mut took, mut scripts) = ([Duration::ZERO; 2], [0.0; 2]);
    for _ in 0..TURNS {
        for (index, gate) in gates.iter().enumerate() {
            shared_redis().reset_stats();
            let started = Instant::now();
            for _ in 0..BATCHES {
                gate.ask(&batch).await.expect("a decision");
            }
            took[index] += started.elapsed();
            scripts[index] += shared_redis().command_stats().micros("evalsha") as f64;
        }
    }
    let batches = (TURNS * BATCHES) as f64;
    let each = took.map(|took| took.as_secs_f64() * 1e6 / batches);
    let inside = scripts.map(|micros| micros / batches);
    println!(
        "pulse: a batch of {tenants} tenants takes {:.0} us, with its pulse {:.0} us, ratio {:.2}; in Redis's scripts \
         {:.1} us and {:.1} us, ratio {:.2}",
        each[0],
        each[1],
        each[1] / each[0],
        inside[0],
        inside[1],
        inside[1] / inside[0]
    );
}
