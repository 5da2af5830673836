//! When the next round trip to the gate may go, and who asks in it.

use std::collections::HashMap;
use std::time::Duration;

use super::preparing::Hand;
use super::{Phase, Scheduler};
use crate::engine::action::{Action, Key};
use crate::engine::queues::Turn;
use crate::gate::{Ask, TenantAsk};
use crate::rules::job::{self, Claims};
use crate::rules::limit::Limits;
use crate::rules::scope::Labels;
use crate::rules::tenant::Tenant;

/// Asks wait this long for company, unless [`FULL_ROUND`] jobs are ready: it bounds the round trips.
const PACE: Duration = Duration::from_millis(2);
/// So many ready jobs are asked for at once.
const FULL_ROUND: usize = 32;
/// The most jobs in one round trip.
const MAX_ROUND: usize = 1024;

/// One round trip that is under way.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) asked_at: Duration,
    pub(super) questions: Vec<Question>,
}

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
        let somebody = !self.unclocked.is_empty() || self.queues.may_ask();
        let agreed = self.agreed_until.is_none_or(|until| now < until);
        // What was not used is given back before anybody asks.
        let told = !self.ledger.goes_first();
        let may = self.breakers.may_ask(now);
        somebody && agreed && told && may && !self.draining && self.asking.is_none()
    }

    pub(super) fn ask_allowed_at(&self) -> Duration {
        let paced = match self.last_ask {
            Some(last) if self.queues.ready() < FULL_ROUND => last + PACE,
            _ => Duration::ZERO,
        };
        paced.max(self.gate_pause.unwrap_or_default())
    }

    /// The next question, if one is due. Whether a job's call could be made at once is looked at now: as many jobs may start as
    /// have one.
    pub fn ask(&mut self, now: Duration, mut is_ready: impl FnMut(Key) -> bool) {
        if !self.wants_to_ask(now) || self.ask_allowed_at() > now {
            return;
        }
        let mut round = Round {
            asked_at: now,
            questions: Vec::new(),
        };
        let mut batch = Vec::new();
        // Of an API whose breaker is open, one job is the probe.
        let most = if self.breakers.only_one() {
            1
        } else {
            MAX_ROUND
        };
        for turn in self.queues.take_round(most) {
            for (ask, question) in self.questions(now, turn, &mut is_ready) {
                batch.push(ask);
                round.questions.push(question);
            }
        }
        // A question without jobs only reads the store's clock.
        if batch.is_empty()
            && let Some(entry) = self
                .unclocked
                .first()
                .and_then(|(key, _)| self.entries.get(key))
        {
            let (tenant, plan) = (entry.claims.tenant.clone(), entry.claims.plan.as_deref());
            // The job's own: the gate forgets what the limits that it is asked for don't count any more.
            let limits = self.fleet.limits(&tenant, plan);
            let labels = job::labels(&entry.message, &limits);
            let question = Question::new(tenant, labels, limits, String::new());
            batch.push(question.ask());
            round.questions.push(question);
        }
        if !batch.is_empty() {
            self.last_ask = Some(now);
            self.asking = Some(round);
            self.actions.push(Action::Ask(batch));
        }
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
        let mut jobs: Vec<(bool, usize, Key)> = Vec::with_capacity(turn.keys.len());
        for (place, key) in turn.keys.into_iter().enumerate() {
            let ready = self.looked_at(key, &mut slots, is_ready);
            jobs.push((ready, place, key));
        }
        // The gate lets the first start.
        jobs.sort_by_key(|(ready, ..)| !ready);
        for (ready, place, key) in jobs {
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
            ask.budget += u32::from(ready);
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
