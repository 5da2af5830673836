//! Jobs that come, wait in lanes and come back, in simulated time: the gate's model is real, RabbitMQ is played.
//!
//! A lane rounds down by up to 8 %, every way takes up to 10 ms, a wait longer than `max_delay` is cut and spread,
//! and a job comes back `LEAD` before its turn and is held for the rest.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::slice;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sluicegate::rules::decision::{Answer, Ask, Ticket};
use sluicegate::rules::limit::{Algorithm, Limit};
use sluicegate::rules::log::Clock;
use sluicegate::rules::model::State;

/// A job is sent round so that it is back this much before its turn.
const LEAD: u64 = 100_000;
/// Waits up to this are spent in the worker.
const HOLD: u64 = 500_000;
/// When the simulation begins, in microseconds since the epoch; a whole second and a bit.
const BEGIN: u64 = 1_700_000_000_000_123;

/// What happens. All times are microseconds after the begin.
pub struct Scenario {
    pub limit: Limit,
    /// When each job is published, in order.
    pub arrivals: Vec<u64>,
    /// Its units.
    pub cost: fn(usize) -> u32,
    /// The longest trip.
    pub max_delay: u64,
    /// Nobody asks in between.
    pub outage: Option<(u64, u64)>,
    /// From then on another limit.
    pub change: Option<(u64, Limit)>,
    /// The part of all trips that take 0.5 to 1.2 s longer.
    pub late: f64,
    /// The part of the waiting jobs that never come back.
    pub lost: f64,
    /// The part of the waiting jobs that come back twice.
    pub duplicated: f64,
}

