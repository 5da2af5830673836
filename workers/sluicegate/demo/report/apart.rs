//! P10: several pipelines in the same workers.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::{DemoFigures, DemoObservations, Promise};
use crate::demo::ledger::Arrival;
use crate::demo::pipelines::PipelineRole;
use crate::demo::workload::Workload;

/// The figures of all pipelines.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CombinedFigures {
    /// Whether all promises hold in each pipeline.
    pub holds: bool,
    /// The figures by the pipelines' names.
    pub pipelines: BTreeMap<&'static str, DemoFigures>,
    /// P10
    pub pipelines_apart: Promise,
}

impl CombinedFigures {
    /// Counts the figures. `observed` belongs to `plans`, in order.
    pub fn new(plans: &[Workload], observed: &[DemoObservations]) -> Self {
        let figures = |(plan, observed): (&Workload, &DemoObservations)| {
            let pipeline = plan.pipeline?;
            Some((pipeline.name(), DemoFigures::new(plan, observed)))
        };
        let pipelines: BTreeMap<_, _> = plans.iter().zip(observed).filter_map(figures).collect();
        let pipelines_apart = compare(plans, observed);
        Self {
            holds: pipelines_apart.holds && pipelines.values().all(|figures| figures.holds),
            pipelines,
            pipelines_apart,
        }
    }
}

/// P10: one pipeline is affected neither by an outage of another's API nor by a flood of another's
/// jobs.
fn compare(plans: &[Workload], observed: &[DemoObservations]) -> Promise {
    let of = |pipeline| {
        let parts = plans.iter().zip(observed);
        parts.filter(move |(plan, _)| plan.pipeline == Some(pipeline))
    };
    let last_of_flood =
        of(PipelineRole::Flooded).filter_map(|(_, flooded)| flooded.arrivals.last());
    let flood_ends = last_of_flood.map(|call| call.mono_ns).max().unwrap_or(0);
    let outage = observed.iter().find_map(|observed| observed.outage);
    let is_beside = |call: &&Arrival| {
        let away =
            |outage: super::ApiOutage| (outage.from_ns..outage.to_ns).contains(&call.mono_ns);
        outage.is_some_and(away) && call.mono_ns < flood_ends
    };
    let steady = || of(PipelineRole::Steady).flat_map(|(_, steady)| &steady.arrivals);
    let (calls, beside_both) = (steady().count(), steady().filter(is_beside).count());
    let late: usize = of(PipelineRole::Steady)
        .map(|(plan, steady)| late(plan, steady))
        .sum();
    let called_after_return = of(PipelineRole::Away).map(|(plan, away)| {
        let back = |call: &&Arrival| outage.is_some_and(|outage| call.mono_ns >= outage.to_ns);
        let calls = away.arrivals.iter().filter(|call| call.status != 429);
        let jobs = calls.filter(back).map(|call| plan.id(call.job));
        jobs.collect::<HashSet<_>>().len()
    });
    let called_after_return: usize = called_after_return.sum();
    let failed_calls: u64 = of(PipelineRole::Away)
        .map(|(_, away)| away.counted.failed_calls)
        .sum();
    let astray: usize = observed.iter().map(|observed| observed.strangers).sum();
    let restarts: u64 = observed.iter().map(|part| part.counted.restarts).sum();
    Promise {
        key: "pipelines_apart",
        title: "P10 pipelines stay apart",
        // If there was no disturbance, its absence proves nothing.
        holds: calls > 0
            && beside_both == calls
            && late == 0
            && failed_calls > 0
            && called_after_return > 0
            && astray == 0
            && restarts == 0,
        figures: json!({
            "calls": calls,
            "beside_both": beside_both,
            "late": late,
            "failed_calls": failed_calls,
            "called_after_return": called_after_return,
            "astray": astray,
            "restarts": restarts,
        }),
        text: format!(
            "{beside_both} of {calls} calls of steady were made while the API of away refused \
            connections ({failed_calls} calls failed) and the flood was running; {late} were late \
            by more than one period; {called_after_return} jobs of away were called after the \
            API's return; {astray} calls of another pipeline's API, {restarts} restarts of a \
            pipeline"
        ),
    }
}

/// Counts the jobs called later than one period after their own, beyond what the machine's
/// delays since the tenant's first call explain. A tenant's first call begins the first period, and
/// the limit's maximum arrives in each.
fn late(plan: &Workload, observed: &DemoObservations) -> usize {
    let (max, period) = (plan.limit().max() as usize, plan.limit().span() * 1_000_000);
    let of_tenant = |tenant: usize| {
        let mut seen = HashSet::new();
        let calls = (observed.arrivals.iter()).filter(|call| call.job.tenant == tenant);
        let firsts: Vec<u64> = (calls.filter(|call| seen.insert(call.job.number)))
            .map(|call| call.mono_ns)
            .collect();
        let begin = firsts.first().copied().unwrap_or(0);
        let is_late = |(at, time): &(usize, &u64)| {
            let own = begin + (at / max) as u64 * period;
            let so_far = Duration::from_nanos(begin)..Duration::from_nanos(**time);
            let delayed = observed.delays(so_far).as_nanos();
            u128::from(**time) >= u128::from(own + 2 * period) + delayed
        };
        firsts.iter().enumerate().filter(is_late).count()
    };
    (0..plan.tenants).map(of_tenant).sum()
}
