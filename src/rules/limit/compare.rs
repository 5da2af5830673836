//! Relations between two limits: whether one makes the other redundant, shares its state, or can
//! continue its count.

use super::Limit;
use crate::algorithms::KeyLayout;
use crate::algorithms::LEASE_MS;

impl Limit {
    /// Returns true if `other` allows everything that this limit lets start, so that `other` is
    /// redundant. Both must count the same unit, and this limit must count all jobs that `other`
    /// counts: no algorithm allows less if less has started. False if in doubt.
    pub fn implies(&self, other: &Self) -> bool {
        let (terms, unit) = (&self.terms, self.unit());
        if unit != other.unit() || !self.scope.covers(&other.scope) {
            return false;
        }
        let like = |limit: &Self| {
            let calendar = limit.terms.calendar;
            (
                limit.algorithm(),
                limit.window_ms(),
                limit.guard_ms(),
                calendar,
            )
        };
        if like(self) == like(other) {
            return self.max() <= other.max() && self.burst() <= other.burst();
        }
        let rules = other.algorithm().rules();
        rules.is_implied_by(&other.terms, terms)
    }

    /// Returns how long the limit's own state looks back, in milliseconds: the window, and the
    /// guard if it is counted on top. Together with the name, the algorithm and the unit this
    /// identifies a state.
    pub fn state_ms(&self) -> (u64, u64) {
        self.algorithm().rules().state_ms(&self.terms)
    }

    /// Returns the time after which a start no longer counts at the API, in milliseconds. Does not
    /// cover calls that run for longer than a lease.
    pub fn memory_ms(&self) -> u64 {
        let lease = if self.algorithm().holds_leases() {
            LEASE_MS
        } else {
            0
        };
        self.span() + self.guard_ms() + lease
    }

    /// Returns a bucket's `max` and `burst` as configured, or `None` for other algorithms. A bucket
    /// forgets a start as soon as it is refilled, so one that is refilled faster must not write the
    /// state of another. The other algorithms store the starts themselves.
    pub fn state_bucket(&self) -> Option<(u64, u64)> {
        self.bucket
    }

    /// Returns true if both limits count with the same stored state, so that only one of them needs
    /// to be charged. In addition, all sliding windows of a scope share one log, independent of
    /// their numbers.
    pub fn shares_state(&self, other: &Self) -> bool {
        let state = |limit: &Self| {
            let (span, bucket) = (limit.state_ms(), limit.state_bucket());
            let calendar = limit.terms.calendar;
            (limit.algorithm(), span, bucket, limit.unit(), calendar)
        };
        state(self) == state(other) && self.name == other.name && self.scope == other.scope
    }

    /// Returns the limit that allows a start only if both do. Both must count with the same state.
    ///
    /// An enforced limit takes precedence over a shadow. Of two shadows `self` is returned, because
    /// each counts by its own numbers.
    pub(super) fn stricter(&self, other: &Self) -> Self {
        match (self.shadow, other.shadow) {
            (true, false) => return other.clone(),
            (_, true) => return self.clone(),
            (false, false) => {}
        }
        let mut limit = self.clone();
        limit.terms.max = self.max().min(other.max());
        limit.terms.burst = self.burst().min(other.burst());
        limit.terms.guard_ms = self.guard_ms().max(other.guard_ms());
        limit
    }

    /// Returns true if this limit can replace `before` at once. Every start must have been charged
    /// to `before`. Then all that this limit counts must be known, and the calls in any window must
    /// be at most what the limit in force at the last of these calls allows. False if in doubt, and
    /// for a bucket with other numbers, because it may start full.
    pub fn continues(&self, before: &Self) -> bool {
        if self.scope != before.scope {
            return false;
        }
        if self.algorithm().facts().keys == KeyLayout::Log {
            before.algorithm() == self.algorithm() && before.span() >= self.span()
        } else if self.algorithm().has_burst() {
            self.terms == before.terms && self.shares_state(before)
        } else {
            self.shares_state(before)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::time::Duration;

    use super::super::{Algorithm, Limits, Unit};
    use super::*;
    use crate::decision::{Answer, Change, Question};
    use crate::gate::model::State;
    use crate::gate::usage::Clock;
    use crate::kit::guarded;
    use crate::scope::Scope;

    fn limit(name: &'static str, most: u64) -> impl Strategy<Value = Limit> {
        let algorithm = prop::sample::select(&Algorithm::ALL[..]);
        let window = prop::sample::select(&[100_u64, 150, 200, 300, 1_000][..]);
        let guard = prop::sample::select(&[0_u64, 10, 49][..]);
        (algorithm, window, guard, 1..most, 1..most).prop_map(
            move |(algorithm, window, guard, max, burst)| {
                let (window, guard) = (Duration::from_millis(window), Duration::from_millis(guard));
                let limit = Limit::new(name, algorithm, max, window, guard).expect("in range");
                if algorithm.has_burst() {
                    limit.with_burst(burst).expect("in range")
                } else {
                    limit
                }
            },
        )
    }

    /// Returns true if a job starts now. The waitlist is empty, so only usage matters.
    fn starts(state: &mut State, limits: &[Limit], clock: Clock, cost: u64) -> bool {
        let ask = [Question {
            ticket: None,
            cost,
            readmitted: false,
        }];
        let (answers, _) = state.alone(limits, |scopes| {
            scopes.ask(limits, clock, 1, "permit", &ask)
        });
        state.change(clock.now_ms, &Change::Reset);
        matches!(answers[..], [Answer::Start { .. }])
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, max_global_rejects: 100_000, ..ProptestConfig::default() })]

