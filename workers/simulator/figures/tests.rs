use std::time::Duration;

use rules::limit::{Algorithm, Limit};

use super::*;
use crate::history::{EarlyEnd, RecordedCall, RecordedWait, StopReason};
use crate::table;
use rules::policy::{EntryLimits, Pattern};

fn limit(algorithm: Algorithm, max: u64) -> Limit {
    let second = Duration::from_secs(1);
    Limit::new("default", algorithm, max, second, Duration::ZERO).expect("in range")
}

/// Returns a run of one tenant with two calls a second, whose jobs are all published at the
/// beginning.
fn run(jobs: usize) -> (Vec<SimulatedJob>, RunHistory) {
    let call = |job: usize| {
        let at_us = job as u64 / 2 * 1_000_000;
        RecordedCall {
            at_us,
            until_us: at_us + 50_000,
            ended_us: at_us + 50_000,
            job,
            status: 200,
        }
    };
    let history = RunHistory {
        calls: (0..jobs).map(call).collect(),
        waits: vec![RecordedWait {
            limit: "default".into(),
            us: 1_500_000,
            is_unfinished: false,
        }],
        deliveries: 3 * jobs as u64,
        dead: vec![(0, "no".to_owned())],
        ..RunHistory::default()
    };
    let jobs = (0..jobs).map(|_| SimulatedJob::new(0.0, "a")).collect();
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
fn a_strict_limit_is_used_in_full_by_calls_that_follow_the_answers_before() {
    let (jobs, mut history) = run(20);
    for call in &mut history.calls {
        call.at_us = call.job as u64 / 2 * 1_500_000;
        (call.until_us, call.ended_us) = (call.at_us + 500_000, call.at_us + 500_000);
    }
    let figures = Figures::of(&limit(Algorithm::Strict, 2).into(), &jobs, &history);
    assert_eq!(figures.used, 1.0);
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
fn refusals_and_retries_are_distinguished() {
    let (jobs, mut history) = run(1);
    let call = |status, at_us| RecordedCall {
        at_us,
        until_us: at_us,
        ended_us: at_us,
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

#[test]
fn an_unstarted_job_counts_as_waiting_until_the_end() {
    let (jobs, mut history) = run(20);
    history.calls.truncate(10);
    history.dead.clear();
    history.unfinished = 10;
    history.left = Some(EarlyEnd {
        at_us: 5_000_000,
        since_us: 0,
        why: StopReason::Within,
    });
    let two = limit(Algorithm::SlidingWindow, 2);
    let figures = Figures::of(&two.clone().into(), &jobs, &history);
    let waits = figures.waits;
    assert_eq!((waits.jobs, waits.not_over), (20, 10));
    assert_eq!((waits.p50, waits.p99, waits.max), (4.0, 5.0, 5.0));
    assert_eq!(
        [50, 51, 100].map(|part| table::wait(&waits, part)),
        ["4.00 s", "≥ 5.00 s", "≥ 5.00 s"]
    );
    assert_eq!(table::makespan(&figures), "≥ 5.00 s");
    assert_eq!(
        (figures.done_after.jobs, figures.done_after.not_over),
        (20, 10)
    );
    assert_eq!(figures.series.last().map(|slot| slot.backlog), Some(10));
    // A call that began in time and outlasts the run is not done and ends no job.
    (history.calls[9].until_us, history.calls[9].ended_us) = (60_000_000, 60_000_000);
    let figures = Figures::of(&two.clone().into(), &jobs, &history);
    assert_eq!((figures.makespan, figures.done_after.not_over), (5.0, 11));
    // Dead letters that were never called have no wait for a call.
    let (jobs, mut history) = run(4);
    history.calls.truncate(3);
    history.dead = vec![(3, "expired".to_owned())];
    let figures = Figures::of(&two.into(), &jobs, &history);
    assert_eq!((figures.waits.jobs, figures.dead_uncalled), (3, 1));
    assert_eq!(table::wait(&WaitFigures::default(), 50), "-");
}

#[test]
fn the_busiest_quota_is_saturated_for_long() {
    // One job of another tenant uses up its own quota for a moment.
    let (mut jobs, mut history) = run(20);
    jobs.push(SimulatedJob::new(0.0, "b"));
    let alone = RecordedCall {
        at_us: 0,
        until_us: 1,
        ended_us: 1,
        job: 20,
        status: 200,
    };
    history.calls.insert(0, alone);
    let one = limit(Algorithm::SlidingWindow, 1);
    let three = limit(Algorithm::SlidingWindow, 3);
    let b = EntryLimits::Limits(one.into());
    let policy = Policy::from(three).with_tenants(vec![(Pattern::Exactly("b".into()), b)]);
    let figures = Figures::of(&policy, &jobs, &history);
    assert!((0.6..0.7).contains(&figures.used), "{}", figures.used);
    assert_eq!(figures.limits[0].most_used, figures.used);
}
