//! How soon starts resume after Redis's clock was stepped back: the list in docs/OPERATIONS.md,
//! "Redis's clock was wrong".

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gate::memory::MemoryGate;
use gate::{Answer, BreakerScope, Change, End, Gate, LEASE_MS, Question, TenantAsk, Ticket};
use kit::gate::{FRESH, asking, decided, guarded_limit, receipts, settling, tenant};
use rules::limit::{Algorithm, Limit, Limits};

const BEGIN_MS: u64 = 1_700_000_000_000;
const WINDOW_MS: u64 = 1_000;
const GUARD_MS: u64 = 50;
/// The longest wait before a job asks again.
const MAX_DELAY_MS: u64 = 300_000;

/// Returns for how many milliseconds nothing starts after the clock is stepped back by `step_ms`,
/// with 30 jobs waiting.
async fn still(algorithm: Algorithm, step_ms: u64) -> u64 {
    let clock_us = Arc::new(AtomicU64::new(0));
    let gate = stepped(&clock_us);
    let limits = Limits::from(guarded_limit("all", algorithm, (10, WINDOW_MS, GUARD_MS)));
    let ask = async |at_ms: u64, ticket| {
        clock_us.store(at_ms * 1000, Ordering::Relaxed);
        one(&gate, &limits, "", ticket).await.0
    };
    // When the clock is stepped, three windows' worth has started and 30 jobs wait.
    let stepped_ms = 2_500;
    let mut waiting: VecDeque<_> = (0..60).map(|_| (0, None)).collect();
    let mut went_on = None;
    while went_on.is_none() {
        waiting.make_contiguous().sort_by_key(|(at, _)| *at);
        let (at, ticket) = waiting.pop_front().expect("jobs wait");
        let back = if at < stepped_ms { 0 } else { step_ms };
        match ask(BEGIN_MS + at - back, ticket).await {
            Answer::Start { .. } if at >= stepped_ms => went_on = Some(at - stepped_ms),
            Answer::Start { .. } => {}
            Answer::Wait { ttl_ms, ticket, .. } => {
                waiting.push_back((at + ttl_ms.min(MAX_DELAY_MS), Some(ticket)));
            }
            Answer::Capacity => panic!("one asks at a time"),
        }
    }
    went_on.expect("the loop ends with it")
}

/// A gate whose clock the test controls.
type Stepped = MemoryGate<Box<dyn Fn() -> u64 + Send + Sync>>;

fn stepped(clock_us: &Arc<AtomicU64>) -> Stepped {
    let clock = Arc::clone(clock_us);
    MemoryGate::new(Box::new(move || clock.load(Ordering::Relaxed)))
}

/// Returns for how many milliseconds a job waits after the clock is stepped back by `step_ms`.
/// `before` runs first. The job asks after each wait that it is told, and at the latest after
/// `MAX_DELAY_MS`.
async fn waits(limit: Limit, step_ms: u64, before: impl AsyncFn(&Stepped, &Limits)) -> u64 {
    let clock_us = Arc::new(AtomicU64::new(BEGIN_MS * 1000));
    let gate = stepped(&clock_us);
    let limits = Limits::from(limit);
    before(&gate, &limits).await;
    let (mut waited, mut ticket) = (0, None);
    loop {
        clock_us.store((BEGIN_MS - step_ms + waited) * 1000, Ordering::Relaxed);
        match one(&gate, &limits, "later", ticket).await {
            (Answer::Start { .. }, _) => return waited,
            (
                Answer::Wait {
                    ttl_ms,
                    ticket: new,
                    ..
                },
                now_ms,
            ) => {
                ticket = Some(new);
                assert_eq!(now_ms, BEGIN_MS - step_ms + waited);
                waited += ttl_ms.min(MAX_DELAY_MS);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Asks for one job. Returns the answer and the gate's time.
async fn one(
    gate: &Stepped,
    limits: &Limits,
    permits: &str,
    ticket: Option<Ticket>,
) -> (Answer, u64) {
    let ask = TenantAsk {
        permits: permits.to_owned(),
        ..asking("acme", limits, &[Question { ticket, ..FRESH }])
    };
    let replies = gate.ask(&[ask]).await.expect("it answers");
    let now_ms = replies[0].as_ref().expect("a decision").now_ms;
    (decided(&replies, 0)[0].clone(), now_ms)
}

const HOUR_MS: u64 = 3_600_000;

#[tokio::test]
async fn a_closed_tenant_opens_at_the_expected_time() {
    let limit = guarded_limit("all", Algorithm::SlidingWindow, (10, WINDOW_MS, 0));
    for closed_ms in [500, 60_000] {
        let closed = Duration::from_millis(closed_ms);
        let blocked = waits(limit.clone(), HOUR_MS, async |gate, _| {
            gate.block(&BreakerScope::Tenant(tenant("acme")), closed, "429")
                .await
                .expect("it answers");
        });
        let pause = Change::Pause {
            duration_ms: closed_ms,
        };
        let paused = waits(limit.clone(), HOUR_MS, async |gate, _| {
            gate.change(&BreakerScope::Tenant(tenant("acme")), &pause)
                .await
                .expect("it answers");
        });
        assert_eq!((blocked.await, paused.await), (closed_ms, closed_ms));
    }
}

#[tokio::test]
async fn units_are_free_a_lease_and_a_window_after_a_step_back() {
    let limit = guarded_limit("all", Algorithm::Strict, (1, WINDOW_MS, 0));
    // One call ends, and one is never reported again.
    for ends in [true, false] {
        let waited = waits(limit.clone(), HOUR_MS, async |gate, limits| {
            let (answer, now_ms) = one(gate, limits, "first", None).await;
            assert!(matches!(answer, Answer::Start { .. }), "{answer:?}");
            let answers = [answer];
            let started = receipts("first", &[FRESH], &answers, now_ms);
            let settled = settling(
                "acme",
                limits,
                started.map(|receipt| (receipt, End::Cost(1))),
            );
            if ends {
                gate.settle(&[settled]).await.expect("it answers");
            }
        });
        let waited = waited.await;
        assert!(waited <= LEASE_MS + 3 * WINDOW_MS, "{waited} ms");
    }
}

#[tokio::test]
async fn starts_continue_soon_after_a_step_back() {
    for step_ms in [300, 1_000, 30_000, 3_600_000] {
        let all = Algorithm::EVERY.into_iter();
        for algorithm in all.filter(|algorithm| !algorithm.holds_leases()) {
            let facts = algorithm.facts();
            let most_ms = match algorithm {
                // The time until a job asks and the next whole window begins, plus the guard.
                _ if facts.is_aligned => 3 * WINDOW_MS + WINDOW_MS,
                _ if facts.saves_up => WINDOW_MS / 2,
                // The time until a job asks, and the same time again after that.
                Algorithm::SlidingWindow => 2 * (WINDOW_MS + GUARD_MS),
                _ => 2 * (WINDOW_MS + GUARD_MS) + WINDOW_MS / 20,
            };
            let took = still(algorithm, step_ms).await;
            println!(
                "back by {step_ms} ms: {} goes on after {took} ms",
                algorithm.name()
            );
            assert!(took <= most_ms, "{algorithm:?}: {took} ms after {step_ms}");
        }
    }
}
