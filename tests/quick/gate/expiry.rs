//! Keys in Redis live as long as the usage that they hold counts.

use std::sync::Arc;
use std::time::Duration;

use fake_redis::FakeRedis;
use gate::{BreakerScope, Change, End, Gate, Question, Rule, TenantAsk};
use kit::gate::history::{BreakerReport, RULE};
use kit::gate::{
    FRESH, LONG, LimitedGate, ask, asking, clock, fake_gate, gate_on, limit, memory_gate,
    named_limit, receipt, settling, started, tenant,
};
use kit::{MS, SECOND};
use redis::cmd;
use rules::answers::Quotas;
use rules::calendar::{Calendar, Zone};
use rules::gate::model::{MARK_MS, NEEDED_MS};
use rules::gate::waitlist::KEEP_MS;
use rules::limit::{Algorithm, Limit, Limits};
use rules::scope::{Labels, Scope};
use rules::steering::SIGHTING_KEPT_MS;

use super::instructions::canceled_job;

/// Compares the scripts with the model while windows and leases pass without questions, which would
/// postpone the expiry.
#[tokio::test(start_paused = true)]
async fn no_key_expires_while_its_usage_counts() {
    for algorithm in Algorithm::EVERY {
        let limit = limit(algorithm, 3, 1_000);
        let (fake, model) = (fake_gate(limit.clone()), memory_gate(limit));
        let id = tenant("t");
        for round in 0..4 {
            let ask = [asking("t", &fake.limits, &[FRESH; 2])];
            let replies = fake.gate.ask(&ask).await.expect("the gate answers");
            model.gate.ask(&ask).await.expect("the gate answers");
            let reply = replies[0].as_ref().expect("a decision");
            // Every other round, the leases are renewed and end by themselves.
            let end = [End::Cost(1), End::Running][round % 2];
            let ended = (0..2).map(|number| (receipt(&ask[0], reply, number), end));
            let settled = [settling("t", &fake.limits, ended)];
            for step in 0..16 {
                tokio::time::sleep(MS * 170).await;
                if step == 0 {
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

/// A trial is forgotten after a week without starts. The usage of its simulated starts may count for
/// a month.
#[tokio::test(start_paused = true)]
async fn a_new_trial_begins_without_usage() {
    let enforced = named_limit("most", Algorithm::FixedWindow, 99, SECOND);
    let has_trial = |algorithm: &Algorithm| !algorithm.holds_leases();
    for algorithm in Algorithm::EVERY.into_iter().filter(has_trial) {
        let shadow = limit(algorithm, 1, LONG).in_shadow().expect("no lease");
        let limits = Limits::new(vec![enforced.clone(), shadow]).expect("two names");
        let (fake, model) = (fake_gate(limits.clone()), memory_gate(limits));
        for quiet_days in [8, 0] {
            ask(&fake, "t", 1, &[FRESH]).await;
            ask(&model, "t", 1, &[FRESH]).await;
            let shown = [
                fake.inspect(&tenant("t")).await,
                model.inspect(&tenant("t")).await,
            ];
            let [stored, counted] = shown.map(|shown| shown.expect("the gate answers"));
            assert_eq!(stored, counted, "{algorithm:?}");
            let tally = stored.shadows[0].1.tally;
            assert_eq!((tally.starts, tally.waited), (1, 0), "{algorithm:?}");
            tokio::time::sleep(SECOND * 86_400 * quiet_days).await;
        }
    }
}

/// A settlement whose answer was lost is sent again for up to a minute.
#[tokio::test(start_paused = true)]
async fn a_settlement_counts_once_in_a_minute() {
    let calendar = Calendar::parse("month", Zone::UTC, None).expect("a calendar");
    let calendar = Limit::calendar("default", 5, calendar, Duration::ZERO);
    for limit in [
        limit(Algorithm::FixedWindow, 5, LONG),
        limit(Algorithm::SlidingCounter, 5, LONG),
        limit(Algorithm::SlidingSegments, 5, LONG),
        calendar.expect("in range"),
    ] {
        let (fake, model) = (fake_gate(limit.clone()), memory_gate(limit));
        assert_eq!(counts_after_repeats(&fake).await, [2, 2, 1, 0, 0]);
        assert_eq!(counts_after_repeats(&model).await, [2, 2, 1, 0, 0]);
    }
}

/// Returns how many of three starts count, each time that the end of one is reported.
async fn counts_after_repeats(gate: &LimitedGate<impl Gate>) -> Vec<u64> {
    let asked = [asking("t", &gate.limits, &[FRESH; 3])];
    let replies = gate.ask(&asked).await.expect("the gate answers");
    let receipt = receipt(&asked[0], replies[0].as_ref().expect("a decision"), 0);
    let settled = [settling("t", &gate.limits, [(receipt, End::Unused)])];
    let mut counts = Vec::new();
    for wait in [MARK_MS - 1, 1, MARK_MS, MARK_MS, 0] {
        gate.settle(&settled).await.expect("the gate answers");
        let shown = gate.inspect(&tenant("t")).await;
        counts.push(shown.expect("the gate answers").limits[0].count);
        tokio::time::sleep(Duration::from_millis(wait)).await;
    }
    counts
}

#[tokio::test(start_paused = true)]
async fn a_report_on_a_job_is_kept_as_long_as_promised() {
    let fake = fake_gate(limit(Algorithm::FixedWindow, 1, 1_000));
    let sighted = canceled_job();
    fake.gate.sighted(&[sighted]).await.expect("it is stored");
    let is_kept = async || {
        let found = fake.gate.sighting(&tenant("t"), "order-7").await;
        found.expect("the gate answers").is_some()
    };
    tokio::time::sleep(Duration::from_millis(SIGHTING_KEPT_MS - 1)).await;
    assert!(is_kept().await);
    tokio::time::sleep(MS).await;
    assert!(!is_kept().await);
}

/// Jobs wait for a month here, so a call that concerns the next second must not shorten the life of
/// their waitlist.
#[tokio::test(start_paused = true)]
async fn no_call_shortens_the_life_of_a_waitlist() {
    let server = Arc::new(FakeRedis::new(clock()));
    let limits = vec![
        limit(Algorithm::FixedWindow, 1, LONG),
        Limit::concurrent("running", 3).expect("in range"),
    ];
    let limits = Limits::new(limits).expect("two names");
    let gate = LimitedGate::new(gate_on(&server, "p"), limits);
    let left = || {
        let left = server.command(cmd("PTTL").arg("p:t:line"));
        redis::from_redis_value::<u64>(left).expect("a waitlist")
    };
    let asked = [asking("t", &gate.limits, &[FRESH; 3])];
    let replies = gate.ask(&asked).await.expect("the gate answers");
    let lasts = left();
    assert!(lasts > LONG, "{lasts}");
    let scope = BreakerScope::from(tenant("t"));
    gate.block(&scope, SECOND, "test")
        .await
        .expect("it is stored");
    assert_eq!(left(), lasts, "block");
    let quotas = [(tenant("t"), Quotas::read("7/9"))];
    gate.advertised(&quotas).await.expect("it is stored");
    assert_eq!(left(), lasts, "quota");
    let failed = BreakerReport::Failed { of: "", jitter: 0 };
    for report in [failed, failed, BreakerReport::Probe, BreakerReport::Release] {
        let batch = [(scope.clone(), report.event(0))];
        gate.report(&RULE, &batch).await.expect("it is stored");
        assert_eq!(left(), lasts, "{report:?}");
    }
    let (name, duration_ms) = ("default".to_owned(), 1_000);
    for change in [
        Change::Pause { duration_ms },
        Change::Resume,
        Change::Limit {
            name: name.clone(),
            max: 1,
            duration_ms,
        },
        Change::Unlimit { name },
        Change::Reset,
    ] {
        gate.change(&scope, &change).await.expect("it is stored");
        assert_eq!(left(), lasts, "{change:?}");
    }
    let receipt = receipt(&asked[0], replies[0].as_ref().expect("a decision"), 0);
    let settled = [settling("t", &gate.limits, [(receipt, End::Cost(1))])];
    gate.settle(&settled).await.expect("it is stored");
    assert_eq!(left(), lasts, "settle");
    // One plan waits in the same waitlist, the other in one with the same hash.
    let second = limit(Algorithm::SlidingWindow, 1, 1_000);
    let path = named_limit("path", Algorithm::SlidingWindow, 9, SECOND);
    let path = path.with_scope(Scope::Header("path".to_owned()));
    for plan in [vec![second.clone()], vec![second, path]] {
        let limits = Limits::new(plan).expect("two names");
        let others = TenantAsk {
            labels: Labels::of(&limits, |_| "x".to_owned()),
            ..asking("t", &limits, &[FRESH; 3])
        };
        gate.ask(&[others]).await.expect("the gate answers");
        assert_eq!(left(), lasts, "{limits:?}");
    }
}

/// A probe may take longer than other jobs wait for its end.
#[tokio::test(start_paused = true)]
async fn no_call_shortens_the_lease_of_a_probe() {
    let server = Arc::new(FakeRedis::new(clock()));
    let limits = Limits::from(limit(Algorithm::SlidingWindow, 3, 1_000));
    let gate = LimitedGate::new(gate_on(&server, "p"), limits);
    let rule = Rule {
        failures: 1,
        first_wait_ms: 1_000,
        longest_wait_ms: 1_000,
        lease_ms: LONG,
    };
    let failed = BreakerReport::Failed { of: "", jitter: 0 }.event(0);
    let batch = [(tenant("t").into(), failed)];
    gate.report(&rule, &batch).await.expect("it is stored");
    tokio::time::sleep(SECOND).await;
    for starts in [1, 0] {
        assert_eq!(started(&ask(&gate, "t", 1, &[FRESH]).await), starts);
        let left = server.command(cmd("PTTL").arg("p:t:line"));
        let left = redis::from_redis_value::<u64>(left).expect("a waitlist");
        assert_eq!(left, LONG + KEEP_MS, "{starts}");
    }
}

/// A clock that was years ahead, or a mistaken limit, must not fill Redis for good.
#[tokio::test(start_paused = true)]
async fn an_earlier_call_keeps_a_waitlist_for_a_year_at_most() {
    let server = Arc::new(FakeRedis::new(clock()));
    let year = NEEDED_MS + KEEP_MS;
    let left = async |window_ms| {
        let limits = Limits::from(limit(Algorithm::SlidingWindow, 1, window_ms));
        let gate = gate_on(&server, "p");
        let asked = asking("t", &limits, &[FRESH; 20]);
        gate.ask(&[asked]).await.expect("the gate answers");
        let left = server.command(cmd("PTTL").arg("p:t:line"));
        redis::from_redis_value::<u64>(left).expect("a waitlist")
    };
    assert!(left(LONG).await > year);
    assert_eq!(left(1_000).await, year);
}

/// A long throttle keeps the hash of a shared partition, but not the flows that waited in it.
#[tokio::test(start_paused = true)]
async fn flows_that_expired_are_not_counted() {
    let sliding = |name, max| named_limit(name, Algorithm::SlidingWindow, max, SECOND);
    let path = sliding("path", 99).with_scope(Scope::Header("path".to_owned()));
    let limits = Limits::new(vec![path, sliding("all", 3)]).expect("two names");
    let (fake, model) = (fake_gate(limits.clone()), memory_gate(limits));
    let expected = [(27, 3), (0, 0), (1, 1)];
    assert_eq!(waiting_after_a_throttle(&fake).await, expected);
    assert_eq!(waiting_after_a_throttle(&model).await, expected);
}

/// Returns the units that wait and the largest cost among them: before the flow expires, after it,
/// and once another flow waits.
async fn waiting_after_a_throttle(gate: &LimitedGate<impl Gate>) -> Vec<(u64, u64)> {
    let wide = Question { cost: 3, ..FRESH };
    let labels = |value: &str| Labels::of(&gate.limits, |_| value.to_owned());
    let ask = async |value, asks: &[Question]| {
        let asked = TenantAsk {
            labels: labels(value),
            ..asking("t", &gate.limits, asks)
        };
        gate.ask(&[asked]).await.expect("the gate answers");
    };
    let waiting = async || {
        let (id, labels) = (tenant("t"), labels("x"));
        let shown = gate.gate.inspect(&id, &labels, &gate.limits).await;
        let usage = shown.expect("the gate answers").limits[1];
        (usage.waiting, usage.widest)
    };
    ask("x", &[wide; 10]).await;
    let mut all = vec![waiting().await];
    let scope = BreakerScope::from(tenant("t"));
    let closed = gate.block(&scope, 6 * 3_600 * SECOND, "test");
    closed.await.expect("it is stored");
    tokio::time::sleep(2 * 3_600 * SECOND).await;
    all.push(waiting().await);
    tokio::time::sleep(4 * 3_600 * SECOND).await;
    ask("y", &[FRESH; 4]).await;
    all.push(waiting().await);
    all
}

/// Pauses, closings and changed limits last for hours, in which the tenant's jobs may not ask.
#[tokio::test(start_paused = true)]
async fn pauses_and_limits_outlive_waitlists() {
    let (name, duration_ms) = ("default".to_owned(), 5 * 3_600_000);
    let limited = Change::Limit {
        name,
        max: 2,
        duration_ms,
    };
    let rule = Rule {
        failures: 1,
        first_wait_ms: duration_ms,
        longest_wait_ms: duration_ms,
        lease_ms: duration_ms,
    };
    let failed = BreakerReport::Failed { of: "", jitter: 0 }.event(0);
    for (case, from) in (0..5).flat_map(|case| [0, 2, 9].map(|from| (case, from))) {
        let limit = limit(Algorithm::SlidingWindow, 3, 1_000);
        let (fake, model) = (fake_gate(limit.clone()), memory_gate(limit));
        let scope = BreakerScope::from(tenant("t"));
        macro_rules! both {
            ($call:ident($($argument:expr),+)) => {{
                fake.gate.$call($($argument),+).await.expect("the gate answers");
                model.gate.$call($($argument),+).await.expect("the gate answers");
            }};
        }
        match case {
            0 => both!(block(&scope, Duration::from_millis(duration_ms), "test")),
            1 => both!(change(&scope, &Change::Pause { duration_ms })),
            2 => both!(change(&scope, &limited)),
            3 => both!(report(&rule, &[(scope.clone(), failed.clone())])),
            _ => both!(advertised(&[(tenant("t"), Quotas::read("7/9"))])),
        }
        let one = [asking("t", &fake.limits, &[FRESH])];
        let mut before = Vec::new();
        let waits = [duration_ms - 1, 1, duration_ms - 1, 1];
        for (round, wait_ms) in waits.into_iter().enumerate() {
            if round >= from {
                both!(ask(&one));
            }
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
            let shown = [
                fake.inspect(&tenant("t")).await,
                model.inspect(&tenant("t")).await,
            ];
            let [stored, kept] = shown.map(|shown| shown.expect("the gate answers"));
            assert_eq!(stored, kept, "{case}, {from}");
            before.push((kept.blocked_until_ms, kept.limits[0].max));
        }
        assert!(case == 4 || before[0] != before[3], "{case}, {from}");
    }
}
