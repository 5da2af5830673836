//! What the gate's answers to one round trip mean for each job that asked.

use std::time::Duration;

use rand::Rng;
use tracing::field::{DisplayValue, display};
use tracing::{debug, error, warn};

use super::asking::{Asked, Question, Round};
use super::expiring::StoreClock;
use super::preparing::Hand;
use super::{Phase, Scheduler, Started, millis};
use crate::engine::action::{Action, Key};
use crate::engine::away::{SOON, next_look};
use crate::gate::{
    Answer, End, GateError, Partition, Receipt, Replies, Sequences, Settled, TenantReply,
};
use crate::rules::headers;
use crate::rules::limit::Limits;
use crate::rules::scope::Labels;
use crate::rules::tenant::Tenant;

/// The jobs of a tenant whose keys can't be used come back after this: somebody has to mend them.
const SET_ASIDE: Duration = Duration::from_secs(60);
/// A clock that could not be read is asked for again after the first, and that is logged each second one at most.
const CLOCK_AGAIN: Duration = Duration::from_secs(1);
const CLOCK_SAID: Duration = Duration::from_secs(60);
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
    /// The gate's answers to the last [`Action::Ask`] for this partition.
    pub fn answered(
        &mut self,
        now: Duration,
        partition: Partition,
        result: Result<Replies, GateError>,
    ) {
        let Some(round) = self.asking.remove(&partition) else {
            return;
        };
        let took = now.saturating_sub(round.asked_at);
        self.metrics.gate_answered(took, result.is_ok());
        self.take_answers(now, partition, round, result);
        // Whoever was to be the probe and started is it now.
        self.breakers.not_started();
    }

    fn take_answers(
        &mut self,
        now: Duration,
        partition: Partition,
        round: Round,
        result: Result<Replies, GateError>,
    ) {
        let replies = match result {
            Ok(replies) => replies,
            Err(why) => {
                for question in &round.questions {
                    self.doubt(now, question);
                }
                let same = |one: &Question, two: &Question| one.tenant == two.tenant;
                for of_tenant in round.questions.chunk_by(same) {
                    let jobs = of_tenant.iter().flat_map(|question| &question.jobs);
                    let jobs: Vec<_> = jobs.map(|job| (job.place, job.key)).collect();
                    // Nobody knows when they may ask again.
                    jobs.iter().for_each(|(_, key)| self.let_go(*key));
                    self.put_back_in_order(jobs);
                }
                self.pause(now, &why);
                return;
            }
        };
        self.gate_pause = None;
        self.gate_backoff.reset();
        self.ledger.answers(now, partition);
        let (asked_at, lapsed) = (round.asked_at, round.lapsed);
        let mut pairs = round.questions.into_iter().zip(replies).peekable();
        let mut back = Back::default();
        while let Some((question, reply)) = pairs.next() {
            let (tenant, only_clock) = (question.tenant.clone(), question.jobs.is_empty());
            match reply {
                Ok(reply) => {
                    self.away.over(&tenant);
                    self.decided(now, asked_at, lapsed, question, &reply, &mut back);
                }
                Err(why) if only_clock => {
                    self.say_without_clock(now, &tenant, &why);
                    // Next time with another tenant.
                    let next = 1.min(self.unclocked.len());
                    self.unclocked.rotate_left(next);
                    self.gate_pause = Some(now + CLOCK_AGAIN);
                }
                Err(why) => {
                    self.doubt(now, &question);
                    question.jobs.iter().for_each(|job| self.let_go(job.key));
                    let keys: Vec<Key> = question.jobs.iter().map(|job| job.key).collect();
                    self.set_aside(now, (&question.tenant, &question.labels), &keys, &why);
                }
            }
            let more = pairs.peek().is_some_and(|(next, _)| next.tenant == tenant);
            if !more && !only_clock {
                let Back { jobs, starved } = std::mem::take(&mut back);
                self.put_back_in_order(jobs);
                self.queues.set_starved(&tenant, starved);
            }
        }
        for (key, end) in std::mem::take(&mut self.unclocked) {
            self.arrange(now, key, end);
        }
    }

    /// The gate can't be asked: the next question is after a pause.
    pub(super) fn pause(&mut self, now: Duration, why: &GateError) {
        let jitter = self.random.random();
        let pause = match why {
            GateError::Cold { wait, .. } => (*wait).min(COLD_PAUSE),
            _ => self.gate_backoff.next(jitter),
        };
        self.gate_pause = Some(now + pause);
    }

    /// The store's clock could not be read.
    fn say_without_clock(&mut self, now: Duration, tenant: &Tenant, why: &GateError) {
        let said = self.clock_said.filter(|said| now < *said + CLOCK_SAID);
        if said.is_none() {
            self.clock_said = Some(now);
            let jobs = self.unclocked.len();
            warn!(%tenant, jobs, reason = %why, "the clock of Redis can't be read: jobs that came back wait for it");
        }
    }

    /// What the gate decided for the jobs of one question.
    fn decided(
        &mut self,
        now: Duration,
        asked_at: Duration,
        lapsed: bool,
        question: Question,
        reply: &TenantReply,
        back: &mut Back,
    ) {
        let now_ms = reply.now_ms;
        self.clock = Some(StoreClock {
            ms: now_ms,
            asked_at,
            read_at: now,
        });
        self.breakers.heard(&question.tenant, reply.has_failures);
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
                    if !self.start(now, asked_at, lapsed, &question, key, receipt.clone()) {
                        self.metrics.late_admission();
                        let Question {
                            tenant,
                            labels,
                            limits,
                            ..
                        } = &question;
                        self.breakers.unused(tenant, now_ms);
                        let end = End::Unused;
                        let settled = Settled { receipt, end };
                        (self.ledger).add(tenant.clone(), labels.clone(), limits.clone(), settled);
                        if let Some(entry) = self.entries.get_mut(&key) {
                            entry.had_its_turn();
                        }
                        back.jobs.push((place, key));
                    }
                }
                Answer::Capacity { .. } => match self.entries.get_mut(&key) {
                    Some(entry) if entry.hand == Hand::Slot => {
                        entry.phase = Phase::Preparing;
                        self.prepare(key);
                    }
                    entry => {
                        back.starved |= entry.is_some_and(|entry| entry.hand == Hand::Empty);
                        back.jobs.push((place, key));
                    }
                },
                Answer::Wait { .. } => {
                    self.let_go(key);
                    self.wait(now, key, &question, now_ms, answer);
                }
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
    pub(super) fn set_aside(
        &mut self,
        now: Duration,
        (tenant, labels): (&Tenant, &Labels),
        keys: &[Key],
        why: &GateError,
    ) {
        let (labels, jobs) = (shown(labels), keys.len());
        let counts_in = match why {
            GateError::Refused(_) => {
                let wait_s = SET_ASIDE.as_secs();
                error!(%tenant, labels, jobs, wait_s, reason = %why, "no decision for this tenant: its jobs wait, the others go on");
                for key in keys {
                    self.postpone(now, *key, SET_ASIDE);
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
        for &key in keys {
            match counts_in {
                Some(wait) if wait < BRIEF && lasts < SOON => self.hold_anyway(now, key, wait),
                Some(wait) if wait <= look => {
                    let spread = (wait / SPREAD_PART).min(SPREAD_MOST);
                    let spread = spread.mul_f64(self.random.random_range(0.0..=1.0));
                    let wait = (wait + spread).min(farthest);
                    if !self.hold(now, key, wait) {
                        self.postpone(now, key, wait);
                    }
                }
                _ => self.look_later(now, key, look),
            }
        }
    }

    /// False: it is too late for this start, or its job is gone.
    fn start(
        &mut self,
        now: Duration,
        asked_at: Duration,
        lapsed: bool,
        question: &Question,
        key: Key,
        receipt: Receipt,
    ) -> bool {
        let limits = &question.limits;
        // What the way to the store takes in any case does no harm.
        let good_for = self.base + good_for(limits);
        let Some(entry) = self.entries.get(&key) else {
            return false;
        };
        let deadline = match entry.claims.expiry.at_ms() {
            None => asked_at + good_for,
            Some(at) if at <= receipt.started_ms => return false,
            // The store's clock was read after the question was sent; in the last millisecond it may be over.
            Some(at) => {
                let left = Duration::from_millis(at - receipt.started_ms - 1);
                asked_at + left.min(good_for)
            }
        };
        // What lapsed has given its slots to others.
        if lapsed || now > deadline {
            self.round_size.late(now, asked_at);
            if self.old.is_old(now) {
                let took_ms = millis(now.saturating_sub(asked_at));
                let (base_ms, good_for_ms) = (millis(self.base), millis(good_for));
                warn!(
                    took_ms,
                    base_ms,
                    good_for_ms,
                    "no permit is young enough: answers of Redis take longer than usual by more than half of guard, so nothing starts; raise guard, or bring Redis closer"
                );
            }
            return false;
        }
        self.old.is_young();
        self.round_size.in_time(now, asked_at);
        // One that is served by the slot of another that must wait.
        self.give_slot(key);
        let Some(entry) = self.entries.get_mut(&key) else {
            return false;
        };
        entry.hand = Hand::Empty;
        self.ledger.started(limits);
        let started = Started {
            labels: question.labels.clone(),
            limits: limits.clone(),
            receipt,
            asked_at,
            covered: Duration::ZERO,
        };
        entry.phase = Phase::Running;
        self.queues.start(&entry.claims.tenant);
        self.breakers.started(key);
        let job = entry.job();
        let look = self.look(now, &started);
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.started = Some(started);
        }
        self.actions.push(Action::Dispatch {
            key,
            job,
            deadline,
            look,
        });
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
        // The answer was on its way for a part of it, and the next question will be.
        let held = wait.saturating_sub(self.base);
        if self.stay(now, key, held) || self.hold(now, key, held) {
            if let Some(entry) = self.entries.get(&key) {
                self.places
                    .add(&entry.claims.tenant, limit, now + held, key);
            }
        } else {
            self.send_round(now, key, wait, headers);
        }
    }
}

/// So long a permit is good from the moment that it was asked for: half of the guard, since the other half is for the way to
/// the downstream.
pub(super) fn good_for(limits: &Limits) -> Duration {
    match limits.guard_ms() {
        0 => UNGUARDED,
        guard => Duration::from_millis(guard) / 2,
    }
}

/// A tenant's jobs that ask again, with their places among those that asked.
#[derive(Default)]
struct Back {
    jobs: Vec<(usize, Key)>,
    /// Some of them lack only a slot.
    starved: bool,
}

/// What tells jobs apart, for logs; where nothing does, the field is left out.
fn shown(labels: &Labels) -> Option<DisplayValue<&Labels>> {
    (!labels.is_empty()).then(|| display(labels))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::limit::{Algorithm, Limit};

    #[test]
    fn a_permit_lasts_half_of_the_shortest_guard_or_a_second_where_there_is_none() {
        let ms = Duration::from_millis;
        let window = |name: &str, algorithm, guard_ms| {
            let limit = Limit::new(name, algorithm, 5, ms(60_000), ms(guard_ms));
            limit.expect("in range")
        };
        let strict = window("strict", Algorithm::Strict, 0);
        let running = Limit::concurrent("running", 5).expect("in range");
        let long = window("long", Algorithm::SlidingWindow, 400);
        let short = window("short", Algorithm::FixedWindow, 50);
        for (limits, lasts) in [
            (vec![strict.clone(), running.clone()], 1_000),
            (vec![strict, long.clone()], 200),
            (vec![long, short, running], 25),
        ] {
            let limits = Limits::new(limits).expect("limits");
            assert_eq!(good_for(&limits), ms(lasts));
        }
    }
}
