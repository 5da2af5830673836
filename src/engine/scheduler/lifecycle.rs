//! The path of a job from its delivery to its ack, from top to bottom. Details are in the files
//! named along the way.
//!
//! ```text
//! delivered ─► arrange ─► ask ─► answered ─┬─ admitted ─► (called) ─► finished ─► conclude ─┬─ done ───────────────► ack
//!     │           ▲                        ├─ no slot: asks again, prepared                  ├─ asks again, or waits
//!     │           │                        └─ denied: delayed ─┐                             └─ tried later, or never ─┐
//!     │           └───────────── in memory, or in a window ────┤                                                       │
//!     │                                        in a delay queue┤                                                       │
//!     └─ no usable job: a dead letter ─────────────────────────┴─► leave ─► publish ─► moved (confirmed) ─► ack ◄──────┘
//! ```

use std::sync::Arc;
use std::time::Duration;

use super::Scheduler;
use super::asking::admission::RoundTrip;
use super::asking::questions::GateQuestion;
use super::asking::selection::JobsAskingAgain;
use super::entry::{CallEnd, JobEntry, Phase, SlotState, StartRecord};
use super::intake::deliveries::Intake;
use super::leaving::moves::{Destination, Move};
use super::queues::QueuePosition;
use crate::action::{Action, JobKey};
use crate::facts::{BrokerFact, Death, Decision, GateFact, JobFact};
use broker::{Delivery, DeliverySource, ExternalMessage, Message, PublishError};
use gate::{Answer, GateError, Receipt, Replies, ShardId, TenantReply};
use handler::{Attempt, Fate, Outcome};
use rules::headers::{self, HeaderValue};
use rules::job::{self, InBody};
use rules::steering::SightedState;
use rules::tenant::Tenant;

impl Scheduler {
    /// Step 1: takes a new delivery with the values in its body. It becomes a job that may ask, or
    /// a dead letter.
    pub fn delivered_read(&mut self, now: Duration, delivery: Delivery, inside: &InBody) {
        let Some(key) = self.intake.take(&delivery) else {
            return;
        };
        let source = delivery.source;
        self.facts.push(BrokerFact::Delivered(source));
        let Some(delivery) = self.take_parked(now, key, delivery) else {
            return;
        };
        let own = self.agreement.own();
        match Intake::read(now, delivery, inside, &self.settings, own) {
            Ok(job) => self.arrived(now, key, source, job),
            Err(invalid) if self.agreement.is_awaited() => {
                self.intake.keep_undated(key, *invalid);
            }
            Err(invalid) => self.bury_invalid(now, key, *invalid),
        }
    }

    fn arrived(&mut self, now: Duration, key: JobKey, source: DeliverySource, mut job: JobEntry) {
        self.begin_trace(now, source, &mut job);
        let left_a_delay_queue = job.claims.trip.is_some() && source == DeliverySource::Due;
        if left_a_delay_queue && self.intake.should_report_early_leave(now) {
            let due = Arc::clone(&self.settings.names.due);
            self.facts.push(BrokerFact::LeftDelayQueueEarly(due));
        }
        if let DeliverySource::Delay(level) = source {
            self.waiting.windows.add(level.into(), key);
        }
        self.count_queued(now, source, &job);
        self.jobs.insert(key, job);
        let end = match source {
            DeliverySource::Fresh => QueuePosition::Fresh,
            _ => QueuePosition::Due,
        };
        self.arrange(now, key, end);
    }

    /// Step 2: lets the job ask, or delays it if its time has not come (`delays`). A job that has
    /// expired becomes a dead letter.
    pub(super) fn arrange(&mut self, now: Duration, key: JobKey, end: QueuePosition) {
        self.end_wait_if_woken(now, key);
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        job.phase = Phase::Ready;
        let claims = &job.claims;
        let (trip, has_key) = (claims.trip, claims.dedupe.is_some());
        let has_no_time = trip.is_none() && claims.not_before.is_none() && claims.start.is_none();
        let asks_now = has_no_time && claims.expiry.is_never();
        if self.remove_if_unwanted_in_turn(now, key) {
            return;
        }
        if asks_now {
            if !has_key || !self.asks_whether_first(now, key) {
                self.join(key, end);
            }
            return;
        }
        let Some(store_now) = self.clock.at_least(now) else {
            return self.clock.wait(key, end);
        };
        self.count_expiration(now, key);
        if self.expire(now, key) || self.count_start(now, key) || self.asks_whether_first(now, key)
        {
            return;
        }
        match trip {
            Some(trip) => self.delay_for_trip(now, key, trip, store_now),
            None => self.delay_or_join(now, key, end),
        }
    }

