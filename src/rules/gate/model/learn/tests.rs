use std::time::Duration;

use proptest::prelude::*;

use crate::decision::{Change, Question, UsageOfLimit};
use crate::gate::model::State;
use crate::gate::usage::Clock;
use crate::kit;
use crate::learned::*;
use crate::limit::{Algorithm, Limit};

const WINDOW: u64 = 60_000;
const BEGIN: u64 = 1_700_000_000_000;

fn limit(algorithm: Algorithm, max: u64, percent: u8) -> Limit {
    let window = Duration::from_millis(WINDOW);
    kit::limit("minute", algorithm, max, window).with_band(percent)
}

/// One tenant with one limit.
struct Bench {
    limits: [Limit; 1],
    state: State,
    now: u64,
}

impl Bench {
    fn new(limit: Limit) -> Self {
        Self {
            limits: [limit],
            state: State::default(),
            now: BEGIN,
        }
    }

    fn clock(&self) -> Clock {
        Clock::from_micros(self.now * 1_000)
    }

    fn start(&mut self, jobs: usize) {
        let ask = Question {
            ticket: None,
            cost: 1,
            readmitted: false,
        };
        let (limits, clock) = (&self.limits, self.clock());
        self.state.alone(limits, |scopes| {
            scopes.ask(limits, clock, 10_000, "p", &vec![ask; jobs])
        });
    }

    fn learn(&mut self, evidence: &Evidence) -> Vec<MaxChange> {
        let (limits, clock) = (&self.limits, self.clock());
        self.state
            .alone(limits, |scopes| scopes.learn(limits, clock, evidence))
    }

    /// Refuses `times` of the calls that started just now.
    fn refuse(&mut self, times: u64) -> Vec<MaxChange> {
        let refused = self.refusal(0);
        (0..times).flat_map(|_| self.learn(&refused)).collect()
    }

    fn refusal(&self, after_ms: u64) -> Evidence {
        Evidence::Refused {
            started_ms: self.now,
            cost: 1,
            after_ms,
            closed_ms: 0,
        }
    }

    fn usage(&mut self) -> UsageOfLimit {
        let (limits, clock) = (&self.limits, self.clock());
        self.state
            .alone(limits, |scopes| scopes.inspect(limits, clock).limits[0])
    }

    fn max(&mut self) -> u64 {
        self.usage().max
    }
}

#[test]
fn a_burst_of_refusals_is_one_event_and_finds_the_number() {
    let mut bench = Bench::new(limit(Algorithm::SlidingWindow, 100, 50));
    bench.start(100);
    let changes = bench.refuse(20);
    assert_eq!(changes.iter().filter(|change| change.is_new).count(), 1);
    assert_eq!(
        (changes[0].from, changes[0].to, changes[19].to),
        (100, 99, 80)
    );
    let learned = bench.usage().learned.expect("it has learned");
    assert_eq!(
        (learned.times, learned.seen, learned.refused),
        (20, 100, 20)
    );
}

#[test]
fn a_limit_rises_by_steps_and_waits_longer_after_failed_ones() {
    let mut bench = Bench::new(limit(Algorithm::SlidingWindow, 100, 50));
    bench.start(81);
    bench.refuse(1);
    let mut waits = Vec::new();
    for _ in 0..7 {
        assert_eq!(bench.max(), 80);
        let began = bench.now;
        while bench.max() == 80 {
            bench.now += WINDOW;
        }
        waits.push((bench.now - began) / WINDOW);
        assert_eq!(bench.max(), 81);
        bench.start(81);
        bench.refuse(1);
    }
    assert_eq!(waits, [2, 4, 6, 6, 6, 6, 6], "in windows");
    // Nothing is refused anymore: each step takes half as long as the one before.
    let (mut seen, began) = (Vec::new(), bench.now);
    while bench.max() < 100 {
        let before = bench.max();
        bench.now += WINDOW;
        if bench.max() > before {
            seen.push((bench.now - began) / WINDOW);
        }
    }
    assert_eq!(seen[..7], [6, 9, 11, 13, 15, 17, 19]);
    assert_eq!(bench.usage().learned, None, "all is forgotten");
}

