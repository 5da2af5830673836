//! The worst case of each algorithm: a search that tries to reach [`Limit::worst_case`] and to
//! exceed it. It plays an adversary that knows the windows and the guard, against the model in
//! simulated time.

use std::slice;
use std::time::Duration;

use kit::counts::sliding;
use proptest::prelude::*;
use proptest::test_runner::Config;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rules::decision::{Answer, Question, Ticket};
use rules::gate::model::{Scopes, State};
use rules::gate::usage::Clock;
use rules::limit::{Algorithm, Limit};

/// Start time, in microseconds since the Unix epoch.
const BEGIN: u64 = 1_700_000_000_000_000;

/// One move of the adversary: the clock advances to some moment, and jobs ask from then on.
#[derive(Debug, Clone)]
struct Move {
    to: Moment,
    /// Offset from that moment, in milliseconds.
    offset_ms: i64,
    /// Offset within the millisecond, in microseconds.
    phase: u64,
    /// Number of jobs that ask.
    jobs: u32,
    /// Time during which denied jobs ask again as soon as they may, in milliseconds.
    flood_ms: u64,
    /// Units of each job.
    cost: u64,
}

#[derive(Debug, Clone)]
enum Moment {
    /// This many edges of aligned windows later.
    Edge(u64),
    /// The guard before that edge.
    Closing(u64),
    /// The end of the span that began with the last move.
    SpanOver,
    /// A pause in milliseconds.
    Pause(u64),
}

impl Moment {
    fn after(&self, limit: &Limit, last: u64, now: u64) -> u64 {
        let span = limit.span() * 1000;
        match self {
            Self::Edge(windows) => (now / span + windows) * span,
            Self::Closing(windows) => (now / span + windows) * span - limit.guard_ms() * 1000,
            Self::SpanOver => last + span,
            Self::Pause(ms) => now + ms * 1000,
        }
    }
}

/// The adversary's jobs against one tenant's state.
struct Attack<'a> {
    limit: &'a Limit,
    state: State,
    now: u64,
    /// A denied job, which asks again before any fresh one.
    waiting: Option<(Ticket, u64)>,
    /// Starts: time in microseconds, and units.
    starts: Vec<(u64, u64)>,
}

impl Attack<'_> {
    /// Asks for one job. Returns the wait in milliseconds if it is denied.
    fn ask(&mut self, cost: u64) -> Option<u64> {
        let (ticket, cost) = match self.waiting.take() {
            Some((ticket, cost)) => (Some(ticket), cost),
            None => (None, cost),
        };
        let limits = slice::from_ref(self.limit);
        let asks = [Question {
            ticket,
            cost,
            readmitted: false,
        }];
        let clock = Clock::from_micros(self.now);
        let ask = |scopes: &mut Scopes<'_>| scopes.ask(limits, clock, 1, "", &asks);
        match self.state.alone(limits, ask).0[0] {
            Answer::Start { .. } => {
                let units = cost.clamp(1, self.limit.capacity());
                self.starts.push((self.now, units));
                None
            }
            Answer::Wait { ttl_ms, ticket, .. } => {
                self.waiting = Some((ticket, cost));
                Some(ttl_ms)
            }
            Answer::Capacity => unreachable!("the budget is 1"),
        }
    }

    fn play(&mut self, step: &Move, last: u64) {
        let to = step.to.after(self.limit, last, self.now);
        let to = to.saturating_add_signed(step.offset_ms * 1000) / 1000 * 1000 + step.phase;
        self.now = self.now.max(to);
        let end = self.now + step.flood_ms * 1000;
        let mut jobs = step.jobs;
        while jobs > 0 {
            match self.ask(step.cost) {
                None => jobs -= 1,
                Some(ttl_ms) => {
                    let again = (self.now / 1000 + ttl_ms) * 1000 + step.phase;
                    if again > end {
                        return;
                    }
                    self.now = again;
                }
            }
        }
    }
}

/// Plays a plan. Returns the starts in order.
fn starts(limit: &Limit, plan: &[Move]) -> Vec<(u64, u64)> {
    let mut attack = Attack {
        limit,
        state: State::default(),
        now: BEGIN,
        waiting: None,
        starts: Vec::new(),
    };
    let mut last = BEGIN;
    for step in plan {
        attack.play(step, last);
        last = attack.now;
    }
    attack.starts
}

/// Returns the most units in a half-open window of `micros`: at moments less than that apart.
fn max_units_in(moments: &[(u64, u64)], micros: u64) -> u64 {
    sliding(moments, micros).into_iter().max().unwrap_or(0)
}

/// Returns the most units that can arrive in a window if delays vary by less than the guard. Two
/// arrivals are less than the window apart only if their starts were less than window + guard
/// apart.
fn max_arriving(limit: &Limit, starts: &[(u64, u64)]) -> u64 {
    max_units_in(starts, (limit.window_ms() + limit.guard_ms()) * 1000)
}

fn random_move(random: &mut StdRng, limit: &Limit) -> Move {
    let span = limit.span();
    let to = match random.random_range(0..4) {
        0 => Moment::Edge(random.random_range(1..4)),
        1 => Moment::Closing(random.random_range(1..4)),
        2 => Moment::SpanOver,
        _ => Moment::Pause(random.random_range(0..3 * span)),
    };
    let [max, burst] = [limit.max(), limit.burst()].map(|units| units as u32);
    let any = random.random_range(0..=2 * max);
    Move {
        to,
        offset_ms: random.random_range(-2..=2),
        phase: [0, 1, 500, 999][random.random_range(0..4)],
        jobs: [1, any, 2 * max, 3 * max + burst][random.random_range(0..4)],
        flood_ms: [0, 1, random.random_range(0..2 * span), span][random.random_range(0..4)],
        cost: 1,
    }
}

