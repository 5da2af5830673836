//! Explains why and until when a tenant's jobs wait. Collects what the gate knows of the tenant,
//! and returns it as text and as JSON.

mod description;
mod forecast;
mod learned;
mod levels;
mod other_policies;
mod shadows;
mod waits;
mod what_if;

use std::collections::BTreeMap;
use std::ops::Deref;

pub use self::description::UsedLimit;
pub(super) use self::description::counts_cost;
use self::description::{describe, used};
use self::forecast::Forecast;
pub use self::forecast::WhatIfAnswer;
use self::levels::Levels;
pub use self::other_policies::OtherConfiguration;
use self::other_policies::OtherPolicy;
pub use self::shadows::ShadowAnswer;
use self::waits::WaitReason;
pub use self::what_if::WhatIf;
use super::advertised::{self, AdvertisedLimit};
use super::answer::answers;
use super::hold::HeldWord;
use super::labels::GivenLabels;
use super::overview::{ALL_UNKNOWN, describe_all_suspended};
use super::recovery::Recovery;
use super::text::plain;
use super::times::when;
use super::{NotDone, hold, limits, trials};
use config::Config;
use gate::epoch::NOTICED_WITHIN;
use gate::fleet::registry::{self, NamedPolicy};
use gate::instructions::{self, BoardView};
use gate::redis::RedisGate;
use gate::{
    BreakerEvent, BreakerScope, Gate as _, GateError, Inspection, Rule, Standing, UsageOfLimit,
};
use rules::gate::forecast::ForecastRequest;
use rules::job::priority::Priorities;
use rules::limit::{Limit, Limits, floor_ms};
use rules::policy::Policy;
use rules::scope::{Labels, Scope};
use rules::steering::{Hold, Steering};
use rules::tenant::Tenant;

/// Shortest round trip to Redis that the text mentions, in milliseconds.
const MIN_SHOWN_ROUND_TRIP_MS: u64 = 10;

/// The warning if no worker has the limits of the configuration.
pub const NOT_IN_FORCE: &str = "no worker enforces the limits of this configuration";

/// An effective limit and its usage.
type LimitUsage<'a> = (&'a Limit, &'a UsageOfLimit);

/// Everything known of a tenant.
pub struct TenantInspection {
    tenant: Tenant,
    source: String,
    hint: Option<String>,
    limits: Limits,
    given: GivenLabels,
    found: Inspection,
    levels: Levels,
    recovery: Recovery,
    all: Result<Standing, String>,
    held: Result<PostedInstructions, String>,
    advertised: Vec<AdvertisedLimit>,
    round_trip_ms: u64,
    in_force: bool,
    others: Vec<OtherPolicy>,
    unread: Vec<String>,
    forecast: Option<Forecast>,
}

