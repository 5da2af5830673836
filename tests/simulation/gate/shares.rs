//! Partitions that several waitlists share: equal shares, no idle quota, and few deliveries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gate::memory::MemoryGate;
use gate::{Answer, Gate, Question};
use kit::SECOND;
use kit::gate::{FRESH, asking, decided, named_limit};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rules::limit::{Algorithm, Limit, Limits};
use rules::scope::Scope;

use crate::gate::simulator::{Outcome, Scenario, run};

/// Returns a limit of `max` per second.
fn limit(name: &str, max: u64, scope: Scope) -> Limit {
    named_limit(name, Algorithm::SlidingWindow, max, SECOND).with_scope(scope)
}

fn global(max: u64) -> Limit {
    limit("all", max, Scope::Global)
}

/// Returns limits of `max` per second for each tenant and `all` for all of them.
fn both(max: u64, all: u64) -> Limits {
    let limits = vec![limit("own", max, Scope::Tenant), global(all)];
    Limits::new(limits).expect("their names differ")
}

/// Publishes `n` jobs at once, 0.2 ms apart. `of` returns each job's tenant and header value.
fn backlog(limits: impl Into<Limits>, n: u64, of: fn(usize) -> (usize, usize)) -> Scenario {
    let mut scenario = Scenario::new(limits, (0..n).map(|job| job * 200).collect());
    scenario.of = of;
    scenario
}

/// Returns the start times of the jobs that match `whose`, in seconds and in order.
fn starts(outcome: &Outcome, whose: impl Fn(usize) -> bool) -> Vec<f64> {
    let jobs = outcome.starts.0.iter().enumerate();
    let own = jobs.filter(|(job, _)| whose(*job));
    let mut starts: Vec<f64> = own.filter_map(|(_, at)| *at).collect();
    starts.sort_by(f64::total_cmp);
    starts
}

/// Runs one scenario and checks its bounds: started jobs, seconds after the ideal end, deliveries
/// per job.
fn check(name: &str, scenario: Scenario, started: usize, late: f64, deliveries: f64) -> Outcome {
    let outcome = run(scenario);
    println!("{name}: {outcome:?}");
    assert_eq!(outcome.violations, 0, "{name}");
    assert!(outcome.started >= started, "{name}: {outcome:?}");
    assert!(outcome.end <= outcome.ideal + late, "{name}: {outcome:?}");
    assert!(outcome.deliveries <= deliveries, "{name}: {outcome:?}");
    outcome
}

#[test]
fn a_shared_partition_costs_no_more_than_an_own_one() {
    check(
        "one tenant",
        backlog(global(20), 2000, |_| (0, 0)),
        2000,
        0.5,
        3.1,
    );
    check(
        "four tenants",
        backlog(global(20), 2000, |job| (job % 4, 0)),
        2000,
        0.5,
        3.1,
    );
    check(
        "500 tenants",
        backlog(global(20), 2000, |job| (job % 500, 0)),
        2000,
        0.5,
        3.3,
    );
}

#[test]
fn a_backlog_leaves_the_others_their_share() {
    // 1,800 jobs of one tenant, then 200 of another, which get half of the quota.
    let outcome = check(
        "1,800 before 200",
        backlog(global(20), 2000, |job| (usize::from(job >= 1800), 0)),
        2000,
        0.5,
        3.7,
    );
    let small = starts(&outcome, |job| job >= 1800);
    assert!(
        small[199] <= 20.5 && small[99] <= 10.8,
        "{} {}",
        small[99],
        small[199]
    );
    // Unused shares go to the others: at 10 a second of its own, two tenants need half a minute
    // each and one needs a minute and a half.
    let unequal = |job| (usize::from(job >= 900) + usize::from(job >= 1200), 0);
    let outcome = check(
        "900, 300, 300",
        backlog(global(20), 1500, unequal),
        1500,
        0.5,
        3.7,
    );
    let (big, small) = (
        starts(&outcome, |job| job < 900),
        starts(&outcome, |job| job >= 900),
    );
    assert!((43.0..47.0).contains(&small[599]), "{}", small[599]);
    assert!(big[300] > 40.0, "{}", big[300]);
}

