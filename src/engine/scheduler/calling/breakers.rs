//! This worker's view of the breakers, and its reports to them. Only a worker whose own calls fail
//! looks at the API's breaker: a worker with a broken network stops itself, and workers that get
//! answers go on.

use std::collections::HashSet;
use std::time::Duration;

use foldhash::fast::RandomState;

use super::api_throttle::{ApiThrottle, QUERY_INTERVAL};
use crate::action::JobKey;
use crate::scheduler::outbox::Outbox;
use gate::{BreakerEvent, BreakerScope, GateError, Rule, Standing, Standings};
use rules::failures::breaker::Trouble;
use rules::tenant::{self, Tenant};

/// Maximum number of remembered tenants with failures. Beyond it, every success is reported.
const MAX_TENANTS: usize = 10_000;
/// Interval at which jobs that wait in memory are checked while nothing starts.
const LET_GO_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of reports per request.
const MAX_REPORTS_PER_REQUEST: usize = 256;
/// Maximum length of a stored reason, in characters.
const MAX_REASON_CHARS: usize = 200;

/// This worker's view of the API's breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ApiBreaker {
    /// This worker knows of no failures.
    Healthy,
    /// There were failures, so a success must be reported.
    Failing,
    /// Nothing starts. The breaker is checked at `next_check`, or as soon as a job wants to start
    /// if the probe is `free`.
    Open { next_check: Duration, free: bool },
    /// The next probe was requested, or the last probe's failure is being reported.
    Asking,
    /// One job may start. This was granted at `now_ms` of the store's clock.
    Granted { now_ms: u64 },
    /// The probe runs, or its call is being prepared.
    Probing { key: JobKey, now_ms: u64 },
}

impl ApiBreaker {
    /// Returns the view after the gate answered `event` with `standing`. `has_failures`: the gate
    /// counts failures, or this worker has some to report.
    fn after(
        self,
        now: Duration,
        event: &BreakerEvent,
        standing: &Standing,
        has_failures: bool,
    ) -> Self {
        let is_read = *event == BreakerEvent::Read;
        match self {
            // This only checked for a throttle of all tenants.
            Self::Healthy | Self::Failing if is_read => self,
            // A failure from before the breaker opened does not end the probe.
            Self::Granted { .. } | Self::Probing { .. } if standing.is_open => self,
            _ if standing.is_granted => Self::Granted {
                now_ms: standing.now_ms,
            },
            _ if standing.is_open => {
                let wait = standing.closed_until_ms.saturating_sub(standing.now_ms);
                let next = match is_read {
                    true => QUERY_INTERVAL,
                    false => Duration::from_millis(wait).min(QUERY_INTERVAL),
                };
                Self::Open {
                    next_check: now + next,
                    // A worker that wants no probe would find the breaker half-open each time.
                    free: is_read && wait == 0,
                }
            }
            _ if has_failures => Self::Failing,
            _ => Self::Healthy,
        }
    }
}

/// A call that has ended.
#[derive(Debug)]
pub struct EndedCall<'a> {
    /// The job.
    pub key: JobKey,
    /// The job's ID.
    pub id: &'a str,
    /// The job's tenant.
    pub tenant: &'a Tenant,
    /// The store's clock at its start, or at the start of its preparation if it did not start.
    pub began_ms: u64,
    /// Whether it has started.
    pub has_started: bool,
}

/// A failed job that waits until its failure is reported, because only then is it known whether an
/// attempt is used.
#[derive(Debug, PartialEq, Eq)]
pub struct FailedJob {
    /// The job.
    pub key: JobKey,
    /// When its handler wants it to be tried again.
    pub after: Option<Duration>,
    /// Why it failed.
    pub reason: String,
    /// Whether the API may have seen the call. A call that it can't have seen uses no attempt.
    pub has_called: bool,
}

#[derive(Debug)]
struct BreakerReport {
    events: Vec<(BreakerScope, BreakerEvent)>,
    job: Option<FailedJob>,
}

/// The outcome of a report.
#[derive(Debug, PartialEq, Eq)]
pub enum ReportOutcome {
    /// A job's failure was reported. `Some(true)`: a breaker is open, so no attempt is used.
    /// `None`: this is not known.
    Failed(FailedJob, Option<bool>),
    /// A breaker opened (true) or closed, for this reason.
    Changed(BreakerScope, bool, String),
    /// All tenants are throttled for this time, as another worker reported for this reason.
    AllStopped(Duration, String),
}

/// This worker's part in the breakers.
#[derive(Debug)]
pub struct Breakers {
    rule: Option<Rule>,
    failing: HashSet<Tenant, RandomState>,
    api: ApiBreaker,
    api_throttle: ApiThrottle,
    reports: Outbox<BreakerReport>,
    /// When jobs that wait in memory are next checked.
    next_release: Duration,
}

