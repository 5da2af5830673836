//! Usage ends in the millisecond in which it ends in the specification.

use std::time::Duration;

use kit::MS;
use kit::gate::{FRESH, ask, fake_gate, limit, memory_gate, named_limit, tenant};
use rules::limit::{Algorithm, Limits};

/// Time between two starts: half a window.
const STEP_MS: u64 = 200;

/// Compares the scripts with the model in each millisecond of three windows.
async fn ends_in_the_same_millisecond(limits: Limits) {
    let (fake, model) = (fake_gate(limits.clone()), memory_gate(limits.clone()));
    let id = tenant("t");
    for elapsed in 0..6 * STEP_MS {
        let shown = [fake.inspect(&id).await, model.inspect(&id).await];
        let [stored, counted] = shown.map(|shown| shown.expect("the gate answers"));
        assert_eq!(stored, counted, "{limits:?}, {elapsed} ms");
        if elapsed < 2 * STEP_MS && elapsed % STEP_MS == 0 {
            let started = [
                ask(&fake, "t", 1, &[FRESH]).await,
                ask(&model, "t", 1, &[FRESH]).await,
            ];
            assert_eq!(started[0], started[1], "{limits:?}, {elapsed} ms");
        }
        tokio::time::sleep(MS).await;
    }
}

#[tokio::test(start_paused = true)]
async fn usage_ends_in_the_same_millisecond() {
    for algorithm in Algorithm::EVERY {
        let limit = limit(algorithm, 3, 2 * STEP_MS);
        ends_in_the_same_millisecond(limit.into()).await;
    }
}

/// The log also holds entries that count for its longest limit only.
#[tokio::test(start_paused = true)]
async fn usage_of_a_shorter_limit_ends_in_the_same_millisecond() {
    let sliding = |name, max, steps: u64| {
        let window = Duration::from_millis(steps * STEP_MS);
        named_limit(name, Algorithm::SlidingWindow, max, window)
    };
    let limits = vec![sliding("short", 3, 2), sliding("long", 5, 5)];
    ends_in_the_same_millisecond(Limits::new(limits).expect("two names")).await;
}
