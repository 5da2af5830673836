//! What a run came to: how long it took, how much of the limits was used, how long jobs waited, and how full the fullest window was.
//! The same for a simulated run and for a live one.

mod left;
mod quota;
mod series;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde::Serialize;
use sluicegate::rules::policy::Policy;

pub use self::left::{OfLeft, Reason};
use self::quota::{Quota, Quotas};
pub use self::series::Slot;
use crate::history::History;
use crate::jobs::Job;

/// So many tenants are shown, the busiest.
const SHOWN_TENANTS: usize = 5;
/// So many reasons of dead letters are shown; others are counted together.
const SHOWN_REASONS: usize = 10;

/// All figures of a run. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// Jobs that were published.
    pub jobs: usize,
    /// From the first one's publishing to the end of the last call, or of the run where that left jobs.
    pub makespan: f64,
    /// Of what the busiest quota allowed until its last call, from 0 to 1.
    pub used: f64,
    /// From a job's publishing to its first call; none of a dead letter that was never called.
    pub waits: Waits,
    /// From a job's publishing until it was done; none of a dead letter.
    pub done_after: Waits,
    /// Calls at the API.
    pub calls: usize,
    /// Those that it answered 429.
    pub throttled: usize,
    /// Calls after the first one of their job, 429s left out.
    pub retries: usize,
    /// Deliveries to workers, for each job.
    pub deliveries: f64,
    /// Jobs that became dead letters, by the reason.
    pub dead: BTreeMap<String, usize>,
    /// Those of them that were never called.
    pub dead_uncalled: usize,
    /// Jobs that were not done at the end.
    pub unfinished: usize,
    /// Those of them that would have been published later.
    pub unpublished: usize,
    /// Why they were not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<OfLeft>,
    /// Each limit, in the order of the configuration.
    pub limits: Vec<OfLimit>,
    /// Each shadow limit, too.
    pub shadows: Vec<OfShadow>,
    /// The busiest tenants.
    pub tenants: Vec<OfTenant>,
    /// So many others there are.
    pub more_tenants: usize,
    /// How it went over time.
    #[serde(skip)]
    pub series: Vec<Slot>,
}

/// How long jobs waited, in seconds. A wait that was not over at the end of the run counts for what it was by then, so a figure may be the
/// least that it can be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Waits {
    /// How many.
    pub jobs: usize,
    /// Those of them whose wait was not over.
    pub not_over: usize,
    /// From which of a hundred on a figure is the least that it can be; 101: none is.
    #[serde(skip)]
    pub(crate) least_from: usize,
    /// Half of them not longer.
    pub p50: f64,
    /// 99 of a hundred not longer.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

/// What is known of a limit, whosever quota it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OfLimit {
    /// Its name.
    pub name: String,
    /// Its algorithm.
    pub algorithm: String,
    /// Of what it allowed all who used it, in the whole run; from 0 to 1.
    pub used: f64,
    /// The same of the busiest: who used the most of what the limit allowed in the whole run.
    pub most_used: f64,
    /// Units in the fullest of its windows at the API, or the most calls in flight;
    pub fullest: u64,
    /// of so many that may be in one.
    pub allowance: u64,
    /// Whose window that was; empty where all tenants share it.
    pub fullest_of: String,
    /// Jobs that it made wait, from their first denial to their start, or to the end of the run.
    pub waits: Waits,
    /// Of one that learns: what counted at the end in place of `max-requests`, the lowest of all tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learned: Option<u32>,
}

/// What a shadow limit would have done.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OfShadow {
    /// Its name.
    pub name: String,
    /// Its algorithm.
    pub algorithm: String,
    /// Jobs that started.
    pub starts: u64,
    /// Those that it would have made wait.
    pub would_have_waited: u64,
    /// Those of them that would have waited for more than a day, or cost more than the whole limit.
    pub would_never_have_started: u64,
    /// The longest wait of the others.
    pub longest_wait: f64,
}

/// What is known of a tenant.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OfTenant {
    /// Its id.
    pub tenant: String,
    /// From a job's publishing to its first call.
    pub waits: Waits,
    /// Its jobs.
    pub jobs: usize,
}

/// How long a job waited, in microseconds, and whether that was not over at the end of the run.
type OfOne = (u64, bool);