#[test]
fn a_later_tenant_does_not_wait_behind_the_backlog() {
    let mut scenario = backlog(global(20), 2000, |job| (usize::from(job >= 1990), 0));
    // Meanwhile another tenant publishes ten jobs, one a second.
    for (number, at) in scenario.arrivals[1990..].iter_mut().enumerate() {
        *at = 30_000_000 + number as u64 * 1_000_000;
    }
    let outcome = check("ten in between", scenario, 2000, 0.5, 3.1);
    for (number, at) in (1990..2000).enumerate() {
        let waited = outcome.starts.0[at].expect("it started") - 30.0 - number as f64;
        assert!(waited < 0.6, "{number}: {waited}");
    }
}

#[test]
fn a_tenant_with_a_smaller_own_limit_takes_nothing_from_others() {
    // Each has 5/s of its own, and all have 20/s: eight share it equally, three get their own
    // limits.
    check(
        "8 tenants",
        backlog(both(5, 20), 2000, |job| (job % 8, 0)),
        2000,
        0.5,
        3.1,
    );
    let few = |job| (usize::from(job >= 800) + usize::from(job >= 990), 0);
    check("3 tenants", backlog(both(5, 20), 1000, few), 1000, 0.8, 3.2);
    // One has 5/s and 1,000 jobs. The other has 100/s of its own and 750 jobs, and gets the
    // remaining 15/s.
    let mut scenario = backlog(both(5, 20), 1750, |job| (usize::from(job >= 1000), 0));
    scenario.cost = |_| 1;
    let outcome = run(scenario);
    assert_eq!(outcome.violations, 0);
    let limited = starts(&outcome, |job| job < 1000);
    assert!(limited[999] <= 200.5, "{}", limited[999]);
}

#[test]
fn parts_of_a_tenant_share_its_quota() {
    let limits = Limits::new(vec![
        limit("path", 10, Scope::Header("path".to_owned())),
        limit("own", 20, Scope::Tenant),
        global(30),
    ]);
    let limits = limits.expect("their names differ");
    // Three tenants with seven paths each.
    check(
        "three levels",
        backlog(limits.clone(), 2400, |job| (job % 3, job % 7)),
        2400,
        0.5,
        4.0,
    );
    // One path has nearly all of the jobs: at first it gets no more than the others, then its own
    // 10/s.
    let of = |job| (0, if job < 900 { 0 } else { job % 7 });
    let outcome = check("one path", backlog(limits, 1000, of), 1000, 4.0, 3.3);
    let others = starts(&outcome, |job| of(job).1 > 0);
    assert!(
        others[others.len() - 1] < 11.0,
        "{}",
        others[others.len() - 1]
    );
}

#[test]
fn jobs_with_costs_share_a_quota_by_units() {
    // One tenant's jobs cost ten times as much as those of the three others.
    let mut scenario = backlog(global(100), 2000, |job| (job % 4, 0));
    scenario.cost = |job| if job % 4 == 1 { 10 } else { 1 };
    let outcome = check("costs", scenario, 2000, 2.0, 3.1);
    let cheap = starts(&outcome, |job| job % 4 != 1);
    // Each gets 25 units a second: 500 take 20 s.
    assert!(cheap[1499] <= 21.5, "{}", cheap[1499]);
}

