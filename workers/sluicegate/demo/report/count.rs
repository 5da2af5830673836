//! Computes the figures of each promise from the observations.

use std::collections::HashSet;
use std::time::Duration;

use rules::limit::Limit;

use super::tenant::{TenantFigures, active_time, holds_with_late_calls};
use super::{
    CheapWaiting, DemoObservations, FullestWindow, NeverExceeded, NeverIdle, NeverLost, NotFailure,
};
use crate::demo::ledger::RefusalReason;
use crate::demo::queues::DeadLetter;
use crate::demo::scenario::Scenario;
use crate::demo::workload::Workload;

/// Time after a throttle within which an arriving call counts as in flight: one guard from the gate
/// to the API, and four from the API's answer to Redis.
const TOLD_NS: u64 = 250_000_000;
/// Maximum size of a dead letter's headers in bytes: the job's own headers, ours, and a reason.
const HEADER_BYTES: usize = 1024;
/// Headers that RabbitMQ adds on each trip. They must not travel on.
const BROKER_HEADERS: [&str; 4] = [
    "x-death",
    "x-delivery-count",
    "x-first-death-",
    "x-last-death-",
];

/// Returns the share that P3 promises for this window.
fn promised_share(plan: &Workload) -> f64 {
    if plan.limit().window_ms() >= 10_000 {
        0.99
    } else {
        0.97
    }
}

pub fn never_lost(
    plan: &Workload,
    observed: &DemoObservations,
    dead_jobs: &HashSet<usize>,
) -> NeverLost {
    let final_answers: Vec<usize> = observed
        .arrivals
        .iter()
        .filter(|call| call.status != 429)
        .map(|call| plan.id(call.job))
        .collect();
    let answered: HashSet<usize> = final_answers.iter().copied().collect();
    let done: HashSet<usize> = observed
        .arrivals
        .iter()
        .filter(|call| call.status == 200)
        .map(|call| plan.id(call.job))
        .collect();
    let confirmed: HashSet<usize> = observed.confirmed.iter().map(|job| plan.id(*job)).collect();
    let lost = confirmed
        .iter()
        .filter(|id| !done.contains(id) && !dead_jobs.contains(id))
        .count();
    let asked = |dead: &&DeadLetter| plan.job(&dead.id).is_some_and(|job| plan.rejected(job));
    let dead_unasked = observed.dead.len() - observed.dead.iter().filter(asked).count();
    NeverLost {
        holds: confirmed.len() == plan.total()
            && lost == 0
            && dead_unasked == 0
            && observed.left == 0,
        published: plan.total(),
        confirmed: confirmed.len(),
        done: done.len(),
        dead: dead_jobs.len(),
        dead_unasked,
        lost,
        duplicates: final_answers.len() - answered.len(),
        left_in_queues: observed.left,
    }
}

pub fn never_exceeded(
    plan: &Workload,
    observed: &DemoObservations,
    tenants: &[TenantFigures],
) -> NeverExceeded {
    let violations = tenants.iter().map(|tenant| tenant.violations).sum();
    let answered_429 = tenants.iter().map(|tenant| tenant.answered_429).sum();
    let fullest = |(at, limit): (usize, &Limit)| {
        let units = tenants.iter().map(|tenant| tenant.fullest_windows[at]);
        FullestWindow {
            name: limit.name().to_owned(),
            units: units.max().unwrap_or(0),
            max: limit.max(),
        }
    };
    let refused = |which: fn(&RefusalReason) -> bool| {
        let refused = observed.arrivals.iter();
        refused.filter(move |call| call.refused.as_ref().is_some_and(which))
    };
    let late =
        |refused: &RefusalReason| matches!(refused, RefusalReason::Closed(ns) if *ns > TOLD_NS);
    let under_way =
        |refused: &RefusalReason| matches!(refused, RefusalReason::Closed(ns) if *ns <= TOLD_NS);
    let while_closed = refused(late).count();
    let keeps = |(at, tenant): (usize, &TenantFigures)| {
        let mut while_closed = refused(late).filter(|call| call.job.tenant == at);
        tenant.violations == 0 && tenant.answered_429 == 0 && while_closed.next().is_none()
    };
    // A call is sent while its permit is valid, which is half a guard. A delay by the machine that
    // is longer than the other half makes it late by the rest. Without that it would have come
    // before its window was full, or before its tenant was throttled.
    let half_guard = Duration::from_millis(plan.limit().guard_ms()) / 2;
    let longest = |tenant: usize| {
        let until_last = Duration::ZERO..active_time(observed, tenant).end;
        observed.longest_delay(until_last)
    };
    let is_explained = |tenant: usize| {
        let late = longest(tenant).saturating_sub(half_guard);
        !half_guard.is_zero()
            && !late.is_zero()
            && longest_throttled(observed, tenant) <= Duration::from_nanos(TOLD_NS) + late
            && holds_with_late_calls(plan, observed, tenant, late)
    };
    let is_kept = tenants.iter().enumerate().all(keeps);
    let explains = (tenants.iter().enumerate()).all(|it| keeps(it) || is_explained(it.0));
    NeverExceeded {
        holds: (is_kept || explains) && observed.strangers == 0,
        explained_by_delays: !is_kept && explains,
        longest_delay_seconds: (0..tenants.len())
            .map(longest)
            .max()
            .unwrap_or_default()
            .as_secs_f64(),
        violations,
        limits: plan.limits.iter().enumerate().map(fullest).collect(),
        answered_429,
        closings: refused(|refused| matches!(refused, RefusalReason::Closing)).count(),
        under_way: refused(under_way).count(),
        while_closed,
        strangers: observed.strangers,
    }
}