/// Asks the gate for everything that it knows of `tenant`, for jobs that name `plan`. `labels`
/// returns the labels of the jobs to inspect, given the limits in force. With `what_if`,
/// hypothetical changes, includes a forecast of the backlog.
///
/// # Errors
/// [`NotDone::Wrong`] if the plan does not exist, no limit has such labels, or a change in
/// `what_if` is impossible; [`NotDone::Redis`] if Redis can't be asked.
pub async fn inspect(
    gate: &RedisGate,
    config: &Config,
    (tenant, plan): (Tenant, Option<&str>),
    labels: impl FnOnce(&[Limit]) -> Result<GivenLabels, NotDone>,
    what_if: &[WhatIf],
) -> Result<TenantInspection, NotDone> {
    let policy = &config.rate_limiter.policy;
    let (source, _) = limits::of(policy, &tenant, plan)?;
    let registered = registry::read_policies(gate).await?;
    let own = NamedPolicy::new(policy.clone())?;
    let mut fleet = registered.fleet(&own);
    let registry::RegisteredPolicies {
        known,
        now_ms,
        failed,
        ..
    } = registered;
    let limits = fleet.limits(&tenant, plan);
    let given = labels(limits.all())?;
    let would_be = match what_if {
        [] => None,
        changes => Some(would_be(policy, &tenant, changes, (&limits, &given))?),
    };
    let held = held_by_operator(gate).await;
    let shown = match &held {
        Ok(held) => held.with_tried(&tenant, limits.clone()),
        Err(_) => limits.clone(),
    };
    let priorities = &config.job.priorities;
    let (mut found, levels) =
        levels::inspect(gate, &tenant, &given.labels, &shown, priorities).await?;
    if limits.len() > 1 && found.waiting > 0 && given.missing.is_empty() {
        let partition = (&tenant, &given.labels);
        correct_end(gate, partition, &limits, priorities, (&mut found, &levels)).await;
    }
    let round_trip_ms = measure_round_trip(gate, &failed).await?;
    let (all, recovery) = around(gate, &tenant, &limits, policy).await?;
    let forecast = match would_be {
        None => None,
        Some(mut asked) => {
            asked.not_before_ms = not_before(&recovery, &all);
            let partition = (&tenant, &given.labels);
            let what = (what_if, &asked);
            let waits = (priorities, found.widest);
            Some(forecast::forecast(gate, partition, &limits, what, waits).await?)
        }
    };
    let others: Vec<_> = (known.policies().iter())
        .filter(|other| other.id != own.id)
        .collect();
    let in_force = others.is_empty() || known.find(&own.id).is_some();
    let others: Vec<OtherPolicy> = (others.into_iter())
        .filter(|other| fleet.enforces(&other.policy, &tenant, plan))
        .map(|other| OtherPolicy::new((policy, other), (&known, now_ms), (&tenant, plan)))
        .collect();
    let with_max = |(limit, usage): (&Limit, &UsageOfLimit)| limit.clone().with_max(usage.max);
    let ours: Vec<Limit> = limits.iter().zip(&found.limits).map(with_max).collect();
    Ok(TenantInspection {
        source: source.to_string(),
        hint: hint(policy, plan),
        advertised: advertised::compare(&found, &ours),
        all: all.map_err(|why| plain(&why.to_string(), 200)),
        in_force,
        unread: (failed.iter())
            .map(|why| plain(&why.to_string(), 200))
            .collect(),
        tenant,
        limits: shown,
        given,
        found,
        levels,
        recovery,
        held,
        round_trip_ms,
        others,
        forecast,
    })
}

/// Corrects the end of the waitlist in `found`, which considers each limit alone, although several
/// limits delay each other. Keeps it if there is no forecast.
async fn correct_end(
    gate: &RedisGate,
    partition: (&Tenant, &Labels),
    limits: &Limits,
    priorities: &Priorities,
    (found, levels): (&mut Inspection, &Levels),
) {
    let asked = ForecastRequest::as_it_is(limits, 0);
    let waits = (priorities, found.widest);
    if let Ok(all) = forecast::forecast(gate, partition, limits, (&[], &asked), waits).await {
        let ends_ms = all.ends_at_ms().saturating_sub(found.now_ms);
        found.waitlist_end_ms = found.waitlist_end_ms.max(ends_ms);
        if levels.is_empty() {
            // There is a single waitlist, so a new job comes after the last one.
            found.turn_ms = found.turn_ms.max(found.waitlist_end_ms);
        }
    }
}

/// Measures a round trip to Redis, in milliseconds. `failed` are the errors of primaries that are
/// known already.
async fn measure_round_trip(gate: &RedisGate, failed: &[GateError]) -> Result<u64, GateError> {
    // If a primary of a cluster does not answer, `failed` names it already, so a failed measurement
    // is no error then.
    let measured = gate.measure().await;
    if failed.is_empty() {
        measured?;
    }
    Ok(floor_ms(gate.base()))
}

