//! Events that the scheduler reports, by subject, with the metrics and the log line of each.
//! The scheduler neither logs nor counts; the engine's loop does both for each fact
//! (`engine::observer`).

mod broker;
mod gate;
mod jobs;
mod limits;
mod tenants;
mod worker;

use std::time::Duration;

use tracing::field::{DisplayValue, display};

pub use self::broker::{BrokerFact, ResultOutcome};
pub use self::gate::{Decision, GateFact};
pub use self::jobs::{Death, JobFact, WaitPlace};
pub use self::limits::LimitFact;
pub use self::tenants::{ClosedBy, NoDecision, TenantFact};
pub use self::worker::WorkerFact;

use crate::line_limiter::LineBudget;
use rules::scope::Labels;
use rules::tenant::Tenant;
use rules::trace::Context;
use telemetry::metrics::Metrics;

/// Logs a line at `info` if `$few` is true, otherwise at `debug`.
macro_rules! info_if {
    ($few:expr, $($line:tt)*) => {
        if $few { tracing::info!($($line)*) } else { tracing::debug!($($line)*) }
    };
}
use info_if;

/// An event.
#[derive(Debug)]
pub enum Fact {
    /// An event of one job.
    Job(JobFact),
    /// An event of a tenant, or of all tenants.
    Tenant(TenantFact),
    /// An event between the scheduler and the gate.
    Gate(GateFact),
    /// An event of a learned or advertised limit.
    Limit(LimitFact),
    /// An event between the scheduler and RabbitMQ.
    Broker(BrokerFact),
    /// An event of the whole worker.
    Worker(WorkerFact),
}

impl Fact {
    /// Counts the event, if it has a metric.
    pub(super) fn count(&self, metrics: &Metrics) {
        match self {
            Self::Job(fact) => fact.count(metrics),
            Self::Gate(fact) => fact.count(metrics),
            Self::Limit(fact) => fact.count(metrics),
            Self::Broker(fact) => fact.count(metrics),
            Self::Worker(fact) => fact.count(metrics),
            Self::Tenant(_) => {}
        }
    }

    /// Logs the event, if it has a line.
    pub(super) fn log(&self, lines: &mut LineBudget<'_>) {
        match self {
            Self::Job(fact) => fact.log(lines),
            Self::Tenant(fact) => fact.log(lines),
            Self::Gate(fact) => fact.log(),
            Self::Limit(fact) => fact.log(lines),
            Self::Broker(fact) => fact.log(lines),
            Self::Worker(fact) => fact.log(lines),
        }
    }
}

/// Implements `From` for the facts of each subject.
macro_rules! into_fact {
    ($($subject:ident($fact:ident)),+) => {
        $(impl From<$fact> for Fact {
            fn from(fact: $fact) -> Self {
                Self::$subject(fact)
            }
        })+
    };
}

into_fact!(
    Job(JobFact),
    Tenant(TenantFact),
    Gate(GateFact),
    Limit(LimitFact),
    Broker(BrokerFact),
    Worker(WorkerFact)
);

/// Maximum number of events for which a buffer keeps memory.
const MAX_KEPT: usize = 1024;

/// Events in the order in which they happened.
#[derive(Debug, Default)]
pub struct Facts(Vec<Fact>);

impl Facts {
    /// Adds `fact`.
    pub fn push(&mut self, fact: impl Into<Fact>) {
        self.0.push(fact.into());
    }

    /// Replaces the content of `buffer` by all events. Its memory serves for later events, except
    /// after a turn with many of them.
    pub fn take(&mut self, buffer: &mut Vec<Fact>) {
        buffer.clear();
        buffer.shrink_to(MAX_KEPT);
        std::mem::swap(&mut self.0, buffer);
    }
}

impl<F: Into<Fact>> Extend<F> for Facts {
    fn extend<I: IntoIterator<Item = F>>(&mut self, facts: I) {
        self.0.extend(facts.into_iter().map(Into::into));
    }
}

/// The fields that identify a job in logs.
#[derive(Debug)]
pub struct JobFields {
    /// The message's ID.
    pub id: Option<String>,
    /// The job's tenant.
    pub tenant: Tenant,
    /// The current span, or `None` if this worker makes no spans.
    pub trace: Option<Context>,
}

/// Gauges of the scheduler, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gauges {
    /// Running jobs.
    pub running: usize,
    /// Worker slots in use.
    pub slots: usize,
    /// All worker slots.
    pub all_slots: usize,
    /// Jobs held in memory until their time.
    pub held: usize,
    /// Unacked jobs in memory.
    pub in_memory: usize,
    /// Abandoned calls that hold leases.
    pub abandoned: usize,
    /// Whether this worker stopped calling the API because calls failed in a row.
    pub breaker_is_open: bool,
    /// Minimum time from a question to the gate to the acknowledgement of its call by the API's
    /// machine.
    pub latency_base: Duration,
}

fn trace_id(trace: Context) -> String {
    format!("{:032x}", trace.trace)
}

fn span_id(trace: Context) -> String {
    format!("{:016x}", trace.span)
}

/// Formats labels. The field is omitted if there are none.
fn shown(labels: &Labels) -> Option<DisplayValue<&Labels>> {
    (!labels.is_empty()).then(|| display(labels))
}

#[cfg(test)]
mod tests;
