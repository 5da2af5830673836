//! Paces the questions to the gate: decides when the next round trip may begin, tracks the ones in
//! flight, and knows how long an answer is useful.

use std::collections::BTreeMap;
use std::time::Duration;

use super::expired_permits::ExpiredPermits;
use super::questions::GateQuestion;
use super::round_size::RoundSize;
use crate::action::JobKey;
use crate::facts::GateFact;
use gate::{GateError, ShardId};
use rules::failures::retry::Backoff;
use rules::limit::Limits;

/// Minimum interval between round trips of fewer than [`FULL_ROUND`] jobs. It bounds their number.
const PACE: Duration = Duration::from_millis(1);
/// Number of jobs for which a round trip begins without a pause.
const FULL_ROUND: usize = 8;
/// Delay before the store's clock is read again after a failure.
const CLOCK_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum pause between questions during a recovery wait, because the gate may open early.
const COLD_PAUSE: Duration = Duration::from_secs(1);

/// One round trip to one shard that is in flight.
#[derive(Debug)]
pub struct RoundTrip {
    pub asked_at: Duration,
    pub questions: Vec<GateQuestion>,
    /// Number of this round trip, counted from 1.
    number: u64,
    /// When its answer becomes too old to start jobs. `Admission::base`, the minimum latency to the
    /// store, is added on top.
    until: Duration,
    /// Whether its jobs have lost their slots.
    pub lapsed: bool,
}

impl RoundTrip {
    /// Adds `question` for jobs.
    pub fn add(&mut self, question: GateQuestion) {
        self.until = self
            .until
            .max(self.asked_at + question.limits.permit_lasts());
        self.questions.push(question);
    }

    /// Adds `question`, which has no jobs and only reads the store's clock.
    pub(super) fn add_for_clock(&mut self, question: GateQuestion) {
        self.questions.push(question);
    }

    fn keys(&self) -> Vec<JobKey> {
        let jobs = self.questions.iter().flat_map(|question| &question.jobs);
        jobs.map(|job| job.key).collect()
    }
}

/// The questions to the gate.
#[derive(Debug, Default)]
pub struct Admission {
    /// The round trips in flight, at most one per shard.
    rounds: BTreeMap<ShardId, RoundTrip>,
    /// Number of round trips so far.
    asked: u64,
    last_ask: Option<Duration>,
    size: RoundSize,
    /// Earliest time of the next round trip after an error.
    not_before: Option<Duration>,
    /// When the recovery wait ends, according to the gate's last error.
    closed_until: Duration,
    backoff: Backoff,
    /// Minimum duration of a round trip.
    base: Duration,
    expired_permits: ExpiredPermits,
}

impl Admission {
    /// Returns true if no round trip to `shard` is in flight.
    pub fn is_open(&self, shard: ShardId) -> bool {
        !self.rounds.contains_key(&shard)
    }

    /// Returns true if no round trip is in flight.
    pub fn is_idle(&self) -> bool {
        self.rounds.is_empty()
    }

    /// Returns the number of round trips so far.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// Returns true if the first `asked` round trips have ended.
    pub fn is_answered(&self, asked: u64) -> bool {
        self.rounds.values().all(|round| round.number > asked)
    }

    /// Returns the minimum duration of a round trip.
    pub fn base(&self) -> Duration {
        self.base
    }

    /// Sets the minimum duration of a round trip.
    pub fn set_base(&mut self, base: Duration) {
        self.base = base;
    }

    /// Returns when the next round trip may begin. `could` returns the number of jobs that could
    /// ask.
    pub fn ask_at(&self, could: impl FnOnce() -> usize) -> Duration {
        let paced = match self.last_ask {
            Some(last) if could() < FULL_ROUND => last + PACE,
            _ => Duration::ZERO,
        };
        paced.max(self.not_before.unwrap_or_default())
    }

    /// Returns the maximum number of jobs in one round trip.
    pub(super) fn max_jobs(&self) -> usize {
        self.size.get()
    }

    /// Records that a round trip asks for `jobs` jobs.
    pub(super) fn asks_for(&mut self, jobs: usize) {
        self.size.asked(jobs);
    }

    /// Begins to assemble a round trip of about `questions` questions.
    pub fn begin(&mut self, now: Duration, questions: usize) -> RoundTrip {
        self.asked += 1;
        RoundTrip {
            asked_at: now,
            questions: Vec::with_capacity(questions),
            number: self.asked,
            until: now,
            lapsed: false,
        }
    }

