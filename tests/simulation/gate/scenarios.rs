//! Promises of the waitlist under load and failures, each with its bounds.

use std::time::Duration;

use kit::gate::{guarded_limit, named_limit};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rules::decision::Change;
use rules::limit::{Algorithm, Limit, Limits, Unit};

use crate::gate::simulator::{Outcome, Scenario, limit, run};

const S: u64 = 1_000_000;

fn sliding(max: u64, seconds: u64) -> Limit {
    limit(Algorithm::SlidingWindow, max, seconds)
}

/// Returns arrivals of `n` jobs at once, 0.2 ms apart.
fn backlog(n: u64) -> Vec<u64> {
    (0..n).map(|job| job * 200).collect()
}

/// Returns arrivals at random times, on average `rate` per second.
fn poisson(n: usize, rate: f64) -> Vec<u64> {
    let mut random = StdRng::seed_from_u64(3);
    let mut at = 0.0;
    std::iter::repeat_with(|| {
        at -= (1.0 - random.random::<f64>()).ln() / rate;
        (at * 1e6) as u64
    })
    .take(n)
    .collect()
}

/// Runs one scenario and checks its bounds: started jobs, end in seconds, deliveries per job, order
/// in seconds.
fn check(
    name: &str,
    scenario: Scenario,
    started: usize,
    end: f64,
    deliveries: f64,
    order: f64,
) -> Outcome {
    let outcome = run(scenario);
    println!("{name}: {outcome:?}");
    assert_eq!(outcome.violations, 0, "{name}");
    assert!(outcome.started >= started, "{name}: {outcome:?}");
    assert!(outcome.end <= end, "{name}: {outcome:?}");
    assert!(outcome.deliveries <= deliveries, "{name}: {outcome:?}");
    assert!(outcome.out_of_order <= order, "{name}: {outcome:?}");
    outcome
}

#[test]
fn a_large_backlog_ends_in_time_and_in_order() {
    check(
        "20,000 at 50/s",
        Scenario::new(sliding(50, 1), backlog(20_000)),
        20_000,
        402.0,
        3.6,
        0.05,
    );
}

#[test]
fn the_guard_costs_its_part_and_no_more() {
    for (name, algorithm, end, order) in [
        ("guard 50 ms", Algorithm::SlidingWindow, 104.6, 0.05),
        ("fixed, 2,000 at 20/s", Algorithm::FixedWindow, 99.6, 1.0),
    ] {
        let limit = guarded_limit("default", algorithm, (20, 1_000, 50));
        let scenario = Scenario::new(limit, backlog(2000));
        check(name, scenario, 2000, end, 3.1, order);
    }
}

#[test]
fn fresh_jobs_after_an_outage_do_not_overtake_the_waitlist() {
    // The 300 jobs that arrive during the outage ask in any order after it: 15 s of the limit.
    let mut arrivals = backlog(3000);
    arrivals.extend((1..600).map(|job| job * S / 5));
    arrivals.sort_unstable();
    let scenario = Scenario {
        outage: Some((30 * S, 90 * S)),
        ..Scenario::new(sliding(20, 1), arrivals)
    };
    check("outage, with fresh jobs", scenario, 3599, 242.0, 4.0, 16.0);
}

#[test]
fn vanished_jobs_delay_no_other() {
    // Slow limits have few tickets within `ahead`, so the job that notices a gap is far from its
    // turn.
    let scenario = Scenario {
        lost: 0.3,
        ..Scenario::new(sliding(5, 60), backlog(200))
    };
    check("30 % vanish, 5/60s", scenario, 130, 2341.0, 9.0, 2400.0);
    let scenario = Scenario {
        lost: 0.3,
        ..Scenario::new(sliding(1, 60), backlog(100))
    };
    check("30 % vanish, 1/60s", scenario, 65, 5941.0, 20.0, 6000.0);
}

#[test]
fn loads_around_the_limit_stay_stable() {
    for (load, end, deliveries) in [(0.95, 322.0, 1.5), (1.0, 306.0, 2.5), (1.2, 303.0, 3.1)] {
        let scenario = Scenario::new(sliding(20, 1), poisson(6000, 20.0 * load));
        check(
            &format!("load {load}"),
            scenario,
            6000,
            end,
            deliveries,
            2.0,
        );
    }
}

#[test]
fn large_jobs_are_not_starved_by_small_ones() {
    let scenario = Scenario {
        cost: |job| if job % 10 == 0 { 10 } else { 1 },
        ..Scenario::new(sliding(20, 1), backlog(1000))
    };
    check("costs 1 and 10", scenario, 1000, 120.0, 6.0, 5.0);
}

/// Returns a limit of 20 per second for each algorithm.
fn each() -> [Limit; Algorithm::ALL.len()] {
    Algorithm::ALL.map(|algorithm| limit(algorithm, 20, 1))
}