impl Waits {
    fn of(mut waits: Vec<OfOne>) -> Self {
        // Of as long ones those that are over come first.
        waits.sort_unstable();
        let rank = |part: usize| (waits.len() * part).div_ceil(100).max(1) - 1;
        let at = |part: usize| seconds(waits.get(rank(part)).map_or(0, |(us, _)| *us));
        // What is not over may be longer than all that stand behind it.
        let first = waits.iter().position(|(_, goes_on)| *goes_on);
        Self {
            jobs: waits.len(),
            not_over: waits.iter().filter(|(_, goes_on)| *goes_on).count(),
            least_from: first.map_or(101, |first| {
                let is_least = |part: &usize| rank(*part) >= first;
                (1..=100).find(is_least).unwrap_or(101)
            }),
            p50: at(50),
            p99: at(99),
            max: at(100),
        }
    }
}

/// In seconds, to the millisecond.
fn seconds(us: u64) -> f64 {
    (us as f64 / 1e3).round() / 1e3
}

/// What was used of what was allowed, to the hundredth of a percent.
fn share((used, allowed): (f64, f64)) -> f64 {
    match allowed > 0.0 {
        true => (used / allowed * 1e4).round() / 1e4,
        false => 0.0,
    }
}

impl Figures {
    /// Of `history`, whose jobs these were, under `policy`.
    pub fn of(policy: &Policy, jobs: &[Job], history: &History) -> Self {
        let (mut first, mut last) = (vec![None; jobs.len()], vec![None; jobs.len()]);
        let (mut throttled, mut retries) = (0, 0);
        for call in &history.calls {
            let Some(first) = first.get_mut(call.job) else {
                continue;
            };
            throttled += usize::from(call.status == 429);
            if last[call.job].is_some_and(|(_, status)| status != 429) {
                retries += 1;
            }
            first.get_or_insert(call.at_us);
            last[call.job] = Some((call.until_us, call.status));
        }
        let begin = jobs.first().map_or(0, Job::at_us);
        let last_end = history.calls.iter().map(|call| call.until_us).max();
        let over_us = history.left.map(|left| left.at_us);
        let end = over_us.or(last_end).unwrap_or(begin);
        let dead_ones: HashSet<usize> = history.dead.iter().map(|(job, _)| *job).collect();
        // Until `at`, or until the run was over; `None`: it was not published by then, or died before.
        let until = |job: usize, at: Option<u64>| {
            let published = jobs[job].at_us();
            let since = |at: u64| at.saturating_sub(published);
            match (at, over_us) {
                (Some(at), _) => Some((since(at), false)),
                (None, Some(over)) if !dead_ones.contains(&job) && published <= over => {
                    Some((since(over), true))
                }
                _ => None,
            }
        };
        let waits: Vec<Option<OfOne>> = (first.iter().enumerate())
            .map(|(job, first)| until(job, *first))
            .collect();
        let mut by_tenant: BTreeMap<&str, (usize, Vec<OfOne>)> = BTreeMap::new();
        for (job, wait) in jobs.iter().zip(&waits) {
            let of_one = by_tenant.entry(&job.tenant).or_default();
            of_one.0 += 1;
            of_one.1.extend(wait);
        }
        let mut busiest: Vec<_> = by_tenant.into_iter().collect();
        busiest.sort_by_key(|(_, (jobs, _))| std::cmp::Reverse(*jobs));
        let more_tenants = busiest.len().saturating_sub(SHOWN_TENANTS);
        busiest.truncate(SHOWN_TENANTS);
        let tenants = busiest.into_iter().map(|(tenant, (jobs, waits))| OfTenant {
            tenant: tenant.to_owned(),
            waits: Waits::of(waits),
            jobs,
        });
        let quotas = Quotas::of(policy, jobs, history, end);
        let limits = of_limits(&quotas, history);
        let busiest = quotas.busiest();
        let is_done = |status: u16| history.unfinished == 0 || (200..300).contains(&status);
        let ends: Vec<Option<u64>> = last
            .iter()
            .enumerate()
            .map(|(job, end)| match end {
                // The call may go on when the run is over.
                Some((at, status))
                    if over_us.is_none_or(|over| *at <= over)
                        && (is_done(*status) || dead_ones.contains(&job)) =>
                {
                    Some(*at)
                }
                None if dead_ones.contains(&job) => Some(jobs[job].at_us()),
                _ => None,
            })
            .collect();
        let done = ends.iter().enumerate();
        let done = done.filter(|(job, _)| !dead_ones.contains(job));
        let done = done.filter_map(|(job, end)| until(job, *end));
        let uncalled = dead_ones
            .iter()
            .filter(|job| first.get(**job).is_some_and(Option::is_none));
        Self {
            jobs: jobs.len(),
            makespan: seconds(end.saturating_sub(begin)),
            used: busiest.map_or(0.0, |quota| share(quota.used(history.epoch_us))),
            waits: Waits::of(waits.into_iter().flatten().collect()),
            calls: history.calls.len(),
            throttled,
            retries,
            deliveries: (history.deliveries as f64 / jobs.len().max(1) as f64 * 1e3).round() / 1e3,
            dead: dead(history),
            dead_uncalled: uncalled.count(),
            unfinished: history.unfinished,
            unpublished: jobs
                .iter()
                .filter(|job| over_us.is_some_and(|over| job.at_us() > over))
                .count(),
            left: OfLeft::of(history),
            done_after: Waits::of(done.collect()),
            tenants: tenants.collect(),
            more_tenants,
            series: series::of(jobs, &ends, (busiest, end)),
            limits,
            shadows: of_shadows(policy, history),
        }
    }
}