    /// Records that a round trip was sent.
    pub fn sent(&mut self, now: Duration, shard: ShardId, round: RoundTrip) {
        self.last_ask = Some(now);
        self.rounds.insert(shard, round);
    }

    /// Ends the round trip of `shard`.
    pub fn end(&mut self, shard: ShardId) -> Option<RoundTrip> {
        self.rounds.remove(&shard)
    }

    /// Returns when the jobs of a round trip lose their slots, because its answer can no longer
    /// start them. Jobs of other shards then get these slots, so a server that hangs blocks slots
    /// only briefly.
    pub fn lapses_at(&self) -> Option<Duration> {
        let open = self.rounds.values().filter(|round| !round.lapsed);
        let until = open.map(|round| round.until).min()?;
        Some(until + self.base + Duration::from_millis(1))
    }

    /// Marks as lapsed one round trip whose answer can no longer start jobs. Returns its jobs.
    pub fn lapse(&mut self, now: Duration) -> Option<Vec<JobKey>> {
        let base = self.base;
        let mut open = self.rounds.values_mut().filter(|round| !round.lapsed);
        let round = open.find(|round| round.until + base < now)?;
        round.lapsed = true;
        Some(round.keys())
    }

    /// Delays the next question after `why`, an error of the gate.
    pub fn back_off(&mut self, now: Duration, why: &GateError, jitter: f64) {
        let pause = match why {
            GateError::Cold { wait, .. } => (*wait).min(COLD_PAUSE),
            _ => self.backoff.next(jitter),
        };
        self.not_before = Some(now + pause);
        self.closed_until = match why {
            GateError::Cold { wait, .. } => now + *wait,
            _ => Duration::ZERO,
        };
    }

    /// Returns how long the gate's recovery wait still lasts, as far as is known.
    pub fn closed_for(&self, now: Duration) -> Duration {
        self.closed_until.saturating_sub(now)
    }

    /// Delays the next question because the clock could not be read.
    pub(super) fn back_off_clock(&mut self, now: Duration) {
        self.not_before = Some(now + CLOCK_RETRY_DELAY);
    }

    /// Ends the delay, because the store has answered another request.
    pub fn end_delay(&mut self) {
        self.not_before = None;
    }

    /// Records that the gate answers.
    pub fn record_answer(&mut self) {
        self.not_before = None;
        self.closed_until = Duration::ZERO;
        self.backoff.reset();
    }

    /// Returns how long a permit under `limits` can be used, counted from when its question was
    /// sent. The minimum latency to the store is added, because it does no harm
    /// (docs/decisions/late-calls.md).
    pub fn good_for(&self, limits: &Limits) -> Duration {
        self.base + limits.permit_lasts()
    }

    /// Records that a permit came too late, or could not be used in time. `asked_at` is when it was
    /// requested. From now on, fewer jobs ask together.
    pub fn was_late(&mut self, now: Duration, asked_at: Duration) {
        self.size.late(now, asked_at);
    }

    /// Records that a permit came too late. Returns a fact if all recent permits did.
    pub fn record_late_permit(
        &mut self,
        now: Duration,
        asked_at: Duration,
        limits: &Limits,
    ) -> Option<GateFact> {
        self.was_late(now, asked_at);
        self.expired_permits
            .expired(now)
            .then(|| GateFact::NoYoungPermit {
                took: now.saturating_sub(asked_at),
                base: self.base,
                good_for: self.good_for(limits),
            })
    }

