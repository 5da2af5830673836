//! Handles messages whose target does not take them. A result is given up, and a job or a dead
//! letter takes another route, so that its delivery is not held forever. If RabbitMQ closes the
//! channel over a message, no route helps, and the delivery goes back to its queue.

use std::sync::Arc;
use std::time::Duration;

use super::moves::{Move, ReturnedMove};
use crate::action::JobKey;
use crate::facts::{BrokerFact, ResultOutcome};
use crate::scheduler::Scheduler;
use broker::{Delivery, DeliverySource, MessageKind, Outgoing};
use rules::delays::Trip;
use rules::headers::{self, HeaderValue, PARKED, REASON, TRIP};
use rules::job::Field;
use rules::limit::floor_ms;
use rules::steering::DIVERTED;

/// Time that a dead letter spends in a delay queue if its own queue does not take it, before it
/// tries again.
const PARKED_FOR: Duration = Duration::from_secs(60);
/// [`PARKED_FOR`] while the store's clock is unknown. The message waits this long in each worker's
/// window, with others behind it.
const PARKED_FOR_UNTIMED: Duration = Duration::from_secs(5);
/// Time without taking a message after which a target is reported as stuck.
pub const STUCK_AFTER: Duration = Duration::from_secs(10);
/// Minimum interval between reports of stuck targets, and of returned deliveries.
const STUCK_REPORT_INTERVAL: Duration = Duration::from_secs(60);

impl Scheduler {
    /// Sends messages that may try their target. Gives up results that waited too long, and finds
    /// another route for other messages.
    pub(in crate::scheduler) fn check_moves(&mut self, now: Duration) {
        let due = self.moves.due(now);
        self.do_all(due.next);
        for key in due.overdue {
            if self.moves.has_result(key) {
                self.agenda.release(key);
                self.result_ended(now, key, ResultOutcome::Refused);
            } else if !self.intake.is_stopping() {
                self.reroute_stuck(now, key);
            }
        }
        self.give_back(now, due.refused);
        self.report_stuck(now);
    }

    /// Returns the deliveries of moves that were given up. RabbitMQ delivers them again, so nothing
    /// is lost.
    pub(in crate::scheduler) fn give_back(&mut self, now: Duration, all: Vec<ReturnedMove>) {
        for ReturnedMove { key, of, refusal } in all {
            self.end_result(now, key);
            self.agenda.give_back(of.tag);
            let message = match (&of.result, &of.outgoing) {
                (Some(result), _) => Some(&result.message),
                (None, outgoing) => outgoing.as_ref().map(|it| &it.message),
            };
            let id = message.and_then(|message| message.id());
            let is_news = (self.return_reports).may_report(now, STUCK_REPORT_INTERVAL);
            self.facts.push(BrokerFact::MoveGivenBack {
                job: id.unwrap_or_default().to_owned(),
                refusal,
                is_news,
            });
        }
    }

    /// Finds another route for a job or a dead letter that its queue does not take. A job takes
    /// another delay queue, and waits on when it comes back. Any other message is parked in a delay
    /// queue, and tries its own queue again afterward.
    fn reroute_stuck(&mut self, now: Duration, key: JobKey) {
        let names = &self.settings.names;
        let Some(outgoing) = self.moves.outgoing(key) else {
            return;
        };
        let from_ms = self.settings.levels.from_ms();
        let delays = names.delays();
        let level = delays.iter().position(|name| *name == outgoing.queue);
        let store_now = self.clock.at_least(now);
        let wait_ms = floor_ms(match store_now {
            Some(_) => PARKED_FOR,
            None => PARKED_FOR_UNTIMED,
        });
        let is_longer = |from: &u64| *from <= wait_ms;
        let usual = level.unwrap_or_else(|| from_ms.partition_point(is_longer) - 1);
        // Shorter waits come first: a job in the queue of a longer wait would be behind others.
        let all = (0..usual.min(delays.len()))
            .rev()
            .chain(usual..delays.len());
        let mut open = all.filter(|level| !self.moves.is_stuck(&delays[*level]));
        let open = match level {
            None if !delays.get(usual).is_some_and(|it| self.moves.is_stuck(it)) => Some(usual),
            _ => open.next(),
        };
        let Some(queue) = open.and_then(|level| delays.get(level)) else {
            return self.moves.keep(now, key);
        };
        let queue = Arc::clone(queue);
        let message = outgoing.message.clone();
        let message = match level {
            Some(_) => message,
            None => {
                let until = |store_now: u64| store_now.saturating_add(wait_ms);
                let (trip, wait) = headers::trip(Trip {
                    until_ms: store_now.map_or(0, until),
                    wait_ms,
                });
                let target = HeaderValue::Text(outgoing.queue.to_string());
                message.with_headers(&[(trip, wait), (PARKED, target)], &[])
            }
        };
        let next = (self.moves).reroute(now, key, Outgoing { queue, message });
        self.do_all(next);
    }

    /// Takes a parked message, which tries its own queue again when its time has come. Returns any
    /// other delivery, and a diverted job. A policy may have moved the message out of its delay
    /// queue.
    pub(in crate::scheduler) fn take_parked(
        &mut self,
        now: Duration,
        key: JobKey,
        delivery: Delivery,
    ) -> Option<Delivery> {
        if delivery.source == DeliverySource::Fresh {
            return Some(delivery);
        }
        let Field::Text(queue) = delivery.message.header(PARKED) else {
            return Some(delivery);
        };
        // An operator may have ended the diversion. A handler may reject a job for the same reason.
        let is_diverted = delivery.message.header(REASON) == Field::Text(DIVERTED);
        if is_diverted && *queue != *self.settings.names.dead {
            let message = Arc::unwrap_or_clone(delivery.message);
            return Some(Delivery {
                message: message.with_headers(&[], &[PARKED]).into(),
                ..delivery
            });
        }
        let queue = Arc::from(queue);
        let trip = match delivery.message.header(TRIP) {
            Field::Text(text) => headers::read_trip(text),
            _ => None,
        };
        let store_now = self.clock.at_least(now).unwrap_or_default();
        let left_ms = trip.map_or(0, |trip| trip.left_ms(store_now));
        let message = Arc::unwrap_or_clone(delivery.message).for_republish();
        let message = message.with_headers(&[], &[PARKED, TRIP]);
        let of = Move::new(now, (delivery.tag, now), None, None).to(queue, message);
        let at = now + Duration::from_millis(left_ms);
        self.moves.begin_later(key, at, of);
        None
    }

    fn report_stuck(&mut self, now: Duration) {
        let stuck = self.moves.standstills(now, STUCK_AFTER);
        for ((kind, _), standstill) in MessageKind::NAMES.into_iter().zip(stuck) {
            if let Some(standstill) = standstill
                && self.stuck_reports[kind as usize].may_report(now, STUCK_REPORT_INTERVAL)
            {
                let since = now.saturating_sub(standstill.since);
                self.facts.push(BrokerFact::TargetsStuck {
                    kind,
                    messages: standstill.messages,
                    routing_key: standstill.key,
                    since,
                });
            }
        }
    }
}
