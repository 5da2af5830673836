//! Compares the forecast with the model, stepped through the backlog.

use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::decision::{Answer, Change, Question, Ticket};
use crate::gate::forecast::{
    Certainty, ForecastEnd, ForecastRequest, ForecastTarget, OpeningTime, Schedule, end,
};
use crate::gate::model::{Scopes, State};
use crate::gate::usage::Clock;
use crate::layout::Layout;
use crate::learned::Evidence;
use crate::limit::{Algorithm, Limit, Unit};

/// Start time of the tests, not on the edge of any window.
const BEGIN: u64 = 1_700_000_000_123;

fn limit(name: &str, algorithm: Algorithm, max: u64, window_ms: u64, guard_ms: u64) -> Limit {
    let (window, guard) = (
        Duration::from_millis(window_ms),
        Duration::from_millis(guard_ms),
    );
    Limit::new(name, algorithm, max, window, guard).expect("this is a limit")
}

fn clock(at_ms: u64) -> Clock {
    Clock {
        now_ms: at_ms,
        stamp_ms: at_ms,
    }
}

/// Returns every algorithm that counts only starts.
fn algorithms() -> Vec<Algorithm> {
    Algorithm::EVERY
        .into_iter()
        .filter(|algorithm| !algorithm.holds_leases())
        .collect()
}

/// Waiting jobs that asked at different times.
struct Backlog {
    state: State,
    now: u64,
    waiting: Vec<(u64, Ticket, u64)>,
}

impl Backlog {
    /// Adds one job for each pair: milliseconds after the previous job, and cost.
    fn of(limits: &[Limit], jobs: &[(u64, u64)]) -> Self {
        let mut backlog = Self {
            state: State::default(),
            now: BEGIN,
            waiting: Vec::new(),
        };
        for (after, cost) in jobs {
            // Waiting jobs ask again in between.
            let now = backlog.now + after;
            backlog.steps_until(limits, now);
            backlog.now = now;
            backlog.asks(limits, None, *cost);
        }
        backlog
    }

    /// Asks for one job. Returns true if it started.
    fn asks(&mut self, limits: &[Limit], ticket: Option<Ticket>, cost: u64) -> bool {
        let now = self.now;
        let ask = Question {
            ticket,
            cost,
            readmitted: false,
        };
        let (answers, _) = self.state.alone(limits, |scopes| {
            scopes.ask(limits, clock(now), 1, "permit", &[ask])
        });
        match answers[..] {
            [Answer::Start { .. }] => true,
            [Answer::Wait { ttl_ms, ticket, .. }] => {
                self.waiting.push((now + ttl_ms, ticket, cost));
                false
            }
            ref other => panic!("{other:?}"),
        }
    }

    /// Lets waiting jobs ask again at their times until `until`. Returns the last start.
    fn steps_until(&mut self, limits: &[Limit], until: u64) -> u64 {
        let mut last = 0;
        loop {
            self.waiting
                .sort_by_key(|(at, ticket, _)| (*at, ticket.number));
            let due = self.waiting.first().copied();
            let Some((at, ticket, cost)) = due.filter(|(at, ..)| *at <= until) else {
                return last;
            };
            self.waiting.remove(0);
            self.now = self.now.max(at);
            if self.asks(limits, Some(ticket), cost) {
                last = self.now;
            }
        }
    }

    fn schedule(&mut self, asked: &ForecastRequest) -> Schedule {
        let layout = Layout::alone(&asked.limits);
        let state = std::mem::take(&mut self.state);
        let mut state = Some(Box::new(state));
        let scopes = Scopes::take(&layout, |_| state.take().expect("there is one"));
        let schedule = scopes.schedule(asked, clock(self.now));
        self.state = *scopes.into_states().remove(0);
        schedule
    }

    fn forecast(&mut self, limits: &[Limit]) -> ForecastEnd {
        let schedule = self.schedule(&ForecastRequest::as_it_is(limits, 0));
        end(limits, &schedule, false)
    }