/// The reasons that there are the most of, and all others as one.
fn dead(history: &History) -> BTreeMap<String, usize> {
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

fn of_limits(quotas: &Quotas, history: &History) -> Vec<OfLimit> {
    let mut waits: BTreeMap<&Arc<str>, Vec<OfOne>> = BTreeMap::new();
    for wait in &history.waits {
        (waits.entry(&wait.limit).or_default()).push((wait.us, wait.goes_on));
    }
    let limit = |name: &str| {
        let all: Vec<(&str, &Quota)> = quotas.of_limit(name).collect();
        let each = (all.iter()).map(|(_, quota)| quotas.used_in_all(quota));
        let sum = each.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let most_used = quotas.busiest_of(name);
        let most_used = most_used.map_or(0.0, |quota| share(quota.used(history.epoch_us)));
        let used = share(sum);
        let fullest = |(whose, quota): &(&str, &Quota)| {
            (
                quota.fullest(history.epoch_us),
                quota.allowance(),
                (*whose).to_owned(),
            )
        };
        let full =
            |(units, allowance, _): &(u64, u64, String)| *units as f64 / (*allowance).max(1) as f64;
        let fullest = all.iter().map(fullest);
        // Of several that are as full, the first by its name.
        let fullest = fullest.reduce(|one, two| if full(&two) > full(&one) { two } else { one });
        let (fullest, allowance, fullest_of) = fullest.unwrap_or_default();
        let of_waits = waits.iter().find(|(limit, _)| limit.as_ref() == name);
        OfLimit {
            name: name.to_owned(),
            algorithm: algorithm(&all),
            used,
            most_used,
            fullest,
            allowance,
            fullest_of,
            waits: Waits::of(of_waits.map(|(_, waits)| waits.clone()).unwrap_or_default()),
            learned: history.learned.get(name).copied(),
        }
    };
    quotas.names().map(limit).collect()
}

/// That of all these quotas; limits of one name may have other ones in other plans.
fn algorithm(all: &[(&str, &Quota)]) -> String {
    let mut names = all.iter().map(|(_, quota)| quota.limit.algorithm().name());
    let first = names.next().unwrap_or_default();
    match names.all(|name| name == first) {
        true => first.to_owned(),
        false => "several".to_owned(),
    }
}

/// All shadows of `policy`, also those that saw no start.
fn of_shadows(policy: &Policy, history: &History) -> Vec<OfShadow> {
    let mut shadows: Vec<OfShadow> = Vec::new();
    for limit in policy.all().flat_map(|limits| limits.shadows()) {
        if shadows.iter().any(|known| known.name == limit.name()) {
            continue;
        }
        let tally = history
            .shadows
            .get(limit.name())
            .copied()
            .unwrap_or_default();
        shadows.push(OfShadow {
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
