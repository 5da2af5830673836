//! Computes the figures of each promise from the observations.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::json;

use super::tenant::{TenantFigures, active_time, holds_with_late_calls};
use super::{DemoObservations, Promise};
use crate::demo::ledger::{Arrival, RefusalReason};
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

/// Returns whether delays by the machine explain a figure outside its promise, as text.
fn explains(explained: bool) -> &'static str {
    if explained {
        "explains it"
    } else {
        "does not explain it"
    }
}

/// P1: every confirmed job ends as done or as a dead letter.
pub fn never_lost(
    plan: &Workload,
    observed: &DemoObservations,
    dead_jobs: &HashSet<usize>,
) -> Promise {
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
    let (confirmed, done, dead) = (confirmed.len(), done.len(), dead_jobs.len());
    // Calls for a job that already had a final answer.
    let duplicates = final_answers.len() - answered.len();
    let left = observed.left;
    Promise {
        key: "never_lost",
        title: "P1 never lost",
        holds: confirmed == plan.total() && lost == 0 && dead_unasked == 0 && left == 0,
        figures: json!({
            "published": plan.total(),
            "confirmed": confirmed,
            "done": done,
            "dead": dead,
            // Dead letters that the API did not cause.
            "dead_unasked": dead_unasked,
            "lost": lost,
            "duplicates": duplicates,
            "left_in_queues": left,
        }),
        text: format!(
            "{confirmed} confirmed = {done} done + {dead} dead ({dead_unasked} of them not \
            rejected by the API); {lost} lost, {duplicates} called twice, {left} left in queues"
        ),
    }
}

/// P2: no window exceeds its limit, and no worker calls for a tenant that the API throttles.
pub fn never_exceeded(
    plan: &Workload,
    observed: &DemoObservations,
    tenants: &[TenantFigures],
) -> Promise {
    let violations: usize = tenants.iter().map(|tenant| tenant.violations).sum();
    let answered_429: usize = tenants.iter().map(|tenant| tenant.answered_429).sum();
    let fullest: Vec<(&str, u64, u64)> = (plan.limits.iter().enumerate())
        .map(|(at, limit)| {
            let units = tenants.iter().map(|tenant| tenant.fullest_windows[at]);
            (limit.name(), units.max().unwrap_or(0), limit.max())
        })
        .collect();
    // Each of these calls throttles its tenant.
    let closings = refused(observed, |why| matches!(why, RefusalReason::Closing)).count();
    let under_way = refused(
        observed,
        |why| matches!(why, RefusalReason::Closed(ns) if *ns <= TOLD_NS),
    );
    let (under_way, while_closed) = (under_way.count(), refused(observed, is_late).count());
    let strangers = observed.strangers;
    let (is_kept, is_explained, delay) = kept(plan, observed, tenants);
    let holds = (is_kept || is_explained) && strangers == 0;
    let explained = !is_kept && is_explained;

    let windows: Vec<String> = (fullest.iter())
        .map(|(name, units, max)| match fullest.len() {
            1 => format!("{units} of {max}"),
            _ => format!("{units} of {max} ({name})"),
        })
        .collect();
    let mut text = format!(
        "{violations} violations, tolerance zero; the fullest window held {}; {answered_429} \
        calls answered 429",
        windows.join(", "),
    );
    if closings > 0 {
        text += &format!(
            "; the API throttled a tenant {closings} times, {under_way} calls were in flight \
            then, {while_closed} came later"
        );
    }
    if strangers > 0 {
        text += &format!("; {strangers} calls named no job of the demo");
    }
    if !holds || explained {
        text += &format!(
            "; this machine kept the demo or a worker from running for up to {:.0} ms at once, \
            which {} (a guard tolerates less than half of its length)",
            delay.as_secs_f64() * 1000.0,
            explains(explained),
        );
    }
    let limits = (fullest.iter())
        .map(|(name, units, max)| json!({"name": name, "units": units, "max": max}));
    Promise {
        key: "never_exceeded",
        title: "P2 never exceeded",
        holds,
        figures: json!({
            // Whether it holds only because this machine delayed calls for longer than the guard
            // assumes.
            "explained_by_delays": explained,
            // The longest time for which this machine kept the demo or a worker from running before
            // a tenant's last call.
            "longest_delay_seconds": delay.as_secs_f64(),
            "violations": violations,
            "limits": limits.collect::<Vec<_>>(),
            "answered_429": answered_429,
            "closings": closings,
            // Calls for a throttled tenant that were in flight when it was throttled.
            "under_way": under_way,
            // Later calls for a throttled tenant.
            "while_closed": while_closed,
            // Calls that named no job of the demo.
            "strangers": strangers,
        }),
        text,
    }
}

