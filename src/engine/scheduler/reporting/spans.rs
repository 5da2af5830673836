//! Makes the spans of jobs: waits, calls and results. They are reported when they end, and decide
//! nothing.
//!
//! A job's spans belong to its publisher's span. Without one, the first wait is the root, and the
//! others belong to it. A job that goes through a delay queue carries this in a header
//! (`rules::trace::TraceClaim`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::action::JobKey;
use crate::scheduler::Scheduler;
use crate::scheduler::entry::JobEntry;
use crate::scheduler::trace::Trace;
use broker::DeliverySource;
use handler::Outcome;
use rules::headers::{HeaderValue, Headers, TRACE, TRACEPARENT};
use rules::job::traced;
use rules::trace::{Context, Sampler, Span, SpanSubject, TraceClaim};

/// Maximum length of a failure's reason, in characters.
const MAX_REASON_CHARS: usize = 300;
/// Maximum time by which a wait begins before its delivery.
const MAX_WAIT_BEFORE: Duration = Duration::from_secs(86_400);

/// The sampler, and the open spans of results.
#[derive(Debug)]
pub struct JobTraces {
    /// Selects the jobs that have spans, or `None` if no job has.
    sampler: Option<Sampler>,
    random: SmallRng,
    /// Open spans of results, by the keys of their moves.
    results: HashMap<JobKey, Span>,
    /// Spans that have ended and were not taken yet.
    ended: Vec<Span>,
}

impl JobTraces {
    pub fn new(seed: u64) -> Self {
        Self {
            sampler: None,
            random: SmallRng::seed_from_u64(seed),
            results: HashMap::new(),
            ended: Vec::new(),
        }
    }

    /// Drops the spans of results at the end of a session.
    pub fn end_session(&mut self) {
        self.results.clear();
    }

    /// Returns a random ID that is not 0.
    fn id(&mut self) -> u64 {
        self.random.random_range(1..=u64::MAX)
    }

    /// Begins the trace of a job that arrived. Its wait began `before` ago.
    fn begin(
        &mut self,
        now: Duration,
        claim: Option<TraceClaim>,
        before: Duration,
    ) -> Option<Box<Trace>> {
        let sampler = self.sampler?;
        let id = self.id();
        let trace = match claim {
            Some(claim) => claim.parent.trace,
            None => u128::from(self.id()) << 64 | u128::from(self.id()),
        };
        let span = Context {
            trace,
            span: id,
            sampled: sampler.takes(trace, claim.map(|claim| claim.parent.sampled)),
        };
        let parent = claim.map(|claim| Context {
            sampled: span.sampled,
            ..claim.parent
        });
        Some(Box::new(Trace {
            parent,
            root: parent.unwrap_or(span),
            span,
            since: now,
            before: before.min(MAX_WAIT_BEFORE),
            denials: Vec::new(),
            more: 0,
            first_call: claim.and_then(|claim| claim.first_call),
        }))
    }
}

/// Returns the job's current span, which ends now.
fn ended(
    now: Duration,
    job: &JobEntry,
    trace: &Trace,
    queue: &Arc<str>,
    about: SpanSubject,
) -> Span {
    Span {
        about,
        context: trace.span,
        parent: trace.parent,
        first_call: None,
        began: trace.since,
        before: trace.before,
        ended: now,
        id: job.message.id().unwrap_or_default().to_owned(),
        tenant: job.claims.tenant.clone(),
        queue: Arc::clone(queue),
        attempt: job.claims.attempt,
    }
}

impl Scheduler {
    /// Makes spans for the jobs that this sampler takes.
    pub fn tracing(mut self, sampler: Option<Sampler>) -> Self {
        self.traces.sampler = sampler;
        self
    }

    /// Takes the spans that have ended since the last call.
    pub fn take_spans(&mut self) -> Vec<Span> {
        std::mem::take(&mut self.traces.ended)
    }

    /// Begins the trace of a job that has arrived and waits.
    pub(in crate::scheduler) fn begin_trace(
        &mut self,
        now: Duration,
        source: DeliverySource,
        job: &mut JobEntry,
    ) {
        if self.traces.sampler.is_none() {
            return;
        }
        let claim = traced(&*job.message, source != DeliverySource::Fresh);
        let came = job.claims.trip.filter(|trip| trip.until_ms > 0);
        let before = came.zip(self.clock.at_least(now)).map(|(trip, store_ms)| {
            let begun_ms = trip.until_ms.saturating_sub(trip.wait_ms);
            Duration::from_millis(store_ms.saturating_sub(begun_ms))
        });
        job.trace = self.traces.begin(now, claim, before.unwrap_or_default());
    }

