//! Changes that an operator makes to one tenant, effective at once for all workers.

use super::answer::{Omittable, answers, words};
use super::steer::Followers;
use super::times::at;
use super::wake::wake;
use super::{NotDone, trials};
use config::closest;
use gate::redis::RedisGate;
use gate::{BreakerScope, Change, Gate as _};
use rules::limit::{Limit, Limits};
use rules::policy::{LimitsSource, Policy};
use rules::tenant::Tenant;

/// Parses a tenant's name.
///
/// # Errors
/// [`NotDone::Wrong`] if no tenant can have this name.
pub fn parse(tenant: &str) -> Result<Tenant, NotDone> {
    Tenant::parse(tenant).map_err(|error| NotDone::Wrong(error.to_string()))
}

/// A finished action on a tenant.
pub struct DoneAction {
    /// The answer to the operator.
    pub answer: Changed,
    /// The same as a line of text.
    pub text: String,
}

/// Applies the change, for all workers from their next decision on. If jobs may start earlier by
/// it, waiting jobs ask again. Setting a limit to the value that is [tried](trials), or back to the
/// configured value, ends the trial.
///
/// # Errors
/// [`NotDone::Redis`]
pub async fn change(
    gate: &RedisGate,
    tenant: Tenant,
    change: Change,
) -> Result<DoneAction, NotDone> {
    let until_ms = gate.change(&tenant.clone().into(), &change).await?;
    let ended = match &change {
        Change::Limit { name, max, .. } => Some(trials::ended_by(&tenant, name, Some(*max))),
        Change::Unlimit { name } => Some(trials::ended_by(&tenant, name, None)),
        Change::Pause { .. } | Change::Resume | Change::Reset => None,
    };
    if !matches!(change, Change::Pause { .. }) {
        wake(gate, Some(&tenant), ended).await?;
    }
    Ok(describe(&tenant, change, until_ms))
}

fn describe(tenant: &Tenant, change: Change, until_ms: u64) -> DoneAction {
    let new = |word| Changed::new(Some(tenant), word);
    let (ends, until) = (Omittable(Some(until_ms)), at(until_ms));
    let (text, answer) = match change {
        Change::Pause { .. } => (
            format!("paused {tenant} until {until}"),
            Changed {
                until_ms: ends,
                ..new("pause")
            },
        ),
        Change::Resume => (format!("resumed {tenant}"), new("resume")),
        Change::Limit { name, max, .. } => (
            format!("limit {name} of {tenant}: max-requests is {max} until {until}"),
            Changed {
                limit: Omittable(Some(name)),
                max_requests: Omittable(Some(max)),
                until_ms: ends,
                ..new("limit")
            },
        ),
        Change::Unlimit { name } => (
            format!("limit {name} of {tenant}: max-requests is as configured"),
            Changed {
                limit: Omittable(Some(name)),
                ..new("clear")
            },
        ),
        Change::Reset => (
            format!("reset the waitlist of {tenant} and what its own limits had learned"),
            new("reset"),
        ),
    };
    DoneAction { answer, text }
}

/// Ends what stops the calls of all tenants. A tenant that is suspended on its own stays suspended.
/// All waiting jobs ask again.
///
/// # Errors
/// [`NotDone::Redis`]
pub async fn resume_all(gate: &RedisGate) -> Result<Changed, NotDone> {
    gate.change(&BreakerScope::Api, &Change::Resume).await?;
    wake(gate, None, None).await?;
    Ok(Changed::new(None, "resume"))
}

/// Returns the sets of limits that jobs of `tenant` can have.
pub(super) fn sets<'a>(policy: &'a Policy, tenant: &Tenant) -> Vec<&'a Limits> {
    let (source, own) = policy.find(tenant, None);
    let mut sets = vec![own];
    if source == LimitsSource::Common && policy.plan_header().is_some() {
        // The tenant's jobs may name any plan.
        sets.extend(policy.plans().values());
    }
    sets
}