#[test]
fn jobs_of_many_units_wait_for_no_half_of_another() {
    // Jobs as large as the limit: only one runs at a time, and each knows how many come before it.
    let of: [fn(usize) -> (usize, usize); 3] =
        [|job| (job % 2, 0), |job| (job % 50, 0), |job| (job, 0)];
    for of in of {
        let mut scenario = backlog(global(10), 200, of);
        scenario.cost = |_| 10;
        check("10 of 10", scenario, 200, 0.5, 3.2);
    }
    // No other job fits beside a job of 6, so 4 of 10 units stay unused.
    let mut scenario = backlog(global(10), 200, |job| (job % 2, 0));
    scenario.cost = |_| 6;
    check("6 of 10", scenario, 200, 81.0, 8.0);
    // Large and small jobs, each of a tenant of its own.
    let mut scenario = backlog(global(100), 1000, |job| (job % 50, 0));
    scenario.cost = |job| if job % 2 == 0 { 10 } else { 1 };
    check("10 and 1", scenario, 1000, 4.0, 5.0);
}

#[test]
fn vanished_jobs_are_given_up() {
    let two = |job| (job % 2, 0);
    let mut scenario = backlog(global(20), 2000, two);
    (scenario.lost, scenario.late) = (0.3, 0.05);
    check("30 % lost", scenario, 1380, 33.0, 3.9);
    let mut scenario = backlog(global(20), 2000, two);
    scenario.duplicated = 0.1;
    check("10 % twice", scenario, 2000, 0.5, 4.3);
    let mut scenario = backlog(global(10), 1000, two);
    scenario.outage = Some((10_000_000, 70_000_000));
    check("an outage of a minute", scenario, 1000, 61.0, 4.0);
    // A whole tenant vanishes with a third of the jobs. The other tenant's jobs return when they
    // would have returned beside it, and not later.
    let mut scenario = backlog(global(20), 1500, |job| (usize::from(job % 3 == 0), 0));
    scenario.vanished = |job| job % 3 == 0;
    check("a tenant vanished", scenario, 1000, 24.5, 4.0);
}

/// Workers that were killed leave tickets without jobs at the front of every waitlist. The next job
/// takes the room after one or two grace periods.
#[tokio::test]
async fn waitlists_whose_fronts_vanished_do_not_wait_for_each_other() {
    for (max, cost, lines, vanished) in [(2, 2, 3, 1), (4, 3, 5, 1), (1, 1, 5, 3)] {
        let now_us = Arc::new(AtomicU64::new(1_700_000_000_000_000));
        let clock = Arc::clone(&now_us);
        let gate = MemoryGate::new(move || clock.load(Ordering::Relaxed));
        let window = Duration::from_secs(10);
        let guard = Duration::from_millis(50);
        let bucket = Limit::new("all", Algorithm::LeakyBucket, max, window, guard);
        let bucket = bucket.and_then(|limit| limit.with_burst(max));
        let limits = Limits::from(bucket.expect("in range").with_scope(Scope::Global));
        let ask = async |line: usize, ticket| {
            let job = Question {
                ticket,
                cost,
                ..FRESH
            };
            let ask = asking(&format!("t{line}"), &limits, &[job]);
            let replies = gate.ask(&[ask]).await.expect("it answers");
            decided(&replies, 0)[0].clone()
        };
        assert!(matches!(ask(0, None).await, Answer::Start { .. }));
        let mut waiting = Vec::new();
        for line in 0..lines {
            for _ in 0..vanished {
                ask(line, None).await;
            }
            waiting.push((0, line, None));
        }
        for asks in 0.. {
            assert!(asks < 200, "{waiting:?} of {max}, {cost} each");
            waiting.sort_by_key(|(at, ..)| *at);
            if waiting.is_empty() {
                break;
            }
            let (at, line, ticket) = waiting.remove(0);
            now_us.fetch_max(1_700_000_000_000_000 + at * 1000, Ordering::Relaxed);
            match ask(line, ticket).await {
                Answer::Wait { ttl_ms, ticket, .. } => {
                    // The network delay in both directions.
                    waiting.push((at + ttl_ms + 2, line, Some(ticket)));
                }
                Answer::Start { .. } => {}
                Answer::Capacity => panic!("one asks at a time"),
            }
        }
    }
}