/// Returns the API's breaker, which can suspend all tenants, and the state of the recovery wait.
pub(super) async fn around(
    gate: &RedisGate,
    tenant: &Tenant,
    limits: &Limits,
    policy: &Policy,
) -> Result<(Result<Standing, GateError>, Recovery), GateError> {
    let probe = [(BreakerScope::Api, BreakerEvent::Read)];
    // In a cluster, the primary with the API's breaker may be unavailable while the tenant's
    // primary answers.
    let all = (gate.report(&Rule::NONE, &probe).await?).into_iter().next();
    let all = all.unwrap_or_else(|| Ok(Standing::default()));
    let recovery = match gate.outlook(Some(tenant), limits, policy).await {
        Ok(looks) => looks
            .into_iter()
            .next()
            .map_or(Recovery::NoWorker, Recovery::from),
        Err(why) => Recovery::from(Err(why)),
    };
    Ok((all, recovery))
}

/// Returns the limits that would be enforced after `changes`.
fn would_be(
    policy: &Policy,
    tenant: &Tenant,
    changes: &[WhatIf],
    (now, given): (&Limits, &GivenLabels),
) -> Result<ForecastRequest, NotDone> {
    if !given.missing.is_empty() {
        return Err(NotDone::Wrong(format!(
            "what-if: there is a backlog per {}; choose one by its value",
            given.lacking()
        )));
    }
    what_if::hypothetical(changes, now, |plan| {
        limits::of(policy, tenant, Some(plan))?;
        Ok(policy.plan(plan).unwrap_or(now).clone())
    })
}

/// Returns until when (Unix ms) the recovery wait or the API's breaker lets no job start; 0 if
/// neither applies.
pub(super) fn not_before(recovery: &Recovery, all: &Result<Standing, GateError>) -> u64 {
    let recovers = match recovery {
        Recovery::Waits { until_ms, .. } => *until_ms,
        _ => 0,
    };
    let closed = all.as_ref().map_or(0, |all| all.closed_until_ms);
    recovers.max(closed)
}

