//! `rate-limiter`: limits of tenants, and the effect of the API's refusals.

pub(crate) mod limit_keys;
mod limit_layer;
mod limits;
mod window_size;

use std::time::Duration;

use self::limit_keys::{
    ADAPTIVE, BURST, FLAT, GUARD, GUARD_BUDGET, LIMITS, MAX_CONCURRENT, MAX_REQUESTS, MAX_THROTTLE,
    PLAN_HEADER, PLANS, SCOPE, SHADOW, STARTS, TENANTS, THROTTLE_SCOPE, TIME_ZONE, UNIT, USE_ALGO,
    WINDOW_SIZE,
};
use self::limit_layer::LimitLayer;
use self::limits::LimitsReader;
use super::section::section;
use crate::reading::{ConfigInput, ConfigKey, Node, Origin, Raw, ShownValue, ShownValues, show};
use rules::answers::ThrottleScope;
use rules::limit::{Algorithm, DEFAULT_LIMIT, Limit, Unit};
use rules::named::Named;
use rules::policy::{EntryLimits, Policy};
use rules::scope::Scope;

section! {
    /// `rate-limiter`
    #[derive(Debug, Clone, PartialEq)]
    pub struct RateLimiter {
        /// Limits of all tenants and plans.
        pub policy: Policy = ConfigInput::policy,
        /// `rate-limiter.max-throttle`: maximum time for which an answer of the API can throttle a
        /// tenant.
        pub max_throttle: Duration = MAX_THROTTLE,
        /// `rate-limiter.guard-budget`: the part of a window, in percent, that each call adds to
        /// the budget for counting calls that only their answers show to be late.
        pub guard_budget: f64 = GUARD_BUDGET,
        /// `rate-limiter.throttle-scope`: whether an answer throttles its tenant or all tenants.
        pub throttle_scope: ThrottleScope = THROTTLE_SCOPE,
    }
    |input| {
        let words = learning_conflict(policy.as_ref()?, throttle_scope?);
        input.check(&THROTTLE_SCOPE.key, words)?;
    }
}

show!(ShownValue::named => ThrottleScope);

show!(|percent| ShownValue::bare(format_args!("{percent}%")) => f64);

/// Adds the limits of `policy` to `values`.
fn show(policy: &Policy, values: &mut ShownValues) {
    let common: Vec<&Limit> = policy.default_limits().all().iter().collect();
    match flat(&common) {
        Some(limit) => {
            for (key, value) in keys_of(limit) {
                values.set(key, &value);
            }
        }
        None => values.set(&LIMITS.key, &list(&common)),
    }
    // Limits that all tenants share are among the common limits, and so also hold for plans and
    // tenants.
    if !policy.plans().is_empty() {
        let plans = policy.plans().iter();
        let plans = plans.map(|(name, limits)| (name, set(limits.own())));
        values.set(&PLANS.key, &ShownValue::names(plans));
    }
    if !policy.tenants().is_empty() {
        let tenants = policy.tenants().iter().map(|(pattern, own)| match own {
            EntryLimits::Limits(limits) => (pattern, set(limits.own())),
            EntryLimits::Plan(name) => {
                (pattern, ShownValue::map([("plan", ShownValue::text(name))]))
            }
        });
        values.set(&TENANTS.key, &ShownValue::names(tenants));
    }
}

impl RateLimiter {
    /// Returns why `rate-limiter.throttle-scope` does not fit the limits, or `None` if it does.
    pub(crate) fn conflict(&self) -> Option<String> {
        let words = learning_conflict(&self.policy, self.throttle_scope)?;
        Some(format!("{}: {words}", THROTTLE_SCOPE.key.path))
    }
}

/// Returns the only one of `limits` if it can be written without a list.
fn flat<'a>(limits: &[&'a Limit]) -> Option<&'a Limit> {
    match limits {
        [only] if only.name() == DEFAULT_LIMIT && only.algorithm() != Algorithm::Concurrency => {
            Some(only)
        }
        _ => None,
    }
}

/// Returns the limits of a plan or a tenant.
fn set<'a>(limits: impl Iterator<Item = &'a Limit>) -> ShownValue {
    let limits: Vec<&Limit> = limits.collect();
    match flat(&limits) {
        Some(limit) => ShownValue::map(keys_by_name(limit)),
        None => ShownValue::map([(LIMITS.key.name(), list(&limits))]),
    }
}

fn list(limits: &[&Limit]) -> ShownValue {
    let item = |limit: &&Limit| {
        let name = ("name", ShownValue::bare(limit.name()));
        ShownValue::map(std::iter::once(name).chain(keys_by_name(limit)))
    };
    ShownValue::List(limits.iter().map(item).collect())
}

