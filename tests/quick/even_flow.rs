//! An even flow passes every common limiter, and uses nearly all that each allows. So
//! docs/LIMITS.md recommends `leaky-bucket-algo` for an API of which it is not known how it counts.
//! The limiters here are textbook models; `tests/it/zoo` has real ones.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use sluicegate::rules::decision::{Answer, Question};
use sluicegate::rules::lateness::auto_guard;
use sluicegate::rules::limit::{Algorithm, Limit, Limits};
use sluicegate::rules::model::State;
use sluicegate::rules::pacing::Pacing;
use sluicegate::rules::tenant::Tenant;
use sluicegate::rules::usage::Clock;

const BEGIN_US: u64 = 1_700_000_000_000_000;

/// How an API counts its calls: at most `max` in `window_us`.
#[derive(Debug, Clone, Copy)]
enum Counts {
    /// Counts in windows that begin with the first call after the last window's end.
    FromFirst,
    /// Counts in windows that begin this many percent of a window after its multiples.
    Aligned(u64),
    /// Counts in every window.
    Any,
    /// Counts in such windows as HAProxy, Kong and Cloudflare do: the previous window counts by the
    /// share of it that a sliding window still includes.
    Estimated(u64),
    /// Counts in a bucket of this size.
    Bucket(u64),
}

const ALL: [Counts; 10] = [
    Counts::FromFirst,
    Counts::Aligned(0),
    Counts::Aligned(37),
    Counts::Any,
    Counts::Estimated(0),
    Counts::Estimated(3),
    Counts::Estimated(50),
    Counts::Estimated(96),
    Counts::Bucket(1),
    Counts::Bucket(10),
];

/// Returns how many of the calls at `times` a limiter refuses.
fn refused(counts: Counts, max: u64, window_us: u64, times: &[u64]) -> usize {
    let mut admitted: Vec<u64> = Vec::new();
    let mut refused = 0;
    let mut started = 0;
    let (mut level, mut at) = (0, 0);
    for time in times.iter().copied() {
        let since = |from: u64| {
            let known = admitted.iter().rev();
            known.take_while(|other| **other >= from).count() as u64
        };
        let has_room = match counts {
            Counts::FromFirst => {
                if time >= started + window_us {
                    started = time;
                }
                since(started) < max
            }
            Counts::Aligned(percent) => {
                let phase = window_us * percent / 100;
                since((time - phase) / window_us * window_us + phase) < max
            }
            Counts::Any => since(time + 1 - window_us) < max,
            Counts::Estimated(percent) => {
                let phase = window_us * percent / 100;
                let started = (time - phase) / window_us * window_us + phase;
                let (current, both) = (since(started), since(started - window_us));
                let left = window_us - (time - started);
                (both - current) * left / window_us + current < max
            }
            Counts::Bucket(capacity) => {
                // The unit is calls times the window.
                let full = capacity * window_us;
                level = (level + (time - at) * max).min(full);
                at = time;
                let has_room = level >= window_us;
                level -= if has_room { window_us } else { 0 };
                has_room
            }
        };
        match has_room {
            true => admitted.push(time),
            false => refused += 1,
        }
    }
    refused
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
        let ask = Question {
            ticket,
            cost: 1,
            readmitted: false,
        };
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
    assert_eq!(refused(Counts::Any, 20, 2_000_000, &times), 0);
    assert!(refused(Counts::Estimated(50), 20, 2_000_000, &times) > 20);
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
        let limits = bucket(max, Duration::from_millis(window_ms), burst);
        for seed in 0..20 {
            let times = arrivals(&limits, 200, seed, true);
            let refused = refused(Counts::Bucket(burst), max, 1_000 * window_ms, &times);
            assert_eq!(
                refused, 0,
                "{max} in {window_ms} ms, {burst} at once, seed {seed}"
            );
        }
    }
}
