//! Judges whether calls arrived at the API later than the guard covers, and from when a late call
//! counts. Pure: `now` is an argument.
//!
//! A worker measures one loop per call: it sends the question at q, the gate decides at t, the call
//! is written, and at h the worker learns that the call has arrived. The minimum duration of a
//! loop, the *base*, does no harm. The excess over it is the call's lateness E = (h - q) - base. A
//! later call j whose start is decided at t_j arrives after t_j plus its minimum latency, so
//! `t_j >= t + W + E` proves that it arrives a window after this call, regardless of clocks. The
//! log keeps a start for W and the guard. A call whose lateness exceeds the guard counts from the
//! moment when the store learns of it. That is after t + E - guard, because a permit is used only
//! if its question took at most half a guard longer than usual.
//!
//! Two signals show that a call has arrived. The *acknowledgment* by the machine at the other end
//! of the connection always counts. The *answer* also includes the time that the API itself took: a
//! slow answer may mean a late arrival (a proxy in between acknowledged for itself, or the API read
//! late), or just work. It counts as long as a *purse* can pay for it. Each call pays a part of a
//! window into the purse (`rate-limiter.guard-budget`), so the doubt costs at most that part of the
//! quota.

use std::time::Duration;

use strum::IntoStaticStr;

use super::latency::LatencyEstimator;
use crate::limit::Algorithm;

/// The longest guard that `auto` selects.
pub const AUTO_GUARD: Duration = Duration::from_millis(50);
/// The shortest guard that `auto` selects for a bucket, unless its window is short: a permit needs
/// this much.
const AUTO_GUARD_OF_BUCKET: Duration = Duration::from_millis(20);

/// Returns the guard that `auto` selects. A short window has a short guard. A bucket pays for the
/// guard with each start, so its guard is at most 3 % of the window, if that is enough for a
/// permit.
pub fn auto_guard(algorithm: Algorithm, window: Duration) -> Duration {
    let guard = AUTO_GUARD.min(window / 4);
    match algorithm.has_burst() {
        true => guard.min(AUTO_GUARD_OF_BUCKET.max(window / 33)),
        false => guard,
    }
}

/// Number of calls per minute whose acknowledgment is watched closely.
const CLOSELY: u32 = 32;
/// Maximum age of a close observation.
pub const CLOSE: Duration = Duration::from_millis(1);
/// Maximum delay of a close observation: a timer and its task.
const CLOSE_ERROR: Duration = Duration::from_millis(2);
/// Capacity of the purse, in windows. It starts full.
const BUDGET: f64 = 1.0;
const MINUTE: Duration = Duration::from_secs(60);

/// A signal about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum CallSignal {
    /// The machine at the other end of the connection has acknowledged the call.
    #[strum(serialize = "acknowledgement")]
    Acked {
        /// Whether the call was watched for this from the moment in which it was written.
        closely: bool,
    },
    /// The API answered.
    #[strum(serialize = "answer")]
    Answered,
    /// No signal yet, although the call was checked: it may arrive only now.
    Nothing,
}

/// A call in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallInFlight {
    /// When the question was sent.
    pub asked_at: Duration,
    /// The shortest guard of its limits, which the time of an answer is compared with. `None` if
    /// all are buckets: the time that an API takes for its work must not slow them down.
    pub guard: Option<Duration>,
    /// The tolerance for the time of an acknowledgment: the guard, or the margin between starts of
    /// a bucket.
    pub tolerance: Duration,
    /// The shortest window of its limits, or distance between starts of a bucket.
    pub window: Duration,
    /// Lateness that is covered beyond the tolerance, because the call counts from later than its
    /// start.
    pub covered: Duration,
}

/// The judgment on when a call arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timeliness {
    /// Within the covered time.
    InTime,
    /// Later than covered by this much: the call must count from now.
    Late(Duration),
    /// Perhaps later than covered, but the purse can't pay for it.
    Unpaid,
}

impl Timeliness {
    fn of(late: Duration) -> Self {
        match late.is_zero() {
            true => Self::InTime,
            false => Self::Late(late),
        }
    }
}

/// When and how a call is checked while it is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallCheck {
    /// Time of the first check. A call that was acknowledged by then is in time.
    pub at: Duration,
    /// Whether to watch the call closely, from the moment in which it is written.
    pub closely: bool,
    /// How long after it was written a call may stay unacknowledged. After that it counts from now
    /// on, and it is counted anew after each further half of this time.
    pub patience: Duration,
}

