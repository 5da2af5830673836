//! Jobs of one tenant under different limits: plans, tenants' own limits, and changed
//! configurations. Whatever they are, none of them loses what another counts, on Redis and in
//! memory. tests/simulation/gate/mixed.rs has random histories.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gate::memory::MemoryGate;
use gate::{Answer, Gate, Question, Ticket};
use kit::gate::{BEGIN_US, FRESH, asking, clocked, decided, guarded_limit as limit};
use kit::servers::{shared_redis, unique};
use rules::limit::{Algorithm, Limits};

/// Returns when jobs of the second set started, in milliseconds, if a job of each of two sets asks
/// ten times per second for a minute.
async fn starts_of_second(gate: &impl Gate, clock: &AtomicU64, sets: &[Limits; 2]) -> Vec<u64> {
    let begin = clock.load(Ordering::SeqCst);
    let mut tickets: [Option<Ticket>; 2] = [None; 2];
    let mut starts = Vec::new();
    for at_ms in (0..60_000).step_by(100) {
        clock.store(begin + at_ms * 1000, Ordering::SeqCst);
        for (which, limits) in sets.iter().enumerate() {
            let job = Question {
                ticket: tickets[which],
                ..FRESH
            };
            let ask = asking("acme", limits, &[job]);
            let replies = gate.ask(&[ask]).await.expect("it answers");
            tickets[which] = match decided(&replies, 0)[0] {
                Answer::Wait { ticket, .. } => Some(ticket),
                Answer::Start { .. } if which == 1 => {
                    starts.push(at_ms);
                    None
                }
                _ => None,
            };
        }
    }
    starts
}

#[tokio::test]
async fn a_plan_with_a_long_window_keeps_it_beside_jobs_with_a_short_one() {
    for (algorithm, window, max) in [
        (Algorithm::SlidingWindow, 30_000, 3),
        // The bucket's initial content plus the inflow.
        (Algorithm::TokenBucket, 1000, 3 + 3),
        (Algorithm::FixedWindow, 30_000, 2 * 3),
    ] {
        let common = limit("default", algorithm, (100, 1000, 0));
        let plan = limit("default", algorithm, (3, window, 0));
        let sets = [common.into(), plan.into()];
        let clock = Arc::new(AtomicU64::new(BEGIN_US));
        let redis = clocked(shared_redis().url(), &unique("mixed"), &clock);
        let on_redis = starts_of_second(&redis, &clock, &sets).await;
        clock.store(BEGIN_US, Ordering::SeqCst);
        let time = Arc::clone(&clock);
        let memory = MemoryGate::new(move || time.load(Ordering::SeqCst));
        let in_memory = starts_of_second(&memory, &clock, &sets).await;
        assert_eq!(on_redis, in_memory, "{algorithm:?}");
        assert!(!on_redis.is_empty(), "{algorithm:?}");
        for from in &on_redis {
            let inside = on_redis
                .iter()
                .filter(|at| (*from..from + window).contains(at));
            let inside = inside.count();
            assert!(
                inside <= max,
                "{algorithm:?}: {inside} in {window} ms: {on_redis:?}"
            );
        }
    }
}
