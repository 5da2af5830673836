//! A job in the worker's memory: its claims, its phase, and its worker slot.

use std::sync::Arc;
use std::time::Duration;

use super::due_time::{DueTime, LATE_AFTER};
use super::trace::Trace;
use crate::facts::{JobFact, JobFields};
use broker::{DeliverySource, Message, Tag};
use gate::{Receipt, Ticket};
use handler::{ApiAnswer, Outcome};
use rules::job::{Claims, Job, JobMessage};
use rules::limit::Limits;
use rules::scope::Labels;
use rules::timing::promise::Promise;

/// The phase of a job. A job is in one phase at a time, until it leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// In the queues, or waiting for the store's clock.
    Ready,
    /// Asking whether it is the first with its dedupe key.
    Candidate,
    /// A suspect whose note is being stored before it asks.
    Noting,
    /// Asking the gate for its permit.
    Asking,
    /// Quota is available, and its call is being prepared.
    Preparing,
    /// Delayed, and waiting in memory.
    Delayed { until: Duration },
    /// Came from a delay queue, and waiting in that queue's window.
    InWindow { until: Duration },
    /// Being called.
    Running,
    /// Its tenant was throttled by the API for this time, which is being stored in the gate.
    Throttling { duration: Duration },
    /// Failed, which is being reported to the breakers.
    Reporting,
}

/// A job's worker slot, and how far its call is prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotState {
    /// No slot.
    Empty,
    /// A slot.
    Slot,
    /// A slot, and its call is being prepared.
    Preparing,
    /// A slot, and a prepared call that was good at the last look.
    Ready,
}

/// The last call of a job, kept for its result.
#[derive(Debug)]
pub(super) struct LastCall {
    /// The store's time of the answer, if it is known.
    pub(super) answered_ms: Option<u64>,
    pub(super) took: Duration,
    pub(super) answered: Option<Box<ApiAnswer>>,
}

/// A job and its delivery.
#[derive(Debug)]
pub(super) struct JobEntry {
    pub(super) tag: Tag,
    /// When it arrived.
    pub(super) since: Duration,
    /// When its time comes.
    pub(super) due: DueTime,
    pub(super) claims: Claims,
    /// Whether it was admitted before and did not use its permit.
    pub(super) readmitted: bool,
    /// The limits that denied it last, and the index of the one that did.
    pub(super) denied_by: Option<(Limits, usize)>,
    /// The message, shared with the handler during the call.
    pub(super) message: Arc<Message>,
    /// Whether its ID is the same in each delivery.
    pub(super) has_own_id: bool,
    pub(super) phase: Phase,
    /// Until when a job from a delay queue may wait for its turn in that queue's window.
    pub(super) window_until: Option<Duration>,
    pub(super) slot: SlotState,
    /// The record of its start, or `None` if it has not started, or that is settled.
    pub(super) started: Option<StartRecord>,
    /// Its last call, if its result is published.
    pub(super) last_call: Option<Box<LastCall>>,
    /// Its trace, or `None` if this worker makes no spans.
    pub(super) trace: Option<Box<Trace>>,
}

impl JobEntry {
    /// Returns the job as the handler sees it.
    pub(super) fn job(&self) -> Job {
        let id = self.message.id().unwrap_or_default();
        let mut job = Job::new(id, self.claims.tenant.clone(), self.message.body.clone());
        job.cost = self.claims.cost;
        job.attempt = self.claims.attempt;
        job.content_type = self.message.content_type().map(str::to_owned);
        job.content_encoding = self.message.content_encoding().map(str::to_owned);
        job.values = self.claims.values.clone();
        job.published = JobMessage::new(self.message.clone());
        job.trace = self.trace.as_ref().map(|trace| trace.span);
        job
    }

    /// Returns the facts on its start at `store_ms` of the store's clock: its delay, and by how
    /// much its promise was missed.
    pub(super) fn starts(
        &mut self,
        now: Duration,
        store_ms: u64,
    ) -> impl Iterator<Item = JobFact> + use<> {
        self.readmitted = false;
        let late = self.due.late(now);
        let started = JobFact::Started(late, (late >= LATE_AFTER).then(|| self.log_fields()));
        let promise = self.claims.promise.take();
        let promised = promise.map(|promise| JobFact::Promised(promise.off(store_ms)));
        std::iter::once(started).chain(promised)
    }

    /// Records the turn that the gate gave it: `wait_ms` after `store_ms` of the store's clock.
    pub(super) fn record_turn(&mut self, now: Duration, store_ms: u64, wait_ms: u64) {
        self.due = DueTime::at(now + Duration::from_millis(wait_ms));
        self.claims.promise.get_or_insert(Promise {
            at_ms: store_ms.saturating_add(wait_ms),
            wait_ms,
        });
    }

    /// Returns true if it came from the work queue.
    pub(super) fn is_fresh(&self) -> bool {
        self.tag.source == DeliverySource::Fresh
    }

    /// Returns the fields that identify it in logs.
    pub(super) fn log_fields(&self) -> JobFields {
        JobFields {
            id: self.message.id().map(str::to_owned),
            tenant: self.claims.tenant.clone(),
            trace: self.trace.as_ref().map(|trace| trace.span),
        }
    }

    /// Records that its permit was not used. As a new job it would ask behind all waiting jobs,
    /// which are in delay queues by now, so its quota would be idle.
    pub(super) fn had_its_turn(&mut self) {
        self.claims.ticket.get_or_insert(Ticket::HAD_ITS_TURN);
        self.readmitted = true;
    }
}

/// The record of a job's start.
#[derive(Debug)]
pub(super) struct StartRecord {
    pub(super) labels: Labels,
    pub(super) limits: Limits,
    pub(super) receipt: Receipt,
    /// When its question was sent.
    pub(super) asked_at: Duration,
    /// Lateness beyond the guard that was already reported to the gate.
    pub(super) covered: Duration,
}

/// The end of a call, or of its preparation.
pub(super) struct CallEnd {
    pub(super) outcome: Outcome,
    /// Whether the job waits until its failure is reported to the breakers (`calling::failing`).
    pub(super) waits_for_report: bool,
    /// Whether a throttle stops all tenants, if the answer decides that.
    pub(super) stops_all: Option<bool>,
}