/// Quota saved up while the API refused would be used on top of an even flow, and refused again a
/// window later.
#[test]
fn a_limit_is_not_refilled_while_closed() {
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::SlidingCounter,
    ] {
        let mut bench = Bench::new(limit(algorithm, 100, 50));
        bench.start(100);
        // An even flow, until the counter is in the middle of a window.
        for _ in 0..630 {
            bench.now += 1_000;
            bench.start(100);
        }
        let refused = |closed_ms| Evidence::Refused {
            started_ms: bench.now,
            cost: 1,
            after_ms: 12_000,
            closed_ms,
        };
        let free_after = |bench: &Bench, closed_ms| {
            let mut bench = Bench {
                limits: bench.limits.clone(),
                state: bench.state.clone(),
                now: bench.now,
            };
            bench.learn(&refused(closed_ms));
            bench.now += 12_000;
            bench.usage().free
        };
        let (saves, holds) = (free_after(&bench, 0), free_after(&bench, 12_000));
        assert!(holds <= 2, "{algorithm:?}: {holds}");
        // A leaky bucket has no room for more than one.
        let at_least = match algorithm {
            Algorithm::LeakyBucket => 1,
            _ => 8,
        };
        assert!(saves >= at_least, "{algorithm:?}: {saves}");
    }
}

#[test]
fn evidence_unrelated_to_the_limit_is_ignored() {
    let mut bench = Bench::new(limit(Algorithm::SlidingWindow, 100, 50));
    bench.start(81);
    let too_long = bench.refusal(2 * WINDOW + 1);
    assert_eq!(bench.learn(&too_long), [], "another limit of the API");
    let refused = bench.refusal(0);
    bench.now += WINDOW;
    assert_eq!(bench.learn(&refused), [], "what it counted with is gone");
    // Far below the band, this limit is not the cause, so it sinks only a little.
    bench.start(3);
    bench.refuse(1);
    assert_eq!(bench.max(), 94);
    let mut deaf = Bench::new(Limit::concurrent("running", 9).expect("in range"));
    deaf.start(9);
    assert_eq!(deaf.refuse(1), []);
}

#[test]
fn an_advertised_limit_counts_until_it_is_withdrawn_or_stale() {
    let mut bench = Bench::new(limit(Algorithm::SlidingWindow, 100, 50));
    let advertised = |max: u64| Evidence::Advertised(vec![Some(max)]);
    assert_eq!(bench.learn(&advertised(0)), []);
    bench.learn(&advertised(80));
    assert_eq!(bench.learn(&Evidence::Advertised(vec![None])), []);
    assert_eq!(bench.max(), 80);
    bench.learn(&advertised(20));
    assert_eq!(bench.max(), 50, "the end of the band");
    bench.learn(&advertised(0));
    assert_eq!(bench.max(), 100);
    bench.learn(&advertised(80));
    bench.now += ADVERTISED_MS;
    assert_eq!(bench.max(), 100, "it was not said for an hour");
}

#[test]
fn the_fullest_limit_that_explains_the_wait_learns() {
    let of = |name, max, seconds| {
        let window = Duration::from_secs(seconds);
        kit::limit(name, Algorithm::SlidingWindow, max, window).with_band(50)
    };
    let limits = [of("second", 10, 1), of("minute", 100, 60)];
    let clock = Clock::from_micros(BEGIN * 1_000);
    let which = |after_ms| {
        let mut state = State::default();
        let ask = Question {
            ticket: None,
            cost: 1,
            readmitted: false,
        };
        state.alone(&limits, |scopes| {
            scopes.ask(&limits, clock, 100, "p", &[ask; 9]);
            let refused = Evidence::Refused {
                started_ms: clock.now_ms,
                cost: 1,
                after_ms,
                closed_ms: 0,
            };
            let changes = scopes.learn(&limits, clock, &refused);
            changes
                .first()
                .map(|change| limits[change.limit].name().to_owned())
        })
    };
    assert_eq!(which(0).as_deref(), Some("second"));
    assert_eq!(which(1_000).as_deref(), Some("second"));
    assert_eq!(which(30_000).as_deref(), Some("minute"));
    assert_eq!(which(600_000), None);
}

