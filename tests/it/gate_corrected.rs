//! What is given back, or cost something else in fact, makes no decision slower, however long the log is.

use std::time::Duration;

use sluicegate::config::SecretUrl;
use sluicegate::gate::redis::RedisGate;
use sluicegate::gate::{Answer, End, Gate, Receipt, Settled, TenantSettled};
use sluicegate::rules::limit::{Algorithm, Limit};
use sluicegate::rules::scope::Labels;

use crate::gate_conformance::{FRESH, LONG, Limited, ask, decided, started, tenant};
use crate::servers::{Redis, unique};

/// Starts in the log. One of them that was given back took a decision 100 times as long.
const STARTS: usize = 9_000;

/// Microseconds of Redis for a decision: the least of a few, since the machine does other things, too.
async fn decision_us(redis: &Redis, gate: &Limited<RedisGate>) -> u64 {
    let mut least = u64::MAX;
    for _ in 0..20 {
        redis.ctl(&["CONFIG", "RESETSTAT"]);
        let answers = ask(gate, "t", 0, &[FRESH]).await;
        assert!(
            matches!(answers[..], [Answer::Capacity { .. }]),
            "{answers:?}"
        );
        let stats = redis.ctl(&["INFO", "commandstats"]);
        let script = (stats.lines()).find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
        let micros = script.and_then(|line| line.split_once("usec=")?.1.split_once(','));
        let micros = micros.and_then(|(micros, _)| micros.parse().ok());
        least = least.min(micros.expect("it was called"));
    }
    least
}

#[tokio::test]
async fn a_decision_takes_as_long_whatever_was_given_back_or_corrected() {
    let redis = Redis::start();
    let gate = RedisGate::connect(&SecretUrl::new(redis.url()), &unique("corrected"));
    let window = Duration::from_millis(LONG);
    let limit = Limit::new(
        "default",
        Algorithm::SlidingWindow,
        1_000_000,
        window,
        Duration::ZERO,
    );
    let gate = Limited::new(gate.expect("a good url"), limit.expect("in range"));
    let mut receipts = Vec::new();
    for _ in 0..STARTS / 1000 {
        let question = gate.question("t", 1000, &[FRESH; 1000]);
        let replies = gate.ask(std::slice::from_ref(&question)).await;
        let replies = replies.expect("Redis answers");
        let answers = decided(&replies, 0);
        assert_eq!(started(answers), 1000);
        let now_ms = replies[0].as_ref().expect("a decision").now_ms;
        for (number, answer) in answers.iter().enumerate() {
            if let Answer::Start { sequences, .. } = answer {
                receipts.push(Receipt {
                    permit: format!("{}:{number}", question.permits),
                    started_ms: now_ms,
                    sequences: sequences.clone(),
                    cost: 1,
                });
            }
        }
        // The next ones start at another moment.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let settle = async |ends: Vec<(usize, End)>| {
        let settled = ends.into_iter().map(|(start, end)| Settled {
            receipt: receipts[start].clone(),
            end,
        });
        let told = TenantSettled {
            tenant: tenant("t"),
            labels: Labels::default(),
            limits: gate.limits.clone(),
            call: unique("call"),
            settled: settled.collect(),
        };
        let replies = gate.settle(&[told]).await.expect("Redis answers");
        assert!(replies.iter().all(Result::is_ok));
    };
    let count = async || {
        gate.inspect(&tenant("t"))
            .await
            .expect("Redis answers")
            .limits[0]
            .count
    };
    let before = decision_us(&redis, &gate).await;
    settle(vec![(STARTS / 2, End::Unused)]).await;
    let given_back = decision_us(&redis, &gate).await;
    assert_eq!(count().await, STARTS as u64 - 1);
    let costs = (0..500).map(|n| (n * 7, End::Cost(1 + n as u32 % 3)));
    settle(costs.collect()).await;
    let corrected = decision_us(&redis, &gate).await;
    let more: u64 = (0..500).map(|n| n % 3).sum();
    assert_eq!(count().await, STARTS as u64 - 1 + more);
    println!("a decision: {before} us; one given back: {given_back}; 500 corrected: {corrected}");
    assert!(
        given_back <= 4 * before,
        "{given_back} us in place of {before}"
    );
    assert!(
        corrected <= 8 * before,
        "{corrected} us in place of {before}"
    );
}