/// Returns the longest time that a tenant had been throttled when a call arrived.
fn longest_throttled(observed: &DemoObservations, tenant: usize) -> Duration {
    let calls = observed.arrivals.iter();
    let throttled = calls.filter_map(|call| match call.refused {
        Some(RefusalReason::Closed(ns)) if call.job.tenant == tenant => Some(ns),
        _ => None,
    });
    Duration::from_nanos(throttled.max().unwrap_or(0))
}

pub fn never_idle(
    plan: &Workload,
    observed: &DemoObservations,
    tenants: &[TenantFigures],
) -> NeverIdle {
    let promised_share = promised_share(plan);
    let promised_ratio = 1.0 / promised_share;
    let used_share = tenants
        .iter()
        .map(|tenant| tenant.used_share)
        .fold(f64::INFINITY, f64::min);
    let slowest = tenants
        .iter()
        .max_by(|a, b| a.ratio().total_cmp(&b.ratio()));
    let makespan_to_ideal = slowest.map_or(1.0, TenantFigures::ratio);
    // No call is made while the machine runs other programs, which reduces a tenant's usable time.
    let delayed = |tenant: usize| {
        let delayed = observed.delays(active_time(observed, tenant));
        delayed.as_secs_f64()
    };
    let keeps = |tenant: &TenantFigures, delayed: f64| {
        let makespan = tenant.makespan_seconds;
        tenant.used_share * makespan >= promised_share * (makespan - delayed)
            && makespan <= tenant.ideal_seconds * promised_ratio + delayed
    };
    let is_kept = tenants.iter().all(|tenant| keeps(tenant, 0.0));
    let mut all = tenants.iter().enumerate();
    let is_explained = all.all(|(at, tenant)| keeps(tenant, delayed(at)));
    NeverIdle {
        holds: is_explained,
        explained_by_delays: !is_kept && is_explained,
        delayed_seconds: (0..tenants.len()).map(delayed).fold(0.0, f64::max),
        used_share,
        promised_share,
        makespan_seconds: slowest.map_or(0.0, |tenant| tenant.makespan_seconds),
        ideal_seconds: slowest.map_or(0.0, |tenant| tenant.ideal_seconds),
        makespan_to_ideal,
        promised_ratio,
        ideal_corrected_seconds: (plan.scenario == Scenario::Costs)
            .then(|| plan.ideal().as_secs_f64()),
    }
}

pub fn cheap_waiting(plan: &Workload, observed: &DemoObservations) -> CheapWaiting {
    let deliveries = observed.counted.deliveries;
    let deliveries_per_job = deliveries as f64 / observed.confirmed.len().max(1) as f64;
    let promised_per_job = plan.scenario.deliveries_per_job();
    CheapWaiting {
        // Fewer deliveries than jobs would mean a wrong count.
        holds: (1.0..=promised_per_job).contains(&deliveries_per_job),
        deliveries,
        deliveries_per_job,
        promised_per_job,
    }
}

pub fn not_failure(observed: &DemoObservations) -> NotFailure {
    let grows = |dead: &&DeadLetter| {
        let of_broker =
            |name: &String| BROKER_HEADERS.iter().any(|broker| name.starts_with(broker));
        dead.headers.iter().any(of_broker)
    };
    let attempts_used = observed
        .arrivals
        .iter()
        .filter(|call| call.attempt != 1)
        .count();
    let with_broker_headers = observed.dead.iter().filter(grows).count();
    let header_bytes = observed
        .dead
        .iter()
        .map(|dead| dead.header_bytes)
        .max()
        .unwrap_or(0);
    NotFailure {
        holds: attempts_used == 0 && with_broker_headers == 0 && header_bytes <= HEADER_BYTES,
        attempts_used,
        with_broker_headers,
        header_bytes,
    }
}