/// Returns whether P2 holds for the calls as they were made, whether it holds without the delays by
/// this machine, and the longest such delay at once before a tenant's last call.
fn kept(
    plan: &Workload,
    observed: &DemoObservations,
    tenants: &[TenantFigures],
) -> (bool, bool, Duration) {
    let keeps = |(at, tenant): (usize, &TenantFigures)| {
        let mut while_closed = refused(observed, is_late).filter(|call| call.job.tenant == at);
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
    let delays = (0..tenants.len()).map(longest);
    (is_kept, explains, delays.max().unwrap_or_default())
}

/// Returns the calls that were refused for such a reason.
fn refused(
    observed: &DemoObservations,
    which: fn(&RefusalReason) -> bool,
) -> impl Iterator<Item = &Arrival> {
    let calls = observed.arrivals.iter();
    calls.filter(move |call| call.refused.as_ref().is_some_and(which))
}

fn is_late(why: &RefusalReason) -> bool {
    matches!(why, RefusalReason::Closed(ns) if *ns > TOLD_NS)
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

/// P3: the limit's quota is used while jobs wait. Figures are those of the worst tenant.
pub fn never_idle(
    plan: &Workload,
    observed: &DemoObservations,
    tenants: &[TenantFigures],
) -> Promise {
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
    let holds = all.all(|(at, tenant)| keeps(tenant, delayed(at)));
    let explained = !is_kept && holds;
    let delayed_seconds = (0..tenants.len()).map(delayed).fold(0.0, f64::max);
    let makespan = slowest.map_or(0.0, |tenant| tenant.makespan_seconds);
    let ideal = slowest.map_or(0.0, |tenant| tenant.ideal_seconds);
    // If jobs reserve more than they use: the ideal time if all unused units were returned and used
    // at once.
    let corrected = (plan.scenario == Scenario::Costs).then(|| plan.ideal().as_secs_f64());

    let mut text = format!(
        "{:.1} % used (promised: {:.0} %); makespan {makespan:.2} s, ideal {ideal:.2} s with the \
        guard, ratio {makespan_to_ideal:.3} (promised: at most {promised_ratio:.3})",
        used_share * 100.0,
        promised_share * 100.0,
    );
    if !holds || explained {
        text += &format!(
            "; this machine kept the demo or a worker from running for {delayed_seconds:.3} s in \
            all, which {}",
            explains(explained),
        );
    }
    if let Some(seconds) = corrected {
        text +=
            &format!("; {seconds:.2} s if the units that x-actual-cost returns were used at once");
    }
    Promise {
        key: "never_idle",
        title: "P3 never idle",
        holds,
        figures: json!({
            // Whether it holds only after the delays by this machine are subtracted.
            "explained_by_delays": explained,
            // How long this machine kept the demo or a worker from running between a tenant's first
            // and last call; the longest of all tenants.
            "delayed_seconds": delayed_seconds,
            "used_share": used_share,
            "promised_share": promised_share,
            "makespan_seconds": makespan,
            "ideal_seconds": ideal,
            "makespan_to_ideal": makespan_to_ideal,
            "promised_ratio": promised_ratio,
            // If jobs reserve more than they use: the ideal time if all unused units were returned
            // and used at once.
            "ideal_corrected_seconds": corrected,
        }),
        text,
    }
}

/// P4: a waiting job is delivered only a few times, however many jobs wait.
pub fn cheap_waiting(plan: &Workload, observed: &DemoObservations) -> Promise {
    let deliveries = observed.counted.deliveries;
    let per_job = deliveries as f64 / observed.confirmed.len().max(1) as f64;
    let promised = plan.scenario.deliveries_per_job();
    Promise {
        key: "cheap_waiting",
        title: "P4 cheap waiting",
        // Fewer deliveries than jobs would mean a wrong count.
        holds: (1.0..=promised).contains(&per_job),
        figures: json!({
            "deliveries": deliveries,
            "deliveries_per_job": per_job,
            "promised_per_job": promised,
        }),
        text: format!("{per_job:.2} deliveries per job (promised: {promised:.1})"),
    }
}

/// P6: a wait uses no attempt and adds no growing header.
pub fn not_failure(observed: &DemoObservations) -> Promise {
    let grows = |dead: &&DeadLetter| {
        let of_broker =
            |name: &String| BROKER_HEADERS.iter().any(|broker| name.starts_with(broker));
        dead.headers.iter().any(of_broker)
    };
    // The API never asks for a second attempt.
    let used = (observed.arrivals.iter())
        .filter(|call| call.attempt != 1)
        .count();
    let growing = observed.dead.iter().filter(grows).count();
    // Each tenant's dead letter is the job that waited longest.
    let bytes = observed.dead.iter().map(|dead| dead.header_bytes);
    let bytes = bytes.max().unwrap_or(0);
    Promise {
        key: "throttling_is_not_failure",
        title: "P6 throttling is not failure",
        holds: used == 0 && growing == 0 && bytes <= HEADER_BYTES,
        figures: json!({
            "attempts_used": used,
            "with_broker_headers": growing,
            "header_bytes": bytes,
        }),
        text: format!(
            "{used} calls used an attempt; {growing} dead letters have growing headers, the \
            largest headers have {bytes} bytes"
        ),
    }
}