/// Returns the name of the tenant's limit: `given`, or the only one. It may be a limit of any plan
/// that jobs of the tenant can name.
///
/// # Errors
/// [`NotDone::Wrong`] if the tenant has no limit of this name, or no name was given and it has
/// several.
pub fn limit_name(
    policy: &Policy,
    tenant: &Tenant,
    given: Option<&str>,
) -> Result<String, NotDone> {
    let (source, own) = policy.find(tenant, None);
    let sets = sets(policy, tenant);
    let mut names: Vec<&str> = sets
        .iter()
        .flat_map(|set| set.own())
        .filter(|limit| !limit.is_shadow())
        .map(Limit::name)
        .collect();
    names.sort_unstable();
    names.dedup();
    let is_global = |name: &str| own.global().any(|limit| limit.name() == name);
    if let Some(given) = given.filter(|given| is_global(given)) {
        return Err(NotDone::Wrong(format!(
            "the limit {given} is global (scope: global), not {tenant}'s own; change it in the \
            configuration, which running workers apply"
        )));
    }
    let is_shadow = |name: &str| {
        let mut shadows = sets.iter().flat_map(|set| set.shadows());
        shadows.any(|limit| limit.name() == name)
    };
    if let Some(given) = given.filter(|given| is_shadow(given) && !names.contains(given)) {
        return Err(NotDone::Wrong(format!(
            "the limit {given} is a shadow ({source}) and denies nothing; to enforce it, remove \
            shadow: true from the configuration, which running workers apply"
        )));
    }
    if names.is_empty() {
        return Err(NotDone::Wrong(format!(
            "{tenant} has no limit of its own ({source}): all its limits are global (scope: global)"
        )));
    }
    let list = names.join(", ");
    match (given, names.as_slice()) {
        (Some(given), names) if names.contains(&given) => Ok(given.to_owned()),
        (Some(given), names) => {
            let hint = match closest(given, names.iter().copied()) {
                Some(meant) => format!("did you mean {meant}?"),
                None => format!("there are: {list}"),
            };
            Err(NotDone::Wrong(format!(
                "{tenant} has no limit called {given:?} ({source}); {hint}"
            )))
        }
        (None, [only]) => Ok((*only).to_owned()),
        (None, _) => Err(NotDone::Wrong(format!(
            "{tenant} has several limits; set limit to one of them: {list}"
        ))),
    }
}

answers! {
    /// A change to a tenant, or to all of them.
    pub struct Changed {
        /// The tenant, or `None` for all tenants.
        pub tenant: Option<String>,
        pub change: ChangeWord,
        pub limit: Omittable<String>,
        pub max_requests: Omittable<u64>,
        pub until_ms: Omittable<u64>,
        pub workers: Omittable<u64>,
        pub workers_following: Omittable<u64>,
    }
}
words! {
    /// A kind of change.
    pub struct ChangeWord = ["pause", "resume", "limit", "clear", "try", "end-try", "reset"];
}

impl Changed {
    fn new(tenant: Option<&Tenant>, change: &'static str) -> Self {
        Self {
            tenant: tenant.map(Tenant::to_string),
            change: change.into(),
            limit: Omittable(None),
            max_requests: Omittable(None),
            until_ms: Omittable(None),
            workers: Omittable(None),
            workers_following: Omittable(None),
        }
    }

    /// Returns a change that workers follow by an instruction.
    pub(super) fn followed(tenant: &Tenant, change: &'static str, followers: &Followers) -> Self {
        Self {
            workers: Omittable(Some(followers.workers)),
            workers_following: Omittable(Some(followers.workers_following)),
            ..Self::new(Some(tenant), change)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Config;

    fn named(yaml: &str, tenant: &str, given: Option<&str>) -> Result<String, String> {
        let config = Config::parse("c.yaml", yaml, std::iter::empty()).expect("valid");
        let tenant = Tenant::parse(tenant).expect("a tenant");
        limit_name(&config.rate_limiter.policy, &tenant, given).map_err(|failure| match failure {
            NotDone::Wrong(why) => why,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn an_override_must_name_a_limit_of_the_tenant() {
        let yaml = "
rate-limiter:
  limits: [{name: second}, {name: minute, max-requests: 100, window-size: 2m}]
  tenants: {acme: {max-requests: 9}}
  plans: {pro: {limits: [{name: tokens}]}}
";
        let global = "rate-limiter: {limits: [{name: all, scope: global}, {name: own}]}";
        let with_header = format!("{yaml}  plan-header: x-plan\n");
        for (yaml, tenant, given, expected) in [
            ("", "a", None, Ok("default")),
            ("", "a", Some("default"), Ok("default")),
            (
                "",
                "a",
                Some("defualt"),
                Err("a has no limit called \"defualt\" (rate-limiter); did you mean default?"),
            ),
            (yaml, "acme", None, Ok("default")),
            (
                yaml,
                "a",
                None,
                Err("a has several limits; set limit to one of them: minute, second"),
            ),
            (yaml, "a", Some("minute"), Ok("minute")),
            (
                yaml,
                "acme",
                Some("minute"),
                Err(
                    "acme has no limit called \"minute\" (rate-limiter.tenants.acme); there are: default",
                ),
            ),
            (
                yaml,
                "a",
                Some("tokens"),
                Err("a has no limit called \"tokens\" (rate-limiter); there are: minute, second"),
            ),
            (&with_header, "a", Some("tokens"), Ok("tokens")),
            (global, "a", None, Ok("own")),
            (
                global,
                "a",
                Some("all"),
                Err(
                    "the limit all is global (scope: global), not a's own; change it in the \
                    configuration, which running workers apply",
                ),
            ),
            (
                "rate-limiter: {scope: global}",
                "a",
                None,
                Err(
                    "a has no limit of its own (rate-limiter): all its limits are global (scope: \
                    global)",
                ),
            ),
        ] {
            let found = named(yaml, tenant, given);
            let found = found.as_deref().map_err(String::as_str);
            assert_eq!(found, expected, "{tenant} {given:?}");
        }
    }
}
