//! One tenant's figures.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::time::Duration;

use rules::limit::{Algorithm, Limit};
use serde::Serialize;
use trial::windows;

use super::DemoObservations;
use crate::demo::check;
use crate::demo::ledger::{Arrival, RefusalReason};
use crate::demo::scenario::{CLOSED, Scenario};
use crate::demo::workload::{DemoJob, Workload};

/// One tenant's share of the figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TenantFigures {
    pub tenant: String,
    pub confirmed: usize,
    pub done: usize,
    pub dead: usize,
    pub violations: usize,
    /// Units in the fullest window of each limit.
    pub fullest_windows: Vec<u64>,
    /// Calls answered with 429 because a limit was exceeded.
    pub answered_429: usize,
    pub used_share: f64,
    pub makespan_seconds: f64,
    pub ideal_seconds: f64,
}

impl TenantFigures {
    /// Returns the ratio of the makespan to the ideal.
    pub fn ratio(&self) -> f64 {
        if self.ideal_seconds == 0.0 {
            1.0
        } else {
            self.makespan_seconds / self.ideal_seconds
        }
    }
}

/// Computes one tenant's figures.
pub fn figures(
    plan: &Workload,
    observed: &DemoObservations,
    dead_jobs: &HashSet<usize>,
    tenant: usize,
) -> TenantFigures {
    let calls: Vec<&Arrival> = observed
        .arrivals
        .iter()
        .filter(|call| call.job.tenant == tenant)
        .collect();
    let windows: Vec<Vec<u64>> = (plan.limits.iter())
        .map(|limit| units_in_windows(plan, limit, &calls))
        .collect();
    let above = |(limit, units): (&Limit, &Vec<u64>)| {
        let max = limit.max();
        units.iter().filter(|units| **units > max).count()
    };
    let fullest = |units: &Vec<u64>| units.iter().copied().max().unwrap_or(0);
    let (makespan, ideal) = (makespan(plan, &calls), ideal(plan, &calls));
    let done = calls
        .iter()
        .filter(|call| call.status == 200)
        .map(|call| plan.id(call.job));
    let exceeded = |call: &&&Arrival| call.refused == Some(RefusalReason::Exceeded);
    TenantFigures {
        tenant: plan.tenant(tenant),
        confirmed: observed
            .confirmed
            .iter()
            .filter(|job| job.tenant == tenant)
            .count(),
        done: done.collect::<HashSet<_>>().len(),
        dead: dead_jobs
            .iter()
            .filter(|id| **id / plan.jobs == tenant)
            .count(),
        violations: plan.limits.iter().zip(&windows).map(above).sum(),
        fullest_windows: windows.iter().map(fullest).collect(),
        answered_429: calls.iter().filter(exceeded).count(),
        used_share: match plan.scenario {
            Scenario::Limit | Scenario::Results | Scenario::Pipelines => used(plan, &calls).share(),
            _ if makespan == 0 => 1.0,
            _ => (ideal as f64 / makespan as f64).min(1.0),
        },
        makespan_seconds: Duration::from_nanos(makespan).as_secs_f64(),
        ideal_seconds: Duration::from_nanos(ideal).as_secs_f64(),
    }
}

fn nanoseconds(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}

/// Returns the clock by which a limit counts.
fn clock(limit: &Limit) -> fn(&Arrival) -> u64 {
    match limit.algorithm() {
        Algorithm::FixedWindow => |call| call.wall_ns,
        // `--algo` accepts only the two windows.
        _ => |call| call.mono_ns,
    }
}

fn times(limit: &Limit, calls: &[&Arrival]) -> Vec<u64> {
    let mut times: Vec<u64> = calls.iter().map(|call| clock(limit)(call)).collect();
    times.sort_unstable();
    times
}

/// Returns the times and units of `calls`, by the clock of `limit`.
fn arrivals(plan: &Workload, limit: &Limit, calls: &[&Arrival]) -> Vec<windows::Arrival> {
    let units = |call: &&Arrival| limit.unit().of(plan.cost(call.job).actual);
    let mut arrivals: Vec<windows::Arrival> = (calls.iter())
        .map(|call| (clock(limit)(call), units(call)))
        .collect();
    arrivals.sort_unstable_by_key(|(time, _)| *time);
    arrivals
}