impl TenantInspection {
    fn rows(&self) -> Vec<LimitUsage<'_>> {
        self.limits.iter().zip(&self.found.limits).collect()
    }

    /// Returns what a new job of the tenant would wait for.
    fn waits<'a>(&'a self, rows: &[LimitUsage<'a>]) -> WaitReason<'a> {
        match self.stop() {
            Some((word, description)) => WaitReason::Stop(word, description),
            None => WaitReason::of(rows, &self.given, &self.found, &self.recovery),
        }
    }

    /// Returns what stops the tenant's jobs even if its own limits have quota, as a keyword and a
    /// sentence.
    fn stop(&self) -> Option<(&'static str, String)> {
        if let Some(why) = self.recovery.refused() {
            return Some((waits::REFUSED, format!("no job is admitted: {why}")));
        }
        if let Ok(held) = &self.held {
            if held.hold == Some(Hold::Paused) {
                let description = "all workers are paused: no job is called before `resume --all`";
                return Some(("pause", description.to_owned()));
            }
            if let Some(queue) = held.diverts(&self.tenant) {
                let queue = plain(queue, 255);
                let description = format!(
                    "its jobs move to {queue} instead of being called: `tenant undivert` ends the \
                    divert"
                );
                return Some(("divert", description));
            }
            if held.hold == Some(Hold::Draining) {
                let description =
                    "workers are drained: a new job waits in the work queue for `resume --all`";
                return Some(("drain", description.to_owned()));
            }
        }
        let (all, now_ms) = (self.all.as_ref().ok()?, self.found.now_ms);
        let left_ms = all.closed_until_ms.saturating_sub(now_ms);
        let own_ms = self.found.blocked_until_ms.saturating_sub(now_ms);
        let until = match left_ms {
            0 if all.is_open => {
                "all tenants together make one call at a time, until a call succeeds".to_owned()
            }
            _ => format!(
                "no job of any tenant is called before the suspension ends, {}",
                when(now_ms, left_ms)
            ),
        };
        let stops =
            left_ms > own_ms.max(self.recovery.in_ms()) || all.is_open && left_ms + own_ms == 0;
        let by = plain(&all.reason, 200);
        stops.then(|| {
            (
                "all-suspended",
                format!("all tenants are suspended ({by}): {until}"),
            )
        })
    }

    /// Returns the queue to which the tenant's jobs are diverted.
    fn diverted_to(&self) -> Option<String> {
        let queue = self.held.as_ref().ok()?.diverts(&self.tenant)?;
        Some(queue.to_string())
    }

    /// Returns the inspection as it is answered.
    pub fn answer(&self) -> InspectionAnswer {
        let (rows, found) = (self.rows(), &self.found);
        let waits = self.waits(&rows);
        let (recovery_wait_until_ms, recovery_wait_reason) = self.recovery.known();
        let one_waitlist = self.given.missing.is_empty();
        let (all, held) = (self.all.as_ref(), self.held.as_ref());
        let missing = self.given.missing.iter().map(Scope::to_string);
        InspectionAnswer {
            tenant: self.tenant.to_string(),
            source: self.source.clone(),
            now_ms: found.now_ms,
            labels: self.given.shown(),
            labels_missing: missing.collect(),
            limits: (rows.iter().map(|row| used(row, &self.given))).collect(),
            shadows: (self.shadows().map(|row| row.answer(&self.given))).collect(),
            waiting: one_waitlist.then_some(found.waiting),
            waiting_by_level: self.levels.iter().cloned().collect(),
            waitlist_end_in_ms: one_waitlist.then_some(found.waitlist_end_ms),
            new_job_in_ms: (self.recovery.admits_in_ms(found.turn_ms)).filter(|_| one_waitlist),
            recovery_wait_until_ms,
            recovery_wait_reason,
            suspended_until_ms: found.blocked_until_ms,
            suspended_by: found.blocked_by.clone(),
            all_suspended_until_ms: all.ok().map(|all| all.closed_until_ms),
            all_suspended_by: all.ok().map(|all| all.reason.clone()),
            all_suspended_unread: all.err().cloned(),
            held: held
                .ok()
                .and_then(|held| held.hold)
                .map(|hold| hold.keyword().into()),
            diverted_to: self.diverted_to(),
            waits_for: waits.short(),
            reason: waits.describe(&self.given, found, counts_cost(&rows, found)),
            advertised: self.advertised.clone(),
            advertised_at_ms: found.quotas_at_ms,
            redis_round_trip_ms: self.round_trip_ms,
            in_force: self.in_force,
            other_configurations: (self.others.iter().map(|other| other.shown.clone())).collect(),
            other_configurations_unread: self.unread.clone(),
            what_if: self.forecast.as_ref().map(Forecast::answer),
        }
    }

    /// Returns the inspection as text.
    pub fn describe(&self) -> String {
        let source = match &self.hint {
            Some(hint) => format!("{} ({hint})", self.source),
            None => self.source.clone(),
        };
        let (rows, found) = (self.rows(), &self.found);
        let mut text = describe(
            &self.tenant,
            &source,
            &rows,
            &self.given,
            (found, &self.levels),
            (&self.recovery, &self.waits(&rows)),
        );
        for row in self.shadows() {
            text += &row.describe(&self.given);
        }
        let all = match &self.all {
            Ok(all) => describe_all_suspended(all, all.now_ms),
            Err(why) => Some(format!("{ALL_UNKNOWN}: {why}")),
        };
        text += &all.map_or_else(String::new, |words| format!("all       {words}\n"));
        match &self.held {
            Ok(held) => {
                text += &held.description;
                if let Some(queue) = held.diverts(&self.tenant) {
                    let queue = plain(queue, 255);
                    text += &format!(
                        "diverted  its jobs move to {queue}; tenant undivert ends \
                        the divert\n"
                    );
                }
            }
            Err(why) => text += &format!("all       operators' instructions are unknown: {why}\n"),
        }
        text += &advertised::describe(found, &self.advertised);
        if let Some(words) = describe_round_trip(self.round_trip_ms) {
            text += &format!("redis     {words}\n");
        }
        for other in &self.others {
            text += &other.describe();
        }
        for why in &self.unread {
            text += &format!(
                "also      the other policies at a primary of the cluster are unknown: {why}\n"
            );
        }
        if let Some(forecast) = &self.forecast {
            text += &forecast.describe(counts_cost(&self.rows(), found));
        }
        if !self.in_force {
            text += &format!("also      {NOT_IN_FORCE}\n");
        }
        text
    }
}