    /// Adds the job to the ready jobs of its tenant.
    pub(super) fn join(&mut self, key: JobKey, end: QueuePosition) {
        if let Some(job) = self.jobs.get_mut(&key) {
            job.phase = Phase::Ready;
            let end = match (job.slot, end) {
                (SlotState::Empty, end) => end,
                (_, QueuePosition::Front) => QueuePosition::FrontPrepared,
                _ => QueuePosition::Prepared,
            };
            self.queues.join(&job.claims.tenant, key, end);
        }
    }

    /// Step 3: asks the next question of each open shard, if one is due (`asking::selection`).
    /// `is_ready` reports whether a job's call could be made at once; no more jobs than that may
    /// start.
    pub fn ask(&mut self, now: Duration, mut is_ready: impl FnMut(JobKey, &Tenant) -> bool) {
        if !self.wants_to_ask(now) || self.ask_at() > now {
            return;
        }
        let mut rounds = self.questions_of_jobs(now, &mut is_ready);
        if rounds.is_empty() {
            rounds = self.question_for_clock(now);
        }
        for (shard, (batch, round)) in rounds {
            self.admission.sent(now, shard, round);
            self.agenda.push(Action::Ask(shard, batch));
        }
        self.send_notes(now);
    }

    /// Step 4: handles the gate's answers to the last [`Action::Ask`] for this shard.
    pub fn answered(&mut self, now: Duration, shard: ShardId, result: Result<Replies, GateError>) {
        let Some(round) = self.admission.end(shard) else {
            return;
        };
        let took = now.saturating_sub(round.asked_at);
        self.facts.push(GateFact::Answered(took, result.is_ok()));
        match result {
            Ok(replies) => {
                self.settlement.answers(now, shard);
                self.gate_replied(now, round, replies);
            }
            Err(why) => self.undecided_round(now, &round, &why),
        }
        // A probe that started is known as such by now, so this releases only a probe that did not
        // start.
        self.breakers.not_started();
    }

    /// Handles each tenant's reply: the gate has decided, or could not (`asking::undecided`).
    fn gate_replied(&mut self, now: Duration, mut round: RoundTrip, replies: Replies) {
        self.admission.record_answer();
        let questions = std::mem::take(&mut round.questions);
        let mut pairs = questions.into_iter().zip(replies).peekable();
        let mut back = JobsAskingAgain::default();
        while let Some((question, reply)) = pairs.next() {
            match reply {
                Ok(reply) => self.decided(now, &round, &question, &reply, &mut back),
                Err(why) => self.undecided(now, &question, &why),
            }
            let tenant = &question.tenant;
            let more = pairs.peek().is_some_and(|(next, _)| next.tenant == *tenant);
            if !more && !question.jobs.is_empty() {
                let JobsAskingAgain { jobs, limited } = std::mem::take(&mut back);
                self.put_back_in_order(jobs);
                self.queues.set_limited(tenant, limited);
            }
        }
        self.arrange_waiting(now);
    }

    /// Step 5: applies the gate's decision on each job of one question. The job is admitted and
    /// starts, or is denied and delayed, or only lacked a worker slot.
    fn decided(
        &mut self,
        now: Duration,
        round: &RoundTrip,
        question: &GateQuestion,
        reply: &TenantReply,
        back: &mut JobsAskingAgain,
    ) {
        self.record_tenant_state(now, round.asked_at, question, reply);
        self.record_closed_tenant(now, question, reply);
        for (number, (asked, answer)) in question.jobs.iter().zip(&reply.answers).enumerate() {
            let (key, index) = (asked.key, asked.index);
            match answer {
                Answer::Start { sequences, .. } => {
                    self.facts.push(GateFact::Decided(Decision::Admitted));
                    let receipt = question.receipt(number, reply.now_ms, sequences.clone());
                    if let Err(receipt) = self.admitted(now, round, key, question, receipt) {
                        self.permit_expired(question, key, receipt);
                        back.jobs.push((index, key));
                    }
                }
                Answer::Capacity => {
                    self.facts.push(GateFact::Decided(Decision::NoSlot));
                    if !self.prepare_with_slot(key) {
                        back.jobs.push((index, key));
                    }
                }
                Answer::Wait { .. } => {
                    self.facts.push(GateFact::Decided(Decision::Denied));
                    back.limited = true;
                    self.release_slot(key);
                    self.denied(now, key, question, reply, answer);
                }
            }
        }
    }

