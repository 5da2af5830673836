//! A budget that several tenants share: what each gets of it, and that nobody wastes it.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sluicegate::rules::limit::{Algorithm, Limit, Limits};
use sluicegate::rules::scope::Scope;

use crate::gate_simulator::{Outcome, Scenario, run};

fn named(name: &str, max: u64, seconds: u64) -> Limit {
    let (window, guard) = (Duration::from_secs(seconds), Duration::ZERO);
    Limit::new(name, Algorithm::SlidingWindow, max, window, guard).expect("in range")
}

fn global(max: u64, seconds: u64) -> Limit {
    named("all", max, seconds).with_scope(Scope::Global)
}

/// `n` jobs at once, 0.2 ms apart.
fn backlog(n: u64) -> Vec<u64> {
    (0..n).map(|job| job * 200).collect()
}

fn played(name: &str, scenario: Scenario) -> Outcome {
    let of = scenario.of;
    let jobs = scenario.arrivals.len();
    let mut outcome = run(scenario);
    let starts = std::mem::take(&mut outcome.starts);
    println!("{name}: {outcome:?}");
    for tenant in 0..4 {
        let mut own: Vec<f64> = (0..jobs)
            .filter(|job| of(*job).0 == tenant)
            .filter_map(|job| starts[job])
            .collect();
        own.sort_by(f64::total_cmp);
        if !own.is_empty() {
            println!(
                "  tenant {tenant}: {} of them, half by {:.1}, all by {:.1}",
                own.len(),
                own[own.len() / 2],
                own[own.len() - 1]
            );
        }
    }
    outcome.starts = starts;
    outcome
}

#[test]
fn shares() {
    played("one alone", Scenario::new(global(20, 1), backlog(2000)));
    let mut s = Scenario::new(global(20, 1), backlog(2000));
    s.of = |job| (job % 4, 0);
    played("four equal", s);
    let mut s = Scenario::new(global(20, 1), backlog(2000));
    s.of = |job| (usize::from(job >= 1800), 0);
    played("1800 then 200", s);
    let both = Limits::new(vec![global(20, 1), named("own", 5, 1)]).expect("limits");
    let mut s = Scenario::new(both.clone(), backlog(2000));
    s.of = |job| (job % 8, 0);
    played("8 x 250, own 5/s of 20/s", s);
    let mut s = Scenario::new(both.clone(), backlog(1000));
    s.of = |job| (usize::from(job >= 800) + usize::from(job >= 990), 0);
    played("800, 190, 10, own 5/s of 20/s", s);
    let mut s = Scenario::new(global(20, 1), backlog(2000));
    s.of = |job| (job % 500, 0);
    played("500 x 4", s);
    let mut s = Scenario::new(global(20, 1), backlog(2000));
    s.of = |job| (job % 2, 0);
    s.lost = 0.3;
    s.late = 0.05;
    played("30% lost, 5% late", s);
    let mut s = Scenario::new(global(10, 1), backlog(1000));
    s.of = |job| (job % 2, 0);
    s.outage = Some((10_000_000, 70_000_000));
    played("outage", s);
    let parts = Limits::new(vec![
        named("path", 10, 1).with_scope(Scope::Header("path".into())),
        named("own", 20, 1),
        global(30, 1),
    ])
    .expect("limits");
    let mut s = Scenario::new(parts, backlog(2400));
    s.of = |job| (job % 3, job % 7);
    played("parts", s);
    let mut s = Scenario::new(global(100, 1), backlog(2000));
    s.of = |job| (job % 4, 0);
    s.cost = |job| if job % 4 == 1 { 10 } else { 1 };
    played("costs", s);
    let mut random = StdRng::seed_from_u64(3);
    let mut at = 0.0;
    let arrivals: Vec<u64> = (0..4000)
        .map(|_| {
            at -= (1.0 - random.random::<f64>()).ln() / 19.0;
            (at * 1e6) as u64
        })
        .collect();
    let mut s = Scenario::new(global(20, 1), arrivals);
    s.of = |job| (job % 4, 0);
    played("95 % load", s);
    let mut s = Scenario::new(global(60, 60), backlog(600));
    s.of = |job| (job % 4, 0);
    played("60/min, 4x150", s);
}
