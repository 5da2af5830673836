//! An operator's limit below the cost of jobs that wait: on the model, on a real Redis, and on a store in memory, by a clock that is set.

use std::time::Duration;

use sluicegate::gate::{Answer, Ask, Change, Gate, TenantAsk, Ticket};
use sluicegate::rules::limit::{Algorithm, Limit, Limits};
use sluicegate::rules::scope::Labels;

use crate::gate_conformance::{decided, tenant, three};

/// Redis lets keys expire by its own clock, so this is in its future.
const START: u64 = 4_000_000_000_000;

fn sliding(name: &str, max: u64, seconds: u64) -> Limit {
    let window = Duration::from_secs(seconds);
    Limit::new(name, Algorithm::SlidingWindow, max, window, Duration::ZERO).expect("in range")
}

/// A job of cost 2: its ticket, and when it asks.
#[derive(Clone, Copy)]
struct Job {
    ticket: Option<Ticket>,
    asks: u64,
}

/// Jobs wait, or come when the limit `name` is 1, and ask when they were told to: when each starts, in ms since [`START`], in their
/// order; and how many waitlists there were.
async fn starts<G: Gate>(
    gate: &G,
    (limits, name): (&Limits, &str),
    jobs: usize,
    is_before: bool,
    set_clock: impl Fn(u64),
) -> (Vec<u64>, usize) {
    let mut waiting = vec![
        Job {
            ticket: None,
            asks: START
        };
        jobs
    ];
    let (mut started, mut generations) = (vec![0; jobs], Vec::new());
    let mut pending: Vec<usize> = (0..jobs).collect();
    let mut lowered_at = match is_before {
        true => Some(START),
        false => Some(START + 1000),
    };
    for _ in 0..jobs * 50 {
        let next = |index: &usize| (waiting[*index].asks, *index);
        let Some(index) = pending.iter().copied().min_by_key(next) else {
            break;
        };
        let mut now = waiting[index].asks;
        let mut first = index;
        if let Some(at) = lowered_at.filter(|at| *at <= now) {
            lowered_at = None;
            set_clock(at * 1000);
            let change = Change::Limit {
                name: name.to_owned(),
                max: 1,
                duration_ms: 86_400_000,
            };
            let whose = tenant("eta").into();
            gate.change(&whose, &change).await.expect("it answers");
            // They are woken.
            pending.iter().for_each(|index| waiting[*index].asks = at);
            (first, now) = (pending[0], at);
        }
        set_clock(now * 1000);
        let asks = Ask {
            ticket: waiting[first].ticket,
            cost: 2,
        };
        let question = TenantAsk {
            tenant: tenant("eta"),
            labels: Labels::default(),
            limits: limits.clone(),
            budget: 1,
            permits: format!("permit {now} {first}"),
            asks: vec![asks],
        };
        let replies = gate.ask(&[question]).await.expect("it answers");
        match &decided(&replies, 0)[0] {
            Answer::Start { .. } => {
                started[first] = now - START;
                pending.retain(|index| *index != first);
            }
            Answer::Wait { ttl_ms, ticket, .. } => {
                waiting[first].ticket = Some(*ticket);
                waiting[first].asks = now + ttl_ms;
                if !generations.contains(&ticket.generation) {
                    generations.push(ticket.generation);
                }
            }
            Answer::Capacity => unreachable!("one asks at a time"),
        }
    }
    assert!(pending.is_empty(), "{started:?}");
    (started, generations.len())
}

async fn check(limits: Limits, name: &str, is_before: bool, expected: &[u64]) {
    let three = three("lowered");
    let set = |micros| three.set_clock(micros);
    let (jobs, what) = (expected.len(), (&limits, name));
    let expected = (expected.to_vec(), 1);
    let on_redis = starts(&three.redis, what, jobs, is_before, set).await;
    assert_eq!(on_redis, expected, "Redis");
    let in_memory = starts(&three.model, what, jobs, is_before, set).await;
    assert_eq!(in_memory, expected, "the model");
    let stored = starts(&three.stored, what, jobs, is_before, set).await;
    assert_eq!(stored, expected, "the store in memory");
}

#[tokio::test]
async fn jobs_that_waited_before_start_alone_and_in_their_order() {
    let limits = Limits::from(sliding("default", 4, 10));
    let expected = [0, 0, 10_000, 20_000, 30_000, 40_000, 50_000, 60_000];
    check(limits, "default", false, &expected).await;
}

#[tokio::test]
async fn jobs_that_come_later_have_room_in_all_limits() {
    let limits = vec![sliding("second", 4, 1), sliding("minute", 5, 60)];
    let limits = Limits::new(limits).expect("their names differ");
    let expected = [0, 1000, 60_000, 61_000, 120_000, 121_000, 180_000, 181_000];
    check(limits, "second", true, &expected).await;
}