/// Returns the time from the first to the last call of a tenant, on the common clock.
pub fn active_time(observed: &DemoObservations, tenant: usize) -> Range<Duration> {
    let calls = observed.arrivals.iter();
    let mut times = (calls.filter(|call| call.job.tenant == tenant))
        .map(|call| Duration::from_nanos(call.mono_ns));
    let first = times.next().unwrap_or_default();
    first..times.next_back().unwrap_or(first)
}

/// Returns true if every limit of a tenant would hold for calls that arrived up to `late` earlier.
pub fn holds_with_late_calls(
    plan: &Workload,
    observed: &DemoObservations,
    tenant: usize,
    late: Duration,
) -> bool {
    let calls = observed.arrivals.iter();
    let calls: Vec<&Arrival> = calls.filter(|call| call.job.tenant == tenant).collect();
    plan.limits.iter().all(|limit| {
        let (window, max) = (nanoseconds(limit.window_ms()), limit.max());
        let late = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        let arrivals = arrivals(plan, limit, &calls);
        match limit.algorithm() {
            Algorithm::FixedWindow => fit_aligned(&arrivals, (window, max), late),
            // Then windows that are shorter by `late` are not exceeded.
            _ => windows::sliding(&arrivals, window.saturating_sub(late).max(1))
                .into_iter()
                .all(|units| units <= max),
        }
    })
}

/// Returns true if aligned windows of `max` units have room for all arrivals, each in its own
/// window or in that of a time up to `late` earlier.
fn fit_aligned(arrivals: &[windows::Arrival], (window, max): (u64, u64), late: u64) -> bool {
    let mut used: BTreeMap<u64, u64> = BTreeMap::new();
    arrivals.iter().all(|(time, units)| {
        let mut own = time.saturating_sub(late) / window..=time / window;
        let free = own.find(|at| used.get(at).copied().unwrap_or(0) + units <= max);
        free.map(|at| *used.entry(at).or_default() += units)
            .is_some()
    })
}

fn units_in_windows(plan: &Workload, limit: &Limit, calls: &[&Arrival]) -> Vec<u64> {
    let arrivals = arrivals(plan, limit, calls);
    let window = nanoseconds(limit.window_ms());
    match limit.algorithm() {
        Algorithm::FixedWindow => windows::aligned(&arrivals, window),
        _ => windows::sliding(&arrivals, window),
    }
}

fn makespan(plan: &Workload, calls: &[&Arrival]) -> u64 {
    let times = times(plan.limit(), calls);
    (times.last().zip(times.first())).map_or(0, |(last, first)| last - first)
}

/// Returns the minimum time from the first to the last of these calls that the limits and the API's
/// throttling allow.
fn ideal(plan: &Workload, calls: &[&Arrival]) -> u64 {
    let limit = plan.limit();
    if limit.algorithm() == Algorithm::FixedWindow {
        let start = times(limit, calls).first().copied().unwrap_or(0);
        let (max, window) = (limit.max() as usize, nanoseconds(limit.window_ms()));
        return check::ideal_aligned(plan.jobs, max, window, nanoseconds(limit.guard_ms()), start);
    }
    if plan.scenario != Scenario::Throttling {
        // Repeated calls count against the result. Reserved units count in full, since a job in a
        // delay queue does not learn of units that others returned in the meantime.
        let tenant = calls.first().map_or(0, |call| call.job.tenant);
        let call = |number| plan.call(DemoJob { tenant, number }, false);
        return check::ideal((0..plan.jobs).map(call), &plan.periods());
    }
    let call = |call: &&Arrival| check::IdealCall {
        closes_for: match call.refused {
            Some(RefusalReason::Closing) => CLOSED.as_nanos() as u64,
            _ => 0,
        },
        under_way: matches!(call.refused, Some(RefusalReason::Closed(_))),
        ..plan.call(call.job, true)
    };
    check::ideal(calls.iter().map(call), &plan.periods())
}

fn used(plan: &Workload, calls: &[&Arrival]) -> check::BacklogUsage {
    let limit = plan.limit();
    let times = times(limit, calls);
    let max = limit.max() as usize;
    match limit.algorithm() {
        Algorithm::FixedWindow => check::used_aligned(&times, max, nanoseconds(limit.window_ms())),
        _ => check::used_sliding(&times, max, nanoseconds(limit.span())),
    }
}
