//! An even flow passes every common limiter, and uses nearly all that each allows. So
//! docs/LIMITS.md recommends `leaky-bucket-algo` for an API whose way of counting is unknown. These
//! are the limiters of `sluicegate simulate`; `tests/it/zoo` has real ones.

use std::time::Duration;

use kit::gate::FRESH;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use rules::decision::{Answer, Question};
use rules::gate::model::State;
use rules::gate::usage::Clock;
use rules::limit::{Algorithm, Limit, Limits};
use rules::tenant::Tenant;
use rules::timing::lateness::auto_guard;
use rules::timing::pacing::Pacing;
use simulator::forms::ApiLimit;
use simulator::limiter::{CallCounter, Counting};

const BEGIN_US: u64 = 1_700_000_000_000_000;

/// How an API counts its calls: the kind, the percentage of a window by which its windows begin
/// after multiples of their length, and the size of its bucket.
type Counts = (Counting, u64, Option<usize>);

const ALL: [Counts; 10] = [
    (Counting::FirstCall, 0, None),
    (Counting::Aligned, 0, None),
    (Counting::Aligned, 37, None),
    (Counting::Sliding, 0, None),
    (Counting::Estimated, 0, None),
    (Counting::Estimated, 3, None),
    (Counting::Estimated, 50, None),
    (Counting::Estimated, 96, None),
    (Counting::Bucket, 0, Some(1)),
    (Counting::Bucket, 0, Some(10)),
];

/// Returns how many of the calls at `times` a limiter of `max` per `window_us` refuses.
fn refused((counting, percent, burst): Counts, max: u64, window_us: u64, times: &[u64]) -> usize {
    let limit = ApiLimit {
        max: usize::try_from(max).expect("small"),
        window: Duration::from_micros(window_us),
        per_tenant: false,
        counting,
        burst,
        by_cost: false,
    };
    let phase = window_us * percent / 100;
    let mut counter = CallCounter::default();
    let refused = |time: &&u64| counter.call(limit, **time - phase).is_err();
    times.iter().filter(refused).count()
}

/// Returns when `count` calls arrive, in microseconds. Each asks up to 4 ms after its time, as
/// measured on a machine with free cores, and takes up to 1 ms to arrive. With `pauses`, about one in ten is followed by a pause.
fn arrivals(limits: &Limits, count: usize, seed: u64, pauses: bool) -> Vec<u64> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut state = State::default();
    let mut now = BEGIN_US + random.random_range(0..1_000_000);
    let mut times = Vec::new();
    let mut ticket = None;
    while times.len() < count {
        let ask = Question { ticket, ..FRESH };
        let clock = Clock::from_micros(now);
        let (answers, _) = state.alone(limits, |scopes| {
            scopes.ask(limits, clock, 1, "permit", &[ask])
        });
        match &answers[..] {
            [Answer::Start { .. }] => {
                times.push(now + random.random_range(0..1_000));
                ticket = None;
                if pauses && random.random_bool(0.1) {
                    now += random.random_range(0..1_000 * 3 * limits[0].window_ms());
                }
            }
            [
                Answer::Wait {
                    ttl_ms,
                    ticket: own,
                    ..
                },
            ] => {
                ticket = Some(*own);
                now += 1_000 * ttl_ms + random.random_range(0..4_000);
            }
            other => panic!("{other:?}"),
        }
    }
    // Two that start together may overtake each other.
    times.sort_unstable();
    times
}

/// Returns a bucket with `guard: auto`.
fn bucket(max: u64, window: Duration, burst: u64) -> Limits {
    let guard = auto_guard(Algorithm::LeakyBucket, window);
    let limit = Limit::new("default", Algorithm::LeakyBucket, max, window, guard);
    let limit = limit.and_then(|limit| limit.with_burst(burst));
    let limits = limit.expect("in range").into();
    let tenant = Tenant::parse("a").expect("a tenant");
    Pacing::default().add_spacing(Duration::ZERO, &tenant, limits)
}

#[test]
fn an_even_flow_passes_every_limiter_and_loses_at_most_5_percent() {
    for (max, window_ms) in [
        (10, 1_000),
        (20, 2_000),
        (60, 60_000),
        (300, 60_000),
        (5, 1_000),
    ] {
        let limits = bucket(max, Duration::from_millis(window_ms), 1);
        let window_us = 1_000 * window_ms;
        for seed in 0..5 {
            let times = arrivals(&limits, 200, seed, false);
            let closest = times.windows(2).map(|pair| pair[1] - pair[0]).min();
            assert!(
                closest >= Some(window_us / max),
                "{max} in {window_ms} ms: {closest:?}"
            );
            for counts in ALL {
                let refused = refused(counts, max, window_us, &times);
                assert_eq!(refused, 0, "{max} in {window_ms} ms, {counts:?}");
            }
            let took = times[times.len() - 1] - times[0];
            let used = 199.0 * window_us as f64 / (max * took) as f64;
            assert!(used >= 0.95, "{max} in {window_ms} ms: {used}");
        }
    }
}

#[test]
fn full_windows_do_not_pass_a_limiter_that_estimates() {
    let window = Duration::from_secs(2);
    let limit = Limit::new("default", Algorithm::SlidingWindow, 20, window, window / 40);
    let times = arrivals(&limit.expect("in range").into(), 200, 1, false);
    assert_eq!(
        refused((Counting::Sliding, 0, None), 20, 2_000_000, &times),
        0
    );
    assert!(refused((Counting::Estimated, 50, None), 20, 2_000_000, &times) > 20);
}

/// It also does so after pauses in which both fill up, and although calls take different times to
/// arrive.
#[test]
fn a_bucket_passes_an_api_with_a_bucket_of_its_size() {
    for (max, window_ms, burst) in [
        (10, 1_000, 1),
        (10, 1_000, 2),
        (20, 2_000, 20),
        (60, 60_000, 5),
    ] {
        let limits = bucket(max, Duration::from_millis(window_ms), burst as u64);
        for seed in 0..20 {
            let times = arrivals(&limits, 200, seed, true);
            let counts = (Counting::Bucket, 0, Some(burst));
            let refused = refused(counts, max, 1_000 * window_ms, &times);
            assert_eq!(
                refused, 0,
                "{max} in {window_ms} ms, {burst} at once, seed {seed}"
            );
        }
    }
}
