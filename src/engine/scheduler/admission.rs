//! Permits: when the gate may be asked for more, which questions are under way, and until when an answer is of use.

use std::collections::BTreeMap;
use std::time::Duration;

use super::old::Old;
use super::questions::Question;
use super::round_size::RoundSize;
use crate::engine::action::Key;
use crate::engine::facts::Fact;
use crate::gate::{GateError, ShardId};
use crate::rules::limit::Limits;
use crate::rules::retry::Reconnect;

/// Asks wait this long for company, unless [`FULL_ROUND`] jobs could ask: it bounds the round trips.
const PACE: Duration = Duration::from_millis(1);
/// So many jobs that could ask do so at once.
const FULL_ROUND: usize = 8;
/// A clock that could not be read is asked for again after this.
const CLOCK_AGAIN: Duration = Duration::from_secs(1);
/// A gate that is closed because Redis may have forgotten starts is looked at so often: it may open early.
const COLD_PAUSE: Duration = Duration::from_secs(1);

/// One round trip to one shard that is under way.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) asked_at: Duration,
    pub(super) questions: Vec<Question>,
    /// How many there were before.
    number: u64,
    /// Its jobs may start by its answer if that comes by then, and what the way to the store takes in any case.
    until: Duration,
    /// Its jobs have nothing in hand any more.
    pub(super) lapsed: bool,
}

impl Round {
    /// Adds `question` for jobs.
    pub(super) fn add(&mut self, question: Question) {
        self.until = self
            .until
            .max(self.asked_at + question.limits.permit_lasts());
        self.questions.push(question);
    }

    /// Adds `question`, which has no jobs and only reads the store's clock.
    pub(super) fn add_for_clock(&mut self, question: Question) {
        self.questions.push(question);
    }

    fn keys(&self) -> Vec<Key> {
        let jobs = self.questions.iter().flat_map(|question| &question.jobs);
        jobs.map(|job| job.key).collect()
    }
}

/// The questions to the gate.
#[derive(Debug, Default)]
pub(super) struct Admission {
    /// At most one for each shard.
    rounds: BTreeMap<ShardId, Round>,
    /// How many there were.
    asked: u64,
    last_ask: Option<Duration>,
    size: RoundSize,
    /// Nothing is asked before.
    pause: Option<Duration>,
    /// When the gate opens again, as far as it said.
    closed_until: Duration,
    backoff: Reconnect,
    /// What a question and its answer take at least.
    base: Duration,
    old: Old,
}

impl Admission {
    /// No question is under way in `shard`.
    pub(super) fn is_open(&self, shard: ShardId) -> bool {
        !self.rounds.contains_key(&shard)
    }