/// The durations of loops, and the state of the purse.
#[derive(Debug)]
pub struct Lateness {
    acks: LatencyEstimator,
    answers: LatencyEstimator,
    budget: f64,
    minute: Duration,
    closely: u32,
}

impl Default for Lateness {
    fn default() -> Self {
        Self {
            acks: LatencyEstimator::default(),
            answers: LatencyEstimator::default(),
            budget: BUDGET,
            minute: Duration::ZERO,
            closely: 0,
        }
    }
}

impl Lateness {
    /// Returns when to check a call whose question was sent at `asked_at`.
    pub fn check(&mut self, now: Duration, call: &CallInFlight) -> CallCheck {
        if now >= self.minute + MINUTE {
            (self.minute, self.closely) = (now, 0);
        }
        let closely = self.closely < CLOSELY;
        self.closely += u32::from(closely);
        CallCheck {
            at: call.asked_at + self.acks.base() + call.tolerance,
            closely,
            patience: call.window / 2,
        }
    }

    /// Judges whether `call` arrived in time by `signal` at `now`. `budget` is the part
    /// of a window that a call pays into the purse.
    pub fn judge(
        &mut self,
        now: Duration,
        call: &CallInFlight,
        signal: CallSignal,
        budget: f64,
    ) -> Timeliness {
        let took = now.saturating_sub(call.asked_at);
        let beyond = |latency: &LatencyEstimator, tolerance| {
            took.saturating_sub(latency.base() + tolerance + call.covered)
        };
        match signal {
            CallSignal::Acked { closely } => {
                if closely {
                    self.acks.learn(now, took.saturating_sub(CLOSE_ERROR));
                }
                Timeliness::of(beyond(&self.acks, call.tolerance))
            }
            CallSignal::Nothing => Timeliness::of(beyond(&self.acks, call.tolerance)),
            CallSignal::Answered => {
                self.answers.learn(now, took);
                self.budget = (self.budget + budget).min(BUDGET);
                let Some(guard) = call.guard else {
                    return Timeliness::InTime;
                };
                let verdict = Timeliness::of(beyond(&self.answers, guard));
                if verdict == Timeliness::InTime {
                    return verdict;
                }
                let price = took.as_secs_f64() / call.window.as_secs_f64().max(f64::MIN_POSITIVE);
                if price > self.budget || budget == 0.0 {
                    return Timeliness::Unpaid;
                }
                self.budget -= price;
                verdict
            }
        }
    }

