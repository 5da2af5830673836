//! The limits of a simulation: every algorithm, alone and together.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use rules::limit::{Algorithm, Limit, Limits, Unit};

use super::plan::{ms, pick};

/// Name prefix of limits that never deny and only count.
pub const WITNESS: &str = "witness-";
/// Longer than any simulation.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Maximum guard.
pub const MAX_GUARD_MS: u64 = 100;
/// More units than any simulation uses.
const MANY: u64 = 1_000_000;

/// Draws limits. The load is made for the first one. With `witness`, further limits count every
/// charge.
pub fn pick_limits(random: &mut SmallRng, ideal: bool, witness: bool) -> Limits {
    let mut limits = vec![limit(random, "default", ideal)];
    if !ideal && random.random_bool(0.4) {
        limits.push(limit(random, "second", false));
        if random.random_bool(0.4) {
            limits.push(limit(random, "third", false));
        }
    }
    if witness {
        let algorithms = [
            Algorithm::SlidingWindow,
            Algorithm::FixedWindow,
            Algorithm::SlidingCounter,
            Algorithm::Strict,
        ];
        for algorithm in algorithms {
            if random.random_bool(0.5) {
                let name = format!("{WITNESS}{}", limits.len());
                let limit = Limit::new(&name, algorithm, MANY, 31 * DAY, Duration::ZERO);
                limits.push(limit.expect("in range").with_unit(unit(random)));
            }
        }
        if random.random_bool(0.5) {
            let name = format!("{WITNESS}places");
            limits.push(Limit::concurrent(&name, MANY).expect("in range"));
        }
    }
    Limits::new(limits).expect("they have names of their own")
}

/// Draws one more limit of the same kind.
pub fn another(random: &mut SmallRng, name: &str) -> Limit {
    limit(random, name, false)
}

fn unit(random: &mut SmallRng) -> Unit {
    pick(random, &[Unit::Cost, Unit::Cost, Unit::Calls])
}

fn limit(random: &mut SmallRng, name: &str, ideal: bool) -> Limit {
    let max = random.random_range(1..=12);
    let usual = [
        Algorithm::SlidingWindow,
        Algorithm::SlidingWindow,
        Algorithm::FixedWindow,
        Algorithm::SlidingCounter,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::Strict,
        Algorithm::Concurrency,
    ];
    let others = Algorithm::ALL.into_iter().filter(|it| !usual.contains(it));
    let others: Vec<Algorithm> = others.collect();
    let algorithm = pick(random, &usual);
    // This draws no random number, so that histories of old seeds do not change otherwise.
    let algorithm = match algorithm {
        Algorithm::SlidingWindow if max % 3 == 0 => others[(max / 3) as usize % others.len()],
        Algorithm::FixedWindow if max % 3 == 0 => Algorithm::CalendarWindow,
        other => other,
    };
    let window = ms(pick(random, &[500, 1000, 3000, 10_000, 60_000]));
    let guard = ms(pick(random, &[10, 50, 50, MAX_GUARD_MS]));
    let unit = if ideal { Unit::Cost } else { unit(random) };
    if algorithm == Algorithm::Concurrency {
        return Limit::concurrent(name, max).expect("in range");
    }
    let guard = match algorithm {
        Algorithm::Strict => Duration::ZERO,
        _ => guard,
    };
    let limit = Limit::new(name, algorithm, max, window, guard).expect("in range");
    let limit = match algorithm.has_burst() && random.random_bool(0.6) {
        true => limit
            .with_burst(random.random_range(1..=12))
            .expect("in range"),
        false => limit,
    };
    limit.with_unit(unit)
}