    /// Records that a permit came in time.
    pub fn record_timely_permit(&mut self, now: Duration, asked_at: Duration) {
        self.expired_permits.in_time();
        self.size.in_time(now, asked_at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::asking::questions::QuestionJob;
    use kit::MS;
    use rules::limit::Limit;
    use rules::scope::Labels;
    use rules::tenant::Tenant;

    /// Without a guard, a permit is good for a second.
    fn limits() -> Limits {
        Limit::concurrent("running", 3).expect("in range").into()
    }

    fn send(admission: &mut Admission, now: Duration, shard: ShardId, key: JobKey) {
        let tenant = Tenant::parse("a").expect("a tenant");
        let mut question = GateQuestion::new(tenant, Labels::default(), limits(), String::new());
        question.jobs.push(QuestionJob {
            key,
            index: 0,
            cost: 1,
        });
        let mut round = admission.begin(now, 1);
        round.add(question);
        admission.sent(now, shard, round);
    }

    #[test]
    fn a_shard_has_one_request_in_flight_and_few_jobs_are_batched() {
        let (mut admission, here) = (Admission::default(), ShardId::default());
        assert_eq!(admission.ask_at(|| 1), Duration::ZERO);
        assert!(admission.is_open(here) && admission.is_idle());
        send(&mut admission, 10 * MS, here, JobKey(1));
        assert!(!admission.is_open(here) && !admission.is_idle());
        assert_eq!(admission.ask_at(|| 1), 10 * MS + PACE);
        assert_eq!(admission.ask_at(|| FULL_ROUND), Duration::ZERO);
        assert_eq!(admission.asked(), 1);
        assert!(admission.is_answered(0) && !admission.is_answered(1));
        assert!(admission.end(here).is_some_and(|round| !round.lapsed));
        assert!(admission.is_open(here) && admission.is_answered(1));
        assert!(admission.end(here).is_none(), "it has ended");
    }

    #[test]
    fn an_unreachable_store_is_asked_after_pauses_until_it_answers() {
        let mut admission = Admission::default();
        let cold = |wait| GateError::Cold {
            wait,
            why: "a test".to_owned(),
        };
        admission.back_off(MS, &cold(60_000 * MS), 0.5);
        assert_eq!(admission.ask_at(|| 1), MS + COLD_PAUSE);
        admission.back_off(MS, &cold(5 * MS), 0.5);
        assert_eq!(admission.ask_at(|| 1), 6 * MS);
        let away = GateError::Unreachable("a test".to_owned());
        let mut pauses = [0; 3].map(|_: u32| {
            admission.back_off(Duration::ZERO, &away, 0.5);
            admission.ask_at(|| 1)
        });
        assert!(pauses.is_sorted() && pauses[0] < pauses[2], "{pauses:?}");
        admission.end_delay();
        assert_eq!(admission.ask_at(|| 1), Duration::ZERO);
        admission.back_off(Duration::ZERO, &away, 0.5);
        assert!(admission.ask_at(|| 1) > pauses[2], "the pauses still grow");
        admission.record_answer();
        assert_eq!(admission.ask_at(|| 1), Duration::ZERO);
        admission.back_off(Duration::ZERO, &away, 0.5);
        pauses[1] = admission.ask_at(|| 1);
        assert_eq!(pauses[0], pauses[1], "it begins anew");
    }

    #[test]
    fn jobs_that_are_too_late_lapse_once_and_later_with_a_distant_store() {
        let (mut admission, here) = (Admission::default(), ShardId::default());
        assert_eq!(admission.lapses_at(), None);
        send(&mut admission, 10 * MS, here, JobKey(7));
        assert_eq!(admission.lapses_at(), Some(1_011 * MS));
        admission.set_base(40 * MS);
        assert_eq!(admission.lapses_at(), Some(1_051 * MS));
        assert_eq!(admission.good_for(&limits()), 1_040 * MS);
        assert_eq!(admission.lapse(1_050 * MS), None);
        assert_eq!(admission.lapse(1_051 * MS), Some(vec![JobKey(7)]));
        assert_eq!(admission.lapse(1_051 * MS), None, "once");
        assert_eq!(admission.lapses_at(), None);
        assert!(admission.end(here).is_some_and(|round| round.lapsed));
    }

    #[test]
    fn a_late_permit_halves_the_round_and_only_late_permits_are_reported() {
        let mut admission = Admission::default();
        admission.asks_for(100);
        assert!(admission.record_late_permit(MS, MS, &limits()).is_none());
        assert_eq!(admission.max_jobs(), 50);
        let fact = admission.record_late_permit(9_000 * MS, 8_000 * MS, &limits());
        let Some(GateFact::NoYoungPermit { took, good_for, .. }) = fact else {
            panic!("{fact:?}");
        };
        assert_eq!((took, good_for), (1_000 * MS, 1_000 * MS));
        admission.record_timely_permit(9_001 * MS, 9_000 * MS);
        assert_eq!(
            admission.max_jobs(),
            50,
            "asked half as many again, and double"
        );
    }
}