/// Tries random plans, and the best one so far with some moves changed.
fn search(limit: &Limit, plans: usize) -> (u64, Vec<Move>) {
    let mut random = StdRng::seed_from_u64(7);
    let (mut max, mut best) = (0, Vec::new());
    for _ in 0..plans {
        let mut plan: Vec<Move> = best.clone();
        if plan.is_empty() || random.random_bool(0.3) {
            let moves = random.random_range(1..6);
            plan = (0..moves)
                .map(|_| random_move(&mut random, limit))
                .collect();
        } else {
            for _ in 0..random.random_range(1..3) {
                let at = random.random_range(0..plan.len());
                plan[at] = random_move(&mut random, limit);
            }
        }
        let found = max_arriving(limit, &starts(limit, &plan));
        if found >= max {
            (max, best) = (found, plan);
        }
    }
    (max, best)
}

fn limit(algorithm: Algorithm, max: u64, window_ms: u64, guard_ms: u64) -> Limit {
    let window = Duration::from_millis(window_ms);
    let guard = Duration::from_millis(guard_ms);
    Limit::new("default", algorithm, max, window, guard).expect("in range")
}

/// Checks that the search finds the stated worst case and nothing above it.
fn tight(limit: &Limit) {
    let (found, plan) = search(limit, 600);
    println!(
        "{} {} in {} ms, guard {} ms, burst {}: {found} at worst",
        limit.algorithm().name(),
        limit.max(),
        limit.window_ms(),
        limit.guard_ms(),
        limit.burst()
    );
    assert_eq!(found, limit.worst_case(), "{limit:?} by {plan:?}");
}

/// Checks limits of more than one unit per millisecond, and of less.
fn tight_by(algorithm: Algorithm) {
    for (max, window, guard) in [(100, 1000, 50), (7, 500, 0), (200, 100, 7)] {
        let limit = limit(algorithm, max, window, guard);
        tight(&limit);
        if algorithm.has_burst() {
            tight(&limit.with_burst(20).expect("in range"));
        }
    }
}

#[test]
fn each_algorithm_at_worst() {
    for algorithm in Algorithm::ALL {
        tight_by(algorithm);
    }
}

/// A bucket of 1 keeps what flows in while its job is on the way, so a limit is used up even if all
/// jobs are late.
#[test]
fn lateness_costs_a_bucket_nothing() {
    let limit = limit(Algorithm::LeakyBucket, 100, 1000, 0);
    let (late, seconds) = (limit.lateness_ms(), 60);
    let mut attack = Attack {
        limit: &limit,
        state: State::default(),
        now: BEGIN,
        waiting: None,
        starts: Vec::new(),
    };
    while attack.now < BEGIN + seconds * 1_000_000 {
        if let Some(ttl_ms) = attack.ask(1) {
            attack.now += (ttl_ms + late - 1) * 1000;
        }
    }
    let ideal = seconds * 1000 * limit.max() / limit.span();
    assert!(
        attack.starts.len() as u64 >= ideal,
        "{} of {ideal}",
        attack.starts.len()
    );
}

fn limits() -> impl Strategy<Value = Limit> {
    let numbers = (1..80u64, 100..1500u64, 0..50u64, 1..100u64);
    (prop::sample::select(&Algorithm::ALL), numbers).prop_map(
        |(algorithm, (max, window, guard, burst))| {
            let limit = limit(algorithm, max, window, guard.min(window / 2 - 1));
            match algorithm.has_burst() {
                true => limit.with_burst(burst).expect("in range"),
                false => limit,
            }
        },
    )
}

fn moves() -> impl Strategy<Value = Move> {
    let to = prop_oneof![
        (1..4u64).prop_map(Moment::Edge),
        (1..4u64).prop_map(Moment::Closing),
        Just(Moment::SpanOver),
        (0..4000u64).prop_map(Moment::Pause),
    ];
    let cost = prop_oneof![3 => Just(1u64), 1 => 1..120u64];
    (to, -3..=3i64, 0..1000u64, 0..200u32, 0..3000u64, cost).prop_map(
        |(to, offset_ms, phase, jobs, flood_ms, cost)| Move {
            to,
            offset_ms,
            phase,
            jobs,
            flood_ms,
            cost,
        },
    )
}

proptest! {
    #![proptest_config(Config { cases: 300, ..Config::with_source_file(file!()) })]

    #[test]
    fn no_pattern_exceeds_the_worst_case(
        limit in limits(),
        plan in prop::collection::vec(moves(), 1..8),
        seed in any::<u64>(),
    ) {
        let started = starts(&limit, &plan);
        prop_assert!(max_arriving(&limit, &started) <= limit.worst_case());
        let mut random = StdRng::seed_from_u64(seed);
        let varies = (limit.guard_ms() * 1000).max(1);
        let arrived = |(at, units): &(u64, u64)| (at + 40_000 + random.random_range(0..varies), *units);
        let mut arrivals: Vec<_> = started.iter().map(arrived).collect();
        arrivals.sort_unstable();
        let max = max_units_in(&arrivals, limit.window_ms() * 1000);
        prop_assert!(max <= limit.worst_case(), "{} arrived in one window", max);
    }
}
