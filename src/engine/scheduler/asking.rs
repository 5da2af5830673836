//! When the next round trip to the gate may go, and who asks in it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::answers::good_for;
use super::preparing::Hand;
use super::suspects::May;
use super::{Phase, Scheduler};
use crate::engine::action::{Action, Key};
use crate::engine::queues::Turn;
use crate::gate::{Ask, Partition, TenantAsk};
use crate::rules::job::{self, Claims};
use crate::rules::limit::Limits;
use crate::rules::scope::Labels;
use crate::rules::tenant::Tenant;

/// Asks wait this long for company, unless [`FULL_ROUND`] jobs are ready: it bounds the round trips.
const PACE: Duration = Duration::from_millis(2);
/// So many ready jobs are asked for at once.
const FULL_ROUND: usize = 32;

/// One round trip to one partition that is under way.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) number: u64,
    pub(super) asked_at: Duration,
    pub(super) questions: Vec<Question>,
    /// Its jobs may start by its answer if that comes by then, and what the way to the store takes in any case.
    until: Duration,
    /// They have nothing in hand any more.
    pub(super) lapsed: bool,
}

/// Questions that are being put together.
type Rounds = BTreeMap<Partition, (Vec<TenantAsk>, Round)>;

/// What jobs of one tenant with the same limits and labels were asked for. Those of one tenant follow each other.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) tenant: Tenant,
    pub(super) labels: Labels,
    pub(super) limits: Limits,
    /// What their permits are called.
    pub(super) permits: String,
    pub(super) jobs: Vec<Asked>,
}

/// A job of a question.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) key: Key,
    /// Its place among all jobs of its tenant that were asked for.
    pub(super) place: usize,
    pub(super) cost: u32,
}

impl Scheduler {
    pub(super) fn wants_to_ask(&self, now: Duration) -> bool {
        let agreed = self.agreed_until.is_none_or(|until| now < until);
        // The API's probe is one job, wherever it is asked for.
        let probe = self.breakers.only_one() && !self.asking.is_empty();
        agreed
            && self.breakers.may_ask(now)
            && !probe
            && !self.draining
            && (self.queues.may_ask(|it| self.is_open(it)) || self.needs_clock().is_some())
    }

    pub(super) fn ask_allowed_at(&self) -> Duration {
        let ready = || self.queues.ready(|partition| self.is_open(partition));
        let paced = match self.last_ask {
            Some(last) if ready() < FULL_ROUND => last + PACE,
            _ => Duration::ZERO,
        };
        paced.max(self.gate_pause.unwrap_or_default())
    }

    /// The partition may be asked: no question is under way there. What was not used is given back before anybody asks.
    fn is_open(&self, partition: Partition) -> bool {
        !self.asking.contains_key(&partition) && !self.ledger.goes_first(partition)
    }

    /// When jobs that were asked for lose what they need to start. So long they could start by an answer; then the slots are for
    /// those of other partitions, so that a server that hangs takes them for a moment only.
    pub(super) fn lapses_at(&self) -> Option<Duration> {
        let wanted = !self.draining && self.queues.ready(|partition| self.is_open(partition)) > 0;
        let open = self.asking.values().filter(|round| !round.lapsed);
        let until = open.map(|round| round.until).min()?;
        wanted.then_some(until + self.base + Duration::from_millis(1))
    }

    /// Does so.
    pub(super) fn lapse(&mut self, now: Duration) {
        while self.lapses_at().is_some_and(|at| at <= now) {
            let base = self.base;
            let mut open = self.asking.values_mut().filter(|round| !round.lapsed);
            let Some(round) = open.find(|round| round.until + base < now) else {
                return;
            };
            round.lapsed = true;
            let jobs = round.questions.iter().flat_map(|question| &question.jobs);
            let keys: Vec<Key> = jobs.map(|job| job.key).collect();
            let asking = |key: &Key| {
                self.entries
                    .get(key)
                    .is_some_and(|it| it.phase == Phase::Asking)
            };
            let keys: Vec<Key> = keys.into_iter().filter(asking).collect();
            keys.into_iter().for_each(|key| self.let_go(key));
        }
    }

    /// A job that waits for the store's clock, and may ask for it.
    fn needs_clock(&self) -> Option<Key> {
        let is_open = |key: &Key| {
            let entry = self.entries.get(key);
            entry.is_some_and(|entry| self.is_open(self.partitions.of(&entry.claims.tenant)))
        };
        let keys = self.unclocked.iter().map(|(key, _)| key);
        keys.copied().find(is_open)
    }