/// P4: checks that a job has one delivery for each trip of a wait longer than `max_delay`, and at
/// most two more, however long the backlog is. Including waits in the worker's memory, it asks at
/// most `max` + 2.5 times beside those trips.
fn check_deliveries(name: &str, outcome: &Outcome, max: f64) {
    let beside = outcome.deliveries - outcome.rechecks;
    assert!(beside <= 2.1, "{name}: {outcome:?}");
    let questions = outcome.questions - outcome.rechecks;
    assert!(questions <= max + 2.5, "{name}: {outcome:?}");
}

#[test]
fn each_algorithm_ends_a_backlog_in_time_and_in_order() {
    for limit in each() {
        for jobs in [500, 2000, 8000] {
            let name = format!("{} {jobs}", limit.algorithm().name());
            let scenario = Scenario::new(limit.clone(), backlog(jobs));
            let is_exact = limit.algorithm() == Algorithm::SlidingWindow && jobs == 2000;
            let (end, deliveries, order) = match is_exact {
                true => (99.6, 3.1, 0.05),
                false => (jobs as f64 / 20.0 * 1.012 + 1.0, 3.5, 1.1),
            };
            let outcome = check(&name, scenario, jobs as usize, end, deliveries, order);
            assert!(
                !is_exact || outcome.worst <= 5 && outcome.held <= 20,
                "{outcome:?}"
            );
            assert!(outcome.ideal / outcome.end >= 0.97, "{name}: {outcome:?}");
            check_deliveries(&name, &outcome, 3.2);
        }
    }
}

#[test]
fn each_algorithm_uses_long_windows_up() {
    for algorithm in Algorithm::ALL {
        let name = format!("{} 5/60s", algorithm.name());
        let scenario = Scenario::new(limit(algorithm, 5, 60), backlog(200));
        let (end, deliveries) = match algorithm {
            Algorithm::SlidingWindow => (2341.0, 8.0),
            _ => (2400.0, 9.0),
        };
        let outcome = check(&name, scenario, 200, end, deliveries, 0.05);
        assert!(outcome.ideal / outcome.end >= 0.99, "{name}: {outcome:?}");
        check_deliveries(&name, &outcome, 3.3);
    }
}

#[test]
fn each_algorithm_tolerates_faults() {
    for limit in each() {
        let name = limit.algorithm().name();
        let is_sliding = limit.algorithm() == Algorithm::SlidingWindow;
        let bounds = |sliding, any| if is_sliding { sliding } else { any };
        let backlog_of = |jobs| Scenario::new(limit.clone(), backlog(jobs));
        let outage = Scenario {
            outage: Some((30 * S, 90 * S)),
            ..backlog_of(6000)
        };
        let (end, order) = bounds((361.0, 2.0), (364.0, 4.0));
        check(&format!("{name} outage"), outage, 6000, end, 4.0, order);
        let late = Scenario {
            late: 0.1,
            ..backlog_of(10_000)
        };
        // A burst of 1 has no room for jobs that are this late.
        let end = if limit.burst() == 1 { 550.0 } else { 515.0 };
        let (deliveries, order) = bounds((4.0, 3.0), (4.5, 4.0));
        check(
            &format!("{name} late"),
            late,
            10_000,
            end,
            deliveries,
            order,
        );
        let lost = Scenario {
            lost: 0.3,
            ..backlog_of(2000)
        };
        let (end, deliveries, order) = match is_sliding {
            true => (100.0, 3.1, 4.0),
            false => (104.0, 3.5, 7.0),
        };
        check(&format!("{name} lost"), lost, 1300, end, deliveries, order);
        let twice = Scenario {
            duplicated: 0.05,
            ..backlog_of(2000)
        };
        let (end, order) = bounds((106.0, 3.0), (107.0, 4.0));
        check(&format!("{name} twice"), twice, 2000, end, 3.8, order);
        let full = Scenario::new(limit.clone(), poisson(6000, 24.0));
        check(&format!("{name} load 1.2"), full, 6000, 305.0, 3.1, 2.0);
    }
}

#[test]
fn each_algorithm_takes_changed_limits() {
    for limit in each() {
        let with = |max| -> Limits { limit.clone().with_max(max).into() };
        let raised = Scenario {
            changes: vec![(10 * S, with(200))],
            ..Scenario::new(limit.clone(), backlog(6000))
        };
        let (end, deliveries, order) = match limit.algorithm() {
            Algorithm::SlidingWindow => (300.0, 2.5, 25.0),
            _ => (301.0, 2.8, 33.0),
        };
        let name = |what: &str| format!("{} {what}", limit.algorithm().name());
        check(&name("raised"), raised, 6000, end, deliveries, order);
        let lowered = Scenario {
            changes: vec![(10 * S, with(20))],
            ..Scenario::new(with(100), backlog(6000))
        };
        let (end, order) = match limit.algorithm() {
            Algorithm::SlidingWindow => (262.0, 1.0),
            _ => (264.0, 2.0),
        };
        check(&name("lowered"), lowered, 6000, end, 4.0, order);
        let both = Scenario {
            changes: vec![(10 * S, with(50)), (20 * S, with(5)), (30 * S, with(20))],
            ..Scenario::new(limit.clone(), backlog(3000))
        };
        check(&name("up and down"), both, 3000, 180.0, 5.0, 20.0);
    }
}