        /// If one limit implies another, the other changes no decision.
        #[test]
        fn an_implied_limit_never_decides(
            strict in limit("strict", 10),
            idle in limit("idle", 60),
            steps in prop::collection::vec((0..120_000_u64, 1..4_u64), 1..200),
        ) {
            prop_assume!(strict.implies(&idle));
            let max_cost = Limits::from(strict.clone()).max_cost();
            let alone = [strict.clone()];
            let both = [strict, idle];
            let (mut one, mut two) = (State::default(), State::default());
            let mut micros = 1_700_000_000_000_000;
            for (pause, cost) in steps {
                // Half of the jobs arrive at the same moment.
                micros += pause.saturating_sub(60_000);
                let (clock, cost) = (Clock::from_micros(micros), cost.min(max_cost));
                let started = starts(&mut one, &alone, clock, cost);
                prop_assert_eq!(started, starts(&mut two, &both, clock, cost));
            }
        }

        /// If a limit implies one that counts only some of its jobs, the implied limit allows all
        /// of these jobs that start.
        #[test]
        fn an_implied_limit_of_fewer_jobs_never_decides(
            wide in limit("wide", 10),
            idle in limit("idle", 60),
            steps in prop::collection::vec((0..120_000_u64, 1..4_u64, any::<bool>()), 1..200),
        ) {
            let wide = wide.with_scope(Scope::Global);
            prop_assume!(wide.implies(&idle));
            let max_cost = Limits::from(wide.clone()).max_cost();
            let (wide, idle) = ([wide], [idle]);
            let (mut all, mut some) = (State::default(), State::default());
            let mut micros = 1_700_000_000_000_000;
            for (pause, cost, counted) in steps {
                micros += pause.saturating_sub(60_000);
                let (clock, cost) = (Clock::from_micros(micros), cost.min(max_cost));
                if starts(&mut all, &wide, clock, cost) && counted {
                    prop_assert!(starts(&mut some, &idle, clock, cost));
                }
            }
        }
    }

    #[test]
    fn a_limit_that_is_stricter_in_every_respect_implies_the_other() {
        let limit =
            |algorithm, max, seconds| guarded("x", algorithm, max, Duration::from_secs(seconds));
        use Algorithm::{FixedWindow, LeakyBucket, SlidingCounter, SlidingWindow, TokenBucket};
        for (strict, idle, implies) in [
            ((SlidingWindow, 10, 1), (SlidingWindow, 1000, 1), true),
            ((SlidingWindow, 1000, 1), (SlidingWindow, 10, 1), false),
            (
                (SlidingWindow, 100, 3600),
                (SlidingWindow, 1000, 3600),
                true,
            ),
            ((SlidingWindow, 100, 3600), (SlidingWindow, 1000, 60), true),
            ((SlidingWindow, 10, 1), (SlidingWindow, 599, 60), true),
            ((SlidingWindow, 10, 1), (SlidingWindow, 500, 60), false),
            ((SlidingWindow, 10, 1), (TokenBucket, 1000, 60), true),
            ((SlidingWindow, 10, 1), (LeakyBucket, 1000, 1), false),
            ((FixedWindow, 10, 1), (FixedWindow, 600, 60), true),
            ((FixedWindow, 10, 1), (FixedWindow, 599, 60), false),
            ((SlidingCounter, 10, 1), (SlidingCounter, 10, 1), true),
            ((TokenBucket, 10, 1), (TokenBucket, 100, 1), true),
        ] {
            let [strict, idle] = [strict, idle].map(|(how, max, seconds)| limit(how, max, seconds));
            assert_eq!(strict.implies(&idle), implies, "{strict:?} {idle:?}");
        }
        let tokens = limit(SlidingWindow, 1000, 1).with_unit(Unit::Calls);
        assert!(!limit(SlidingWindow, 10, 1).implies(&tokens), "other units");

        let scopes = ["global", "tenant", "header:a", "header:b", "routing-key"];
        let scopes = scopes.map(|text| Scope::parse(text).expect("a scope"));
        for (wide, one) in scopes.iter().enumerate() {
            for (narrow, other) in scopes.iter().enumerate() {
                let strict = limit(SlidingWindow, 10, 1).with_scope(one.clone());
                let idle = limit(SlidingWindow, 20, 1).with_scope(other.clone());
                let counts = wide == narrow || (wide < 2 && wide < narrow);
                assert_eq!(strict.implies(&idle), counts, "{one} {other}");
            }
        }
    }
}
