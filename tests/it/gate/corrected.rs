//! Returned or corrected units make no decision slower, however long the log is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kit::gate::{
    BEGIN_US, FRESH, LONG, LimitedGate, ask, clocked, decided, gate_at, receipt, started, tenant,
};
use kit::servers::{Redis, shared_redis, unique};
use rules::limit::{Algorithm, Limit, Limits};
use rules::scope::Labels;
use sluicegate::gate::redis::RedisGate;
use sluicegate::gate::{Answer, End, Gate, Question, Settled, TenantSettled, Ticket};

/// Number of starts in the log. A single returned one once made a decision 100 times as slow.
const STARTS: usize = 9_000;

/// Redis's work for one decision.
#[derive(Debug, Clone, Copy)]
struct Work {
    micros: u64,
    commands: u64,
}

/// Returns the fastest of a few decisions, since the machine has other load, and the most commands
/// of any.
async fn work(
    redis: &Redis,
    gate: &LimitedGate<RedisGate>,
    ticket: Option<Ticket>,
    is_right: fn(&Answer) -> bool,
) -> Work {
    let mut work = Work {
        micros: u64::MAX,
        commands: 0,
    };
    for _ in 0..40 {
        redis.reset_stats();
        let asked = Question { ticket, ..FRESH };
        let answers = ask(gate, "t", 0, &[asked]).await;
        assert!(matches!(&answers[..], [it] if is_right(it)), "{answers:?}");
        let stats = redis.command_stats();
        let micros = stats.micros("evalsha");
        assert!(micros > 0, "{stats:?}");
        work.micros = work.micros.min(micros);
        work.commands = work.commands.max(stats.in_scripts().values().sum());
    }
    work
}

async fn settle_all(gate: &LimitedGate<RedisGate>, settled: Vec<Settled>) {
    let report = TenantSettled {
        tenant: tenant("t"),
        labels: Labels::default(),
        limits: gate.limits.clone(),
        call: unique("call"),
        settled,
    };
    let replies = gate.settle(&[report]).await.expect("Redis answers");
    assert!(replies.iter().all(Result::is_ok));
}

/// Checks that the commands grow at most by the factor `times`, and the time by little more. The
/// fastest of many decisions is compared, but other load may slow all of them: what the test rules
/// out takes 100 times as long.
fn is_flat(what: &str, times: u64, before: Work, after: Work) {
    println!("{what}: {after:?} in place of {before:?}");
    assert!(after.commands <= times * before.commands, "{what}");
    assert!(after.micros <= 4 * times * before.micros, "{what}");
}

/// Measures decisions with room, and for a waiting job, while more and more of a log is returned
/// and corrected.
async fn decisions_stay_as_quick(cost: fn(usize) -> u64) {
    let redis = Redis::start();
    let limit = |max| -> Limits {
        let window = Duration::from_millis(LONG);
        let limit = Limit::new(
            "default",
            Algorithm::SlidingWindow,
            max,
            window,
            Duration::ZERO,
        );
        limit.expect("in range").into()
    };
    let mut gate = LimitedGate::new(gate_at(redis.url(), &unique("corrected")), limit(1_000_000));
    let mut receipts = Vec::new();
    for _ in 0..STARTS / 1000 {
        let fresh = |number| Question {
            cost: cost(number),
            ..FRESH
        };
        let question = gate.question("t", 1000, &(0..1000).map(fresh).collect::<Vec<_>>());
        let replies = gate.ask(std::slice::from_ref(&question)).await;
        let replies = replies.expect("Redis answers");
        assert_eq!(started(decided(&replies, 0)), 1000);
        let reply = replies[0].as_ref().expect("a decision");
        receipts.extend((0..1000).map(|number| receipt(&question, reply, number)));
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
    let mut before: Option<[Work; 2]> = None;
    for (what, ends) in steps {
        for ends in ends.chunks(1000) {
            let settled = ends.iter().map(|&(start, end)| Settled {
                receipt: receipts[start].clone(),
                end,
            });
            settle_all(&gate, settled.collect()).await;
        }
        let shown = gate.inspect(&tenant("t")).await.expect("Redis answers");
        match what {
            "nothing" => assert_eq!(shown.limits[0].count, all),
            _ => assert_ne!(shown.limits[0].count, all, "{what}"),
        }
        gate.limits = limit(1_000_000);
        // A new job would wait if others do.
        let had = Some(Ticket::HAD_ITS_TURN);
        let room = work(&redis, &gate, had, |it| matches!(it, Answer::Capacity)).await;
        gate.limits = limit(4_000);
        let waits = work(&redis, &gate, None, |it| matches!(it, Answer::Wait { .. })).await;
        let [first_room, first_waits] = *before.get_or_insert([room, waits]);
        is_flat(&format!("{what}, with room"), 2, first_room, room);
        // Late calls count at the end of the log: near it, costs vary between the search's guesses.
        let times = if what == "500 late" { 4 } else { 2 };
        is_flat(
            &format!("{what}, a job that waits"),
            times,
            first_waits,
            waits,
        );
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
    let window = Duration::from_secs(1);
    let limit = Limit::new(
        "default",
        Algorithm::SlidingWindow,
        2,
        window,
        Duration::ZERO,
    );
    let gate = LimitedGate::new(gate, limit.expect("in range"));
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
        let (receipt, end) = (first[0].clone(), End::Late);
        settle_all(&gate, vec![Settled { receipt, end }]).await;
    }
    // The first waiting job starts at 1,100 as before, the next one behind it at 1,400.
    assert_eq!(wait_at(600).await, 500);
    assert_eq!(wait_at(600).await, 800);
    // Later settlements of it find it.
    for receipt in [first[0].clone(), second[0].clone()] {
        let end = End::Unused;
        settle_all(&gate, vec![Settled { receipt, end }]).await;
    }
    let shown = gate.inspect(&tenant("t")).await.expect("Redis answers");
    assert_eq!(shown.limits[0].count, 0);
}
