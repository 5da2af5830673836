//! Returned or corrected units make no decision slower, however long the log is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gate::redis::RedisGate;
use gate::{Answer, End, Gate, Question, Receipt, Ticket};
use kit::gate::{
    BEGIN_US, FRESH, LONG, LimitedGate, ask, clocked, decided, gate_at, limit, receipt, settling,
    started, tenant,
};
use kit::servers::{Redis, shared_redis, unique};
use rules::limit::{Algorithm, Limits};

/// Number of starts in the log. A single returned one once made a decision 100 times as slow.
const STARTS: usize = 9_000;

/// The tenant whose log is corrected, and one with a log of the same starts that is not.
const TENANTS: [&str; 2] = ["t", "untouched"];
/// How often the times are compared: other load may slow all decisions of one kind.
const ATTEMPTS: usize = 20;

/// Redis's work for decisions: the time of the fastest, since the machine has other load, and the
/// most commands of any.
#[derive(Debug, Clone, Copy)]
struct Work {
    micros: u64,
    commands: u64,
}

/// Returns the work of a few decisions for each of [`TENANTS`], in turns.
async fn works(
    redis: &Redis,
    gate: &LimitedGate<RedisGate>,
    ticket: Option<Ticket>,
    is_right: fn(&Answer) -> bool,
) -> [Work; 2] {
    let mut works = [Work {
        micros: u64::MAX,
        commands: 0,
    }; 2];
    for _ in 0..40 {
        for (id, work) in TENANTS.iter().zip(&mut works) {
            redis.reset_stats();
            let asked = Question { ticket, ..FRESH };
            let answers = ask(gate, id, 0, &[asked]).await;
            assert!(matches!(&answers[..], [it] if is_right(it)), "{answers:?}");
            let stats = redis.command_stats();
            let micros = stats.micros("evalsha");
            assert!(micros > 0, "{stats:?}");
            work.micros = work.micros.min(micros);
            work.commands = work.commands.max(stats.in_scripts().values().sum());
        }
    }
    works
}

/// Checks that corrections multiply the commands at most by `times`, and the time by half more than
/// that.
async fn is_flat(what: &str, times: u64, measure: impl AsyncFn() -> [Work; 2]) {
    for attempt in 1..=ATTEMPTS {
        let [corrected, untouched] = measure().await;
        println!("{what}: {corrected:?} in place of {untouched:?}");
        assert!(corrected.commands <= times * untouched.commands, "{what}");
        if 2 * corrected.micros <= 3 * times * untouched.micros {
            return;
        }
        assert!(attempt < ATTEMPTS, "{what}");
    }
}

async fn settle_all(
    gate: &LimitedGate<RedisGate>,
    settled: impl IntoIterator<Item = (Receipt, End)>,
) {
    let report = settling("t", &gate.limits, settled);
    let replies = gate.settle(&[report]).await.expect("Redis answers");
    assert!(replies.iter().all(Result::is_ok));
}