/// An operator lowers a limit of 50 to 2 for a minute. Jobs that were denied meanwhile use the whole
/// limit from the end of that minute on.
#[test]
fn each_algorithm_is_used_up_once_a_lower_limit_ends() {
    for (algorithm, seconds) in Algorithm::ALL
        .into_iter()
        .flat_map(|it| [(it, 1), (it, 10)])
    {
        let name = format!("{} lowered for a minute, {seconds} s", algorithm.name());
        let lower = Change::Limit {
            name: "default".to_owned(),
            max: 2,
            duration_ms: 60_000,
        };
        let scenario = Scenario {
            operator: Some((5 * S, lower)),
            ..Scenario::new(limit(algorithm, 50, seconds), backlog(2000))
        };
        // A leaky bucket is full as soon as it is lowered, and no job asks for that call in time.
        let order = match algorithm {
            Algorithm::LeakyBucket => f64::MAX,
            _ => 20.0,
        };
        let outcome = check(&name, scenario, 2000, f64::MAX, 5.0, order);
        // The minute adds at most its own time.
        let end = 62.0 + outcome.ideal / 0.97;
        assert!(outcome.end <= end, "{name}: {outcome:?}");
        // Two more than without a changed limit.
        let beside = outcome.deliveries - outcome.rechecks;
        assert!(beside <= 4.1, "{name}: {outcome:?}");
    }
}

fn named(name: &str, algorithm: Algorithm, max: u64, seconds: u64) -> Limit {
    named_limit(name, algorithm, max, Duration::from_secs(seconds))
}

#[test]
fn three_limits_at_once_end_with_the_ideal() {
    let limits = Limits::new(vec![
        named("second", Algorithm::SlidingWindow, 10, 1),
        named("minute", Algorithm::SlidingWindow, 100, 60),
        named("hour", Algorithm::SlidingWindow, 1000, 3600),
    ]);
    let limits = limits.expect("three names");
    // 1,000 in the first hour; in the next hour 100 in each of five minutes, the last 100 within
    // ten seconds.
    let ideal = 3600.0 + 4.0 * 60.0 + 9.0;
    let name = "10/s, 100/min, 1000/h";
    let outcome = check(
        name,
        Scenario::new(limits, backlog(1500)),
        1500,
        ideal * 1.001,
        9.0,
        0.05,
    );
    check_deliveries(name, &outcome, 3.3);
}

/// Returns one of `spread` costs, starting at `min`.
fn cost(job: usize, min: u64, spread: u32) -> u64 {
    min + u64::from((job as u32).wrapping_mul(2_654_435_761) % spread)
}

/// Returns limits of 500 calls and 100,000 tokens per minute, counted by `algorithm`.
fn language_model(algorithm: Algorithm) -> Limits {
    let calls = named("calls", algorithm, 500, 60).with_unit(Unit::Calls);
    let tokens = named("tokens", algorithm, 100_000, 60);
    let tokens = match algorithm {
        // The largest job must fit.
        Algorithm::LeakyBucket => tokens.with_burst(4000).expect("in range"),
        _ => tokens,
    };
    Limits::new(vec![calls, tokens]).expect("two names")
}

/// The jobs use up the limit that binds, on tokens or on calls.
#[test]
fn calls_and_tokens_a_minute_are_used_up() {
    for algorithm in Algorithm::ALL {
        for jobs in [500, 2000, 8000] {
            let cost: fn(usize) -> u64 = |job| cost(job, 50, 3951);
            let scenario = Scenario {
                cost,
                ..Scenario::new(language_model(algorithm), backlog(jobs))
            };
            let name = format!("{} tokens bind, {jobs}", algorithm.name());
            let outcome = check(&name, scenario, jobs as usize, f64::MAX, f64::MAX, 121.0);
            assert!(outcome.ideal / outcome.end >= 0.97, "{name}: {outcome:?}");
            check_deliveries(&name, &outcome, 3.4);
        }
        for jobs in [2000, 8000] {
            let cost: fn(usize) -> u64 = |job| cost(job, 50, 250);
            let scenario = Scenario {
                cost,
                ..Scenario::new(language_model(algorithm), backlog(jobs))
            };
            let name = format!("{} calls bind, {jobs}", algorithm.name());
            let outcome = check(&name, scenario, jobs as usize, f64::MAX, f64::MAX, 301.0);
            // The counter's first windows hold less.
            let min = if jobs == 2000 { 0.96 } else { 0.97 };
            assert!(outcome.ideal / outcome.end >= min, "{name}: {outcome:?}");
            // The number of calls in front is a guess, and a job returns early rather than late.
            check_deliveries(&name, &outcome, 4.2);
        }
    }
}
