//! What each limit was used for, at the API: by whose quota it is.

use std::collections::BTreeMap;

use sluicegate::rules::limit::{Algorithm, Limit};
use sluicegate::rules::policy::Policy;
use sluicegate::rules::scope::Scope;
use sluicegate::rules::tenant::Tenant;
use trial::windows;

use super::share;
use crate::history::{Call, History};
use crate::jobs::{Job, Text};

/// All quotas.
pub(super) struct Quotas {
    /// By the limit's name and whose it is.
    each: BTreeMap<String, BTreeMap<String, Quota>>,
    /// The limits that have any, in the order of the configuration.
    names: Vec<String>,
    epoch_us: u64,
    /// When the run was over.
    end_us: u64,
}

/// One quota.
pub(super) struct Quota {
    pub limit: Limit,
    /// When its first job was published, in microseconds.
    pub since_us: u64,
    /// Calls: when, their units, and until when they were under way.
    pub calls: Vec<(u64, u64, u64)>,
}

impl Quotas {
    /// Of all calls of a run that was over at `end_us`; which limits there are is a matter of the jobs.
    pub fn of(policy: &Policy, jobs: &[Job], history: &History, end_us: u64) -> Self {
        let mut quotas = Self {
            each: BTreeMap::new(),
            names: Vec::new(),
            epoch_us: history.epoch_us,
            end_us,
        };
        // Who comes later used nothing, and was allowed nothing.
        for job in jobs.iter().filter(|job| job.at_us() <= end_us) {
            quotas.add(policy, job, None);
        }
        for call in &history.calls {
            if let Some(job) = jobs.get(call.job) {
                quotas.add(policy, job, Some(call));
            }
        }
        for limit in policy.all().flat_map(|limits| limits.iter()) {
            let name = limit.name();
            if quotas.each.contains_key(name) && !quotas.names().any(|known| known == name) {
                quotas.names.push(name.to_owned());
            }
        }
        quotas
    }

    /// Adds a call of `job`, or its quotas alone.
    fn add(&mut self, policy: &Policy, job: &Job, call: Option<&Call>) {
        let Ok(tenant) = Tenant::parse(&job.tenant) else {
            return;
        };
        let names_plan = policy.plan_header().is_some();
        let plan = job.plan.as_deref().filter(|_| names_plan);
        let limits = policy.limits(&tenant, plan);
        let cost = job.cost.min(limits.max_cost());
        for limit in limits.iter() {
            let of_limit = self.each.entry(limit.name().to_owned()).or_default();
            let whose = whose(limit.scope(), job);
            let quota = of_limit.entry(whose).or_insert_with(|| Quota {
                limit: limit.clone(),
                since_us: job.at_us(),
                calls: Vec::new(),
            });
            let units = limit.unit().of(cost.into());
            quota
                .calls
                .extend(call.map(|call| (call.at_us, units, call.until_us)));
        }
    }

    /// The limits' names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The quotas of the limit `name`, each with whose it is.
    pub fn of_limit(&self, name: &str) -> impl Iterator<Item = (&str, &Quota)> + use<'_> {
        let all = self.each.get(name).into_iter().flatten();
        all.map(|(whose, quota)| (whose.as_str(), quota))
    }

    /// The busiest quota of the limit `name`: the one of which the most was used in the whole run. (Until its own last call one that
    /// was used once may be used up.)
    pub fn busiest_of(&self, name: &str) -> Option<&Quota> {
        self.most_used(self.of_limit(name).map(|(_, quota)| quota))
    }

    /// The busiest of all.
    pub fn busiest(&self) -> Option<&Quota> {
        self.most_used(self.names().filter_map(|name| self.busiest_of(name)))
    }

    /// What was used in the whole run, and what was allowed in it.
    pub fn used_in_all(&self, quota: &Quota) -> (f64, f64) {
        quota.used_until(self.epoch_us, self.end_us)
    }

    fn most_used<'a>(&self, all: impl Iterator<Item = &'a Quota>) -> Option<&'a Quota> {
        let all = all.map(|quota| (share(self.used_in_all(quota)), quota));
        let busiest = all.reduce(|one, two| if two.0 > one.0 { two } else { one });
        busiest.map(|(_, quota)| quota)
    }
}

