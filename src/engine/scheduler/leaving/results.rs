//! Publishes the result of a job, which tells how it ended, before the job is acked.
//!
//! A result is published and confirmed first, then the dead letter if the job is one, and then the
//! job is acked. So a result may arrive twice, but none is lost while its target exists.

use std::sync::Arc;
use std::time::Duration;

use super::moves::{Move, MoveStep};
use crate::action::{JobKey, ResultTarget};
use crate::facts::{BrokerFact, Death, ResultOutcome};
use crate::scheduler::Scheduler;
use crate::scheduler::entry::LastCall;
use crate::scheduler::report_limiter::ReportLimiter;
use broker::{ExternalMessage, Message, PublishError};
use handler::{ApiAnswer, Outcome};
use rules::headers::{self, HeaderValue, Headers};
use rules::limit::floor_ms;

/// Minimum interval between reports of lost results.
const LOST_REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of the API's headers in one result. With the bounds below, all of them fit into
/// one AMQP frame of 128 KiB.
const MAX_HEADERS: usize = 32;
/// Maximum length of a header's value, in bytes.
const MAX_VALUE_BYTES: usize = 2 << 10;
/// Maximum length of a header's name, in bytes.
const MAX_NAME_BYTES: usize = 240;

/// What was reported about lost results, so that the log is not flooded.
#[derive(Debug, Default)]
pub struct LostResults {
    limiter: ReportLimiter,
    /// Whether a result for one of the worker's own queues was reported.
    own_reported: bool,
}

impl Scheduler {
    /// Keeps the answer of a call until it is decided whether it was the job's last one.
    pub(in crate::scheduler) fn keep_answer(
        &mut self,
        now: Duration,
        key: JobKey,
        (outcome, took): (&Outcome, Duration),
        answered: Option<Box<ApiAnswer>>,
    ) {
        let Some(results) = self.settings.results.as_ref() else {
            return;
        };
        let answered_ms = self.clock.at_least(now);
        if let Some(job) = self.jobs.get_mut(&key)
            && *outcome != Outcome::Late
            && (results.to != ResultTarget::ReplyTo || job.message.reply_to().is_some())
        {
            job.last_call = Some(Box::new(LastCall {
                answered_ms,
                took,
                answered,
            }));
        }
    }

    /// Drops the kept answer of a job that goes on.
    pub(in crate::scheduler) fn drop_answer(&mut self, key: JobKey) {
        if self.settings.results.is_some()
            && let Some(job) = self.jobs.get_mut(&key)
        {
            job.last_call = None;
        }
    }

    /// Acks a finished job after its result, if it has one, is confirmed.
    pub(in crate::scheduler) fn done(&mut self, now: Duration, key: JobKey) {
        let result = self.result_of_job(key, None);
        self.ack_after(now, key, result);
    }

    /// Acks the job after `result`, if any, is confirmed.
    pub(in crate::scheduler) fn ack_after(
        &mut self,
        now: Duration,
        key: JobKey,
        result: Option<ExternalMessage>,
    ) {
        let Some(job) = self.jobs.get(&key) else {
            return;
        };
        let (tag, since) = (job.tag, job.since);
        let Some(result) = result else {
            return self.agenda.ack(tag);
        };
        let tenant = job.claims.tenant.clone();
        let of = Move::new(now, (tag, since), Some(tenant), Some(result));
        let next = self.moves.begin(now, key, of);
        self.do_all(next);
    }

