//! The limits of an [API profile](config::ApiProfile), played by the simulated API.

use std::str::FromStr;
use std::time::Duration;

use config::{ApiPlan, ApiProfile, Config, closest};
use rules::limit::{Algorithm, Limit, Unit};
use rules::scope::Scope;

use crate::forms::ApiLimit;
use crate::limiter::Counting;
use crate::mistake::shown;

/// The limits of an API: `shopify`, or `shopify:plus` for a plan other than the default one.
#[derive(Debug, Clone, PartialEq)]
pub struct PlayedLimits(pub Vec<ApiLimit>);

impl FromStr for PlayedLimits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, plan) = match text.split_once(':') {
            Some((name, plan)) => (name, Some(plan)),
            None => (text, None),
        };
        let Some(profile) = ApiProfile::find(name) else {
            let hint = closest(name, ApiProfile::names());
            let hint = hint.map_or(String::new(), |name| format!("; did you mean {name}?"));
            let known = playable().join(", ");
            return Err(format!(
                "is {}; it must be one of {known}{hint}",
                shown(text)
            ));
        };
        let Some(chosen) = profile.plan(plan) else {
            let plans: Vec<&str> = profile
                .plans
                .iter()
                .map(|plan| plan.name.as_str())
                .collect();
            return Err(format!(
                "is {}; the plans of {name} are {}",
                shown(text),
                plans.join(", ")
            ));
        };
        let played = limits(chosen).map_err(|why| {
            let known = playable().join(", ");
            format!(
                "is {}, but {why}; the limits of these can be: {known}",
                shown(text)
            )
        });
        played.map(Self)
    }
}

/// Returns the names of the profiles all of whose limits can be played.
fn playable() -> Vec<&'static str> {
    let can_be = |name: &&str| {
        let profile = ApiProfile::find(name);
        profile.is_some_and(|profile| profile.plans.iter().all(|plan| limits(plan).is_ok()))
    };
    ApiProfile::names().filter(can_be).collect()
}

/// Returns the limits of a plan.
///
/// # Errors
/// A sentence that says which limit can't be played.
fn limits(plan: &ApiPlan) -> Result<Vec<ApiLimit>, String> {
    let items = plan.limits.iter().map(|limit| format!("\n    - {limit}"));
    let text = format!("rate-limiter:\n  limits:{}\n", items.collect::<String>());
    let config = Config::parse("the profile", &text, std::iter::empty());
    let config = config.map_err(|errors| errors.to_string())?;
    let limits = config.rate_limiter.policy.default_limits();
    limits.all().iter().map(api_limit).collect()
}

fn api_limit(limit: &Limit) -> Result<ApiLimit, String> {
    let counting = match limit.algorithm() {
        Algorithm::Concurrency => Counting::Concurrent,
        Algorithm::SlidingCounter => Counting::Estimated,
        bucket if bucket.has_burst() => Counting::Bucket,
        aligned if aligned.facts().is_aligned => {
            (limit.calendar().copied()).map_or(Counting::Aligned, Counting::Calendar)
        }
        // Others count over a window that slides.
        _ => Counting::Sliding,
    };
    let per_tenant = match limit.scope() {
        Scope::Tenant => true,
        Scope::Global => false,
        scope => {
            return Err(format!(
                "its limit {} counts per {scope:?}, which a simulated API does not know",
                limit.name()
            ));
        }
    };
    let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let burst = limit.algorithm().has_burst();
    Ok(ApiLimit {
        max: number(limit.max()),
        window: Duration::from_millis(limit.window_ms()),
        per_tenant,
        counting,
        burst: burst.then(|| number(limit.burst())),
        by_cost: limit.unit() == Unit::Cost && counting != Counting::Concurrent,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_profiles_are_played_as_their_plans_say() {
        assert_eq!(playable(), ApiProfile::names().collect::<Vec<_>>());
        let PlayedLimits(limits) = "shopify-graphql:plus".parse().expect("a profile");
        let points = ApiLimit {
            max: 1_000,
            window: Duration::from_secs(1),
            per_tenant: true,
            counting: Counting::Bucket,
            burst: Some(20_000),
            by_cost: true,
        };
        assert_eq!(limits, [points]);
        let PlayedLimits(limits) = "github".parse().expect("a profile");
        let counting: Vec<_> = limits.iter().map(|limit| limit.counting).collect();
        assert_eq!(
            counting,
            [Counting::Sliding, Counting::Sliding, Counting::Concurrent]
        );
        let by_cost: Vec<_> = limits.iter().map(|limit| limit.by_cost).collect();
        assert_eq!(by_cost, [false, true, false]);
    }

    #[test]
    fn an_unknown_api_or_plan_is_answered_with_the_known_ones() {
        for (text, words) in [
            ("shopfy", "did you mean shopify?"),
            ("", "amazon-sp-api, anthropic"),
            (
                "shopify:gold",
                "the plans of shopify are standard, advanced, plus, enterprise",
            ),
        ] {
            let why = text.parse::<PlayedLimits>().expect_err(text);
            assert!(why.contains(words), "{why}");
        }
    }
}
