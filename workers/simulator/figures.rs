//! The figures of a run, simulated or live: its duration, the used part of the limits, the waits,
//! and the fullest window.

mod job_times;
mod quota;
mod series;
mod unfinished;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use foldhash::fast::RandomState;
use rules::policy::Policy;
use serde::Serialize;

use self::job_times::JobTimes;
use self::quota::{MeasuredQuota, MeasuredQuotas};
pub use self::series::RunInterval;
pub use self::unfinished::{Reason, UnfinishedSummary};
use crate::history::RunHistory;
use crate::jobs::SimulatedJob;

/// Number of tenants shown, the busiest first.
const SHOWN_TENANTS: usize = 5;
/// Number of reasons for dead letters that are shown; the others are counted together.
const SHOWN_REASONS: usize = 10;

/// All figures of a run. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// Number of published jobs.
    pub jobs: usize,
    /// Time from the first publish to the end of the last call, or to the end of the run if jobs
    /// were left.
    pub makespan: f64,
    /// Used share, from 0 to 1, of the units that the busiest quota allowed until its last call.
    pub used: f64,
    /// Waits from publish to first call. Dead letters that were never called are left out.
    pub waits: WaitFigures,
    /// Times from publish until the job was done. Dead letters are left out.
    pub done_after: WaitFigures,
    /// Number of calls at the API.
    pub calls: usize,
    /// Calls that the API answered with 429.
    pub throttled: usize,
    /// Calls that follow an earlier call of their job, unless that one was answered with 429.
    pub retries: usize,
    /// Average number of deliveries per job.
    pub deliveries: f64,
    /// Number of dead letters, by reason.
    pub dead: BTreeMap<String, usize>,
    /// Dead letters that were never called.
    pub dead_uncalled: usize,
    /// Jobs that were dropped because another job had their dedupe key.
    pub duplicates: usize,
    /// Jobs that were not done at the end.
    pub unfinished: usize,
    /// Unfinished jobs whose publish time was after the end of the run.
    pub unpublished: usize,
    /// Why the run ended before they were done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<UnfinishedSummary>,
    /// Each limit, in the order of the configuration.
    pub limits: Vec<LimitSummary>,
    /// Each shadow limit.
    pub shadows: Vec<ShadowSummary>,
    /// The busiest tenants.
    pub tenants: Vec<TenantSummary>,
    /// Number of tenants that are not shown.
    pub more_tenants: usize,
    /// The run over time.
    #[serde(skip)]
    pub series: Vec<RunInterval>,
}

/// How long jobs waited, in seconds. A wait that had not ended when the run did counts with its
/// length so far, so a figure may be a lower bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct WaitFigures {
    /// Number of jobs.
    pub jobs: usize,
    /// Jobs that were still waiting at the end of the run.
    pub not_over: usize,
    /// Lowest percentile that is only a lower bound; 101 if none is.
    #[serde(skip)]
    pub(crate) least_from: usize,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum.
    pub max: f64,
}

/// The figures of one limit, over all of its quotas.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LimitSummary {
    /// Name of the limit.
    pub name: String,
    /// Name of its algorithm.
    pub algorithm: String,
    /// Used share, from 0 to 1, of the units that the limit allowed to all its users in the whole
    /// run.
    pub used: f64,
    /// The same share for the busiest quota, which used the largest share over the whole run.
    pub most_used: f64,
    /// Units in the fullest window at the API, or the maximum number of calls in flight.
    pub fullest: u64,
    /// Maximum that is allowed in that window.
    pub allowance: u64,
    /// Owner of that window; empty if all tenants share it.
    pub fullest_of: String,
    /// Jobs that the limit delayed, from their first denial to their start or to the end of the
    /// run.
    pub waits: WaitFigures,
    /// For an adaptive limit, the learned value in force at the end instead of `max-requests`: the
    /// lowest of all tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learned: Option<u64>,
}

/// The effect that a shadow limit would have had.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShadowSummary {
    /// Name of the limit.
    pub name: String,
    /// Name of its algorithm.
    pub algorithm: String,
    /// Number of jobs that started.
    pub starts: u64,
    /// Jobs that the limit would have delayed.
    pub would_have_waited: u64,
    /// Delayed jobs that would have waited for more than a day, or that cost more than the whole
    /// limit.
    pub would_never_have_started: u64,
    /// Longest wait of the other delayed jobs.
    pub longest_wait: f64,
}

