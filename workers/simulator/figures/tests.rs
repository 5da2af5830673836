use std::time::Duration;

use sluicegate::rules::limit::{Algorithm, Limit};

use super::*;
use crate::history::{Call, Wait};

fn limit(algorithm: Algorithm, max: u64) -> Limit {
    let second = Duration::from_secs(1);
    Limit::new("default", algorithm, max, second, Duration::ZERO).expect("in range")
}

/// Two calls a second of one tenant, all jobs being there at the beginning.
fn run(jobs: usize) -> (Vec<Job>, History) {
    let call = |job: usize| {
        let at_us = job as u64 / 2 * 1_000_000;
        Call {
            at_us,
            until_us: at_us + 50_000,
            job,
            status: 200,
        }
    };
    let history = History {
        calls: (0..jobs).map(call).collect(),
        waits: vec![Wait {
            limit: "default".into(),
            us: 1_500_000,
        }],
        deliveries: 3 * jobs as u64,
        dead: vec![(0, "no".to_owned())],
        ..History::default()
    };
    let jobs = (0..jobs).map(|_| Job::new(0.0, "a")).collect();
    (jobs, history)
}

#[test]
fn a_limit_that_is_used_up_is_used_in_full() {
    let (jobs, history) = run(20);
    for algorithm in [Algorithm::SlidingWindow, Algorithm::FixedWindow] {
        let figures = Figures::of(&limit(algorithm, 2).into(), &jobs, &history);
        assert_eq!(
            (figures.used, figures.makespan),
            (1.0, 9.05),
            "{algorithm:?}"
        );
        let of_limit = &figures.limits[0];
        assert_eq!((of_limit.fullest, of_limit.allowance), (2, 2));
        assert_eq!(of_limit.fullest_of, "a");
        assert_eq!(of_limit.waits.max, 1.5);
        assert_eq!((figures.waits.p50, figures.waits.max), (4.0, 9.0));
        assert_eq!((figures.deliveries, figures.dead["no"]), (3.0, 1));
        assert_eq!(figures.series.last().map(|slot| slot.backlog), Some(0));
        assert_eq!(figures.series[0].used, 1.0);
    }
}

#[test]
fn half_of_a_limit_is_used_by_half() {
    let (jobs, history) = run(20);
    let figures = Figures::of(&limit(Algorithm::SlidingWindow, 4).into(), &jobs, &history);
    assert_eq!(figures.used, 0.5);
    assert_eq!(
        (figures.limits[0].fullest, figures.limits[0].allowance),
        (2, 4)
    );
}

#[test]
fn calls_in_flight_are_counted_as_such() {
    let (jobs, history) = run(4);
    let concurrent = Limit::concurrent("slots", 2).expect("in range");
    let figures = Figures::of(&concurrent.into(), &jobs, &history);
    assert_eq!(
        (figures.limits[0].fullest, figures.limits[0].allowance),
        (2, 2)
    );
}

#[test]
fn refusals_and_retries_are_told_apart() {
    let (jobs, mut history) = run(1);
    let call = |status, at_us| Call {
        at_us,
        until_us: at_us,
        job: 0,
        status,
    };
    history.calls = vec![call(429, 0), call(500, 10), call(200, 20)];
    let figures = Figures::of(&limit(Algorithm::SlidingWindow, 4).into(), &jobs, &history);
    assert_eq!(
        (figures.calls, figures.throttled, figures.retries),
        (3, 1, 1)
    );
}