/// Whose quota of a limit with this scope the job uses, in words.
fn whose(scope: &Scope, job: &Job) -> String {
    let tenant = &job.tenant;
    match scope {
        Scope::Global => String::new(),
        Scope::Tenant => tenant.clone(),
        Scope::RoutingKey => format!(
            "{tenant} {}",
            job.routing_key.as_deref().unwrap_or_default()
        ),
        Scope::Header(name) => match job.header.get(name) {
            Some(Text::Text(text)) => format!("{tenant} {text}"),
            Some(Text::Number(number)) => format!("{tenant} {number}"),
            None => format!("{tenant} "),
        },
    }
}

impl Quota {
    /// What was used until its last call (of calls in flight: until the end of the last), and what was allowed by then: units, or
    /// microseconds in flight.
    pub fn used(&self, epoch_us: u64) -> (f64, f64) {
        let last = match self.limit.algorithm() {
            Algorithm::Concurrency => self.calls.iter().map(|(_, _, until)| *until).max(),
            _ => self.calls.last().map(|(at, _, _)| *at),
        };
        last.map_or((0.0, 0.0), |last| self.used_until(epoch_us, last))
    }

    /// What was used in all, and what was allowed until `end_us`.
    fn used_until(&self, epoch_us: u64, end_us: u64) -> (f64, f64) {
        let limit = &self.limit;
        let max = f64::from(limit.max());
        let units: u64 = self.calls.iter().map(|(_, units, _)| units).sum();
        let us = end_us.saturating_sub(self.since_us) as f64;
        let window = (limit.window_ms() * 1000) as f64;
        let period = window + (limit.guard_ms() * 1000) as f64;
        match limit.algorithm() {
            Algorithm::Concurrency => {
                // A call may go on after that.
                let busy = (self.calls.iter())
                    .map(|(at, _, until)| (*until).min(end_us).saturating_sub(*at));
                (busy.sum::<u64>() as f64, max * us)
            }
            bucket if bucket.has_burst() => {
                (units as f64, f64::from(limit.burst()) + max * us / window)
            }
            aligned if aligned.rules().is_aligned() => {
                let number = |us: u64| (epoch_us + us) / (limit.window_ms() * 1000);
                let windows = number(end_us.max(self.since_us)) - number(self.since_us) + 1;
                (units as f64, max * windows as f64)
            }
            _ => (units as f64, max * (1.0 + us / period)),
        }
    }

    /// Units in its fullest window at the API, or the most calls in flight.
    pub fn fullest(&self, epoch_us: u64) -> u64 {
        let window = self.limit.window_ms() * 1000;
        match self.limit.algorithm() {
            Algorithm::Concurrency => self.most_in_flight(),
            aligned if aligned.rules().is_aligned() => {
                let number = |(at, _, _): &(u64, u64, u64)| (epoch_us + at) / window;
                let windows = self.calls.chunk_by(|one, two| number(one) == number(two));
                let units =
                    |calls: &[(u64, u64, u64)]| calls.iter().map(|(_, units, _)| units).sum();
                windows.map(units).max().unwrap_or(0)
            }
            _ => {
                let arrivals: Vec<_> = (self.calls.iter())
                    .map(|(at, units, _)| (*at, *units))
                    .collect();
                let all = windows::sliding(&arrivals, window);
                all.into_iter().max().unwrap_or(0)
            }
        }
    }

    /// What may be in one.
    pub fn allowance(&self) -> u64 {
        match self.limit.algorithm() {
            Algorithm::Concurrency => self.limit.max().into(),
            // Of the windows that it counts by; across an edge there may be twice as many.
            aligned if aligned.rules().is_aligned() => self.limit.max().into(),
            _ => self.limit.worst_case(),
        }
    }

    fn most_in_flight(&self) -> u64 {
        // An end comes before a beginning at the same moment.
        let begins = self.calls.iter().map(|(at, units, _)| (*at, true, *units));
        let ends = (self.calls.iter()).map(|(_, units, until)| (*until, false, *units));
        let mut events: Vec<_> = begins.chain(ends).collect();
        events.sort_unstable();
        let (mut now, mut most) = (0, 0);
        for (_, begins, units) in events {
            now = if begins { now + units } else { now - units };
            most = most.max(now);
        }
        most
    }
}
