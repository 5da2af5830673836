//! Usage of each limit at the API, by quota.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use foldhash::fast::RandomState;
use rules::limit::{Algorithm, Limit};
use rules::policy::Policy;
use rules::scope::Scope;
use rules::tenant::Tenant;
use trial::windows;

use super::share;
use crate::history::{RecordedCall, RunHistory};
use crate::jobs::{SimulatedJob, Text};

/// All quotas of a run.
pub(super) struct MeasuredQuotas<'a> {
    /// By limit name, then by owner.
    each: BTreeMap<&'a str, HashMap<Cow<'a, str>, MeasuredQuota, RandomState>>,
    /// The tenants of the jobs, by their IDs.
    tenants: HashMap<&'a str, Option<Tenant>, RandomState>,
    /// Names of the limits that have quotas, in the order of the configuration.
    names: Vec<&'a str>,
    epoch_us: u64,
    /// End of the run.
    end_us: u64,
}

/// One quota.
pub(super) struct MeasuredQuota {
    pub limit: Limit,
    /// When its first job was published, in microseconds.
    pub since_us: u64,
    /// Calls: arrival, units and end of the call. Times are in microseconds.
    pub calls: Vec<(u64, u64, u64)>,
}

impl<'a> MeasuredQuotas<'a> {
    /// Collects the quotas of all calls of a run that ended at `end_us`. The jobs determine which
    /// limits apply.
    pub fn of(
        policy: &'a Policy,
        jobs: &'a [SimulatedJob],
        history: &RunHistory,
        end_us: u64,
    ) -> Self {
        let mut quotas = Self {
            each: BTreeMap::new(),
            tenants: HashMap::default(),
            names: Vec::new(),
            epoch_us: history.epoch_us,
            end_us,
        };
        // Jobs published after the end used nothing and were allowed nothing.
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
                quotas.names.push(name);
            }
        }
        quotas
    }

    /// Adds a call of `job`; without a call, adds only the job's quotas.
    fn add(&mut self, policy: &'a Policy, job: &'a SimulatedJob, call: Option<&RecordedCall>) {
        let tenant = self.tenants.entry(&job.tenant);
        let Some(tenant) = tenant.or_insert_with(|| Tenant::parse(&job.tenant).ok()) else {
            return;
        };
        let limits = policy.limits(tenant, job.plan_under(policy).as_deref());
        let cost = job.cost.min(limits.max_cost());
        for limit in limits.iter() {
            let of_limit = self.each.entry(limit.name()).or_default();
            let whose = quota_owner(limit.scope(), job);
            let quota = of_limit.entry(whose).or_insert_with(|| MeasuredQuota {
                limit: limit.clone(),
                since_us: job.at_us(),
                calls: Vec::new(),
            });
            let units = limit.unit().of(cost);
            quota
                .calls
                .extend(call.map(|call| (call.at_us, units, call.until_us)));
        }
    }

    /// Returns the names of the limits.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().copied()
    }

    /// Returns the quotas of the limit `name`, each with its owner, in the order of the owners.
    pub fn of_limit(&self, name: &str) -> impl Iterator<Item = (&str, &MeasuredQuota)> + use<'_> {
        let all = self.each.get(name).into_iter().flatten();
        let mut all: Vec<_> = all.map(|(whose, quota)| (&**whose, quota)).collect();
        all.sort_unstable_by_key(|(whose, _)| *whose);
        all.into_iter()
    }

    /// Returns the busiest quota of the limit `name`: the one with the largest used share of the
    /// whole run. The share until a quota's own last call would not do, since a quota that was used
    /// once may be used up by then.
    pub fn busiest_of(&self, name: &str) -> Option<&MeasuredQuota> {
        self.most_used(self.of_limit(name).map(|(_, quota)| quota))
    }

    /// Returns the busiest quota of all limits.
    pub fn busiest(&self) -> Option<&MeasuredQuota> {
        self.most_used(self.names().filter_map(|name| self.busiest_of(name)))
    }

    /// Returns the used and the allowed amount of the whole run.
    pub fn used_in_all(&self, quota: &MeasuredQuota) -> (f64, f64) {
        quota.used_until(self.epoch_us, self.end_us)
    }

    fn most_used<'q>(
        &self,
        all: impl Iterator<Item = &'q MeasuredQuota>,
    ) -> Option<&'q MeasuredQuota> {
        let all = all.map(|quota| (share(self.used_in_all(quota)), quota));
        let busiest = all.reduce(|one, two| if two.0 > one.0 { two } else { one });
        busiest.map(|(_, quota)| quota)
    }
}