    /// The round that `partition` has among `rounds`, with the same for the gate.
    fn round<'a>(
        &mut self,
        rounds: &'a mut Rounds,
        partition: Partition,
        now: Duration,
    ) -> &'a mut (Vec<TenantAsk>, Round) {
        rounds.entry(partition).or_insert_with(|| {
            self.asked += 1;
            let round = Round {
                number: self.asked,
                asked_at: now,
                questions: Vec::new(),
                until: now,
                lapsed: false,
            };
            (Vec::new(), round)
        })
    }

    /// The next question for each partition that is open, if one is due. Whether a job's call could be made at once is looked at
    /// now: as many jobs may start as have one.
    pub fn ask(&mut self, now: Duration, mut is_ready: impl FnMut(Key) -> bool) {
        if !self.wants_to_ask(now) || self.ask_allowed_at() > now {
            return;
        }
        // Of an API whose breaker is open, one job is the probe.
        let most = match self.breakers.only_one() {
            true => 1,
            false => self.round_size.get(),
        };
        let (asking, ledger) = (&self.asking, &self.ledger);
        let is_open = |it| !asking.contains_key(&it) && !ledger.goes_first(it);
        let turns = self.queues.take_round(most, is_open);
        let jobs = turns.iter().map(|(_, turn)| turn.keys.len()).sum();
        self.round_size.asked(jobs);
        let mut rounds = Rounds::new();
        for (partition, turn) in turns {
            for (ask, question) in self.questions(now, turn, &mut is_ready) {
                let (batch, round) = self.round(&mut rounds, partition, now);
                round.add(question);
                batch.push(ask);
            }
        }
        // A question without jobs only reads the store's clock.
        if rounds.is_empty()
            && let Some(entry) = self.needs_clock().and_then(|key| self.entries.get(&key))
        {
            let (tenant, plan) = (entry.claims.tenant.clone(), entry.claims.plan.as_deref());
            // The job's own: the gate forgets what the limits that it is asked for don't count any more.
            let limits = self.fleet.limits(&tenant, plan);
            let labels = job::labels(&entry.message, &limits);
            let partition = self.partitions.of(&tenant);
            let question = Question::new(tenant, labels, limits, String::new());
            let (batch, round) = self.round(&mut rounds, partition, now);
            batch.push(question.ask());
            round.questions.push(question);
        }
        for (partition, (batch, round)) in rounds {
            self.last_ask = Some(now);
            self.asking.insert(partition, round);
            self.actions.push(Action::Ask(partition, batch));
        }
        self.tell_notes(now);
    }

    /// What is asked for the jobs of `turn`: those with the same limits and labels together. The slots go to the first
    /// of the jobs that have none, so that all questions together start no more.
    fn questions(
        &mut self,
        now: Duration,
        mut turn: Turn,
        is_ready: &mut impl FnMut(Key) -> bool,
    ) -> Vec<(TenantAsk, Question)> {
        turn.keys.retain(|key| !self.expire(now, *key));
        if turn.keys.is_empty() {
            // None is left that a slot could be missing for.
            self.queues.set_starved(&turn.tenant, false);
        }
        let mut questions: Vec<(TenantAsk, Question)> = Vec::new();
        // Where those with the same labels are; jobs of another plan have other limits.
        let mut alike: HashMap<Labels, Vec<usize>> = HashMap::new();
        let mut slots = turn.slots;
        let mut jobs: Vec<_> = Vec::with_capacity(turn.keys.len());
        let mut without_slot = Vec::new();
        for (place, key) in turn.keys.into_iter().enumerate() {
            let ready = self.looked_at(key, &mut slots, is_ready);
            match self.may_ask(now, key) {
                May::Ask => {}
                May::WithSlot => {
                    without_slot.push(key);
                    continue;
                }
                May::Not => continue,
            }
            let ticket = (self.entries.get(&key)).and_then(|entry| entry.claims.ticket);
            let in_line = ticket.map(|ticket| (ticket.generation, ticket.place));
            jobs.push((!ready, in_line.is_none(), in_line, place, key));
        }
        if !without_slot.is_empty() {
            self.put_back(&without_slot);
            self.queues.set_starved(&turn.tenant, true);
        }
        // The gate lets the first start: those whose calls are ready, in the order of their places.
        jobs.sort_unstable();
        for (unready, _, _, place, key) in jobs {
            // What is in the queues is in `entries`: a lost session empties both.
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            entry.phase = Phase::Asking;
            let Claims { tenant, plan, .. } = &entry.claims;
            let limits = self.fleet.limits(tenant, plan.as_deref());
            let labels = job::labels(&entry.message, &limits);
            let known = alike.entry(labels.clone()).or_default();
            let same = (known.iter().copied()).find(|at| questions[*at].0.limits == limits);
            let at = same.unwrap_or_else(|| {
                let permits = match limits.hold_places() {
                    true => self.ledger.name(),
                    false => String::new(),
                };
                let question = Question::new(tenant.clone(), labels, limits, permits);
                known.push(questions.len());
                questions.push((question.ask(), question));
                questions.len() - 1
            });
            let (ask, question) = &mut questions[at];
            let (ticket, cost) = (entry.claims.ticket, entry.claims.cost);
            ask.budget += u32::from(!unready);
            ask.asks.push(Ask { ticket, cost });
            question.jobs.push(Asked { key, place, cost });
        }
        questions
    }

    /// Whether the job's call could be made at once. A job without a slot gets one of `slots`.
    fn looked_at(
        &mut self,
        key: Key,
        slots: &mut u32,
        is_ready: &mut impl FnMut(Key) -> bool,
    ) -> bool {
        let hand = |entry: &super::Entry| entry.hand;
        if self.entries.get(&key).map(hand) == Some(Hand::Empty) && *slots > 0 {
            *slots -= 1;
            self.give_slot(key);
        }
        let Some(entry) = self.entries.get_mut(&key) else {
            return false;
        };
        let ready = entry.hand != Hand::Empty && is_ready(key);
        entry.hand = match (entry.hand, ready) {
            (Hand::Empty, _) => Hand::Empty,
            (_, true) => Hand::Ready,
            (_, false) => Hand::Slot,
        };
        ready
    }
}

impl Round {
    fn add(&mut self, question: Question) {
        self.until = self.until.max(self.asked_at + good_for(&question.limits));
        self.questions.push(question);
    }
}

impl Question {
    fn new(tenant: Tenant, labels: Labels, limits: Limits, permits: String) -> Self {
        Self {
            tenant,
            labels,
            limits,
            permits,
            jobs: Vec::new(),
        }
    }

    /// The same for the gate, with no jobs yet.
    fn ask(&self) -> TenantAsk {
        TenantAsk {
            tenant: self.tenant.clone(),
            labels: self.labels.clone(),
            limits: self.limits.clone(),
            budget: 0,
            permits: self.permits.clone(),
            asks: Vec::new(),
        }
    }
}