    /// Returns when the last job starts if no other job arrives.
    fn ends(&mut self, limits: &[Limit]) -> u64 {
        self.steps_until(limits, u64::MAX).max(self.now)
    }
}

fn one_limit() -> impl Strategy<Value = Limit> {
    let algorithm = prop::sample::select(algorithms());
    let guard = prop::sample::select(vec![0, 7, 100]);
    (algorithm, 1..12_u64, 500..5_000_u64, guard)
        .prop_map(|(algorithm, max, window, guard)| limit("one", algorithm, max, window, guard))
}

fn jobs(costs: std::ops::Range<u64>) -> impl Strategy<Value = Vec<(u64, u64)>> {
    let after = prop_oneof![3 => Just(0), 1 => 0..400_u64];
    prop::collection::vec((after, costs), 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// With one limit, every algorithm keeps its forecast to the millisecond.
    #[test]
    fn with_one_limit_the_forecast_is_exact(limit in one_limit(), jobs in jobs(1..2)) {
        let limits = [limit];
        let mut backlog = Backlog::of(&limits, &jobs);
        let forecast = backlog.forecast(&limits);
        let (before, waits) = (backlog.now, !backlog.waiting.is_empty());
        let ends = backlog.ends(&limits);
        prop_assert_eq!(forecast.sure, Certainty::Exact);
        if waits {
            // The last job may start half a second before its turn if there is room.
            prop_assert!(forecast.at_ms.abs_diff(ends) <= 1, "{:?} {} {}", forecast, ends, before);
        }
    }
}

/// With several limits, the forecast steps through the delays that they cause each other. A start
/// that one limit announced too late moves the later ones by a window, which happens once in
/// 100,000 histories. The histories here are always the same.
#[test]
fn with_several_limits_the_forecast_is_as_good() {
    let named = |limit: &Limit, name: &str| {
        let window = Duration::from_millis(limit.window_ms());
        let guard = Duration::from_millis(limit.guard_ms());
        Limit::new(name, limit.algorithm(), limit.max(), window, guard).expect("in range")
    };
    let histories = (one_limit(), one_limit(), one_limit(), jobs(1..2));
    let mut runner = TestRunner::deterministic();
    let (mut exact, mut close) = (0, 0);
    for _ in 0..600 {
        let history = histories
            .new_tree(&mut runner)
            .expect("there is one")
            .current();
        let (first, second, third, jobs) = history;
        let limits = [first, named(&second, "two"), named(&third, "three")];
        let mut backlog = Backlog::of(&limits, &jobs);
        let forecast = backlog.forecast(&limits);
        if backlog.waiting.is_empty() {
            continue;
        }
        let now = backlog.now;
        let wait = backlog.ends(&limits) - now;
        let off = (forecast.at_ms - now).abs_diff(wait);
        let counts = |limit: &Limit| limit.algorithm() == Algorithm::SlidingCounter;
        if limits.iter().any(counts) {
            assert_eq!(forecast.sure, Certainty::Estimated);
            let span = limits.iter().map(|limit| limit.span()).max().unwrap_or(0);
            assert!(off <= span, "{off} of {wait}: {forecast:?} {limits:?}");
        } else {
            assert_eq!(forecast.sure, Certainty::Exact);
            exact += 1;
            close += u32::from(off <= 100.max(wait / 50));
        }
    }
    assert!(exact > 100, "{exact}");
    assert!(close + 1 >= exact, "{close} of {exact}");
}

/// A job may cost several units; the gate knows only their sum and not their order.
#[test]
fn costs_are_known_as_a_sum() {
    for algorithm in algorithms() {
        let one = limit("one", algorithm, 10, 1_000, 0);
        let one = match algorithm.has_burst() {
            true => one.with_burst(10).expect("in range"),
            false => one,
        };
        let limits = [one];
        let jobs: Vec<(u64, u64)> = (0..300).map(|job| (0, 1 + job % 4)).collect();
        let mut backlog = Backlog::of(&limits, &jobs);
        let forecast = backlog.forecast(&limits);
        assert_eq!(forecast.sure, Certainty::Estimated);
        let now = backlog.now;
        let wait = backlog.ends(&limits) - now;
        let off = (forecast.at_ms - now).abs_diff(wait);
        assert!(
            off <= wait / 20 + 1_000,
            "{}: {off} of {wait}",
            algorithm.name()
        );
    }
}

#[test]
fn a_what_if_forecast_matches_the_applied_change() {
    for algorithm in algorithms() {
        let limits = [limit("one", algorithm, 5, 1_000, 0).with_unit(Unit::Calls)];
        let jobs = vec![(0, 1); 200];
        let raised = ForecastRequest {
            limits: vec![limits[0].clone().with_max(20)],
            ignores_override: vec![true],
            ..ForecastRequest::as_it_is(&limits, 0)
        };
        let mut backlog = Backlog::of(&limits, &jobs);
        let before = backlog.forecast(&limits);
        let schedule = backlog.schedule(&raised);
        let forecast = end(&raised.limits, &schedule, false);
        assert!(
            forecast.at_ms + 20_000 < before.at_ms,
            "{forecast:?} {before:?}"
        );
        // An operator applies the change, and waiting jobs ask again.
        let change = Change::Limit {
            name: "one".to_owned(),
            max: 20,
            duration_ms: 3_600_000,
        };
        backlog.state.change(backlog.now, &change);
        let now = backlog.now;
        backlog.waiting.iter_mut().for_each(|(at, ..)| *at = now);
        let ends = backlog.ends(&limits);
        let off = forecast.at_ms.abs_diff(ends);
        assert!(
            off <= 1,
            "{}: {forecast:?} and not {ends}",
            algorithm.name()
        );
        // The override is in force now, whatever is configured, unless the question says otherwise.
        let mut backlog = Backlog::of(&limits, &jobs);
        backlog.state.change(backlog.now, &change);
        let ignores_override = ForecastRequest {
            ignores_override: vec![true],
            ..ForecastRequest::as_it_is(&limits, 0)
        };
        let schedule = backlog.schedule(&ignores_override);
        assert_eq!(end(&limits, &schedule, false).at_ms, before.at_ms);
    }
}

#[test]
fn learned_limits_remain_in_force_under_overrides() {
    let minute = limit("one", Algorithm::SlidingWindow, 20, 60_000, 0);
    let limits = [minute.with_unit(Unit::Calls).with_band(50)];
    let mut backlog = Backlog::of(&limits, &[(0, 1); 100]);
    let refused = Evidence::Refused {
        started_ms: backlog.now,
        cost: 1,
        after_ms: 0,
        closed_ms: 0,
    };
    let now = backlog.now;
    // Ten of the twenty were refused.
    for _ in 0..10 {
        backlog.state.alone(&limits, |scopes| {
            scopes.learn(&limits, clock(now), &refused);
        });
    }
    let before = backlog.forecast(&limits);
    assert_eq!(before.sure, Certainty::Estimated, "it rises again");
    let would_be = |max| ForecastRequest {
        limits: vec![limits[0].clone().with_max(max)],
        ignores_override: vec![true],
        ..ForecastRequest::as_it_is(&limits, 0)
    };
    for (max, in_force) in [(40, 10), (5, 5)] {
        let asked = would_be(max);
        let schedule = backlog.schedule(&asked);
        assert_eq!(schedule.max, [in_force]);
        let ends = end(&asked.limits, &schedule, false);
        assert_eq!(
            ends.at_ms == before.at_ms,
            in_force == 10,
            "{max}: {ends:?}"
        );
        // The result is the same as after the real change.
        let mut done = backlog.state.clone();
        let change = Change::Limit {
            name: "one".to_owned(),
            max,
            duration_ms: 3_600_000,
        };
        done.change(now, &change);
        let usage = done.alone(&limits, |scopes| scopes.inspect(&limits, clock(now)));
        assert_eq!((usage.limits[0].max, usage.limits[0].set), (in_force, max));
    }
}

#[test]
fn a_pause_lasts_as_forecast_and_no_job_starts_during_a_recovery_wait() {
    let limits = [limit("one", Algorithm::SlidingWindow, 5, 1_000, 0)];
    let mut backlog = Backlog::of(&limits, &[(0, 1); 20]);
    let pause = Change::Pause {
        duration_ms: 60_000,
    };
    backlog.state.change(backlog.now, &pause);
    let now = backlog.now;
    let mut at = |opens, not_before_ms| {
        let asked = ForecastRequest {
            opens,
            ..ForecastRequest::as_it_is(&limits, not_before_ms)
        };
        let schedule = backlog.schedule(&asked);
        end(&limits, &schedule, false).at_ms - now
    };
    assert_eq!(at(OpeningTime::AsItIs, 0), 62_000);
    assert_eq!(at(OpeningTime::Now, 0), 3_000);
    assert_eq!(at(OpeningTime::In(10_000), 0), 12_000);
    assert_eq!(at(OpeningTime::Now, now + 30_000), 32_000);
    let mut nobody = Backlog::of(&limits, &[]);
    assert_eq!(nobody.forecast(&limits).at_ms, BEGIN);
}

#[test]
fn each_job_has_a_position_and_a_new_one_is_last() {
    let limits = [limit("one", Algorithm::SlidingWindow, 5, 1_000, 0)];
    let mut backlog = Backlog::of(&limits, &[(0, 1); 20]);
    let now = backlog.now;
    let tickets: Vec<Ticket> = backlog
        .waiting
        .iter()
        .map(|(_, ticket, _)| *ticket)
        .collect();
    assert_eq!(tickets.len(), 15);
    let mut at = |ticket| {
        let asked = ForecastRequest {
            target: ForecastTarget::Job(ticket, 1),
            ..ForecastRequest::as_it_is(&limits, 0)
        };
        let schedule = backlog.schedule(&asked);
        assert_eq!(schedule.waiting, 15);
        (schedule.units, end(&limits, &schedule, false).at_ms - now)
    };
    assert_eq!(at(Some(tickets[0])), (1, 1_000));
    assert_eq!(at(Some(tickets[7])), (8, 2_000));
    assert_eq!(at(Some(tickets[14])), (15, 3_000));
    assert_eq!(at(None), (16, 4_000));
    let of_before = Ticket {
        generation: 1,
        ..tickets[0]
    };
    assert_eq!(at(Some(of_before)), (16, 4_000), "its waitlist was reset");
}

#[test]
fn a_backlog_of_any_size_is_forecast_in_bounded_steps() {
    let limits = [
        limit("one", Algorithm::TokenBucket, 100, 1_000, 0),
        limit("two", Algorithm::FixedWindow, 5_000, 60_000, 0),
    ];
    let layout = Layout::alone(&limits);
    let mut state = State::default();
    state.waitlist.issue(BEGIN, 1);
    state.waitlist.last_issued = 3_000_000;
    state.waitlist.jobs = 3_000_000;
    let mut state = Some(Box::new(state));
    let scopes = Scopes::take(&layout, |_| state.take().expect("there is one"));
    let schedule = scopes.schedule(&ForecastRequest::as_it_is(&limits, 0), clock(BEGIN));
    assert_eq!(schedule.turns.len(), 64);
    let end = end(&limits, &schedule, false);
    let minutes = (end.at_ms - BEGIN) / 60_000;
    assert!((598..=601).contains(&minutes), "{minutes}");
}