    /// Returns the result of a job that is done, or that became a dead letter (`dead`). Returns
    /// `None` if the job has no result.
    pub(in crate::scheduler) fn result_of_job(
        &mut self,
        key: JobKey,
        dead: Option<(Death, &str)>,
    ) -> Option<ExternalMessage> {
        self.settings.results.as_ref()?;
        let job = self.jobs.get_mut(&key)?;
        let last_call = job.last_call.take();
        let job = self.jobs.get(&key)?;
        let mut own = match dead {
            None => headers::done(job.claims.attempt),
            Some((death, reason)) => {
                let expired = death == Death::Expired;
                headers::ended(expired, job.claims.attempt, reason)
            }
        };
        let tenant = job.claims.tenant.as_str().to_owned();
        own.push((headers::TENANT, HeaderValue::Text(tenant)));
        own.extend(job.claims.first_failure_ms.map(headers::first_failure));
        let span = self.result_span(key, &mut own);
        let job = self.jobs.get(&key)?;
        let result = self.assemble_result(&job.message, own, last_call);
        let result = self.with_a_target(result?)?;
        self.begin_result(key, span);
        Some(result)
    }

    /// Returns the result of an invalid message.
    pub(in crate::scheduler) fn result_of_invalid(
        &mut self,
        message: &Message,
        reason: &str,
    ) -> Option<ExternalMessage> {
        self.settings.results.as_ref()?;
        let own = headers::ended(false, 1, reason);
        let result = self.assemble_result(message, own, None);
        self.with_a_target(result?)
    }

    /// Returns the result of a job that is dropped, because another job with its dedupe key goes
    /// on.
    pub(in crate::scheduler) fn result_of_duplicate(
        &mut self,
        key: JobKey,
    ) -> Option<ExternalMessage> {
        self.settings.results.as_ref()?;
        let job = self.jobs.get(&key)?;
        let mut own = headers::duplicate();
        let tenant = job.claims.tenant.as_str().to_owned();
        own.push((headers::TENANT, HeaderValue::Text(tenant)));
        let result = self.assemble_result(&job.message, own, None);
        self.with_a_target(result?)
    }

    /// Assembles a result. Returns `None` if the job names no target.
    fn assemble_result(
        &self,
        message: &Message,
        mut own: Headers,
        last_call: Option<Box<LastCall>>,
    ) -> Option<ExternalMessage> {
        let results = self.settings.results.as_ref()?;
        let (exchange, routing_key) = match &results.to {
            ResultTarget::ReplyTo => (Arc::from(""), Arc::from(message.reply_to()?)),
            ResultTarget::Exchange {
                exchange,
                routing_key,
            } => (Arc::clone(exchange), Arc::clone(routing_key)),
        };
        let id = message.id().unwrap_or_default().to_owned();
        own.push((headers::JOB_ID, HeaderValue::Text(id)));
        let published = message.published_at_ms();
        own.extend(published.map(|ms| (headers::PUBLISHED, headers::int(ms))));
        let (mut answered, mut answer_headers) = (ApiAnswer::default(), Vec::new());
        if let Some(call) = last_call {
            if let Some(ms) = call.answered_ms {
                let called = ms.saturating_sub(floor_ms(call.took));
                own.push((headers::CALLED, headers::int(called)));
                own.push((headers::ANSWERED, headers::int(ms)));
            }
            answered = call.answered.map(|answered| *answered).unwrap_or_default();
            let status = answered.status;
            own.extend(status.map(|n| (headers::STATUS, headers::int(u64::from(n)))));
            if answered.body.len() > results.max_body {
                answered.body.truncate(results.max_body);
                answered.truncated = true;
            }
            if answered.truncated {
                own.push((headers::TRUNCATED, HeaderValue::Text("true".to_owned())));
            }
            let fits = |(name, value): &(String, String)| {
                name.len() <= MAX_NAME_BYTES && value.len() <= MAX_VALUE_BYTES
            };
            let named = std::mem::take(&mut answered.headers)
                .into_iter()
                .filter(fits);
            let named = named.map(|(name, value)| {
                let name = format!("{}{name}", headers::ANSWER_PREFIX);
                (name, HeaderValue::Text(value))
            });
            answer_headers = named.take(MAX_HEADERS).collect();
        }
        let content = [&answered.content_type, &answered.content_encoding];
        let content = content.map(Option::as_deref);
        let message = message.answered_by(answered.body, content);
        let all = own
            .into_iter()
            .chain((answer_headers.iter()).map(|(name, value)| (name.as_str(), value.clone())));
        let all: Vec<(&str, HeaderValue)> = all.collect();
        Some(ExternalMessage {
            exchange,
            routing_key,
            message: message.with_headers(&all, &[]),
        })
    }