impl Scenario {
    pub fn new(limit: Limit, arrivals: Vec<u64>) -> Self {
        Self {
            limit,
            arrivals,
            cost: |_| 1,
            max_delay: 300_000_000,
            outage: None,
            change: None,
            late: 0.0,
            lost: 0.0,
            duplicated: 0.0,
        }
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// Jobs that started.
    pub started: usize,
    /// When the last one did, in seconds.
    pub end: f64,
    /// Deliveries for each job that started, waits in the worker not counted.
    pub deliveries: f64,
    /// The most of any job.
    pub worst: u32,
    /// Starts that the limit does not allow.
    pub violations: usize,
    /// The furthest that a job started from the moment at which its turn in the order of arrival was, in seconds.
    pub out_of_order: f64,
    /// The most jobs held in the worker at once.
    pub held: u32,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: u64,
    sequence: u64,
    job: usize,
    ticket: Option<(u64, u64)>,
    held: bool,
}

/// Plays `scenario` to its end.
pub fn run(scenario: Scenario) -> Outcome {
    let mut random = StdRng::seed_from_u64(1);
    let mut limit = scenario.limit.clone();
    let mut change = scenario.change;
    let mut state = State::default();
    let mut sequence = scenario.arrivals.len() as u64;
    let mut events: BinaryHeap<Reverse<Event>> = scenario
        .arrivals
        .iter()
        .enumerate()
        .map(|(job, at)| {
            Reverse(Event {
                at: *at,
                sequence: job as u64,
                job,
                ticket: None,
                held: false,
            })
        })
        .collect();
    let mut deliveries = vec![0u32; scenario.arrivals.len()];
    let mut starts: Vec<Option<u64>> = vec![None; scenario.arrivals.len()];
    let mut done: Vec<(u64, u32, Limit)> = Vec::new();
    let (mut holding, mut held) = (0u32, 0u32);

    while let Some(Reverse(event)) = events.pop() {
        let mut again = |at: u64, job, ticket, held| {
            sequence += 1;
            events.push(Reverse(Event {
                at,
                sequence,
                job,
                ticket,
                held,
            }));
        };
        let now = event.at;
        if let Some((from, to)) = scenario.outage
            && (from..to).contains(&now)
        {
            holding -= u32::from(event.held);
            again(
                to + random.random_range(0..200_000),
                event.job,
                event.ticket,
                false,
            );
            continue;
        }
        if let Some((_, changed)) = change.take_if(|(at, _)| now >= *at) {
            limit = changed;
        }
        let job = event.job;
        if event.held {
            holding -= 1;
        } else {
            deliveries[job] += 1;
        }

        let ask = Ask {
            ticket: event
                .ticket
                .map(|(generation, place)| Ticket { generation, place }),
            cost: (scenario.cost)(job),
        };
        let (answers, _) = state.ask(
            slice::from_ref(&limit),
            Clock::from_micros(BEGIN + now),
            1,
            "",
            &[ask],
        );
        let (ttl, ticket) = match answers[0] {
            Answer::Start { .. } => {
                done.push((BEGIN + now, ask.cost, limit.clone()));
                starts[job].get_or_insert(now);
                continue;
            }
            Answer::Wait { ttl_ms, ticket, .. } => (ttl_ms * 1000, ticket),
            Answer::Capacity { .. } => unreachable!("the budget is 1"),
        };
        let ticket = Some((ticket.generation, ticket.place));
        if ttl <= HOLD {
            holding += 1;
            held = held.max(holding);
            again(now + ttl + random.random_range(0..1000), job, ticket, true);
            continue;
        }
        if deliveries[job] == 1 && random.random_bool(scenario.lost) {
            continue;
        }
        let mut trip = if ttl <= scenario.max_delay {
            let aim = ttl - LEAD;
            aim - random.random_range(0..=aim * 8 / 100)
        } else {
            random.random_range(scenario.max_delay / 2..scenario.max_delay)
        };
        trip += random.random_range(0..10_000);
        if random.random_bool(scenario.late) {
            trip += random.random_range(500_000..1_200_000);
        }
        again(now + trip, job, ticket, false);
        if deliveries[job] == 1 && random.random_bool(scenario.duplicated) {
            again(now + trip + 10_000, job, ticket, false);
        }
    }

    let mut sorted: Vec<u64> = starts.iter().flatten().copied().collect();
    sorted.sort_unstable();
    let out_of_order = starts
        .iter()
        .flatten()
        .zip(&sorted)
        .map(|(start, turn)| start.abs_diff(*turn))
        .max()
        .unwrap_or(0);
    Outcome {
        started: sorted.len(),
        end: done
            .last()
            .map_or(0.0, |(at, ..)| (at - BEGIN) as f64 / 1e6),
        deliveries: f64::from(deliveries.iter().sum::<u32>()) / sorted.len().max(1) as f64,
        worst: deliveries.iter().copied().max().unwrap_or(0),
        violations: violations(&done),
        out_of_order: out_of_order as f64 / 1e6,
        held,
    }
}

/// Starts that exceed the limit that was in force when they started, with zero tolerance.
pub fn violations(done: &[(u64, u32, Limit)]) -> usize {
    done.iter()
        .enumerate()
        .filter(|(index, (at, _, limit))| {
            let held: u64 = done[..=*index]
                .iter()
                .rev()
                .take_while(|(earlier, ..)| match limit.algorithm() {
                    Algorithm::FixedWindow => {
                        earlier / (limit.window_ms() * 1000) == at / (limit.window_ms() * 1000)
                    }
                    _ => earlier + (limit.window_ms() + limit.guard_ms()) * 1000 > *at,
                })
                .map(|(_, cost, _)| u64::from(*cost))
                .sum();
            let in_closing_guard = limit.algorithm() == Algorithm::FixedWindow
                && at % (limit.window_ms() * 1000) >= (limit.window_ms() - limit.guard_ms()) * 1000;
            let most = match limit.algorithm() {
                Algorithm::FixedWindow => u64::from(limit.max()),
                _ => limit.worst_case(),
            };
            held > most || in_closing_guard
        })
        .count()
}

/// `max` in each window of `seconds`, without a guard.
pub fn limit(algorithm: Algorithm, max: u64, seconds: u64) -> Limit {
    Limit::new(
        "default",
        algorithm,
        max,
        Duration::from_secs(seconds),
        Duration::ZERO,
    )
    .expect("the numbers are in range")
}
