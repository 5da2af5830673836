//! One round trip to the gate: who asks, and what each answer means for its job.

use std::time::Duration;

use rand::Rng;
use tracing::debug;

use super::{FULL_ROUND, Key, LEAD, MAX_ROUND, PACE, Phase, Round, Scheduler};
use crate::engine::action::Action;
use crate::engine::queues::End;
use crate::gate::{Answer, Ask, GateError, TenantAsk, TenantReply};
use crate::rules::headers;
use crate::rules::job::Job;

impl Scheduler {
    pub(super) fn wants_to_ask(&self) -> bool {
        let somebody = !self.unclocked.is_empty() || self.queues.may_ask();
        somebody && !self.draining && self.asking.is_none()
    }

    pub(super) fn ask_allowed_at(&self) -> Duration {
        let paced = match self.last_ask {
            Some(last) if self.queues.ready() < FULL_ROUND => last + PACE,
            _ => Duration::ZERO,
        };
        paced.max(self.gate_pause.unwrap_or_default())
    }

    pub(super) fn ask(&mut self, now: Duration) {
        if !self.wants_to_ask() || self.ask_allowed_at() > now {
            return;
        }
        let mut round = Round {
            asked_at: now,
            tenants: Vec::new(),
        };
        let mut batch = Vec::new();
        for turn in self.queues.take_round(MAX_ROUND) {
            let mut asks = Vec::with_capacity(turn.keys.len());
            for key in &turn.keys {
                // What is in the queues is in `entries`: a lost session empties both.
                if let Some(entry) = self.entries.get_mut(key) {
                    entry.phase = Phase::Asking;
                    let (ticket, cost) = (entry.claims.ticket, entry.claims.cost);
                    asks.push(Ask { ticket, cost });
                }
            }
            batch.push(TenantAsk {
                tenant: turn.tenant.clone(),
                budget: turn.budget,
                asks,
            });
            round.tenants.push((turn.tenant, turn.keys));
        }
        // A question without jobs only reads the store's clock.
        if batch.is_empty()
            && let Some(entry) = self.unclocked.first().and_then(|key| self.entries.get(key))
        {
            let tenant = entry.claims.tenant.clone();
            batch.push(TenantAsk {
                tenant: tenant.clone(),
                budget: 0,
                asks: Vec::new(),
            });
            round.tenants.push((tenant, Vec::new()));
        }
        if !batch.is_empty() {
            self.last_ask = Some(now);
            self.asking = Some(round);
            self.actions.push(Action::Ask(batch));
        }
    }

    /// The gate's answers to the last [`Action::Ask`].
    pub fn answered(&mut self, now: Duration, result: Result<Vec<TenantReply>, GateError>) {
        let Some(round) = self.asking.take() else {
            return;
        };
        let took = now.saturating_sub(round.asked_at);
        self.metrics.gate_answered(took, result.is_ok());
        let Ok(replies) = result else {
            for (_, keys) in &round.tenants {
                self.put_back(keys);
            }
            let jitter = self.random.random();
            self.gate_pause = Some(now + self.gate_backoff.next(jitter));
            return;
        };
        self.gate_pause = None;
        self.gate_backoff.reset();
        for ((tenant, keys), reply) in round.tenants.into_iter().zip(replies) {
            self.clock = Some((reply.now_ms, now));
            let mut starved = Vec::new();
            for (key, answer) in keys.into_iter().zip(&reply.answers) {
                self.metrics.decided(answer);
                match answer {
                    Answer::Start { .. } => self.start(now, round.asked_at, key),
                    Answer::Capacity { .. } => starved.push(key),
                    Answer::Wait { .. } => self.wait(now, key, reply.now_ms, answer),
                }
            }
            self.put_back(&starved);
            self.queues.set_starved(&tenant, !starved.is_empty());
        }
        for key in std::mem::take(&mut self.unclocked) {
            self.arrange(now, key, End::Due);
        }
    }

    /// Back to the front, in the old order.
    pub(super) fn put_back(&mut self, keys: &[Key]) {
        for &key in keys.iter().rev() {
            self.join(key, End::Front);
        }
    }

    fn start(&mut self, now: Duration, asked_at: Duration, key: Key) {
        // Half of the guard: the other half is for the way to the downstream.
        let deadline = asked_at + Duration::from_millis(self.settings.limit.guard_ms()) / 2;
        if now > deadline {
            self.metrics.late_admission();
            return self.put_back(&[key]);
        }
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
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
    }

    fn wait(&mut self, now: Duration, key: Key, store_ms: u64, answer: &Answer) {
        let &Answer::Wait {
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
        let limit = &self.settings.limit;
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
