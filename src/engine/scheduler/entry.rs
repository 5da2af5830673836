//! A job in the worker's memory: what it is, how far it is, and what it has.

use std::sync::Arc;
use std::time::Duration;

use super::plan::{LATE, Plan};
use super::results::LastCall;
use super::traced::Trace;
use crate::broker::{Message, Source, Tag};
use crate::engine::facts::{Fact, Named};
use crate::gate::{Receipt, Ticket};
use crate::rules::job::{Claims, Job, Published};
use crate::rules::limit::Limits;
use crate::rules::promise::Promise;
use crate::rules::scope::Labels;

/// How far a job is. It is in one phase at a time, until it leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// In the queues, or waiting for the store's clock.
    Ready,
    /// It asks whether it is the first with its dedupe key.
    Candidate,
    /// A suspect: before it asks, the gate is told.
    Noting,
    /// The gate was asked for its permit.
    Asking,
    /// There is room for it, and it waits for its call to be prepared.
    Preparing,
    /// It was delayed, and waits in memory.
    Delayed { until: Duration },
    /// It came from a delay queue, and waits in the delay queue's window.
    InWindow { until: Duration },
    /// It is being called.
    Running,
    /// The API throttled its tenant for so long, which the gate is being told.
    Throttling { duration: Duration },
    /// It failed, which the breakers are being told.
    Reporting,
}

/// What a job has beside its ticket: how far its call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hand {
    /// Nothing, not even a slot.
    Empty,
    /// A slot.
    Slot,
    /// A slot, and its call is being prepared.
    Preparing,
    /// A slot, and a call that was good when it was last looked at.
    Ready,
}

/// A job and its delivery.
#[derive(Debug)]
pub(super) struct JobEntry {
    pub(super) tag: Tag,
    /// When it arrived.
    pub(super) since: Duration,
    /// When its time comes.
    pub(super) plan: Plan,
    pub(super) claims: Claims,
    /// It has started, and did not use its permit.
    pub(super) again: bool,
    /// The limits that denied it last, and which of them did.
    pub(super) denied_by: Option<(Limits, usize)>,
    /// Shared with the handler while it is called.
    pub(super) message: Arc<Message>,
    /// Its id is that of each delivery.
    pub(super) has_own_id: bool,
    pub(super) phase: Phase,
    /// It came from a delay queue, and may wait for its turn in the delay queue's window until then.
    pub(super) stays: Option<Duration>,
    pub(super) hand: Hand,
    /// `None`: it has not started, or that is settled.
    pub(super) started: Option<Started>,
    /// Its last call, where its end will be told.
    pub(super) last_call: Option<Box<LastCall>>,
    /// `None`: this worker makes no spans.
    pub(super) trace: Option<Box<Trace>>,
}

impl JobEntry {
    /// The job, for the handler.
    pub(super) fn job(&self) -> Job {
        Job {
            id: self.message.id().unwrap_or_default().to_owned(),
            tenant: self.claims.tenant.clone(),
            cost: self.claims.cost,
            attempt: self.claims.attempt,
            content_type: self.message.content_type().map(str::to_owned),
            content_encoding: self.message.content_encoding().map(str::to_owned),
            body: self.message.body.clone(),
            values: self.claims.values.clone(),
            published: Published::new(self.message.clone()),
            trace: self.trace.as_ref().map(|trace| trace.span),
        }
    }

    /// What is to be said of its start, at this time of the store's clock: by how much it is late, and how far off the first turn was that it
    /// was told.
    pub(super) fn starts(
        &mut self,
        now: Duration,
        store_ms: u64,
    ) -> impl Iterator<Item = Fact> + use<> {
        self.again = false;
        let late = self.plan.late(now);
        let started = Fact::Started(late, (late >= LATE).then(|| self.named()));
        let promise = self.claims.promise.take();
        let promised = promise.map(|promise| Fact::Promised(promise.off(store_ms)));
        std::iter::once(started).chain(promised)
    }

    /// The gate told it its turn, so much after this time of the store's clock.
    pub(super) fn told(&mut self, now: Duration, store_ms: u64, wait_ms: u64) {
        self.plan = Plan::at(now + Duration::from_millis(wait_ms));
        self.claims.promise.get_or_insert(Promise {
            at_ms: store_ms.saturating_add(wait_ms),
            wait_ms,
        });
    }

    /// It came from the work queue.
    pub(super) fn is_fresh(&self) -> bool {
        self.tag.source == Source::Fresh
    }

    /// As logs name it.
    pub(super) fn named(&self) -> Named {
        Named {
            id: self.message.id().map(str::to_owned),
            tenant: self.claims.tenant.clone(),
            trace: self.trace.as_ref().map(|trace| trace.span),
        }
    }

    /// Its permit was not used. As a fresh job it would ask behind all that wait by now, and they are away: its room would be idle.
    pub(super) fn had_its_turn(&mut self) {
        self.claims.ticket.get_or_insert(Ticket::HAD_ITS_TURN);
        self.again = true;
    }
}

/// What a job started with.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) labels: Labels,
    pub(super) limits: Limits,
    pub(super) receipt: Receipt,
    /// When its question was sent.
    pub(super) asked_at: Duration,
    /// Beyond the guard, so much lateness is covered by what the gate was told.
    pub(super) covered: Duration,
}