    /// Returns the minimum duration of a question, its answer, a call and its acknowledgment
    /// together.
    pub fn base(&self) -> Duration {
        self.acks.base()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Timeliness::{InTime, Late, Unpaid};
    use super::*;
    use crate::kit::MS;

    const ACKED: CallSignal = CallSignal::Acked { closely: true };

    fn call(asked_ms: u32) -> CallInFlight {
        CallInFlight {
            asked_at: MS * asked_ms,
            guard: Some(MS * 50),
            tolerance: MS * 50,
            window: MS * 1000,
            covered: Duration::ZERO,
        }
    }

    /// Returns the judgment on a call by a signal after `after_ms`.
    fn judged(
        late: &mut Lateness,
        call: &CallInFlight,
        after_ms: u32,
        signal: CallSignal,
    ) -> Timeliness {
        late.judge(call.asked_at + MS * after_ms, call, signal, 0.01)
    }

    #[test]
    fn before_the_latency_is_known_a_call_counts_from_its_report() {
        let mut late = Lateness::default();
        assert_eq!(
            judged(&mut late, &call(0), 290, CallSignal::Answered),
            Late(MS * 240)
        );
        assert_eq!(judged(&mut late, &call(0), 50, ACKED), InTime);
        assert_eq!(judged(&mut late, &call(0), 290, ACKED), Late(MS * 240));
    }

    #[test]
    fn a_constant_distance_costs_nothing_and_what_varies_beyond_the_guard_counts() {
        let mut late = Lateness::default();
        for n in 0..20 {
            judged(&mut late, &call(n), 302, ACKED);
        }
        assert_eq!(late.base(), MS * 300);
        let check = late.check(MS * 1000, &call(1000));
        assert_eq!((check.at, check.patience), (MS * 1350, MS * 500));
        assert_eq!(judged(&mut late, &call(1000), 350, ACKED), InTime);
        assert_eq!(judged(&mut late, &call(1000), 530, ACKED), Late(MS * 180));
        let signal = CallSignal::Acked { closely: false };
        assert_eq!(judged(&mut late, &call(1000), 530, signal), Late(MS * 180));
        for n in 0..20 {
            judged(&mut late, &call(n), 202, signal);
        }
        assert_eq!(late.base(), MS * 300, "only close observations count");
    }

    #[test]
    fn an_unacknowledged_call_keeps_counting_from_now() {
        let mut late = Lateness::default();
        let mut call = call(0);
        assert_eq!(
            judged(&mut late, &call, 500, CallSignal::Nothing),
            Late(MS * 450)
        );
        call.covered = MS * 500;
        assert_eq!(judged(&mut late, &call, 550, ACKED), InTime);
        assert_eq!(
            judged(&mut late, &call, 750, CallSignal::Nothing),
            Late(MS * 200)
        );
    }

    #[test]
    fn a_bucket_is_corrected_by_acknowledgements_and_not_by_answers() {
        let mut late = Lateness::default();
        let bucket = CallInFlight {
            guard: None,
            tolerance: MS * 3,
            window: MS * 100,
            ..call(0)
        };
        for _ in 0..20 {
            judged(&mut late, &bucket, 4, ACKED);
        }
        let check = late.check(MS * 1000, &bucket);
        assert_eq!((check.at, check.patience), (MS * 5, MS * 50));
        assert_eq!(judged(&mut late, &bucket, 5, ACKED), InTime);
        assert_eq!(judged(&mut late, &bucket, 45, ACKED), Late(MS * 40));
        assert_eq!(
            judged(&mut late, &bucket, 900, CallSignal::Answered),
            InTime
        );
    }

    #[test]
    fn answers_count_until_the_budget_is_spent() {
        let mut late = Lateness::default();
        for n in 0..20 {
            assert_eq!(
                judged(&mut late, &call(n), 20, CallSignal::Answered),
                InTime
            );
        }
        let (at, answered) = (MS * 300, CallSignal::Answered);
        let unpaid = late.judge(at, &call(0), answered, 0.0);
        assert_eq!(unpaid, Unpaid, "a budget of 0 ignores answers");
        // The full purse holds a whole window.
        for n in 0..3 {
            assert_eq!(
                judged(&mut late, &call(n), 300, CallSignal::Answered),
                Late(MS * 230),
                "{n}"
            );
        }
        assert_eq!(
            judged(&mut late, &call(9), 300, CallSignal::Answered),
            Unpaid
        );
        // Each call pays 10 ms, and a late one costs 300.
        for n in 0..20 {
            judged(&mut late, &call(n), 20, CallSignal::Answered);
        }
        assert_eq!(
            judged(&mut late, &call(9), 300, CallSignal::Answered),
            Late(MS * 230)
        );
    }

    #[test]
    fn auto_is_shorter_for_short_windows_and_for_buckets() {
        let auto = |algorithm, window_ms| auto_guard(algorithm, MS * window_ms).as_millis();
        let of_bucket = |window_ms| auto(Algorithm::LeakyBucket, window_ms);
        let of_window = |window_ms| auto(Algorithm::SlidingWindow, window_ms);
        assert_eq!([100, 200, 1000].map(of_window), [25, 50, 50]);
        assert_eq!([60, 200, 1000, 2000].map(of_bucket), [15, 20, 30, 50]);
    }

    #[test]
    fn some_calls_of_each_minute_are_watched_closely() {
        let mut late = Lateness::default();
        let mut looks = |from_ms: u32| {
            let mut look = |n| late.check(MS * (from_ms + n), &call(n)).closely;
            (0..100).filter(|n| look(*n)).count()
        };
        assert_eq!([looks(0), looks(59_000), looks(60_000)], [32, 0, 32]);
    }

    proptest! {
        /// Answers make calls count longer by no more in total than all calls paid plus a full
        /// purse.
        #[test]
        fn the_budget_bounds_the_cost_of_answers(loops in prop::collection::vec(0u32..3000, 0..300)) {
            let mut late = Lateness::default();
            let mut longer = Duration::ZERO;
            for (n, took) in loops.iter().enumerate() {
                let call = call(u32::try_from(n).expect("few") * 10);
                if let Late(_) = judged(&mut late, &call, *took, CallSignal::Answered) {
                    longer += MS * *took;
                }
            }
            let paid = 1.0 + 0.01 * loops.len() as f64;
            prop_assert!(longer.as_secs_f64() <= paid + 1e-9);
        }
    }
}
