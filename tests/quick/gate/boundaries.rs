//! Usage and grace periods begin and end as in the specification, to the millisecond.

use std::time::Duration;

use gate::{End, Gate, LEASE_MS, StartSettlement, TenantSettlements};
use kit::MS;
use kit::gate::{
    FRESH, LONG, LimitedGate, ask, asking, fake_gate, limit, memory_gate, named_limit, receipt,
    started, tenant,
};
use rules::gate::waitlist::GRACE_MS;
use rules::limit::{Algorithm, Limit, Limits};
use rules::scope::Labels;

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

/// Quota that the jobs ahead leave for longer than the grace period goes to the next job.
#[tokio::test(start_paused = true)]
async fn the_grace_period_of_vanished_jobs_ends_in_the_same_millisecond() {
    let limit = limit(Algorithm::SlidingWindow, 1, 1_000);
    let (fake, model) = (fake_gate(limit.clone()), memory_gate(limit));
    assert_eq!(starts_beside_vanished_jobs(&fake).await, [1, 0, 0, 0, 1]);
    assert_eq!(starts_beside_vanished_jobs(&model).await, [1, 0, 0, 0, 1]);
}

/// Returns how many of one new job start each time. Denied jobs do not return.
async fn starts_beside_vanished_jobs(gate: &LimitedGate<impl Gate>) -> Vec<usize> {
    let mut starts = Vec::new();
    for pause_ms in [0, 0, 1_000, GRACE_MS, 1] {
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        starts.push(started(&ask(gate, "t", 1, &[FRESH]).await));
    }
    starts
}

/// Jobs of two plans share a log. A short window keeps the starts that a long one counts.
#[tokio::test(start_paused = true)]
async fn a_short_window_drops_no_start_of_a_long_one() {
    let [short, long] = [1_000, 10_000].map(|ms| limit(Algorithm::SlidingWindow, 9, ms).into());
    let (fake, model) = (fake_gate(Limits::clone(&long)), memory_gate(long));
    assert_eq!(counts_of_two_plans(&fake, &short).await, [1, 5, 6, 8, 8]);
    assert_eq!(counts_of_two_plans(&model, &short).await, [1, 5, 6, 8, 8]);
}

/// Returns how many starts count in the gate's window after each question, in which all jobs start.
async fn counts_of_two_plans(gate: &LimitedGate<impl Gate>, short: &Limits) -> Vec<u64> {
    let long = &gate.limits;
    let mut counts = Vec::new();
    for (pause_ms, limits, jobs) in [
        (0, short, 1),
        (500, long, 4),
        (1_200, short, 1),
        (8_200, long, 2),
        // The first start is over, and the long window is as old as its last use.
        (300, short, 1),
    ] {
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        let asked = asking("t", limits, &vec![FRESH; jobs]);
        gate.gate.ask(&[asked]).await.expect("the gate answers");
        let shown = gate.inspect(&tenant("t")).await;
        counts.push(shown.expect("the gate answers").limits[0].count);
    }
    counts
}

/// A bucket that fills up over decades is full before its first use.
#[tokio::test(start_paused = true)]
async fn a_new_bucket_is_full() {
    let slow = limit(Algorithm::TokenBucket, 1, LONG).with_burst(2_000);
    let slow = slow.expect("in range");
    let (fake, model) = (fake_gate(slow.clone()), memory_gate(slow));
    let jobs = [FRESH; 2_000];
    assert_eq!(started(&ask(&fake, "t", 2_000, &jobs).await), 2_000);
    assert_eq!(started(&ask(&model, "t", 2_000, &jobs).await), 2_000);
}

/// A call that was given up holds its lease for a minute at most, even if it may run for longer.
#[tokio::test(start_paused = true)]
async fn an_abandoned_call_holds_its_lease_for_a_minute() {
    let limit = Limit::concurrent("default", 3).expect("in range");
    let (fake, model) = (fake_gate(limit.clone()), memory_gate(limit));
    assert_eq!(counts_of_an_abandoned_call(&fake).await, [2, 2]);
    assert_eq!(counts_of_an_abandoned_call(&model).await, [2, 2]);
}

/// Returns how many calls count in the last millisecond of the lease, and after it. Another call
/// starts at each of these times.
async fn counts_of_an_abandoned_call(gate: &LimitedGate<impl Gate>) -> Vec<u64> {
    let asked = [asking("t", &gate.limits, &[FRESH])];
    let replies = gate.ask(&asked).await.expect("the gate answers");
    let abandoned = StartSettlement {
        receipt: receipt(&asked[0], replies[0].as_ref().expect("a decision"), 0),
        end: End::Abandoned {
            for_ms: 10 * LEASE_MS,
        },
    };
    let settled = [TenantSettlements {
        tenant: tenant("t"),
        labels: Labels::default(),
        limits: gate.limits.clone(),
        call: "c".to_owned(),
        settled: vec![abandoned],
    }];
    gate.settle(&settled).await.expect("it is stored");
    let mut counts = Vec::new();
    for pause_ms in [LEASE_MS - 1, 1] {
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        // The lease of another call outlives it in the same key.
        assert_eq!(started(&ask(gate, "t", 1, &[FRESH]).await), 1);
        let shown = gate.inspect(&tenant("t")).await;
        counts.push(shown.expect("the gate answers").limits[0].count);
    }
    counts
}