    /// Returns `result`, or `None` if its target is one of the worker's own queues. These queues
    /// trust headers that only workers may set, and a result that arrived there as a job would have
    /// a result itself.
    fn with_a_target(&mut self, result: ExternalMessage) -> Option<ExternalMessage> {
        let ours = result.exchange.is_empty() && self.settings.names.has(&result.routing_key);
        if !ours {
            return Some(result);
        }
        let is_news = !std::mem::replace(&mut self.lost_results.own_reported, true);
        self.facts
            .push(lost(ResultOutcome::Unroutable, &result, is_news));
        None
    }

    /// Performs the next steps of moves.
    pub(in crate::scheduler) fn do_all(&mut self, all: impl IntoIterator<Item = MoveStep>) {
        for next in all {
            match next {
                MoveStep::PublishResult(result) => self.agenda.publish_result(result),
                MoveStep::Publish(publish) => {
                    let queue = &publish.1.queue;
                    match *queue == self.settings.names.dead || self.moves.is_stuck(queue) {
                        true => self.agenda.publish_separately(publish),
                        false => self.agenda.publish(publish),
                    }
                }
                MoveStep::Ack(tag) => self.agenda.ack(tag),
            }
        }
    }

    /// Handles the result of [`crate::action::Action::PublishResults`]: the job continues with its
    /// dead letter or its ack. A result that the broker did not accept is published again.
    pub fn results_published(
        &mut self,
        now: Duration,
        results: Vec<(JobKey, Result<(), PublishError>)>,
    ) {
        for (key, result) in results {
            // A result that was given up may still be answered, while the job's next step waits.
            if !self.moves.has_result(key) {
                continue;
            }
            match result {
                Ok(()) => self.result_ended(now, key, ResultOutcome::Published),
                Err(PublishError::Returned) => {
                    self.result_ended(now, key, ResultOutcome::Unroutable)
                }
                Err(PublishError::Refused(_) | PublishError::Forbidden(_))
                    if self.moves.gives_up_refused_result(now, key) =>
                {
                    self.result_ended(now, key, ResultOutcome::Refused);
                }
                Err(why) => self.publish_failed(now, key, why),
            }
        }
    }

    /// Continues a job whose result was published or given up.
    pub(super) fn result_ended(&mut self, now: Duration, key: JobKey, sent: ResultOutcome) {
        let is_open = matches!(sent, ResultOutcome::Published | ResultOutcome::Unroutable);
        let Some((result, next)) = self.moves.result_ended(now, key, is_open) else {
            return;
        };
        self.end_result(now, key);
        self.facts.push(match sent {
            ResultOutcome::Published => BrokerFact::ResultPublished,
            sent => {
                let is_news = self
                    .lost_results
                    .limiter
                    .may_report(now, LOST_REPORT_INTERVAL);
                lost(sent, &result, is_news)
            }
        });
        self.do_all(next);
    }

    /// Schedules another try of a failed publish.
    pub(in crate::scheduler) fn publish_failed(
        &mut self,
        now: Duration,
        key: JobKey,
        why: PublishError,
    ) {
        let is_news = self.moves.failed(now, key, &why).unwrap_or_default();
        self.facts.push(BrokerFact::PublishFailed(why, is_news));
    }
}

fn lost(sent: ResultOutcome, result: &ExternalMessage, is_news: bool) -> BrokerFact {
    BrokerFact::ResultLost {
        job: result.message.id().unwrap_or_default().to_owned(),
        sent,
        exchange: Arc::clone(&result.exchange),
        routing_key: Arc::clone(&result.routing_key),
        is_news,
    }
}
