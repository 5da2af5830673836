//! One round trip to the gate: who asks, and what each answer means for its job.

use std::collections::HashMap;
use std::time::Duration;

use rand::Rng;
use tracing::field::{DisplayValue, display};
use tracing::{debug, error};

use super::{
    Asked, FULL_ROUND, Key, LEAD, MAX_ROUND, PACE, Phase, Question, Round, Scheduler, Started,
};
use crate::engine::action::Action;
use crate::engine::away::{SOON, next_look};
use crate::engine::queues::{End as Place, Turn};
use crate::gate::{
    Answer, Ask, End, GateError, Receipt, Replies, Sequences, Settled, TenantAsk, TenantReply,
};
use crate::rules::headers;
use crate::rules::job::{self, Claims, Job};
use crate::rules::limit::Limits;
use crate::rules::scope::Labels;
use crate::rules::tenant::Tenant;

/// The jobs of a tenant whose keys can't be used come back after this: somebody has to mend them.
const SET_ASIDE: Duration = Duration::from_secs(60);
/// A clock that could not be read is asked for again after this.
const CLOCK_AGAIN: Duration = Duration::from_secs(1);
/// Nothing is decided for a moment only: jobs are held, whoever else is, as long as the outage is younger than [`SOON`].
const BRIEF: Duration = Duration::from_secs(1);
/// Jobs that come back when their primary may decide again are spread over so much: a part of their wait, and at most this.
const SPREAD_PART: u32 = 10;
const SPREAD_MOST: Duration = Duration::from_secs(5);
/// A gate that is closed because Redis may have forgotten starts is looked at so often: it may open early.
const COLD_PAUSE: Duration = Duration::from_secs(1);
/// Without a guard nothing is promised of the way to the downstream; a permit is still not good for ever.
const UNGUARDED: Duration = Duration::from_secs(1);

impl Scheduler {
    pub(super) fn wants_to_ask(&self, now: Duration) -> bool {
        let somebody = !self.unclocked.is_empty() || self.queues.may_ask();
        let agreed = self.agreed_until.is_none_or(|until| now < until);
        // What was not used is given back before anybody asks.
        let told = !self.ledger.goes_first();
        somebody && agreed && told && !self.draining && self.asking.is_none()
    }

    pub(super) fn ask_allowed_at(&self) -> Duration {
        let paced = match self.last_ask {
            Some(last) if self.queues.ready() < FULL_ROUND => last + PACE,
            _ => Duration::ZERO,
        };
        paced.max(self.gate_pause.unwrap_or_default())
    }

