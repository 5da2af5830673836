//! One round trip to the gate: who asks, and what each answer means for its job.

use std::time::Duration;

use rand::Rng;
use tracing::{debug, error};

use super::{FULL_ROUND, Key, LEAD, MAX_ROUND, PACE, Phase, Question, Round, Scheduler};
use crate::engine::action::Action;
use crate::engine::queues::End as Place;
use crate::gate::{Answer, Ask, End, GateError, Receipt, Replies, Settled, TenantAsk};
use crate::rules::headers;
use crate::rules::job::Job;
use crate::rules::limit::Limits;
use crate::rules::scope::Labels;
use crate::rules::tenant::Tenant;

/// The jobs of a tenant whose keys can't be used come back after this: somebody has to mend them.
const SET_ASIDE: Duration = Duration::from_secs(60);
/// A clock that could not be read is asked for again after this.
const CLOCK_AGAIN: Duration = Duration::from_secs(1);
/// Those of a tenant whose shard can't be reached come back after this: a replica takes over in some seconds.
const SHARD_AWAY: Duration = Duration::from_secs(5);
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
            let (limits, keys) = self.same_limits(turn.keys);
            let Some(limits) = limits else { continue };
            let (mut asks, mut jobs) = (Vec::new(), Vec::new());
            for key in keys {
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.phase = Phase::Asking;
                    let (ticket, cost) = (entry.claims.ticket, entry.claims.cost);
                    asks.push(Ask { ticket, cost });
                    jobs.push((key, cost));
                }
            }
            let permits = match limits.hold_places() {
                true => self.ledger.name(),
                false => String::new(),
            };
            batch.push(TenantAsk {
                tenant: turn.tenant.clone(),
                labels: Labels::default(),
                limits: limits.clone(),
                budget: turn.budget,
                permits: permits.clone(),
                asks,
            });
            round.questions.push(Question {
                tenant: turn.tenant,
                limits,
                permits,
                jobs,
            });
        }
        // A question without jobs only reads the store's clock.
        if batch.is_empty()
            && let Some(entry) = self.unclocked.first().and_then(|key| self.entries.get(key))
        {
            let (tenant, plan) = (entry.claims.tenant.clone(), entry.claims.plan.as_deref());
            // The tenant's own: the gate forgets what the limits that it is asked for don't count any more.
            let limits = self.fleet.limits(&tenant, plan);
            batch.push(TenantAsk {
                tenant: tenant.clone(),
                labels: Labels::default(),
                limits: limits.clone(),
                budget: 0,
                permits: String::new(),
                asks: Vec::new(),
            });
            round.questions.push(Question {
                tenant,
                limits,
                permits: String::new(),
                jobs: Vec::new(),
            });
        }
        if !batch.is_empty() {
            self.last_ask = Some(now);
            self.asking = Some(round);
            self.actions.push(Action::Ask(batch));
        }
    }

    /// Those of `keys` that have the limits of the first one; the others, of another plan, go back and come next.
    fn same_limits(&mut self, keys: Vec<Key>) -> (Option<Limits>, Vec<Key>) {
        let (mut first, mut same, mut others) = (None, Vec::new(), Vec::new());
        for key in keys {
            // What is in the queues is in `entries`: a lost session empties both.
            let Some(entry) = self.entries.get(&key) else {
                continue;
            };
            let claims = &entry.claims;
            let limits = self.fleet.limits(&claims.tenant, claims.plan.as_deref());
            if *first.get_or_insert_with(|| limits.clone()) == limits {
                same.push(key);
            } else {
                others.push(key);
            }
        }
        self.put_back(&others);
        (first, same)
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
                    self.put_back(&question.keys());
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
        for (question, reply) in round.questions.into_iter().zip(replies) {
            let reply = match reply {
                Ok(reply) => reply,
                Err(why) => {
                    if question.jobs.is_empty() {
                        // Only the clock was asked for: next time with another tenant.
                        let next = 1.min(self.unclocked.len());
                        self.unclocked.rotate_left(next);
                        self.gate_pause = Some(now + CLOCK_AGAIN);
                    } else {
                        self.set_aside(now, &question.tenant, question.keys(), &why);
                    }
                    continue;
                }
            };
            let Question {
                tenant,
                limits,
                permits,
                jobs,
            } = question;
            self.clock = Some((reply.now_ms, now));
            let mut starved = Vec::new();
            for (number, ((key, cost), answer)) in jobs.into_iter().zip(&reply.answers).enumerate()
            {
                self.metrics.decided(answer);
                match answer {
                    &Answer::Start { sequences, .. } => {
                        let receipt = Receipt {
                            permit: format!("{permits}:{number}"),
                            started_ms: reply.now_ms,
                            sequences,
                            cost,
                        };
                        if !self.start(now, round.asked_at, &limits, key, receipt.clone()) {
                            self.metrics.late_admission();
                            let end = End::Unused;
                            let settled = Settled { receipt, end };
                            self.ledger.add(tenant.clone(), limits.clone(), settled);
                        }
                    }
                    Answer::Capacity { .. } => starved.push(key),
                    Answer::Wait { .. } => self.wait(now, key, &limits, reply.now_ms, answer),
                }
            }
            self.put_back(&starved);
            self.queues.set_starved(&tenant, !starved.is_empty());
        }
        for key in std::mem::take(&mut self.unclocked) {
            self.arrange(now, key, Place::Due);
        }
    }

    /// The gate can't decide for this one tenant: its jobs wait, and nobody else does.
    fn set_aside(&mut self, now: Duration, tenant: &Tenant, keys: Vec<Key>, why: &GateError) {
        let jobs = keys.len();
        let wait = match why {
            GateError::Refused(_) => SET_ASIDE,
            GateError::Unreachable(_) | GateError::Cold { .. } => SHARD_AWAY,
        };
        let wait_s = wait.as_secs();
        error!(%tenant, jobs, wait_s, reason = %why, "no decision for this tenant: its jobs wait, the others go on");
        self.queues.set_starved(tenant, false);
        for key in keys {
            self.postpone(now, key, wait);
        }
    }

    /// Back to the front, in the old order.
    pub(super) fn put_back(&mut self, keys: &[Key]) {
        for &key in keys.iter().rev() {
            self.join(key, Place::Front);
        }
    }

    /// False: it is too late for this start, or its job is gone.
    fn start(
        &mut self,
        now: Duration,
        asked_at: Duration,
        limits: &Limits,
        key: Key,
        receipt: Receipt,
    ) -> bool {
        // Half of the guard: the other half is for the way to the downstream.
        let good_for = match limits.guard_ms() {
            0 => UNGUARDED,
            guard => Duration::from_millis(guard) / 2,
        };
        let deadline = asked_at + good_for;
        if now > deadline {
            self.put_back(&[key]);
            return false;
        }
        let Some(entry) = self.entries.get_mut(&key) else {
            return false;
        };
        self.ledger.started(limits);
        entry.started = Some((limits.clone(), receipt));
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

    fn wait(&mut self, now: Duration, key: Key, limits: &Limits, store_ms: u64, answer: &Answer) {
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
        let limit = &limits[limit.min(limits.len() - 1)];
        debug!(
            job.id = entry.message.id(),
            tenant = %entry.claims.tenant,
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
        if !self.hold(now, key, wait) {
            self.send_round(key, wait.saturating_sub(LEAD), headers);
        }
    }
}

impl Question {
    fn keys(&self) -> Vec<Key> {
        self.jobs.iter().map(|(key, _)| *key).collect()
    }
}
