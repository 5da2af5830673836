//! The trace of a job while it is in the worker's memory.

use std::time::Duration;

use rules::limit::Limits;
use rules::trace::{Context, SpanSubject, TracedDenial};

/// Maximum number of waits that one span lists. Further waits are only counted.
const MAX_WAITS_PER_SPAN: usize = 16;

/// The trace of a job.
#[derive(Debug)]
pub(super) struct Trace {
    /// The parent of the current span, or `None` if it is the root.
    pub(super) parent: Option<Context>,
    /// The parent of later spans.
    pub(super) root: Context,
    /// The current span: a wait, or a call.
    pub(super) span: Context,
    pub(super) since: Duration,
    pub(super) before: Duration,
    pub(super) denials: Vec<TracedDenial>,
    pub(super) more: u32,
    pub(super) first_call: Option<u64>,
}

impl Trace {
    /// Records that the job must wait.
    pub(super) fn record_wait(
        &mut self,
        now: Duration,
        limits: &Limits,
        limit: usize,
        ttl_ms: u64,
    ) {
        if !self.span.sampled {
            return;
        }
        if self.denials.len() == MAX_WAITS_PER_SPAN {
            self.more = self.more.saturating_add(1);
            return;
        }
        self.denials.push(TracedDenial {
            at: now,
            limits: limits.clone(),
            limit,
            ttl_ms,
        });
    }

    /// Begins the next span.
    pub(super) fn next(&mut self, now: Duration, id: u64) {
        self.parent = Some(self.root);
        self.span = self.root.beside(id);
        self.since = now;
        self.before = Duration::ZERO;
        self.denials = Vec::new();
        self.more = 0;
    }

    /// Takes the events of its wait.
    pub(super) fn wait(&mut self) -> SpanSubject {
        SpanSubject::Wait {
            denials: std::mem::take(&mut self.denials),
            more: self.more,
        }
    }
}