    /// No question is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.rounds.is_empty()
    }

    /// How many questions there were.
    pub(super) fn asked(&self) -> u64 {
        self.asked
    }

    /// The first so many are answered.
    pub(super) fn is_answered(&self, asked: u64) -> bool {
        self.rounds.values().all(|round| round.number > asked)
    }

    /// What a question and its answer take at least.
    pub(super) fn base(&self) -> Duration {
        self.base
    }

    /// It was measured.
    pub(super) fn set_base(&mut self, base: Duration) {
        self.base = base;
    }

    /// When the next question may go, if so many jobs `could` ask.
    pub(super) fn ask_at(&self, could: impl FnOnce() -> usize) -> Duration {
        let paced = match self.last_ask {
            Some(last) if could() < FULL_ROUND => last + PACE,
            _ => Duration::ZERO,
        };
        paced.max(self.pause.unwrap_or_default())
    }

    /// The most jobs in one round trip.
    pub(super) fn most(&self) -> usize {
        self.size.get()
    }

    /// So many jobs are asked for.
    pub(super) fn asks_for(&mut self, jobs: usize) {
        self.size.asked(jobs);
    }

    /// A round that is being put together.
    pub(super) fn begin(&mut self, now: Duration) -> Round {
        self.asked += 1;
        Round {
            asked_at: now,
            questions: Vec::new(),
            number: self.asked,
            until: now,
            lapsed: false,
        }
    }

    /// It is sent.
    pub(super) fn sent(&mut self, now: Duration, shard: ShardId, round: Round) {
        self.last_ask = Some(now);
        self.rounds.insert(shard, round);
    }

    /// The round of `shard` has ended.
    pub(super) fn end(&mut self, shard: ShardId) -> Option<Round> {
        self.rounds.remove(&shard)
    }

    /// When jobs that were asked for lose what they need to start, where others want it. So long they could start by an answer; then
    /// the slots are for those of other shards, so that a server that hangs takes them for a moment only.
    pub(super) fn lapses_at(&self) -> Option<Duration> {
        let open = self.rounds.values().filter(|round| !round.lapsed);
        let until = open.map(|round| round.until).min()?;
        Some(until + self.base + Duration::from_millis(1))
    }

    /// One round lapses, if its time has come: its jobs.
    pub(super) fn lapse(&mut self, now: Duration) -> Option<Vec<Key>> {
        let base = self.base;
        let mut open = self.rounds.values_mut().filter(|round| !round.lapsed);
        let round = open.find(|round| round.until + base < now)?;
        round.lapsed = true;
        Some(round.keys())
    }

    /// The gate can't be asked: the next question is after a pause.
    pub(super) fn pause(&mut self, now: Duration, why: &GateError, jitter: f64) {
        let pause = match why {
            GateError::Cold { wait, .. } => (*wait).min(COLD_PAUSE),
            _ => self.backoff.next(jitter),
        };
        self.pause = Some(now + pause);
        self.closed_until = match why {
            GateError::Cold { wait, .. } => now + *wait,
            _ => Duration::ZERO,
        };
    }

    /// Returns how long the gate stays closed.
    pub(super) fn closed_for(&self, now: Duration) -> Duration {
        self.closed_until.saturating_sub(now)
    }

    /// The clock could not be read: the next question is after a pause.
    pub(super) fn pause_for_clock(&mut self, now: Duration) {
        self.pause = Some(now + CLOCK_AGAIN);
    }

    /// Ends the pause: the store answered another request, so the next request of jobs need not wait.
    pub(super) fn ends_pause(&mut self) {
        self.pause = None;
    }

    /// The gate answers.
    pub(super) fn goes_on(&mut self) {
        self.pause = None;
        self.closed_until = Duration::ZERO;
        self.backoff.reset();
    }

    /// So long after its question was sent a permit under `limits` can be used. What the way to the store takes in any case does no
    /// harm.
    pub(super) fn good_for(&self, limits: &Limits) -> Duration {
        self.base + limits.permit_lasts()
    }

    /// A permit that was asked for then came too late, or could not be used in time: fewer jobs ask together.
    pub(super) fn was_late(&mut self, now: Duration, asked_at: Duration) {
        self.size.late(now, asked_at);
    }

    /// It came too late: where all do, that is to be told.
    pub(super) fn came_late(
        &mut self,
        now: Duration,
        asked_at: Duration,
        limits: &Limits,
    ) -> Option<Fact> {
        self.was_late(now, asked_at);
        self.old.is_old(now).then(|| Fact::NoYoungPermit {
            took: now.saturating_sub(asked_at),
            base: self.base,
            good_for: self.good_for(limits),
        })
    }

    /// It came in time.
    pub(super) fn came_in_time(&mut self, now: Duration, asked_at: Duration) {
        self.old.is_young();
        self.size.in_time(now, asked_at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::scheduler::questions::Asked;
    use crate::rules::limit::Limit;
    use crate::rules::scope::Labels;
    use crate::rules::tenant::Tenant;

    const MS: Duration = Duration::from_millis(1);

    /// Without a guard: a permit is good for a second.
    fn limits() -> Limits {
        Limit::concurrent("running", 3).expect("in range").into()
    }

    fn send(admission: &mut Admission, now: Duration, shard: ShardId, key: Key) {
        let tenant = Tenant::parse("a").expect("a tenant");
        let mut question = Question::new(tenant, Labels::default(), limits(), String::new());
        question.jobs.push(Asked {
            key,
            place: 0,
            cost: 1,
        });
        let mut round = admission.begin(now);
        round.add(question);
        admission.sent(now, shard, round);
    }

    #[test]
    fn one_question_of_a_shard_is_under_way_and_few_jobs_wait_for_company() {
        let (mut admission, here) = (Admission::default(), ShardId::default());
        assert_eq!(admission.ask_at(|| 1), Duration::ZERO);
        assert!(admission.is_open(here) && admission.is_idle());
        send(&mut admission, 10 * MS, here, Key(1));
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
    fn who_can_not_be_asked_is_asked_after_a_pause_until_it_answers() {
        let mut admission = Admission::default();
        let cold = |wait| GateError::Cold {
            wait,
            why: "a test".to_owned(),
        };
        admission.pause(MS, &cold(60_000 * MS), 0.5);
        assert_eq!(admission.ask_at(|| 1), MS + COLD_PAUSE);
        admission.pause(MS, &cold(5 * MS), 0.5);
        assert_eq!(admission.ask_at(|| 1), 6 * MS);
        let away = GateError::Unreachable("a test".to_owned());
        let mut pauses = [0; 3].map(|_: u32| {
            admission.pause(Duration::ZERO, &away, 0.5);
            admission.ask_at(|| 1)
        });
        assert!(pauses.is_sorted() && pauses[0] < pauses[2], "{pauses:?}");
        admission.ends_pause();
        assert_eq!(admission.ask_at(|| 1), Duration::ZERO);
        admission.pause(Duration::ZERO, &away, 0.5);
        assert!(admission.ask_at(|| 1) > pauses[2], "the pauses still grow");
        admission.goes_on();
        assert_eq!(admission.ask_at(|| 1), Duration::ZERO);
        admission.pause(Duration::ZERO, &away, 0.5);
        pauses[1] = admission.ask_at(|| 1);
        assert_eq!(pauses[0], pauses[1], "it begins anew");
    }

    #[test]
    fn jobs_that_can_not_start_any_more_lapse_once_and_a_far_store_gives_them_longer() {
        let (mut admission, here) = (Admission::default(), ShardId::default());
        assert_eq!(admission.lapses_at(), None);
        send(&mut admission, 10 * MS, here, Key(7));
        assert_eq!(admission.lapses_at(), Some(1_011 * MS));
        admission.set_base(40 * MS);
        assert_eq!(admission.lapses_at(), Some(1_051 * MS));
        assert_eq!(admission.good_for(&limits()), 1_040 * MS);
        assert_eq!(admission.lapse(1_050 * MS), None);
        assert_eq!(admission.lapse(1_051 * MS), Some(vec![Key(7)]));
        assert_eq!(admission.lapse(1_051 * MS), None, "once");
        assert_eq!(admission.lapses_at(), None);
        assert!(admission.end(here).is_some_and(|round| round.lapsed));
    }

    #[test]
    fn fewer_jobs_ask_after_a_permit_that_came_late_and_it_is_told_when_all_do() {
        let mut admission = Admission::default();
        admission.asks_for(100);
        assert!(admission.came_late(MS, MS, &limits()).is_none());
        assert_eq!(admission.most(), 50);
        let told = admission.came_late(9_000 * MS, 8_000 * MS, &limits());
        let Some(Fact::NoYoungPermit { took, good_for, .. }) = told else {
            panic!("{told:?}");
        };
        assert_eq!((took, good_for), (1_000 * MS, 1_000 * MS));
        admission.came_in_time(9_001 * MS, 9_000 * MS);
        assert_eq!(admission.most(), 50, "asked half as many again, and double");
    }
}
