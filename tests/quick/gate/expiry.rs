//! Keys in Redis live as long as the usage that they hold counts.

use gate::{Change, End, Gate, StartSettlement, TenantSettlements};
use kit::gate::{
    FRESH, LimitedGate, ask, asking, fake_gate, limit, memory_gate, receipt, started, tenant,
};
use kit::{MS, SECOND};
use rules::limit::{Algorithm, Limit};
use rules::scope::Labels;

/// Compares the scripts with the model while windows and leases pass without questions, which would
/// postpone the expiry.
#[tokio::test(start_paused = true)]
async fn no_key_expires_while_its_usage_counts() {
    for algorithm in Algorithm::EVERY {
        let limit = match algorithm {
            Algorithm::Concurrency => Limit::concurrent("default", 3).expect("in range"),
            _ => limit(algorithm, 3, 1_000),
        };
        let (fake, model) = (fake_gate(limit.clone()), memory_gate(limit));
        let id = tenant("t");
        for round in 0..4 {
            let ask = [asking("t", &fake.limits, &[FRESH; 2])];
            let replies = fake.gate.ask(&ask).await.expect("the gate answers");
            model.gate.ask(&ask).await.expect("the gate answers");
            let reply = replies[0].as_ref().expect("a decision");
            let ended = (0..2).map(|number| StartSettlement {
                receipt: receipt(&ask[0], reply, number),
                end: End::Cost(1),
            });
            let settled = [TenantSettlements {
                tenant: id.clone(),
                labels: Labels::default(),
                limits: fake.limits.clone(),
                call: format!("c{round}"),
                settled: ended.collect(),
            }];
            for step in 0..16 {
                tokio::time::sleep(MS * 170).await;
                // Every other round, the leases last until they end by themselves.
                if step == 0 && round % 2 == 0 {
                    fake.gate.settle(&settled).await.expect("the gate answers");
                    model.gate.settle(&settled).await.expect("the gate answers");
                }
                if step == 8 {
                    tokio::time::sleep(MS * 58_800).await;
                }
                let shown = [fake.inspect(&id).await, model.inspect(&id).await];
                let [stored, counted] = shown.map(|shown| shown.expect("the gate answers"));
                assert_eq!(stored, counted, "{algorithm:?}, {round}, {step}");
            }
        }
    }
}

/// A bucket that is full under an operator's lower max is not full once the max ends.
#[tokio::test(start_paused = true)]
async fn a_bucket_fills_up_after_a_lower_max_ends() {
    let limit = limit(Algorithm::TokenBucket, 100, 10_000);
    let (fake, model) = (fake_gate(limit.clone()), memory_gate(limit));
    assert_eq!(starts_after_a_lower_max(&fake).await, 19);
    assert_eq!(starts_after_a_lower_max(&model).await, 19);
}

async fn starts_after_a_lower_max(gate: &LimitedGate<impl Gate>) -> usize {
    let (scope, name) = (tenant("t").into(), "default".to_owned());
    assert_eq!(started(&ask(gate, "t", 100, &[FRESH; 100]).await), 100);
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(started(&ask(gate, "t", 1, &[FRESH]).await), 1);
    let lower = Change::Limit {
        name: name.clone(),
        max: 10,
        duration_ms: 60_000,
    };
    gate.change(&scope, &lower).await.expect("the gate answers");
    assert_eq!(started(&ask(gate, "t", 1, &[FRESH]).await), 1);
    tokio::time::sleep(SECOND + 10 * MS).await;
    let end = Change::Unlimit { name };
    gate.change(&scope, &end).await.expect("the gate answers");
    started(&ask(gate, "t", 100, &[FRESH; 50]).await)
}