impl Breakers {
    /// Creates the state of a worker that knows nothing yet. Without a rule there are no breakers.
    pub fn new(rule: Option<Rule>) -> Self {
        Self {
            rule,
            failing: HashSet::default(),
            api: ApiBreaker::Healthy,
            api_throttle: ApiThrottle::default(),
            reports: Outbox::default(),
            next_release: Duration::ZERO,
        }
    }

    /// Sets the rule of later reports.
    pub fn set_rule(&mut self, rule: Option<Rule>) {
        self.rule = rule;
    }

    /// Returns true if breakers are configured.
    pub fn are_enabled(&self) -> bool {
        self.rule.is_some()
    }

    /// Returns true if everything is reported.
    pub fn is_empty(&self) -> bool {
        self.reports.is_empty()
    }

    /// Returns true if the API's breaker is open, as far as this worker knows.
    pub fn is_open(&self) -> bool {
        !matches!(self.api, ApiBreaker::Healthy | ApiBreaker::Failing)
    }

    /// Returns true if the API throttles all tenants, as far as this worker knows.
    pub fn is_throttled(&self, now: Duration) -> bool {
        now < self.api_throttle.until()
    }

    /// Returns true if nothing starts except a probe: the API's breaker is open, or all tenants are
    /// throttled.
    pub fn is_shut(&self, now: Duration) -> bool {
        self.is_open() || self.is_throttled(now)
    }

    /// Returns true if jobs may ask.
    pub fn may_ask(&self, now: Duration) -> bool {
        let may = match self.api {
            ApiBreaker::Healthy | ApiBreaker::Failing => !self.api_throttle.is_stale(now),
            api => matches!(api, ApiBreaker::Granted { .. }),
        };
        may && !self.is_throttled(now)
    }

    /// Returns true if only one job may ask: the probe.
    pub fn only_one(&self) -> bool {
        matches!(self.api, ApiBreaker::Granted { .. })
    }

    /// Records that a job starts, or that its call is being prepared.
    pub fn started(&mut self, key: JobKey) {
        if let ApiBreaker::Granted { now_ms } = self.api {
            self.api = ApiBreaker::Probing { key, now_ms };
        }
    }

    /// Records that the call of the probe is prepared, so that it may ask for its permit.
    pub fn prepared(&mut self, key: JobKey) {
        if let Some(now_ms) = self.probe(key) {
            self.api = ApiBreaker::Granted { now_ms };
        }
    }

    /// Returns when the job became the API's probe (store's clock), or `None` if it is not the
    /// probe.
    fn probe(&self, job: JobKey) -> Option<u64> {
        match self.api {
            ApiBreaker::Probing { key, now_ms } if key == job => Some(now_ms),
            _ => None,
        }
    }

    /// Records that the job that asked as the probe did not start.
    pub fn not_started(&mut self) {
        if let ApiBreaker::Granted { now_ms } = self.api {
            let release = BreakerEvent::Release { started_ms: now_ms };
            self.queue_report(vec![(BreakerScope::Api, release)], None);
            self.api = ApiBreaker::Open {
                next_check: Duration::ZERO,
                free: false,
            };
        }
    }

    /// Gives up the probe, unless the call of its job runs.
    pub fn release_probe(&mut self, runs: impl FnOnce(JobKey) -> bool) {
        match self.api {
            ApiBreaker::Probing { key, .. } if !runs(key) => self.record_departure(key),
            _ => self.not_started(),
        }
    }

    /// Records that the job left while its call was being prepared.
    pub fn record_departure(&mut self, key: JobKey) {
        if self.probe(key).is_some() {
            self.prepared(key);
            self.not_started();
        }
    }

    /// Records that a permit of `tenant` was not used: its call was not made.
    pub fn unused(&mut self, tenant: &Tenant, started_ms: u64) {
        let events = self.release(tenant, started_ms);
        if !events.is_empty() {
            self.queue_report(events, None);
        }
    }

    /// Records the gate's view of whether calls of `tenant` have failed in a row.
    pub fn record_failures(&mut self, tenant: &Tenant, has_failures: bool) {
        if has_failures {
            if !self.may_have_failures(tenant) {
                self.failing.insert(tenant.clone());
            }
        } else if !self.has_unreported_failures() {
            self.failing.remove(tenant);
        }
    }

    /// Returns true if failures are queued that only this worker knows.
    fn has_unreported_failures(&self) -> bool {
        let fails = |(_, event): &(BreakerScope, BreakerEvent)| {
            matches!(event, BreakerEvent::Failed { .. })
        };
        let reports = self.reports.iter();
        reports.flat_map(|report| &report.events).any(fails)
    }