    /// Ends the span of the job's wait.
    fn end_wait(&mut self, now: Duration, key: JobKey) {
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        let Some(mut trace) = job.trace.take() else {
            return;
        };
        if trace.span.sampled {
            let about = trace.wait();
            let span = ended(now, job, &trace, &self.settings.names.fresh, about);
            self.traces.ended.push(span);
        }
        trace.next(now, self.traces.id());
        job.trace = Some(trace);
    }

    /// Ends the span of the job's wait, and begins that of its call.
    pub(in crate::scheduler) fn trace_start(&mut self, now: Duration, key: JobKey) {
        if self.traces.sampler.is_some() {
            self.end_wait(now, key);
        }
    }

    /// Ends the span of a call that took `took`, and begins that of a wait.
    pub(in crate::scheduler) fn trace_call(
        &mut self,
        now: Duration,
        key: JobKey,
        took: Duration,
        by: &Outcome,
    ) {
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        let Some(mut trace) = job.trace.take() else {
            return;
        };
        let reason = match by {
            Outcome::Retry { reason, .. }
            | Outcome::Throttled { reason, .. }
            | Outcome::Reject { reason } => Some(reason),
            Outcome::Done | Outcome::Snooze { .. } | Outcome::Late => None,
        };
        let is_made = *by != Outcome::Late;
        if trace.span.sampled && is_made {
            let reason = reason.map(|text| text.chars().take(MAX_REASON_CHARS).collect());
            let outcome = by.name();
            let about = SpanSubject::Call { outcome, reason };
            let mut span = ended(now, job, &trace, &self.settings.names.fresh, about);
            span.began = now.saturating_sub(took).max(trace.since);
            span.first_call = trace.first_call;
            self.traces.ended.push(span);
        }
        if is_made {
            trace.first_call.get_or_insert(trace.span.span);
        }
        trace.next(now, self.traces.id());
        job.trace = Some(trace);
    }

    /// Ends the wait of a job that becomes a dead letter, unless a call has just ended.
    pub(in crate::scheduler) fn trace_death(&mut self, now: Duration, key: JobKey) {
        let trace = self.jobs.get(&key).and_then(|job| job.trace.as_deref());
        if trace.is_some_and(|trace| trace.since < now || trace.parent.is_none()) {
            self.end_wait(now, key);
        }
    }

    /// Adds the trace of a job that goes to a delay queue to `headers`. A wait without events
    /// continues there.
    pub(in crate::scheduler) fn trace_leaves(
        &mut self,
        now: Duration,
        key: JobKey,
        headers: &mut Headers,
    ) {
        let Some(trace) = (self.jobs.get(&key)).and_then(|job| job.trace.as_deref()) else {
            return;
        };
        let claim = TraceClaim {
            parent: trace.root,
            first_call: trace.first_call,
        };
        let has_events = trace.parent.is_none() || !trace.denials.is_empty();
        headers.push((TRACE, HeaderValue::Text(claim.to_string())));
        if has_events {
            self.end_wait(now, key);
        }
    }

    /// Returns the span of a result, if there is one, and adds its context to `headers`.
    pub(in crate::scheduler) fn result_span(
        &mut self,
        key: JobKey,
        headers: &mut Headers,
    ) -> Option<Span> {
        let job = self.jobs.get(&key)?;
        let trace = job.trace.as_deref()?;
        let context = trace.root.beside(self.traces.id());
        headers.push((TRACEPARENT, HeaderValue::Text(context.to_string())));
        let queue = &self.settings.names.fresh;
        let span = ended(trace.since, job, trace, queue, SpanSubject::Result);
        let parent = Some(trace.root);
        Some(Span {
            context,
            parent,
            before: Duration::ZERO,
            ..span
        })
    }

    /// Keeps the span of a result that is being published.
    pub(in crate::scheduler) fn begin_result(&mut self, key: JobKey, span: Option<Span>) {
        if let Some(span) = span.filter(|span| span.context.sampled) {
            self.traces.results.insert(key, span);
        }
    }

    /// Ends the span of a result that was published or given up.
    pub(in crate::scheduler) fn end_result(&mut self, now: Duration, key: JobKey) {
        if let Some(mut span) = self.traces.results.remove(&key) {
            span.ended = now;
            self.traces.ended.push(span);
        }
    }
}