#[test]
fn a_reset_forgets_and_the_stored_text_survives_a_round_trip() {
    let mut bench = Bench::new(limit(Algorithm::TokenBucket, 300, 50));
    bench.start(300);
    bench.refuse(1);
    for _ in 0..6 {
        bench.now += WINDOW;
        bench.refuse(1);
    }
    let learned = bench.usage().learned.expect("it has learned");
    // Each time it is refused again within two windows.
    assert_eq!(learned.to, 300 - 3 - 6 * 12);
    assert!(learned.past.iter().all(|(at, _)| *at > 0));
    assert_eq!(LearnedState::read(&learned.text()), Some(learned));
    assert_eq!(LearnedState::read("1,2,3"), None);
    bench.state.change(bench.now, &Change::Reset);
    assert_eq!((bench.max(), bench.usage().learned), (300, None));
}

#[derive(Debug, Clone)]
enum Step {
    Start(usize),
    Refuse(u64, u64),
    Told(u64),
    Forward(u64),
    Operator(Option<u64>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..130_usize).prop_map(Step::Start),
        3 => (1..9_u64, 0..90_000_u64).prop_map(|(times, ago)| Step::Refuse(times, ago)),
        1 => (0..130_u64).prop_map(Step::Told),
        3 => (0..400_000_u64).prop_map(Step::Forward),
        1 => (0..90_000_000_u64).prop_map(Step::Forward),
        1 => prop::option::of(1..200_u64).prop_map(Step::Operator),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// A limit stays at or below the configured or overridden value and at or above the band
    /// (unless an override is lower), and never sinks without a refusal.
    #[test]
    fn a_limit_stays_in_its_band_and_rises_by_itself(
        algorithm in prop::sample::select(&Algorithm::ALL[..]),
        max in 1..120_u64,
        percent in 1..100_u8,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let limit = limit(algorithm, max, percent);
        let (max, floor) = (limit.max(), limit.floor().expect("it learns"));
        let mut bench = Bench::new(limit);
        let mut set = None;
        for step in steps {
            let before = bench.max();
            let mut may_sink = true;
            match step {
                Step::Start(jobs) => {
                    bench.start(jobs);
                    may_sink = false;
                }
                Step::Refuse(times, ago) => {
                    let started_ms = bench.now - ago;
                    let refused = Evidence::Refused { started_ms, cost: 1, after_ms: 0, closed_ms: 0 };
                    for _ in 0..times {
                        for change in bench.learn(&refused) {
                            prop_assert!(change.to <= change.from, "{change:?}");
                        }
                    }
                }
                Step::Told(max) => drop(bench.learn(&Evidence::Advertised(vec![Some(max)]))),
                Step::Forward(ms) => {
                    bench.now += ms;
                    may_sink = set.is_some();
                }
                Step::Operator(max) => {
                    let name = "minute".to_owned();
                    let duration_ms = 600_000;
                    let change = match max {
                        Some(max) => Change::Limit { name, max, duration_ms },
                        None => Change::Unlimit { name },
                    };
                    bench.state.change(bench.now, &change);
                    set = max.map(|max| (max, bench.now + duration_ms));
                }
            }
            let now = bench.now;
            let by_operator = set.filter(|(_, until)| *until > now).map(|(max, _)| max);
            let usage = bench.usage();
            let configured = by_operator.unwrap_or(max);
            prop_assert!(usage.max <= configured, "{} above {configured}", usage.max);
            prop_assert!(usage.max >= floor.min(configured), "{} below {floor}", usage.max);
            prop_assert!(may_sink || usage.max >= before, "{} after {before}", usage.max);
        }
    }
}