/// The figures of one tenant.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TenantSummary {
    /// Its id.
    pub tenant: String,
    /// Waits from publish to first call.
    pub waits: WaitFigures,
    /// Number of its jobs.
    pub jobs: usize,
}

/// A job's wait in microseconds, and whether it still lasted at the end of the run.
type Wait = (u64, bool);

impl WaitFigures {
    fn of(mut waits: Vec<Wait>) -> Self {
        let jobs = waits.len();
        let rank = |part: usize| (jobs * part).div_ceil(100).max(1) - 1;
        // Ended waits sort before unfinished waits of the same length.
        let unfinished = waits.iter().filter(|(_, is_unfinished)| *is_unfinished);
        let not_over = unfinished.clone().count();
        // A wait that has not ended may be longer than all waits sorted after it.
        let least_from = unfinished.min().map_or(101, |shortest| {
            let first = waits.iter().filter(|wait| *wait < shortest).count();
            let is_least = |part: &usize| rank(*part) >= first;
            (1..=100).find(is_least).unwrap_or(101)
        });
        let mut at = |part: usize| match jobs {
            0 => 0.0,
            _ => seconds(waits.select_nth_unstable(rank(part)).1.0),
        };
        Self {
            jobs,
            not_over,
            least_from,
            p50: at(50),
            p99: at(99),
            max: at(100),
        }
    }
}

/// Converts microseconds to seconds, rounded to the millisecond.
fn seconds(us: u64) -> f64 {
    (us as f64 / 1e3).round() / 1e3
}

/// Returns the used share of the allowance, rounded to a hundredth of a percent.
fn share((used, allowed): (f64, f64)) -> f64 {
    match allowed > 0.0 {
        true => (used / allowed * 1e4).round() / 1e4,
        false => 0.0,
    }
}

impl Figures {
    /// Computes the figures of `history`, the run of `jobs` under `policy`.
    pub fn of(policy: &Policy, jobs: &[SimulatedJob], history: &RunHistory) -> Self {
        let times = JobTimes::of(jobs, history);
        let begin = jobs.first().map_or(0, SimulatedJob::at_us);
        let last_end = history.calls.iter().map(|call| call.ended_us).max();
        let over_us = history.left.map(|left| left.at_us);
        let end = over_us.or(last_end).unwrap_or(begin);
        let waits = times.waits();
        let (tenants, more_tenants) = busiest_tenants(jobs, &waits);
        let quotas = MeasuredQuotas::of(policy, jobs, history, end);
        let busiest = quotas.busiest();
        let ends = times.ends();
        Self {
            jobs: jobs.len(),
            makespan: seconds(end.saturating_sub(begin)),
            used: busiest.map_or(0.0, |quota| share(quota.used(history.epoch_us))),
            waits: WaitFigures::of(waits.into_iter().flatten().collect()),
            calls: history.calls.len(),
            throttled: times.throttled,
            retries: times.retries,
            deliveries: (history.deliveries as f64 / jobs.len().max(1) as f64 * 1e3).round() / 1e3,
            dead: dead(history),
            dead_uncalled: times.dead_uncalled(),
            duplicates: history.duplicates.len(),
            unfinished: history.unfinished,
            unpublished: times.unpublished(),
            left: UnfinishedSummary::of(history),
            done_after: WaitFigures::of(times.done_after(&ends)),
            tenants,
            more_tenants,
            series: series::of(jobs, &ends, (busiest, end)),
            limits: of_limits(&quotas, history),
            shadows: of_shadows(policy, history),
        }
    }
}

/// Returns the figures of the tenants with the most jobs, and the number of the other tenants.
/// `waits` has the wait of each job, if it has one.
fn busiest_tenants(jobs: &[SimulatedJob], waits: &[Option<Wait>]) -> (Vec<TenantSummary>, usize) {
    let mut by_tenant: HashMap<&str, (usize, Vec<Wait>), RandomState> = HashMap::default();
    for (job, wait) in jobs.iter().zip(waits) {
        let of_tenant = by_tenant.entry(&job.tenant).or_default();
        of_tenant.0 += 1;
        of_tenant.1.extend(wait);
    }
    let mut busiest: Vec<_> = by_tenant.into_iter().collect();
    busiest.sort_unstable_by_key(|(tenant, (jobs, _))| (std::cmp::Reverse(*jobs), *tenant));
    let others = busiest.len().saturating_sub(SHOWN_TENANTS);
    busiest.truncate(SHOWN_TENANTS);
    let shown = busiest
        .into_iter()
        .map(|(tenant, (jobs, waits))| TenantSummary {
            tenant: tenant.to_owned(),
            waits: WaitFigures::of(waits),
            jobs,
        });
    (shown.collect(), others)
}

