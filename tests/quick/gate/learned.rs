//! Learned limits, in the model and in the scripts on a fake Redis.

use std::time::Duration;

use gate::{Change, Evidence, Gate, TenantAsk};
use kit::gate::{FRESH, asking, fake_gate, lesson, memory_gate, named_limit, started, tenant};
use rules::limit::{Algorithm, Limits};
use rules::scope::Labels;

const HOUR: Duration = Duration::from_secs(3_600);

/// Returns an adaptive limit of 1,000 in each `window`.
fn limits(window: Duration) -> Limits {
    let limit = named_limit("default", Algorithm::SlidingWindow, 1_000, window);
    limit.with_band(50).into()
}

/// Returns the effective max of these limits, and whether something learned counts for them.
async fn shown(gate: &impl Gate, limits: &Limits) -> (u64, bool) {
    let shown = gate.inspect(&tenant("t"), &Labels::default(), limits).await;
    let usage = shown.expect("the gate answers").limits[0];
    (usage.max, usage.learned.is_some())
}

/// Reports that the API refused a call of the tenant.
async fn refuse(gate: &impl Gate, limits: &Limits) {
    let seen = gate.inspect(&tenant("t"), &Labels::default(), limits).await;
    let refused = Evidence::Refused {
        started_ms: seen.expect("the gate answers").now_ms,
        cost: 1,
        after_ms: 0,
        closed_ms: 0,
    };
    let replies = gate
        .learn(&[lesson("t", limits, refused)])
        .await
        .expect("the gate answers");
    assert!(replies[0].as_ref().is_ok_and(|sunk| sunk.len() == 1));
}

/// A configuration changes the window of a limit, or two plans have limits of the same name: 600 in
/// a day say nothing of an hour.
async fn another_window_learns_anew(gate: &impl Gate) {
    let (day, hour) = (limits(24 * HOUR), limits(HOUR));
    let asked = TenantAsk {
        budget: 601,
        ..asking("t", &day, &[FRESH; 601])
    };
    gate.ask(&[asked]).await.expect("the gate answers");
    refuse(gate, &day).await;
    assert_eq!(shown(gate, &day).await, (600, true));
    assert_eq!(shown(gate, &hour).await, (1_000, false));

    // The hour learns for itself, and the day keeps its number.
    tokio::time::sleep(2 * HOUR).await;
    let asked = TenantAsk {
        budget: 1_000,
        ..asking("t", &hour, &[FRESH; 1_001])
    };
    let replies = gate.ask(&[asked]).await.expect("the gate answers");
    let answers = &replies[0].as_ref().expect("a decision").answers;
    assert_eq!(started(answers), 1_000);
    refuse(gate, &hour).await;
    assert_eq!(shown(gate, &hour).await, (999, true));
    assert_eq!(shown(gate, &day).await, (600, true));

    let scope = tenant("t").into();
    gate.change(&scope, &Change::Reset)
        .await
        .expect("the gate answers");
    assert_eq!(shown(gate, &hour).await, (1_000, false));
    assert_eq!(shown(gate, &day).await, (1_000, false));
}

#[tokio::test(start_paused = true)]
async fn a_learned_number_counts_for_its_window_only() {
    another_window_learns_anew(&memory_gate(limits(HOUR)).gate).await;
    another_window_learns_anew(&fake_gate(limits(HOUR)).gate).await;
}
