//! From what was observed to the figures of the promises, and their words. Pure.

mod answers;
mod apart;
#[cfg(test)]
mod apart_tests;
mod count;
mod tenant;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use serde::Serialize;
use trial::pauses::Pauses;

use super::answers::Answer;
use super::children::Counted;
use super::ledger::Arrival;
use super::pipelines::Pipeline;
use super::plan::{Job, Plan};
use super::queues::DeadLetter;
use super::scenario::Scenario;
use answers::{AnswersBack, answers_back};
pub use apart::Together;
use tenant::TenantFigures;

/// What happened, as the publishers, the downstream, the dead-letter queue and the workers saw it.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// Jobs that RabbitMQ confirmed.
    pub confirmed: Vec<Job>,
    /// Calls, in order.
    pub arrivals: Vec<Arrival>,
    /// Calls that named no job of the demo.
    pub strangers: usize,
    /// Dead letters.
    pub dead: Vec<DeadLetter>,
    /// Results, where the scenario has some.
    pub results: Vec<Answer>,
    /// Messages that were still in a queue after the workers had ended.
    pub left: usize,
    /// What the workers counted.
    pub counted: Counted,
    /// When the API was away, where the scenario has it go.
    pub outage: Option<Outage>,
    /// When this machine ran nothing.
    pub pauses: Pauses,
}

/// When an API refused connections, by the clock of all of them, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// From then on.
    pub from_ns: u64,
    /// From then on no more.
    pub to_ns: u64,
}

/// The figures, promise by promise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// All promises hold.
    pub holds: bool,
    /// P1
    pub never_lost: NeverLost,
    /// P2
    pub never_exceeded: NeverExceeded,
    /// P3, where the API is there all the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub never_idle: Option<NeverIdle>,
    /// P4, there
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cheap_waiting: Option<CheapWaiting>,
    /// P6, there
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttling_is_not_failure: Option<NotFailure>,
    /// P9, where the scenario has results.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers_back: Option<AnswersBack>,
    /// Each tenant's own.
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
    /// Dead letters that the downstream did not ask for.
    pub dead_unasked: usize,
    pub lost: usize,
    /// Calls for a job that had been answered for good before.
    pub duplicates: usize,
    pub left_in_queues: usize,
}

/// P2: no window holds more than its limit, and nobody calls for a tenant that the API has closed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NeverExceeded {
    pub holds: bool,
    /// Whether it holds only because this machine paused for longer than the guard assumes.
    pub explained_by_pauses: bool,
    /// The longest of these pauses.
    pub longest_pause_seconds: f64,
    pub violations: usize,
    pub limits: Vec<Fullest>,
    /// Calls answered 429 because a limit was exceeded.
    pub answered_429: usize,
    /// Calls answered 429 because the scenario wants it; each closes its tenant.
    pub closings: usize,
    /// Calls for a closed tenant, which were under way when that was told.
    pub under_way: usize,
    /// Calls for a closed tenant later than that.
    pub while_closed: usize,
    /// Calls that named no job of the demo.
    pub strangers: usize,
}

/// The fullest window of one limit, of all tenants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fullest {
    pub name: String,
    pub units: u64,
    pub max: u32,
}

/// P3: what the limit allows is used while jobs wait; of the worst tenant.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NeverIdle {
    pub holds: bool,
    /// Whether it holds only after the pauses of this machine are taken off.
    pub explained_by_pauses: bool,
    /// The sum of these pauses.
    pub paused_seconds: f64,
    pub used_share: f64,
    pub promised_share: f64,
    pub makespan_seconds: f64,
    /// With the guard counted as part of the window.
    pub ideal_seconds: f64,
    pub makespan_to_ideal: f64,
    /// The most that it may be.
    pub promised_ratio: f64,
    /// Where jobs reserve more than they use: what it would take if all of that were given back at once, and used.
    pub ideal_corrected_seconds: Option<f64>,
}

/// P4: a waiting job is delivered a few times, however many wait.
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
    /// Calls whose `x-attempt` was not 1; the downstream never asked for a second one.
    pub attempts_used: usize,
    /// Dead letters with a header of the broker that grows by each trip.
    pub with_broker_headers: usize,
    /// The largest headers of a dead letter; each tenant's is the job that waited longest.
    pub header_bytes: usize,
}

impl Figures {
    /// Counts.
    pub fn new(plan: &Plan, observed: &Observed) -> Self {
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
        // An outage costs attempts, deliveries, and the time that it lasts.
        let is_there = plan.pipeline != Some(Pipeline::Away);
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