    /// Returns true if calls of `tenant` may have failed in a row. If too many tenants have
    /// failures to be remembered, that is true for all.
    pub fn may_have_failures(&self, tenant: &Tenant) -> bool {
        self.failing.len() >= MAX_TENANTS || self.failing.contains(tenant)
    }

    /// Reports a failed call. `job` waits until the report has arrived.
    pub fn failed(
        &mut self,
        ended: &EndedCall<'_>,
        (trouble, reason): (Trouble, &str),
        jitter: u32,
        job: Option<FailedJob>,
    ) {
        if trouble == Trouble::Local {
            return self.no_outcome(ended);
        }
        let probe = self.probe(ended.key);
        if probe.is_some() {
            self.api = ApiBreaker::Asking;
        }
        let by: String = reason.chars().take(MAX_REASON_CHARS).collect();
        let failed = |started_ms, of| BreakerEvent::Failed {
            started_ms,
            of,
            reason: by.clone(),
            jitter,
        };
        let started_ms = probe.unwrap_or(0);
        // A success after this must be reported, even before the gate has counted the failure.
        if self.api == ApiBreaker::Healthy && trouble != Trouble::Tenant {
            self.api = ApiBreaker::Failing;
        }
        if trouble != Trouble::Unreachable {
            self.record_failures(ended.tenant, true);
        }
        let own = (
            BreakerScope::Tenant(ended.tenant.clone()),
            failed(ended.began_ms, tenant::encode(ended.id)),
        );
        let events = match trouble {
            Trouble::Failing => vec![
                own,
                (BreakerScope::Api, failed(started_ms, ended.tenant.key())),
            ],
            Trouble::Tenant | Trouble::Local => {
                let release =
                    |started_ms| (BreakerScope::Api, BreakerEvent::Release { started_ms });
                std::iter::once(own).chain(probe.map(release)).collect()
            }
            Trouble::Unreachable => {
                let mut events = self.release_own(ended);
                events.push((BreakerScope::Api, failed(started_ms, String::new())));
                events
            }
        };
        self.queue_report(events, job);
    }

    /// Reports a call whose answer shows that the API is sound.
    pub fn succeeded(&mut self, ended: &EndedCall<'_>) {
        let mut events = Vec::new();
        if self.may_have_failures(ended.tenant) {
            self.failing.remove(ended.tenant);
            events.push((
                BreakerScope::Tenant(ended.tenant.clone()),
                BreakerEvent::Succeeded,
            ));
        }
        let sound = (BreakerScope::Api, BreakerEvent::Succeeded);
        let is_queued = |report: &BreakerReport| report.events.last() == Some(&sound);
        if self.api != ApiBreaker::Healthy && !self.reports.waiting().back().is_some_and(is_queued)
        {
            self.api = ApiBreaker::Failing;
            events.push(sound);
        }
        if !events.is_empty() {
            self.queue_report(events, None);
        }
    }

    /// Records a call that shows nothing of the API's health.
    pub fn no_outcome(&mut self, ended: &EndedCall<'_>) {
        let mut events = self.release_own(ended);
        if let Some(started_ms) = self.probe(ended.key) {
            events.push((BreakerScope::Api, BreakerEvent::Release { started_ms }));
            self.api = ApiBreaker::Asking;
        }
        if !events.is_empty() {
            self.queue_report(events, None);
        }
    }

    /// Returns the events that end the tenant's probe, if the call was that probe.
    fn release_own(&self, ended: &EndedCall<'_>) -> Vec<(BreakerScope, BreakerEvent)> {
        match ended.has_started {
            true => self.release(ended.tenant, ended.began_ms),
            false => Vec::new(),
        }
    }

    /// Returns the event that ends the probe of `tenant`, if the call that started at `started_ms`
    /// may have been the probe.
    fn release(&self, tenant: &Tenant, started_ms: u64) -> Vec<(BreakerScope, BreakerEvent)> {
        let release = || {
            let tenant = BreakerScope::Tenant(tenant.clone());
            (tenant, BreakerEvent::Release { started_ms })
        };
        let known = started_ms > 0 && self.may_have_failures(tenant);
        known.then(release).into_iter().collect()
    }

    fn queue_report(&mut self, events: Vec<(BreakerScope, BreakerEvent)>, job: Option<FailedJob>) {
        self.reports.push(BreakerReport { events, job });
    }