    /// Step 6a: starts an admitted job while its permit is valid.
    ///
    /// # Errors
    /// The receipt, if the permit has expired, if the job is gone or not wanted any more, if a
    /// throttle of its tenant is being stored, or if all tenants are throttled.
    fn admitted(
        &mut self,
        now: Duration,
        round: &RoundTrip,
        key: JobKey,
        question: &GateQuestion,
        receipt: Receipt,
    ) -> Result<(), Receipt> {
        let (asked_at, limits) = (round.asked_at, &question.limits);
        let Some(job) = self.jobs.get(&key) else {
            return Err(receipt);
        };
        if self.is_throttled(now, &job.claims.tenant) || !self.is_wanted(job) {
            return Err(receipt);
        }
        let good_for = self.admission.good_for(limits);
        let deadline = match job.claims.expiry.at_ms() {
            None => asked_at + good_for,
            Some(at) if at <= receipt.started_ms => return Err(receipt),
            // The store's clock was read after the question was sent, and the job may expire within
            // the last millisecond.
            Some(at) => {
                let left = Duration::from_millis(at - receipt.started_ms - 1);
                asked_at + left.min(good_for)
            }
        };
        // The slots of a lapsed round trip went to other jobs.
        if round.lapsed || now > deadline {
            let fact = self.admission.record_late_permit(now, asked_at, limits);
            self.facts.extend(fact);
            return Err(receipt);
        }
        self.admission.record_timely_permit(now, asked_at);
        // A job without a slot may be admitted in place of a denied one, whose slot is free now.
        self.give_slot(key);
        self.trace_start(now, key);
        let Some(job) = self.jobs.get_mut(&key) else {
            return Err(receipt);
        };
        self.facts.extend(job.starts(now, receipt.started_ms));
        self.tallies.started(&job.claims);
        job.slot = SlotState::Empty;
        job.phase = Phase::Running;
        self.queues.start(&job.claims.tenant);
        self.breakers.started(key);
        let started = job.started.insert(StartRecord {
            labels: question.labels.clone(),
            limits: limits.clone(),
            receipt,
            asked_at,
            covered: Duration::ZERO,
        });
        let check = self.settlement.started(now, started);
        self.agenda.push(Action::Dispatch {
            key,
            job: Box::new(job.job()),
            deadline,
            check,
        });
        Ok(())
    }

    /// Step 6b: delays a denied job until its turn: in a window, in memory, or else in a delay
    /// queue (`delays`).
    fn denied(
        &mut self,
        now: Duration,
        key: JobKey,
        question: &GateQuestion,
        reply: &TenantReply,
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
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        job.claims.ticket = Some(ticket);
        if Self::must_ask_again(&self.steering.now, job) {
            return self.join(key, QueuePosition::Due);
        }
        let limits = &question.limits;
        let index = limit.min(limits.len() - 1);
        let limit = &limits[index];
        job.denied_by = Some((limits.clone(), index));
        if let Some(trace) = &mut job.trace {
            trace.record_wait(now, limits, index, ttl_ms);
        }
        self.facts.push(JobFact::MustWait {
            job: job.log_fields(),
            labels: question.labels.clone(),
            limits: limits.clone(),
            limit: index,
            count,
            wait_ms: ttl_ms,
            ticket: ticket.number,
        });
        let attempt = job.claims.attempt;
        let headers = headers::waiting(limit, attempt, ticket, count, reply.now_ms, ttl_ms);
        job.record_turn(now, reply.now_ms, ttl_ms);
        let wait = self.look(key, limit, ttl_ms, reply);
        // A part of the wait passed while the answer was on its way, and the next question takes
        // time, too.
        let here = wait.saturating_sub(self.admission.base());
        if self.delay_in_window(now, key, here) || self.delay_in_memory(now, key, here) {
            if let Some(job) = self.jobs.get(&key) {
                let tenant = &job.claims.tenant;
                self.waiting.leases.add(tenant, limit, now + here, key);
            }
        } else {
            self.enter_delay_queue(now, key, wait, headers);
        }
    }

    /// Step 7: handles the end of a call that [`Action::Dispatch`] started, with its duration, the
    /// verdict on the job, and the API's hints in the answer. Settles its usage.
    pub fn finished(
        &mut self,
        now: Duration,
        key: JobKey,
        took: Duration,
        attempt: impl Into<Attempt>,
    ) {
        let Attempt {
            outcome,
            seen,
            fate,
            trouble,
            answered,
        } = attempt.into();
        let called = !matches!(fate, Fate::Unwritten);
        let outcome = self.spare(now, key, outcome, trouble);
        if outcome != Outcome::Late {
            let fact = JobFact::Called(outcome.clone(), Some(took));
            self.facts.push(fact);
            self.queues.record_call_duration(took);
        }
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        if let (Outcome::Late, Some(started)) = (&outcome, &job.started) {
            self.admission.was_late(now, started.asked_at);
        }
        self.queues.end(&job.claims.tenant);
        if outcome != Outcome::Late && called {
            self.survived(key);
        }
        self.keep_answer(now, key, (&outcome, took), answered);
        self.trace_call(now, key, took, &outcome);
        let waits_for_report = self.report_health(now, key, (took, called), &outcome, trouble);
        let is_refused = self.count_refusals(now, key, called, &seen);
        self.count_success(key, called, (&outcome, seen.actual_cost));
        let mut learner = None;
        if let Some(job) = self.jobs.get_mut(&key)
            && let Some(started) = job.started.take()
        {
            let claims = &job.claims;
            learner = (self.lessons).called(&claims.tenant, &started, &outcome, is_refused);
            let used = (claims.cost, seen.actual_cost);
            let ends = (self.settlement).end(now, &claims.tenant, started, fate, used);
            ends.into_iter().for_each(|action| self.agenda.push(action));
        }
        self.throttle_used_up(now, key, &seen);
        self.record_quotas(now, key, seen.quotas, learner.as_ref());
        let end = CallEnd {
            outcome,
            waits_for_report,
            stops_all: seen.stops_all,
        };
        self.conclude(now, key, end);
    }

