//! Computes the figures of the promises and their text from the observations. Pure.

mod answers;
mod apart;
#[cfg(test)]
mod apart_tests;
mod count;
mod tenant;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::Value;
use trial::core_waits::CoreWaits;
use trial::pauses::Pauses;

use super::answers::ReportedResult;
use super::children::WorkerCounts;
use super::ledger::Arrival;
use super::pipelines::PipelineRole;
use super::queues::DeadLetter;
use super::scenario::Scenario;
use super::workload::{DemoJob, Workload};
use answers::answers_back;
pub use apart::CombinedFigures;
use tenant::TenantFigures;

/// The observations of publishers, the API, the dead-letter queue and the workers.
#[derive(Debug, Clone, Default)]
pub struct DemoObservations {
    /// Jobs that RabbitMQ confirmed.
    pub confirmed: Vec<DemoJob>,
    /// Calls in order.
    pub arrivals: Vec<Arrival>,
    /// Calls that named no job of the demo.
    pub strangers: usize,
    /// Dead letters.
    pub dead: Vec<DeadLetter>,
    /// Results, if the scenario has any.
    pub results: Vec<ReportedResult>,
    /// Messages still in a queue after the workers had ended.
    pub left: usize,
    /// The workers' counts.
    pub counted: WorkerCounts,
    /// When the API was unavailable, if the scenario has an outage.
    pub outage: Option<ApiOutage>,
    /// Pauses of this machine.
    pub pauses: Pauses,
    /// Waits of the demo's and the workers' threads for a core.
    pub core_waits: CoreWaits,
}

impl DemoObservations {
    /// Returns how long this machine kept the demo and its workers from running within `time`: the
    /// sum of its pauses, or the time for which one of their threads waited for a core.
    fn delays(&self, time: Range<Duration>) -> Duration {
        let waited = self.core_waits.longest(time.clone());
        self.pauses.total(time).max(waited)
    }

    /// Returns the longest of these delays at once.
    fn longest_delay(&self, time: Range<Duration>) -> Duration {
        let waited = self.core_waits.longest_at_once(time.clone());
        self.pauses.longest(time).max(waited)
    }
}

/// When an API refused connections, in nanoseconds of the common clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiOutage {
    /// Its beginning.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
}

/// A promise, and whether a run kept it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Promise {
    /// Key in the JSON.
    #[serde(skip)]
    pub key: &'static str,
    /// Title of the line.
    #[serde(skip)]
    pub title: &'static str,
    /// Whether it holds.
    pub holds: bool,
    /// The figures as a JSON object.
    #[serde(flatten)]
    pub figures: Value,
    /// The figures as a line.
    #[serde(skip)]
    pub text: String,
}

/// The figures by promise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DemoFigures {
    /// Whether all promises hold.
    pub holds: bool,
    /// The promises. P3, P4 and P6 are left out if the API is unavailable for a time, and P9 if the
    /// scenario has no results.
    #[serde(flatten, serialize_with = "by_key")]
    pub promises: Vec<Promise>,
    /// The figures of each tenant.
    pub tenants: Vec<TenantFigures>,
}

fn by_key<S: Serializer>(promises: &[Promise], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(promises.iter().map(|promise| (promise.key, promise)))
}

impl DemoFigures {
    /// Computes the figures.
    pub fn new(plan: &Workload, observed: &DemoObservations) -> Self {
        let dead_jobs: HashSet<usize> = observed
            .dead
            .iter()
            .filter_map(|dead| plan.job(&dead.id))
            .map(|job| plan.id(job))
            .collect();
        let tenants: Vec<_> = (0..plan.tenants)
            .map(|tenant| tenant::figures(plan, observed, &dead_jobs, tenant))
            .collect();
        let mut promises = vec![
            count::never_lost(plan, observed, &dead_jobs),
            count::never_exceeded(plan, observed, &tenants),
        ];
        // An outage costs attempts, deliveries, and its duration.
        if plan.pipeline != Some(PipelineRole::Away) {
            promises.push(count::never_idle(plan, observed, &tenants));
            promises.push(count::cheap_waiting(plan, observed));
            promises.push(count::not_failure(observed));
        }
        if plan.scenario == Scenario::Results {
            promises.push(answers_back(plan, observed, &tenants));
        }
        Self {
            holds: promises.iter().all(|promise| promise.holds),
            promises,
            tenants,
        }
    }
}
