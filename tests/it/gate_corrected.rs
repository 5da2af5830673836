//! What is given back, or cost something else in fact, makes no decision slower, however long the log is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sluicegate::config::SecretUrl;
use sluicegate::gate::redis::RedisGate;
use sluicegate::gate::{Answer, End, Gate, Receipt, Settled, TenantAsk, TenantSettled};
use sluicegate::rules::limit::{Algorithm, Limit};
use sluicegate::rules::scope::Labels;

use crate::gate_conformance::{FRESH, LONG, Limited, ask, decided, started, tenant};
use crate::servers::{Redis, shared_redis, unique};

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

fn receipts_of(asked: &TenantAsk, now_ms: u64, answers: &[Answer]) -> Vec<Receipt> {
    let started = answers.iter().enumerate().filter_map(|(number, answer)| {
        let Answer::Start { sequences, .. } = answer else {
            return None;
        };
        Some(Receipt {
            permit: format!("{}:{number}", asked.permits),
            started_ms: now_ms,
            sequences: sequences.clone(),
            cost: asked.asks[number].cost,
        })
    });
    started.collect()
}

async fn tell(gate: &Limited<RedisGate>, settled: Vec<Settled>) {
    let told = TenantSettled {
        tenant: tenant("t"),
        labels: Labels::default(),
        limits: gate.limits.clone(),
        call: unique("call"),
        settled,
    };
    let replies = gate.settle(&[told]).await.expect("Redis answers");
    assert!(replies.iter().all(Result::is_ok));
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
        assert_eq!(started(decided(&replies, 0)), 1000);
        let now_ms = replies[0].as_ref().expect("a decision").now_ms;
        receipts.extend(receipts_of(&question, now_ms, decided(&replies, 0)));
        // The next ones start at another moment.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let settle = async |ends: Vec<(usize, End)>| {
        let settled = ends.into_iter().map(|(start, end)| Settled {
            receipt: receipts[start].clone(),
            end,
        });
        tell(&gate, settled.collect()).await;
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
    settle((0..500).map(|n| (n * 7 + 1, End::Late)).collect()).await;
    let late = decision_us(&redis, &gate).await;
    assert_eq!(count().await, STARTS as u64 - 1 + more);
    println!(
        "a decision: {before} us; one given back: {given_back}; 500 corrected: {corrected}; 500 late: {late}"
    );
    assert!(
        given_back <= 4 * before,
        "{given_back} us in place of {before}"
    );
    assert!(
        corrected <= 8 * before,
        "{corrected} us in place of {before}"
    );
    assert!(late <= 8 * before, "{late} us in place of {before}");
}

#[tokio::test]
async fn a_call_that_came_late_counts_from_when_it_came() {
    // A day ahead, so that nothing expires in Redis meanwhile.
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let begin = now.expect("after 1970").as_millis() as u64 + 86_400_000;
    let clock = Arc::new(AtomicU64::new(begin));
    let millis = Arc::clone(&clock);
    let url = SecretUrl::new(shared_redis().url());
    let gate = RedisGate::connect(&url, &unique("late")).expect("a good url");
    let gate = gate.with_test_clock(Arc::new(move || millis.load(Ordering::SeqCst) * 1000));
    let window = Duration::from_secs(1);
    let limit = Limit::new(
        "default",
        Algorithm::SlidingWindow,
        2,
        window,
        Duration::ZERO,
    );
    let gate = Limited::new(gate, limit.expect("in range"));
    let asked_at = async |after: u64| {
        clock.store(begin + after, Ordering::SeqCst);
        let question = gate.question("t", 9, &[FRESH]);
        let replies = gate.ask(std::slice::from_ref(&question)).await;
        let replies = replies.expect("Redis answers");
        let answers = decided(&replies, 0).to_vec();
        (receipts_of(&question, begin + after, &answers), answers)
    };
    let wait_at = async |after: u64| match asked_at(after).await.1[..] {
        [Answer::Wait { ttl_ms, .. }] => ttl_ms,
        ref other => panic!("{other:?}"),
    };
    let (first, _) = asked_at(0).await;
    let (second, _) = asked_at(100).await;
    for after in [250, 400] {
        clock.store(begin + after, Ordering::SeqCst);
        let (receipt, end) = (first[0].clone(), End::Late);
        tell(&gate, vec![Settled { receipt, end }]).await;
    }
    // Room from 1,100 on as ever, then from 1,400 on: behind the first that waits.
    assert_eq!(wait_at(600).await, 500);
    assert_eq!(wait_at(600).await, 800);
    // What is told of it later finds it.
    for receipt in [first[0].clone(), second[0].clone()] {
        let end = End::Unused;
        tell(&gate, vec![Settled { receipt, end }]).await;
    }
    let shown = gate.inspect(&tenant("t")).await.expect("Redis answers");
    assert_eq!(shown.limits[0].count, 0);
}