    /// Step 8: decides what becomes of a job whose call has ended, or could not be prepared.
    pub(super) fn conclude(&mut self, now: Duration, key: JobKey, end: CallEnd) {
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        // If the session is gone, the broker delivers the job again, and that copy goes on.
        let stale = !self.intake.is_current(&job.tag);
        match end.outcome {
            Outcome::Throttled { after, reason } => {
                self.throttled(now, key, after, end.stops_all, reason);
            }
            Outcome::Done => {
                self.sight(now, key, SightedState::Done);
                if !stale {
                    self.done(now, key);
                }
                self.forget(key);
            }
            _ if stale => self.forget(key),
            // The job may be given up once the breakers have answered.
            Outcome::Retry { .. } if end.waits_for_report => return job.phase = Phase::Reporting,
            Outcome::Late => {
                self.facts.push(GateFact::ExpiredPermit);
                job.had_its_turn();
                self.arrange(now, key, QueuePosition::Front);
            }
            Outcome::Retry { after, reason } => {
                if !self.gives_up(now, key, &reason) {
                    self.try_again(now, key, after, &reason);
                }
            }
            Outcome::Snooze { after } => {
                job.claims.ticket = None;
                self.delay_in_queue(now, key, after);
            }
            Outcome::Reject { reason } => self.bury(now, key, Death::Rejected, &reason),
        }
        self.drop_answer(key);
    }

    /// Step 9a: makes the job a dead letter.
    pub(super) fn bury(&mut self, now: Duration, key: JobKey, death: Death, reason: &str) {
        let Some(job) = self.jobs.get(&key) else {
            return;
        };
        let fact = JobFact::DeadLetter(job.log_fields(), death, reason.to_owned());
        self.facts.push(fact);
        let headers = headers::dead(job.claims.attempt, reason, self.clock.at_least(now));
        self.trace_death(now, key);
        let queue = Arc::clone(&self.settings.names.dead);
        let result = self.result_of_job(key, Some((death, reason)));
        self.leave(now, key, Destination { queue, headers }, result);
    }

    /// Step 9b: moves a dead letter or a delayed job out of memory, as a message on its way to its
    /// next queue. Its result goes first, if there is one.
    pub(super) fn leave(
        &mut self,
        now: Duration,
        key: JobKey,
        mut to: Destination,
        result: Option<ExternalMessage>,
    ) {
        self.release_slot(key);
        if let Some(job) = self.jobs.remove(&key) {
            self.waiting.forget(key);
            to.headers.extend(job::lasting(&job.claims));
            to.headers
                .extend(job.claims.first_failure_ms.map(headers::first_failure));
            // The handler has ended, so the message has no other owner.
            let message = Arc::unwrap_or_clone(job.message);
            let of = Move::new(now, (job.tag, job.since), Some(job.claims.tenant), result);
            self.publish(now, key, of, message, to);
        }
    }

    /// Publishes `message`, as the last step of its move.
    pub(super) fn publish(
        &mut self,
        now: Duration,
        key: JobKey,
        of: Move,
        message: Message,
        Destination { queue, mut headers }: Destination,
    ) {
        if *message.routing_key != *self.settings.names.fresh {
            let key = HeaderValue::Text(message.routing_key.clone());
            headers.push((headers::ROUTING_KEY, key));
        }
        if let Some(expiration) = message.expiration() {
            let expiration = HeaderValue::Text(expiration.to_owned());
            headers.push((headers::EXPIRATION, expiration));
        }
        let of = of.to(queue, message.with_our_headers(headers));
        let next = self.moves.begin(now, key, of);
        self.do_all(next);
    }

    /// Step 10: acks messages whose publish is confirmed. Failed publishes are tried again.
    pub fn moved(&mut self, now: Duration, results: Vec<(JobKey, Result<(), PublishError>)>) {
        for (key, result) in results {
            if let Err(why) = result {
                self.publish_failed(now, key, why);
            } else if let Some((tag, next)) = self.moves.confirmed(now, key) {
                self.agenda.ack(tag);
                self.do_all(next);
            }
        }
    }
}