/// Returns the keys of `limit`, by name.
fn keys_by_name(limit: &Limit) -> Vec<(&'static str, ShownValue)> {
    if limit.algorithm() == Algorithm::Concurrency {
        let scope = (SCOPE.key.name(), shown_scope(limit.scope()));
        return vec![(MAX_CONCURRENT, ShownValue::bare(limit.max())), scope];
    }
    let keys = keys_of(limit).into_iter();
    keys.map(|(key, value)| (key.name(), value)).collect()
}

/// Returns the keys of a limit that does not limit calls in flight.
fn keys_of(limit: &Limit) -> Vec<(&'static ConfigKey, ShownValue)> {
    let (algorithm, guard) = match limit.algorithm() {
        Algorithm::Strict => (Algorithm::SlidingWindow, ShownValue::bare("strict")),
        algorithm => (algorithm.use_algo(), ShownValue::millis(limit.guard_ms())),
    };
    let burst = algorithm
        .has_burst()
        .then(|| ShownValue::bare(limit.burst()));
    let calendar = limit.calendar();
    let window = match calendar {
        Some(calendar) => ShownValue::bare(calendar.period.name()),
        None => ShownValue::millis(limit.window_ms()),
    };
    let mut keys = vec![
        (&USE_ALGO.key, ShownValue::bare(algorithm.name())),
        (&WINDOW_SIZE.key, window),
        (&MAX_REQUESTS.key, ShownValue::bare(limit.max())),
    ];
    if let Some(calendar) = calendar {
        keys.extend([
            (&TIME_ZONE.key, ShownValue::bare(calendar.zone.name())),
            (&STARTS.key, ShownValue::text(calendar.starts())),
        ]);
    }
    keys.extend(burst.map(|burst| (&BURST.key, burst)));
    keys.extend([
        (&UNIT.key, ShownValue::bare(limit.unit().name())),
        (&GUARD.key, guard),
        (&SCOPE.key, shown_scope(limit.scope())),
        (&ADAPTIVE.key, shown_band(limit)),
        (&SHADOW.key, ShownValue::bare(limit.is_shadow())),
    ]);
    keys
}

fn shown_band(limit: &Limit) -> ShownValue {
    match limit.band() {
        Some(percent) => ShownValue::bare(format_args!("{percent}%..100%")),
        None => ShownValue::bare("off"),
    }
}

fn shown_scope(scope: &Scope) -> ShownValue {
    match scope {
        Scope::Header(_) => ShownValue::text(scope),
        scope => ShownValue::bare(scope),
    }
}

/// Returns why an adaptive limit of `policy` could never learn: with `scope`, no 429 concerns it.
fn learning_conflict(policy: &Policy, scope: ThrottleScope) -> Option<String> {
    let learns = |limit: &&Limit| limit.band().is_some();
    let mut limits = policy.all().flat_map(|limits| limits.iter()).filter(learns);
    let (limit, words) = match scope {
        ThrottleScope::Auto => return None,
        ThrottleScope::Tenant => (
            limits.find(|limit| limit.is_global())?,
            "a 429 concerns only its tenant, so a limit of all tenants can't learn from it",
        ),
        ThrottleScope::Global => (
            limits.find(|limit| !limit.is_global())?,
            "a 429 concerns all tenants, so a limit of one tenant can't learn from it",
        ),
    };
    Some(format!(
        "is {}, but the limit {} is adaptive: {words}; set it to auto, or remove adaptive",
        scope.name(),
        limit.name()
    ))
}

impl ConfigInput {
    /// Reads the limits. Returns `None` after a problem.
    fn policy(&mut self) -> Option<Policy> {
        let trees = FLAT.map(|setting| {
            let default = setting.key().default;
            let default = || Some((Raw::Text(default?.to_owned()), Origin::Default));
            self.tree(setting.key()).or_else(default)
        });
        let mut flat = LimitLayer::default();
        for (setting, tree) in FLAT.iter().zip(&trees) {
            let Some((raw, at)) = tree else { continue };
            let (key, at) = (setting.key(), at.clone());
            let node = Node::new(raw, at, key.path).named(key.name());
            self.valid(key, flat.set(*setting, &node));
        }
        let plan_header = self.optional(&PLAN_HEADER);
        let [limits, plans, tenants] =
            [&LIMITS.key, &PLANS.key, &TENANTS.key].map(|key| self.tree(key));
        let mut reader = LimitsReader {
            problems: &mut self.problems,
            flat: &flat,
            global: None,
            unit: Unit::Cost,
        };
        let header = plan_header.clone().flatten();
        let policy = reader.policy(&limits, &plans, &tenants, header);
        plan_header?;
        show(policy.as_ref()?, &mut self.shown);
        policy
    }
}