/// Measures decisions with room, and for a waiting job, while more and more of a log is returned
/// and corrected.
async fn decisions_stay_as_quick(cost: fn(usize) -> u64) {
    let redis = Redis::start();
    let limit = |max| Limits::from(limit(Algorithm::SlidingWindow, max, LONG));
    let mut gate = LimitedGate::new(gate_at(redis.url(), &unique("corrected")), limit(1_000_000));
    let mut receipts = Vec::new();
    for _ in 0..STARTS / 1000 {
        let fresh = |number| Question {
            cost: cost(number),
            ..FRESH
        };
        let jobs: Vec<_> = (0..1000).map(fresh).collect();
        let questions = TENANTS.map(|id| gate.question(id, 1000, &jobs));
        let replies = gate.ask(&questions).await.expect("Redis answers");
        for tenant in 0..TENANTS.len() {
            assert_eq!(started(decided(&replies, tenant)), 1000);
        }
        let reply = replies[0].as_ref().expect("a decision");
        receipts.extend((0..1000).map(|number| receipt(&questions[0], reply, number)));
        // The next ones start at another millisecond.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let all: u64 = receipts.iter().map(|it| it.cost).sum();
    let costs = |starts: Vec<usize>| -> Vec<(usize, End)> {
        let used = |start: usize| End::Cost(1 + (start * 31 + start * start * 17) as u64 % 7);
        starts
            .into_iter()
            .map(|start| (start, used(start)))
            .collect()
    };
    let late = |start| (start, End::Late);
    let steps = [
        ("nothing", Vec::new()),
        ("one given back", vec![(STARTS / 2, End::Unused)]),
        ("500 corrected", costs((0..500).map(|n| n * 7).collect())),
        ("all corrected", costs((0..STARTS).collect())),
        ("500 late", (0..500).map(|n| late(n * 7 + 1)).collect()),
    ];
    for (what, ends) in steps {
        for ends in ends.chunks(1000) {
            let settled = ends
                .iter()
                .map(|&(start, end)| (receipts[start].clone(), end));
            settle_all(&gate, settled).await;
        }
        let shown = gate.inspect(&tenant("t")).await.expect("Redis answers");
        match what {
            "nothing" => assert_eq!(shown.limits[0].count, all),
            _ => assert_ne!(shown.limits[0].count, all, "{what}"),
        }
        gate.limits = limit(1_000_000);
        // A new job would wait if others do.
        let had = Some(Ticket::HAD_ITS_TURN);
        let room = async || works(&redis, &gate, had, |it| matches!(it, Answer::Capacity)).await;
        is_flat(&format!("{what}, with room"), 2, room).await;
        gate.limits = limit(4_000);
        let waits =
            async || works(&redis, &gate, None, |it| matches!(it, Answer::Wait { .. })).await;
        // Late calls count at the end of the log: near it, costs vary between the search's guesses.
        let times = if what == "500 late" { 4 } else { 2 };
        is_flat(&format!("{what}, a job that waits"), times, waits).await;
    }
}

#[tokio::test]
async fn corrections_do_not_slow_down_decisions() {
    decisions_stay_as_quick(|_| 1).await;
}

#[tokio::test]
async fn corrections_of_different_costs_do_not_slow_down_decisions() {
    decisions_stay_as_quick(|number| 1 + (number * 7919 + number * number) as u64 % 5).await;
}

#[tokio::test]
async fn a_late_call_counts_from_its_arrival() {
    let clock = Arc::new(AtomicU64::new(BEGIN_US));
    let gate = clocked(shared_redis().url(), &unique("late"), &clock);
    let gate = LimitedGate::new(gate, limit(Algorithm::SlidingWindow, 2, 1_000));
    let set_clock = |after_ms: u64| clock.store(BEGIN_US + after_ms * 1000, Ordering::SeqCst);
    let asked_at = async |after: u64| {
        set_clock(after);
        let question = gate.question("t", 9, &[FRESH]);
        let replies = gate.ask(std::slice::from_ref(&question)).await;
        let replies = replies.expect("Redis answers");
        let answers = decided(&replies, 0).to_vec();
        let reply = replies[0].as_ref().expect("a decision");
        let receipts = (0..started(&answers)).map(|number| receipt(&question, reply, number));
        (receipts.collect::<Vec<_>>(), answers)
    };
    let wait_at = async |after: u64| match asked_at(after).await.1[..] {
        [Answer::Wait { ttl_ms, .. }] => ttl_ms,
        ref other => panic!("{other:?}"),
    };
    let (first, _) = asked_at(0).await;
    let (second, _) = asked_at(100).await;
    for after in [250, 400] {
        set_clock(after);
        settle_all(&gate, [(first[0].clone(), End::Late)]).await;
    }
    // The first waiting job starts at 1,100 as before, the next one behind it at 1,400.
    assert_eq!(wait_at(600).await, 500);
    assert_eq!(wait_at(600).await, 800);
    // Later settlements of it find it.
    for receipt in [first[0].clone(), second[0].clone()] {
        settle_all(&gate, [(receipt, End::Unused)]).await;
    }
    let shown = gate.inspect(&tenant("t")).await.expect("Redis answers");
    assert_eq!(shown.limits[0].count, 0);
}
