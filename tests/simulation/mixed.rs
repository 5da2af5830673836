//! Jobs of one tenant under different limits, because some name a plan. Simulations with seeds from
//! [`MIXED`] have them; histories of lower seeds are unchanged.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rules::limit::{Algorithm, Limit, Limits};
use rules::policy::Policy;

use super::crashes::CRASHES;
use super::history::Call;
use super::limits::MAX_GUARD_MS;
use super::plan::{Plan, Planned, ms, pick};

/// First seed with the plan of this module.
pub const MIXED: u64 = 7_000_000;
/// Header with a job's plan.
pub const HEADER: &str = "x-plan";
/// The only plan.
pub const PLAN: &str = "other";

/// Returns the limits of jobs that name the plan, and lets some of `jobs` name it; from a random
/// stream of its own. Returns `None` if no job does. No guard is shorter than those of `limits`,
/// which the network delays are made for.
pub fn mix(seed: u64, ideal: bool, limits: &Limits, jobs: &mut [Planned]) -> Option<Limits> {
    if !(MIXED..CRASHES).contains(&seed) || ideal {
        return None;
    }
    let mut random = SmallRng::seed_from_u64(seed.rotate_left(40) ^ 0x0D1F);
    let guard = ms(limits.guard_ms().max(50));
    let mut all = vec![limit(&mut random, "default", guard)];
    if random.random_bool(0.4) {
        all.push(limit(&mut random, "second", guard));
    }
    let others = Limits::new(all).expect("they have names of their own");
    let share = pick(&mut random, &[0.1, 0.5, 0.9]);
    let max = limits.max_cost().min(others.max_cost());
    for job in jobs {
        job.names_plan = random.random_bool(share);
        job.cost = job.cost.min(max);
    }
    Some(others)
}

/// Draws a limit, mostly a sliding window, because all of a tenant's sliding windows share a log.
fn limit(random: &mut SmallRng, name: &str, guard: Duration) -> Limit {
    use Algorithm::{FixedWindow, SlidingCounter, SlidingWindow, Strict, TokenBucket};
    let some = [
        SlidingWindow,
        SlidingWindow,
        SlidingWindow,
        FixedWindow,
        SlidingCounter,
        TokenBucket,
        Strict,
    ];
    let algorithm = pick(random, &some);
    let window = ms(pick(random, &[500, 3000, 30_000]));
    let guard = match algorithm {
        Strict => Duration::ZERO,
        _ => guard,
    };
    let max = random.random_range(1..=12);
    Limit::new(name, algorithm, max, window, guard).expect("in range")
}

/// Returns the workers' policy.
pub fn policy(limits: &Limits, others: Option<&Limits>) -> Policy {
    let common = Policy::common(limits.clone());
    match others {
        Some(others) => (common.with_plan_header(HEADER.to_owned()))
            .with_plans(BTreeMap::from([(PLAN.to_owned(), others.clone())])),
        None => common,
    }
}

/// Maximum time by which calls may arrive in another order than they were decided in: half a guard,
/// which is how long a permit is valid, plus the variation of the network delay.
pub fn slack_us(plan: &Plan) -> u64 {
    (MAX_GUARD_MS / 2 + plan.jitter_ms) * 1000
}

/// Returns the most units of any job that arrived in the window before a call that names the plan,
/// or before one that does not. Units count from when such calls arrive less than a window apart,
/// because the gate forgets what no limit counts. Calls of the other kind that arrived less than
/// `slack` earlier do not count, since they may have been decided later.
pub fn max_units_before(arrivals: &[Call], names_plan: bool, window: u64, slack: u64) -> u64 {
    let (mut since, mut last, mut max) = (0, 0, 0_u64);
    for (at, call) in arrivals.iter().enumerate() {
        if call.names_plan != names_plan {
            continue;
        }
        if last + window <= call.at_us {
            since = call.at_us;
        }
        last = call.at_us;
        let counts =
            |earlier: &&Call| earlier.at_us >= since && earlier.at_us + window > call.at_us;
        let counted = arrivals[..=at].iter().rev().take_while(counts);
        let counted = counted.filter(|earlier| {
            earlier.names_plan == names_plan || earlier.at_us + slack <= call.at_us
        });
        max = max.max(counted.map(|call| call.cost).sum::<u64>());
    }
    max
}

#[test]
fn every_arrival_counts_against_every_policy() {
    let call = |(at, names_plan): (u64, bool)| Call {
        at_us: 1_000 + at,
        cost: 1,
        names_plan,
    };
    let arrivals = [(0, false), (1, false), (2, true), (9, false), (11, true)].map(call);
    let max = |names_plan, window, slack| max_units_before(&arrivals, names_plan, window, slack);
    assert_eq!(max(true, 10, 0), 3);
    assert_eq!(max(true, 10, 3), 2);
    assert_eq!(max(false, 10, 0), 4);
    assert_eq!(max(true, 9, 0), 1, "the first one is forgotten");
}