    /// Checks the API's breaker if it is time. `wants`: a job wants to start, and would be the
    /// probe. `watches`: an answer to another worker may have stopped all tenants.
    pub fn check(&mut self, now: Duration, wants: bool, watches: impl Fn() -> bool) {
        match self.api {
            ApiBreaker::Open { next_check, free } if next_check <= now || free && wants => {
                self.api = ApiBreaker::Asking;
                let event = if wants {
                    BreakerEvent::Probe
                } else {
                    BreakerEvent::Read
                };
                self.queue_report(vec![(BreakerScope::Api, event)], None);
            }
            ApiBreaker::Healthy | ApiBreaker::Failing
                if (wants || now < self.api_throttle.until())
                    && self.api_throttle.should_ask(now, &watches) =>
            {
                self.queue_report(vec![(BreakerScope::Api, BreakerEvent::Read)], None);
            }
            _ => {}
        }
    }

    /// Records that an answer of the API stopped all tenants until `until`. `is_known`: this
    /// is stored.
    pub fn throttled(&mut self, until: Duration, is_known: bool) {
        match is_known {
            true => self.api_throttle.stored(until),
            false => self.api_throttle.throttled(until),
        }
    }

    /// Returns true if the API's breaker is open and it is time to let jobs go that have waited in
    /// memory for long, since another worker may reach the API. Begins the next interval.
    pub fn should_release_waiting(&mut self, now: Duration) -> bool {
        let lets_go = self.is_open() && now >= self.next_release;
        if lets_go {
            self.next_release = now + LET_GO_INTERVAL;
        }
        lets_go
    }

    /// Returns when [`Breakers::check`] or [`Breakers::should_release_waiting`] has something to do
    /// while nothing starts, or when jobs may start again.
    pub fn next(&self, now: Duration) -> Option<Duration> {
        let next_release = self.is_open().then_some(self.next_release);
        self.next_check(now).into_iter().chain(next_release).min()
    }

    fn next_check(&self, now: Duration) -> Option<Duration> {
        match self.api {
            ApiBreaker::Open { next_check, .. } => Some(next_check),
            _ if !self.is_throttled(now) => None,
            ApiBreaker::Healthy | ApiBreaker::Failing => {
                Some(self.api_throttle.until().min(self.api_throttle.ask_at()))
            }
            _ => Some(self.api_throttle.until()),
        }
    }

    /// Returns the reports to send now, or `None` while a request is in flight.
    pub fn send(&mut self, now: Duration) -> Option<(Rule, Vec<(BreakerScope, BreakerEvent)>)> {
        let rule = self.rule.unwrap_or(Rule::NONE);
        let reports = self.reports.send(now, MAX_REPORTS_PER_REQUEST)?;
        let events = reports.iter().flat_map(|report| report.events.clone());
        self.api_throttle.asked();
        Some((rule, events.collect()))
    }

    /// Handles the result of the last request.
    pub fn report_result(
        &mut self,
        now: Duration,
        result: Result<Standings, GateError>,
    ) -> Vec<ReportOutcome> {
        let mut standings = match result {
            Ok(standings) => standings.into_iter(),
            Err(_) => Vec::new().into_iter(),
        };
        let mut outcomes = Vec::new();
        for BreakerReport { events, job } in self.reports.take_sent() {
            let mut open = Some(false);
            for (scope, event) in events {
                let Some(Ok(standing)) = standings.next() else {
                    open = open.filter(|open| *open);
                    if scope == BreakerScope::Api {
                        self.api_throttle.store_failed(now);
                        if self.api == ApiBreaker::Asking {
                            let next_check = now + QUERY_INTERVAL;
                            self.api = ApiBreaker::Open {
                                next_check,
                                free: false,
                            };
                        }
                    }
                    continue;
                };
                if standing.is_open && matches!(event, BreakerEvent::Failed { .. }) {
                    open = Some(true);
                }
                if standing.has_changed {
                    let is_open = standing.is_open;
                    outcomes.push(ReportOutcome::Changed(
                        scope.clone(),
                        is_open,
                        standing.reason.clone(),
                    ));
                }
                match &scope {
                    BreakerScope::Tenant(tenant) => {
                        self.record_failures(tenant, standing.failures > 0)
                    }
                    BreakerScope::Api => {
                        let left = standing.named_until_ms.saturating_sub(standing.now_ms);
                        let left = Duration::from_millis(left);
                        if self.api_throttle.store_replied(now, left) {
                            outcomes.push(ReportOutcome::AllStopped(left, standing.reason.clone()));
                        }
                        let has_failures = standing.failures > 0 || self.has_unreported_failures();
                        self.api = self.api.after(now, &event, &standing, has_failures);
                    }
                }
            }
            if let Some(job) = job {
                outcomes.push(ReportOutcome::Failed(job, open));
            }
        }
        outcomes
    }
}
