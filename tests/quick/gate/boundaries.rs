//! Usage ends in the millisecond in which it ends in the specification.

use kit::MS;
use kit::gate::{FRESH, ask, fake_gate, limit, memory_gate, tenant};
use rules::limit::{Algorithm, Limit};

/// Time between two starts: half a window.
const STEP_MS: u64 = 500;

/// Compares the scripts with the model in each millisecond of three windows.
#[tokio::test(start_paused = true)]
async fn usage_ends_in_the_same_millisecond() {
    for algorithm in Algorithm::EVERY {
        let limit = match algorithm {
            Algorithm::Concurrency => Limit::concurrent("default", 3).expect("in range"),
            _ => limit(algorithm, 3, 2 * STEP_MS),
        };
        let (fake, model) = (fake_gate(limit.clone()), memory_gate(limit));
        let id = tenant("t");
        for elapsed in 0..6 * STEP_MS {
            let shown = [fake.inspect(&id).await, model.inspect(&id).await];
            let [stored, counted] = shown.map(|shown| shown.expect("the gate answers"));
            assert_eq!(stored, counted, "{algorithm:?}, {elapsed} ms");
            if elapsed < 2 * STEP_MS && elapsed % STEP_MS == 0 {
                let started = [
                    ask(&fake, "t", 1, &[FRESH]).await,
                    ask(&model, "t", 1, &[FRESH]).await,
                ];
                assert_eq!(started[0], started[1], "{algorithm:?}, {elapsed} ms");
            }
            tokio::time::sleep(MS).await;
        }
    }
}