    pub(super) fn ask(&mut self, now: Duration) {
        if !self.wants_to_ask(now) || self.ask_allowed_at() > now {
            return;
        }
        let mut round = Round {
            asked_at: now,
            questions: Vec::new(),
        };
        let mut batch = Vec::new();
        for turn in self.queues.take_round(MAX_ROUND) {
            for (ask, question) in self.questions(turn) {
                batch.push(ask);
                round.questions.push(question);
            }
        }
        // A question without jobs only reads the store's clock.
        if batch.is_empty()
            && let Some(entry) = self.unclocked.first().and_then(|key| self.entries.get(key))
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

    /// What is asked for the jobs of `turn`: those with the same limits and labels together. The budget goes to the first
    /// of the jobs, so that all questions together start no more.
    fn questions(&mut self, turn: Turn) -> Vec<(TenantAsk, Question)> {
        let mut questions: Vec<(TenantAsk, Question)> = Vec::new();
        // Where those with the same labels are; jobs of another plan have other limits.
        let mut alike: HashMap<Labels, Vec<usize>> = HashMap::new();
        let budget = usize::try_from(turn.budget).unwrap_or(usize::MAX);
        for (place, key) in turn.keys.into_iter().enumerate() {
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
            ask.budget += u32::from(place < budget);
            ask.asks.push(Ask { ticket, cost });
            question.jobs.push(Asked { key, place, cost });
        }
        questions
    }

    /// The gate's answers to the last [`Action::Ask`].
    pub fn answered(&mut self, now: Duration, result: Result<Replies, GateError>) {
        let Some(round) = self.asking.take() else {
            return;
        };
        let took = now.saturating_sub(round.asked_at);
        self.metrics.gate_answered(took, result.is_ok());
        let replies = match result {
            Ok(replies) => replies,
            Err(why) => {
                for question in &round.questions {
                    self.doubt(now, question);
                }
                let same = |one: &Question, two: &Question| one.tenant == two.tenant;
                for of_tenant in round.questions.chunk_by(same) {
                    let jobs = of_tenant.iter().flat_map(|question| &question.jobs);
                    self.put_back_in_order(jobs.map(|job| (job.place, job.key)).collect());
                }
                let jitter = self.random.random();
                let pause = match why {
                    GateError::Cold { wait, .. } => wait.min(COLD_PAUSE),
                    _ => self.gate_backoff.next(jitter),
                };
                self.gate_pause = Some(now + pause);
                return;
            }
        };
        self.gate_pause = None;
        self.gate_backoff.reset();
        self.ledger.answers(now);
        let mut pairs = round.questions.into_iter().zip(replies).peekable();
        let mut back = Back::default();
        while let Some((question, reply)) = pairs.next() {
            let (tenant, only_clock) = (question.tenant.clone(), question.jobs.is_empty());
            match reply {
                Ok(reply) => {
                    self.away.over(&tenant);
                    self.decided(now, round.asked_at, question, &reply, &mut back);
                }
                Err(_) if only_clock => {
                    // Next time with another tenant.
                    let next = 1.min(self.unclocked.len());
                    self.unclocked.rotate_left(next);
                    self.gate_pause = Some(now + CLOCK_AGAIN);
                }
                Err(why) => {
                    self.doubt(now, &question);
                    self.set_aside(now, &question, &why);
                }
            }
            let more = pairs.peek().is_some_and(|(next, _)| next.tenant == tenant);
            if !more && !only_clock {
                let Back { jobs, starved } = std::mem::take(&mut back);
                self.put_back_in_order(jobs);
                self.queues.set_starved(&tenant, starved);
            }
        }
        for key in std::mem::take(&mut self.unclocked) {
            self.arrange(now, key, Place::Due);
        }
    }

    /// What the gate decided for the jobs of one question.
    fn decided(
        &mut self,
        now: Duration,
        asked_at: Duration,
        question: Question,
        reply: &TenantReply,
        back: &mut Back,
    ) {
        let now_ms = reply.now_ms;
        self.clock = Some((now_ms, now));
        for (number, (asked, answer)) in question.jobs.iter().zip(&reply.answers).enumerate() {
            let &Asked { key, place, cost } = asked;
            self.metrics.decided(answer);
            match answer {
                Answer::Start { sequences, .. } => {
                    let receipt = Receipt {
                        permit: format!("{}:{number}", question.permits),
                        started_ms: now_ms,
                        sequences: sequences.clone(),
                        cost,
                    };
                    if !self.start(now, asked_at, &question, key, receipt.clone()) {
                        self.metrics.late_admission();
                        let Question {
                            tenant,
                            labels,
                            limits,
                            ..
                        } = &question;
                        let end = End::Unused;
                        let settled = Settled { receipt, end };
                        (self.ledger).add(tenant.clone(), labels.clone(), limits.clone(), settled);
                        back.jobs.push((place, key));
                    }
                }
                Answer::Capacity { .. } => {
                    back.starved = true;
                    back.jobs.push((place, key));
                }
                Answer::Wait { .. } => self.wait(now, key, &question, now_ms, answer),
            }
        }
    }

    /// The gate may have let these start, in an answer that was lost or did not count: none does. Places that they hold
    /// would be missing for a whole lease, so they are given back; of other limits only the answer tells what was charged.
    fn doubt(&mut self, now: Duration, question: &Question) {
        let Some(held) = question.limits.held() else {
            return;
        };
        for (number, asked) in question.jobs.iter().enumerate() {
            let receipt = Receipt {
                permit: format!("{}:{number}", question.permits),
                started_ms: 0,
                sequences: Sequences::NONE,
                cost: asked.cost,
            };
            let end = End::Unused;
            let settled = Settled { receipt, end };
            let (tenant, labels) = (question.tenant.clone(), question.labels.clone());
            (self.ledger).doubt(now, (tenant, labels, held.clone(), settled));
        }
    }

    /// The gate can't decide for these jobs of one tenant: they wait, and nobody else does.
    fn set_aside(&mut self, now: Duration, question: &Question, why: &GateError) {
        let (tenant, jobs) = (&question.tenant, question.jobs.len());
        let labels = shown(&question.labels);
        let counts_in = match why {
            GateError::Refused(_) => {
                let wait_s = SET_ASIDE.as_secs();
                error!(%tenant, labels, jobs, wait_s, reason = %why, "no decision for this tenant: its jobs wait, the others go on");
                for job in &question.jobs {
                    self.postpone(now, job.key, SET_ASIDE);
                }
                return;
            }
            GateError::Unreachable(_) => None,
            GateError::Cold { wait, .. } => Some(*wait),
        };
        let farthest = Duration::from_millis(self.settings.ladder.max_ms());
        let lasts = self.away.lasts(now, tenant, farthest);
        // The gate says once for each primary that it is cold; one that is away is said once for each tenant.
        if counts_in.is_none() && lasts.is_zero() {
            error!(%tenant, labels, jobs, reason = %why, "no decision for this tenant: its jobs wait, the others go on");
        } else {
            debug!(%tenant, labels, jobs, reason = %why, "no decision for this tenant");
        }
        let look = next_look(lasts, farthest);
        for job in &question.jobs {
            match counts_in {
                Some(wait) if wait < BRIEF && lasts < SOON => self.hold_anyway(now, job.key, wait),
                Some(wait) if wait <= look => {
                    let spread = (wait / SPREAD_PART).min(SPREAD_MOST);
                    let spread = spread.mul_f64(self.random.random_range(0.0..=1.0));
                    let wait = (wait + spread).min(farthest);
                    if !self.hold(now, job.key, wait) {
                        self.postpone(now, job.key, wait);
                    }
                }
                _ => self.look_later(now, job.key, look),
            }
        }
    }

    /// Sends a job through one lane of at most `wait`, and lets it ask as soon as that ends.
    fn look_later(&mut self, now: Duration, key: Key, wait: Duration) {
        let wait = wait.mul_f64(self.random.random_range(0.75..=1.0));
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        let store_now = self.store_now(now).unwrap_or_default();
        let retry_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let headers = headers::postponed(&entry.claims, store_now, retry_ms);
        self.send_round(key, wait, headers);
    }

    /// Back to the front, in the old order.
    pub(super) fn put_back(&mut self, keys: &[Key]) {
        for &key in keys.iter().rev() {
            self.join(key, Place::Front);
        }
    }

    /// The same for jobs with their places in that order.
    fn put_back_in_order(&mut self, mut jobs: Vec<(usize, Key)>) {
        jobs.sort_unstable_by_key(|(place, _)| *place);
        let keys: Vec<Key> = jobs.into_iter().map(|(_, key)| key).collect();
        self.put_back(&keys);
    }

    /// False: it is too late for this start, or its job is gone.
    fn start(
        &mut self,
        now: Duration,
        asked_at: Duration,
        question: &Question,
        key: Key,
        receipt: Receipt,
    ) -> bool {
        let limits = &question.limits;
        // Half of the guard: the other half is for the way to the downstream.
        let good_for = match limits.guard_ms() {
            0 => UNGUARDED,
            guard => Duration::from_millis(guard) / 2,
        };
        let deadline = asked_at + good_for;
        if now > deadline {
            return false;
        }
        let Some(entry) = self.entries.get_mut(&key) else {
            return false;
        };
        self.ledger.started(limits);
        entry.started = Some(Started {
            labels: question.labels.clone(),
            limits: limits.clone(),
            receipt,
        });
        entry.phase = Phase::Running;
        self.queues.start(&entry.claims.tenant);
        let job = Job {
            id: entry.message.id().unwrap_or_default().to_owned(),
            tenant: entry.claims.tenant.clone(),
            cost: entry.claims.cost,
            attempt: entry.claims.attempt,
            content_type: entry.message.content_type().map(str::to_owned),
            body: entry.message.body.clone(),
        };
        self.actions.push(Action::Dispatch { key, job, deadline });
        true
    }

    fn wait(
        &mut self,
        now: Duration,
        key: Key,
        question: &Question,
        store_ms: u64,
        answer: &Answer,
    ) {
        let &Answer::Wait {
            limit,
            count,
            ttl_ms,
            ticket,
        } = answer
        else {
            return;
        };
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        entry.claims.ticket = Some(ticket);
        let limits = &question.limits;
        let limit = &limits[limit.min(limits.len() - 1)];
        debug!(
            job.id = entry.message.id(),
            tenant = %entry.claims.tenant,
            labels = shown(&question.labels),
            limit = limit.name(),
            count,
            ttl_ms,
            place = ticket.place,
            "refused: it waits for its turn",
        );
        let attempt = entry.claims.attempt;
        let headers = headers::waiting(limit, attempt, ticket, count, store_ms, ttl_ms);
        let wait = Duration::from_millis(ttl_ms);
        self.metrics.waited(wait);
        if self.hold(now, key, wait) {
            if let Some(entry) = self.entries.get(&key) {
                self.places
                    .add(&entry.claims.tenant, limit, now + wait, key);
            }
        } else {
            self.send_round(key, wait.saturating_sub(LEAD), headers);
        }
    }
}

/// A tenant's jobs that ask again, with their places among those that asked.
#[derive(Default)]
struct Back {
    jobs: Vec<(usize, Key)>,
    /// Some of them lack only a permit.
    starved: bool,
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

/// What tells jobs apart, for logs; where nothing does, the field is left out.
fn shown(labels: &Labels) -> Option<DisplayValue<&Labels>> {
    (!labels.is_empty()).then(|| display(labels))
}