/// Returns the most frequent reasons, and all others as one.
fn dead(history: &RunHistory) -> BTreeMap<String, usize> {
    let mut reasons: Vec<_> = history.dead_by_reason().into_iter().collect();
    reasons.sort_by_key(|(_, jobs)| std::cmp::Reverse(*jobs));
    let others: usize = reasons
        .iter()
        .skip(SHOWN_REASONS)
        .map(|(_, jobs)| jobs)
        .sum();
    reasons.truncate(SHOWN_REASONS);
    let mut dead: BTreeMap<String, usize> = reasons
        .into_iter()
        .map(|(reason, jobs)| (reason.to_owned(), jobs))
        .collect();
    if others > 0 {
        dead.insert("other reasons".to_owned(), others);
    }
    dead
}

fn of_limits(quotas: &MeasuredQuotas<'_>, history: &RunHistory) -> Vec<LimitSummary> {
    let mut waits: BTreeMap<&Arc<str>, Vec<Wait>> = BTreeMap::new();
    for wait in &history.waits {
        (waits.entry(&wait.limit).or_default()).push((wait.us, wait.is_unfinished));
    }
    let limit = |name: &str| {
        let all: Vec<(&str, &MeasuredQuota)> = quotas.of_limit(name).collect();
        let each = (all.iter()).map(|(_, quota)| quotas.used_in_all(quota));
        let sum = each.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let most_used = quotas.busiest_of(name);
        let most_used = most_used.map_or(0.0, |quota| share(quota.used(history.epoch_us)));
        let used = share(sum);
        let fullest = |(whose, quota): &(&str, &MeasuredQuota)| {
            (
                quota.fullest(history.epoch_us),
                quota.allowance(),
                (*whose).to_owned(),
            )
        };
        let full =
            |(units, allowance, _): &(u64, u64, String)| *units as f64 / (*allowance).max(1) as f64;
        let fullest = all.iter().map(fullest);
        // The first name wins a tie.
        let fullest = fullest.reduce(|one, two| if full(&two) > full(&one) { two } else { one });
        let (fullest, allowance, fullest_of) = fullest.unwrap_or_default();
        let of_waits = waits.iter().find(|(limit, _)| limit.as_ref() == name);
        LimitSummary {
            name: name.to_owned(),
            algorithm: algorithm(&all),
            used,
            most_used,
            fullest,
            allowance,
            fullest_of,
            waits: WaitFigures::of(of_waits.map(|(_, waits)| waits.clone()).unwrap_or_default()),
            learned: history.learned.get(name).copied(),
        }
    };
    quotas.names().map(limit).collect()
}

/// Returns the common algorithm of these quotas. Limits of the same name may have different
/// algorithms in different plans.
fn algorithm(all: &[(&str, &MeasuredQuota)]) -> String {
    let mut names = all.iter().map(|(_, quota)| quota.limit.algorithm().name());
    let first = names.next().unwrap_or_default();
    match names.all(|name| name == first) {
        true => first.to_owned(),
        false => "several".to_owned(),
    }
}

/// Returns all shadow limits of `policy`, even if no job started under them.
fn of_shadows(policy: &Policy, history: &RunHistory) -> Vec<ShadowSummary> {
    let mut shadows: Vec<ShadowSummary> = Vec::new();
    for limit in policy.all().flat_map(|limits| limits.shadows()) {
        if shadows.iter().any(|known| known.name == limit.name()) {
            continue;
        }
        let tally = history
            .shadows
            .get(limit.name())
            .copied()
            .unwrap_or_default();
        shadows.push(ShadowSummary {
            name: limit.name().to_owned(),
            algorithm: limit.algorithm().name().to_owned(),
            starts: tally.starts,
            would_have_waited: tally.waited,
            would_never_have_started: tally.never,
            longest_wait: seconds(tally.worst_ms.saturating_mul(1_000)),
        });
    }
    shadows
}

#[cfg(test)]
mod tests;
