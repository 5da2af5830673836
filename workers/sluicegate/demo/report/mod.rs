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

use serde::Serialize;
use trial::core_waits::CoreWaits;
use trial::pauses::Pauses;

use super::answers::ReportedResult;
use super::children::WorkerCounts;
use super::ledger::Arrival;
use super::pipelines::PipelineRole;
use super::queues::DeadLetter;
use super::scenario::Scenario;
use super::workload::{DemoJob, Workload};
use answers::{AnswersBack, answers_back};
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

/// The figures by promise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DemoFigures {
    /// Whether all promises hold.
    pub holds: bool,
    /// P1
    pub never_lost: NeverLost,
    /// P2
    pub never_exceeded: NeverExceeded,
    /// P3, if the API is available all the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub never_idle: Option<NeverIdle>,
    /// P4, in the same case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cheap_waiting: Option<CheapWaiting>,
    /// P6, in the same case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttling_is_not_failure: Option<NotFailure>,
    /// P9, if the scenario has results.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers_back: Option<AnswersBack>,
    /// The figures of each tenant.
    pub tenants: Vec<TenantFigures>,
}

/// P1: every confirmed job ends as done or as a dead letter.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NeverLost {
    pub holds: bool,
    pub published: usize,
    pub confirmed: usize,
    pub done: usize,
    pub dead: usize,
    /// Dead letters that the API did not cause.
    pub dead_unasked: usize,
    pub lost: usize,
    /// Calls for a job that already had a final answer.
    pub duplicates: usize,
    pub left_in_queues: usize,
}

/// P2: no window exceeds its limit, and no worker calls for a tenant that the API throttles.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NeverExceeded {
    pub holds: bool,
    /// Whether it holds only because this machine delayed calls for longer than the guard assumes.
    pub explained_by_delays: bool,
    /// The longest time for which this machine kept the demo or a worker from running before a
    /// tenant's last call.
    pub longest_delay_seconds: f64,
    pub violations: usize,
    pub limits: Vec<FullestWindow>,
    /// Calls answered with 429 because a limit was exceeded.
    pub answered_429: usize,
    /// Calls answered with 429 because the scenario requires it. Each throttles its tenant.
    pub closings: usize,
    /// Calls for a throttled tenant that were in flight when it was throttled.
    pub under_way: usize,
    /// Later calls for a throttled tenant.
    pub while_closed: usize,
    /// Calls that named no job of the demo.
    pub strangers: usize,
}

/// The fullest window of one limit, over all tenants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FullestWindow {
    pub name: String,
    pub units: u64,
    pub max: u64,
}

/// P3: the limit's quota is used while jobs wait. Figures are those of the worst tenant.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NeverIdle {
    pub holds: bool,
    /// Whether it holds only after the delays by this machine are subtracted.
    pub explained_by_delays: bool,
    /// How long this machine kept the demo or a worker from running between a tenant's first and
    /// last call; the longest of all tenants.
    pub delayed_seconds: f64,
    pub used_share: f64,
    pub promised_share: f64,
    pub makespan_seconds: f64,
    /// The ideal time if the guard counts as part of the window.
    pub ideal_seconds: f64,
    pub makespan_to_ideal: f64,
    /// The maximum ratio.
    pub promised_ratio: f64,
    /// If jobs reserve more than they use: the ideal time if all unused units were returned and
    /// used at once.
    pub ideal_corrected_seconds: Option<f64>,
}

/// P4: a waiting job is delivered only a few times, however many jobs wait.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheapWaiting {
    pub holds: bool,
    pub deliveries: u64,
    pub deliveries_per_job: f64,
    pub promised_per_job: f64,
}

/// P6: a wait uses no attempt and adds no growing header.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NotFailure {
    pub holds: bool,
    /// Calls whose `x-attempt` was not 1. The API never asked for a second attempt.
    pub attempts_used: usize,
    /// Dead letters with a header of RabbitMQ that grows on each trip.
    pub with_broker_headers: usize,
    /// Size of the largest headers of a dead letter. Each tenant's dead letter is the job that
    /// waited longest.
    pub header_bytes: usize,
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
        let never_lost = count::never_lost(plan, observed, &dead_jobs);
        let never_exceeded = count::never_exceeded(plan, observed, &tenants);
        // An outage costs attempts, deliveries, and its duration.
        let is_there = plan.pipeline != Some(PipelineRole::Away);
        let never_idle = is_there.then(|| count::never_idle(plan, observed, &tenants));
        let cheap_waiting = is_there.then(|| count::cheap_waiting(plan, observed));
        let not_failure = is_there.then(|| count::not_failure(observed));
        let has_results = plan.scenario == Scenario::Results;
        let answers_back = has_results.then(|| answers_back(plan, observed));
        Self {
            holds: never_lost.holds
                && never_exceeded.holds
                && never_idle.as_ref().is_none_or(|figures| figures.holds)
                && cheap_waiting.as_ref().is_none_or(|figures| figures.holds)
                && not_failure.as_ref().is_none_or(|figures| figures.holds)
                && answers_back.as_ref().is_none_or(|answers| answers.holds),
            never_lost,
            never_exceeded,
            never_idle,
            cheap_waiting,
            throttling_is_not_failure: not_failure,
            answers_back,
            tenants,
        }
    }
}
