//! Takes the deliveries of the current session, and reads each into a job or an invalid message.

use std::sync::Arc;
use std::time::Duration;

use ulid::Ulid;

use crate::action::{EngineSettings, JobKey};
use crate::scheduler::due_time::DueTime;
use crate::scheduler::entry::{JobEntry, Phase, SlotState};
use crate::scheduler::report_limiter::ReportLimiter;
use broker::{Delivery, DeliverySource, Message, Tag};
use rules::job::{self, BadMessage, InBody};
use rules::policy::Policy;

/// Minimum interval between warnings about delay queues.
const EARLY_REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// The session, and the counter for the keys of its jobs.
#[derive(Debug, Default)]
pub struct Intake {
    /// The number of the session, or 0 if there is none.
    session: u64,
    /// Whether the session was given up, and the broker has not ended it yet.
    pub awaits_end: bool,
    last_key: u64,
    stopping: bool,
    early: ReportLimiter,
    /// Invalid messages that came before the first agreement, which brings the store's clock. They
    /// become dead letters then. The prefetch bounds them. A worker that does not agree gives them
    /// back with all other deliveries.
    undated: Vec<(JobKey, InvalidDelivery)>,
    /// Number of deliveries whose large bodies are being read.
    unread: usize,
}

/// An invalid message.
#[derive(Debug)]
pub struct InvalidDelivery {
    pub tag: Tag,
    pub message: Message,
    pub why: BadMessage,
}

impl Intake {
    /// Begins a session. Its deliveries belong to this worker until it ends.
    pub fn begin_session(&mut self, session: u64) {
        self.session = session;
    }

    /// Ends the session.
    pub fn end_session(&mut self) {
        (self.session, self.awaits_end) = (0, false);
        self.undated.clear();
    }

    /// Keeps a message that becomes a dead letter after the first agreement.
    pub fn keep_undated(&mut self, key: JobKey, invalid: InvalidDelivery) {
        self.undated.push((key, invalid));
    }

    /// Takes the messages that waited for the first agreement.
    pub(super) fn take_undated(&mut self) -> Vec<(JobKey, InvalidDelivery)> {
        std::mem::take(&mut self.undated)
    }

    pub fn set_unread(&mut self, unread: usize) {
        self.unread = unread;
    }

    /// Returns the number of deliveries that are no jobs yet.
    pub fn waiting(&self) -> usize {
        self.undated.len() + self.unread
    }

    pub fn has_session(&self) -> bool {
        self.session != 0
    }

    /// Returns true if the delivery belongs to the current session. The broker delivers all others
    /// again.
    pub fn is_current(&self, tag: &Tag) -> bool {
        tag.session == self.session
    }

    /// Stops taking jobs.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Returns true if no more jobs are taken, and none starts.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Assigns a key to a delivery, or returns `None` if it is not taken.
    pub fn take(&mut self, delivery: &Delivery) -> Option<JobKey> {
        if !self.is_current(&delivery.tag) || self.stopping {
            return None;
        }
        Some(self.new_key())
    }

    /// Returns a key that no job has.
    pub fn new_key(&mut self) -> JobKey {
        self.last_key += 1;
        JobKey(self.last_key)
    }

    /// Reads the job of a delivery. `inside` holds the values from its body.
    pub fn read(
        now: Duration,
        delivery: Delivery,
        inside: &InBody,
        settings: &EngineSettings,
        policy: &Policy,
    ) -> Result<JobEntry, Box<InvalidDelivery>> {
        let tag = delivery.tag;
        let mut message = delivery.message;
        let has_own_id = message.id().is_some();
        if !has_own_id {
            let id = Ulid::new().to_string();
            message = (Arc::unwrap_or_clone(message).with_id_if_missing(&id)).into();
        }
        let returned = delivery.source != DeliverySource::Fresh;
        if returned {
            let work = &settings.names.fresh;
            let mut first = Arc::unwrap_or_clone(message);
            first.routing_key = job::first_routing_key(&first, work).to_owned();
            message = first.with_priority_back().into();
        }
        let mut claims = match job::read_with(&*message, inside, returned, &settings.fields, policy)
        {
            Ok(claims) => claims,
            Err(why) => {
                let message = Arc::unwrap_or_clone(message);
                return Err(Box::new(InvalidDelivery { tag, message, why }));
            }
        };
        if delivery.redelivered
            && let Some(dedupe) = &mut claims.dedupe
        {
            dedupe.seen_before = true;
        }
        if delivery.redelivered && settings.live.retry.max_crashes > 0 {
            claims.suspect.get_or_insert_default();
        }
        Ok(JobEntry {
            tag,
            since: now,
            due: DueTime::at(now),
            claims,
            readmitted: false,
            denied_by: None,
            message,
            has_own_id,
            phase: Phase::Ready,
            window_until: None,
            slot: SlotState::Empty,
            started: None,
            last_call: None,
            trace: None,
        })
    }

    /// Returns true if a job that reached `jobs.due` from a delay queue is to be reported. Delay
    /// queues release nothing on their own.
    pub fn should_report_early_leave(&mut self, now: Duration) -> bool {
        self.early.may_report(now, EARLY_REPORT_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(session: u64) -> Delivery {
        let source = DeliverySource::Fresh;
        Delivery {
            tag: Tag {
                session,
                source,
                tag: 1,
            },
            source,
            redelivered: false,
            message: Message {
                routing_key: "jobs".to_owned(),
                properties: Default::default(),
                body: Default::default(),
            }
            .into(),
        }
    }

    #[test]
    fn only_deliveries_of_the_session_are_taken_until_the_worker_stops() {
        let mut intake = Intake::default();
        intake.begin_session(2);
        assert_eq!(intake.take(&delivery(1)), None, "of a session before");
        assert_eq!(intake.take(&delivery(2)), Some(JobKey(1)));
        assert_eq!(intake.take(&delivery(2)), Some(JobKey(2)));
        intake.end_session();
        assert_eq!(intake.take(&delivery(2)), None, "it is gone");
        intake.begin_session(3);
        assert_eq!(intake.take(&delivery(3)), Some(JobKey(3)), "names go on");
        intake.stop();
        assert_eq!(intake.take(&delivery(3)), None);
    }
}