answers! {
    /// Everything known of a tenant.
    #[derive(Default)]
    pub struct InspectionAnswer {
        pub tenant: String,
        pub source: String,
        pub now_ms: u64,
        pub labels: BTreeMap<String, String>,
        pub labels_missing: Vec<String>,
        pub limits: Vec<UsedLimit>,
        pub shadows: Vec<ShadowAnswer>,
        pub waiting: Option<u64>,
        pub waiting_by_level: BTreeMap<String, u64>,
        pub waitlist_end_in_ms: Option<u64>,
        pub new_job_in_ms: Option<u64>,
        pub recovery_wait_until_ms: Option<u64>,
        pub recovery_wait_reason: Option<String>,
        pub suspended_until_ms: u64,
        pub suspended_by: String,
        pub all_suspended_until_ms: Option<u64>,
        pub all_suspended_by: Option<String>,
        pub all_suspended_unread: Option<String>,
        pub held: Option<HeldWord>,
        pub diverted_to: Option<String>,
        pub waits_for: Option<String>,
        pub reason: String,
        pub advertised: Vec<AdvertisedLimit>,
        pub advertised_at_ms: u64,
        pub redis_round_trip_ms: u64,
        pub in_force: bool,
        pub other_configurations: Vec<OtherConfiguration>,
        pub other_configurations_unread: Vec<String>,
        pub what_if: Option<WhatIfAnswer>,
    }
}

impl InspectionAnswer {
    /// Returns when all workers have noticed the latest end of the recovery wait (ms), or `None` if
    /// it is over or unknown.
    pub fn recovery_noticed_ms(&self) -> Option<u64> {
        let until_ms = self.recovery_wait_until_ms?;
        (until_ms > self.now_ms).then(|| until_ms.saturating_add(floor_ms(NOTICED_WITHIN)))
    }
}

/// Instructions of operators to all workers.
struct PostedInstructions {
    steering: Steering,
    description: String,
    seen: Vec<BoardView>,
}

impl PostedInstructions {
    /// Returns until when (Unix ms) an operator's trial of another `max` for the tenant's limit
    /// lasts, or `None` if there is no trial.
    fn tries(&self, tenant: &Tenant, limit: &str) -> Option<u64> {
        trials::until(&self.seen, tenant, limit)
    }
}

impl Deref for PostedInstructions {
    type Target = Steering;

    fn deref(&self) -> &Steering {
        &self.steering
    }
}

async fn held_by_operator(gate: &RedisGate) -> Result<PostedInstructions, String> {
    let seen = instructions::see(gate).await;
    let seen = seen.map_err(|why| plain(&why.to_string(), 200))?;
    let mut description = hold::describe_hold(&seen);
    if !description.is_empty() {
        description = format!("all       {description}\n");
    }
    let steering = instructions::in_force(&seen);
    Ok(PostedInstructions {
        steering,
        description,
        seen,
    })
}

/// Describes a round trip to Redis that noticeably delays calls; `None` if it does not.
pub fn describe_round_trip(ms: u64) -> Option<String> {
    (ms >= MIN_SHOWN_ROUND_TRIP_MS)
        .then(|| format!("a round trip takes {ms} ms, which delays each permit"))
}

/// Returns a hint to add `--plan`, or `None` if it is not needed.
fn hint(policy: &Policy, plan: Option<&str>) -> Option<String> {
    let header = policy.plan_header().filter(|_| plan.is_none())?;
    Some(format!(
        "a job that names a plan in {header} may have other limits: --plan"
    ))
}