/// Describes the owner of the quota that the job uses in a limit with this scope.
fn quota_owner<'a>(scope: &Scope, job: &'a SimulatedJob) -> Cow<'a, str> {
    let tenant = &job.tenant;
    match scope {
        Scope::Global => "".into(),
        Scope::Tenant => tenant.into(),
        Scope::RoutingKey => {
            let key = job.routing_key.as_deref().unwrap_or_default();
            format!("{tenant} {key}").into()
        }
        Scope::Header(name) => match job.header_value(name) {
            Some(Text::Text(text)) => format!("{tenant} {text}").into(),
            Some(Text::Number(number)) => format!("{tenant} {number}").into(),
            None => format!("{tenant} ").into(),
        },
    }
}

impl MeasuredQuota {
    /// Returns the used and the allowed amount until the last call; for calls in flight, until the
    /// end of the last call. The unit is units, or microseconds in flight.
    pub fn used(&self, epoch_us: u64) -> (f64, f64) {
        let last = match self.limit.algorithm() {
            Algorithm::Concurrency => self.calls.iter().map(|(_, _, until)| *until).max(),
            _ => self.calls.last().map(|(at, _, _)| *at),
        };
        last.map_or((0.0, 0.0), |last| self.used_until(epoch_us, last))
    }

    /// Returns the total used amount, and the amount allowed until `end_us`.
    fn used_until(&self, epoch_us: u64, end_us: u64) -> (f64, f64) {
        let limit = &self.limit;
        let max = limit.max() as f64;
        let units: u64 = self.calls.iter().map(|(_, units, _)| units).sum();
        let us = end_us.saturating_sub(self.since_us) as f64;
        let window = (limit.window_ms() * 1000) as f64;
        // A strict limit counts a call for its duration, too.
        let held = match limit.algorithm() {
            Algorithm::Strict => self.mean_duration(),
            _ => (limit.guard_ms() * 1000) as f64,
        };
        let period = window + held;
        match limit.algorithm() {
            Algorithm::Concurrency => {
                // A call may last beyond the end.
                let busy = (self.calls.iter())
                    .map(|(at, _, until)| (*until).min(end_us).saturating_sub(*at));
                (busy.sum::<u64>() as f64, max * us)
            }
            bucket if bucket.has_burst() => {
                (units as f64, limit.burst() as f64 + max * us / window)
            }
            aligned if aligned.facts().is_aligned => {
                let start = |us: u64| limit.window_start((epoch_us + us) / 1000);
                let (first, last) = (start(self.since_us), start(end_us.max(self.since_us)));
                let windows = ((last - first) as f64 / limit.window_ms() as f64).round() + 1.0;
                (units as f64, max * windows)
            }
            _ => (units as f64, max * (1.0 + us / period)),
        }
    }

    /// Returns the mean duration of the calls, in microseconds.
    fn mean_duration(&self) -> f64 {
        let each = self.calls.iter().map(|(at, _, until)| until - at);
        each.sum::<u64>() as f64 / self.calls.len().max(1) as f64
    }

    /// Returns the units in the fullest window at the API, or the maximum number of calls in
    /// flight.
    pub fn fullest(&self, epoch_us: u64) -> u64 {
        let window = self.limit.window_ms() * 1000;
        match self.limit.algorithm() {
            Algorithm::Concurrency => self.max_in_flight(),
            aligned if aligned.facts().is_aligned => {
                let terms = self.limit.terms();
                let start =
                    |(at, _, _): &(u64, u64, u64)| terms.window_start((epoch_us + at) / 1000);
                let windows = self.calls.chunk_by(|one, two| start(one) == start(two));
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

    /// Returns the maximum that is allowed in a window.
    pub fn allowance(&self) -> u64 {
        match self.limit.algorithm() {
            Algorithm::Concurrency => self.limit.max(),
            // Windows aligned as the limit counts them. A window across an edge may hold twice as
            // much.
            aligned if aligned.facts().is_aligned => self.limit.max(),
            _ => self.limit.worst_case(),
        }
    }

    fn max_in_flight(&self) -> u64 {
        // Ends sort before beginnings of the same moment.
        let begins = self.calls.iter().map(|(at, units, _)| (*at, true, *units));
        let ends = (self.calls.iter()).map(|(_, units, until)| (*until, false, *units));
        let mut events: Vec<_> = begins.chain(ends).collect();
        events.sort_unstable();
        let (mut now, mut max) = (0, 0);
        for (_, begins, units) in events {
            now = if begins { now + units } else { now - units };
            max = max.max(now);
        }
        max
    }
}