#[test]
fn at_nearly_full_load_no_job_waits_long() {
    let mut random = StdRng::seed_from_u64(3);
    let mut at = 0.0;
    let mut scenario = backlog(global(20), 4000, |job| (job % 4, 0));
    for arrival in &mut scenario.arrivals {
        at -= (1.0 - random.random::<f64>()).ln() / 19.0;
        *arrival = (at * 1e6) as u64;
    }
    let arrivals = scenario.arrivals.clone();
    let outcome = check("95 % load", scenario, 4000, 15.0, 1.3);
    let waits = outcome.starts.0.iter().zip(&arrivals);
    let waits = waits.map(|(start, at)| start.expect("it started") - *at as f64 / 1e6);
    let longest = waits.fold(0.0, f64::max);
    assert!(longest < 3.0, "{longest}");
}

#[test]
fn waits_beyond_the_longest_delay_keep_their_order() {
    let minute = named_limit("all", Algorithm::SlidingWindow, 60, 60 * SECOND);
    let minute = minute.with_scope(Scope::Global);
    check(
        "60 a minute",
        backlog(minute, 600, |job| (job % 4, 0)),
        600,
        0.5,
        3.8,
    );
}

/// Returns a scenario with jobs of one tenant, one every `small.1` microseconds, and large jobs of
/// another, published after one second.
fn against(limit: Limit, small: (u64, u64), large: u64) -> Scenario {
    let (number, every) = small;
    let mut scenario = backlog(limit, number + large, |_| (0, 0));
    let arrivals = scenario.arrivals.iter_mut().zip(0..);
    for (arrival, job) in arrivals {
        *arrival = match job < number {
            true => job * every,
            false => 1_000_000 + (job - number) * 200,
        };
    }
    scenario
}

#[test]
fn large_jobs_have_their_share_beside_small_ones() {
    let shared = |max, seconds| {
        let limit = named_limit("all", Algorithm::SlidingWindow, max, SECOND * seconds);
        limit.with_scope(Scope::Global)
    };
    // The limit is 100 units in 10 s. One tenant's jobs cost 1, five a second for 200 s; three jobs
    // of the other cost the whole limit. Each large job needs an empty window, and small jobs get
    // as many units in between.
    let mut scenario = against(shared(100, 10), (1_000, 200_000), 3);
    scenario.of = |job| (usize::from(job >= 1_000), 0);
    scenario.cost = |job| if job >= 1_000 { 100 } else { 1 };
    let outcome = check("3 of the whole limit", scenario, 1_003, 85.0, 1.7);
    let large = starts(&outcome, |job| job >= 1_000);
    assert!(
        large[2] < 52.0 && outcome.end < 201.0,
        "{large:?} {outcome:?}"
    );

    // 100,000 units a minute: jobs of 100, 50 a second, and 40 jobs of 4,000.
    let mut scenario = against(shared(100_000, 60), (9_000, 20_000), 40);
    scenario.of = |job| (usize::from(job >= 9_000), 0);
    scenario.cost = |job| if job >= 9_000 { 4_000 } else { 100 };
    let outcome = check("40 of a 25th", scenario, 9_040, 1.5, 3.9);
    let large = starts(&outcome, |job| job >= 9_000);
    assert!(large[39] < 122.0, "{large:?}");
}

#[test]
fn later_tenants_extend_the_wait_of_a_backlog() {
    // One tenant has 400 jobs; other tenants with one job each arrive at half the rate. Waits are
    // estimated from the current waiters.
    let mut scenario = backlog(global(20), 800, |job| (job.saturating_sub(399), 0));
    for (number, at) in scenario.arrivals[400..].iter_mut().enumerate() {
        *at = number as u64 * 100_000;
    }
    let outcome = check("newcomers", scenario, 800, 1.5, 4.6);
    let new = starts(&outcome, |job| job >= 400);
    assert!(new[399] < 40.7, "{}", new[399]);
}
