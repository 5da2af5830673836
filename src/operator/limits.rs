//! A tenant's effective limits, for people and as JSON.

use config::{closest, show_duration};
use rules::limit::{Algorithm, Limit, Limits, Unit};
use rules::named::Named;
use rules::policy::{LimitsSource, Policy};
use rules::scope::Scope;
use rules::tenant::Tenant;
use std::time::Duration;

use super::NotDone;
use super::answer::answers;
use super::text::count;

/// Returns the limits of `tenant` for jobs that name `plan`, and the part of the configuration that
/// sets them.
pub fn of<'a>(
    policy: &'a Policy,
    tenant: &Tenant,
    plan: Option<&str>,
) -> Result<(LimitsSource<'a>, &'a Limits), NotDone> {
    if let Some(name) = plan.filter(|name| policy.plan(name).is_none()) {
        let hint = match closest(name, policy.plans().keys().map(String::as_str)) {
            Some(meant) => format!("; did you mean {meant}?"),
            None => String::new(),
        };
        return Err(NotDone::Wrong(format!(
            "rate-limiter.plans has no plan {name:?}{hint}"
        )));
    }
    Ok(policy.find(tenant, plan))
}

/// Describes a limit: `at most 5 units of cost in any 1m, for all tenants together:
/// sliding-window-algo, guard 50ms; worst case in any window: 5`.
pub fn describe(limit: &Limit) -> String {
    let max = limit.max();
    let what = match limit.unit() {
        Unit::Calls => count(max, "call"),
        Unit::Cost => format!("{} of cost", count(max, "unit")),
    };
    if limit.algorithm() == Algorithm::Concurrency {
        return format!("at most {what} in flight{}", describe_scope(limit.scope()));
    }
    let which = limit.algorithm().facts().window_words;
    let learns = match limit.floor() {
        Some(floor) if floor < max => format!("; adaptive, down to {floor}"),
        _ => String::new(),
    };
    let burst = match burst(limit) {
        Some(burst) => format!(", burst {burst}"),
        None => String::new(),
    };
    let length = match limit.calendar() {
        Some(calendar) => millis(calendar.shortest_ms()),
        None => "window".to_owned(),
    };
    format!(
        "at most {what} {which} {}{}: {}{burst}, guard {}; worst case in any {length}: {}{learns}",
        window(limit),
        describe_scope(limit.scope()),
        algorithm(limit),
        guard(limit),
        limit.worst_case(),
    )
}

/// Returns a limit's window: `1m`, or `day from 00:00 America/Los_Angeles`.
pub fn window(limit: &Limit) -> String {
    match limit.calendar() {
        Some(calendar) => calendar.to_string(),
        None => millis(limit.window_ms()),
    }
}

/// Returns a limit's line in the output of `check`: `day: at most …`, and whether it is a shadow.
pub fn line(limit: &Limit) -> String {
    let shadow = match limit.is_shadow() {
        true => " (shadow: it counts but denies nothing)",
        false => "",
    };
    format!("{}: {}{shadow}", limit.name(), describe(limit))
}

/// Describes who shares the quota, if it is not just the tenant.
fn describe_scope(scope: &Scope) -> String {
    match scope {
        Scope::Tenant => String::new(),
        Scope::Global => ", for all tenants together".to_owned(),
        Scope::RoutingKey => ", per routing key".to_owned(),
        Scope::Header(name) => format!(", per value of the header {name}"),
    }
}

/// Returns the value of `use-algo` in the configuration. A strict guard belongs to the sliding
/// window.
fn algorithm(limit: &Limit) -> &'static str {
    limit.algorithm().use_algo().name()
}

answers! {
    /// A limit. `guard` has the configured value, `strict` or a duration; `guard_ms` has the
    /// duration as a number.
    pub struct LimitAnswer as "Limit" {
        pub name: String,
        pub algorithm: String,
        pub max_requests: u64,
        pub window_ms: u64,
        pub calendar: Option<String>,
        pub burst: Option<u64>,
        pub unit: String,
        pub guard: String,
        pub guard_ms: Option<u64>,
        pub scope: String,
        pub shadow: bool,
        pub worst_case: u64,
        pub adaptive: Option<String>,
    }
}

impl From<&Limit> for LimitAnswer {
    fn from(limit: &Limit) -> Self {
        Self {
            name: limit.name().to_owned(),
            algorithm: algorithm(limit).to_owned(),
            max_requests: limit.max(),
            window_ms: limit.window_ms(),
            calendar: limit.calendar().map(ToString::to_string),
            burst: burst(limit),
            unit: limit.unit().name().to_owned(),
            guard: guard(limit),
            guard_ms: (!strict(limit)).then(|| limit.guard_ms()),
            scope: limit.scope().to_string(),
            shadow: limit.is_shadow(),
            worst_case: limit.worst_case(),
            adaptive: limit.band().map(|percent| format!("{percent}%..100%")),
        }
    }
}

fn strict(limit: &Limit) -> bool {
    limit.algorithm() == Algorithm::Strict
}

fn guard(limit: &Limit) -> String {
    if strict(limit) {
        "strict".to_owned()
    } else {
        millis(limit.guard_ms())
    }
}

fn burst(limit: &Limit) -> Option<u64> {
    limit.algorithm().has_burst().then(|| limit.burst())
}

fn millis(ms: u64) -> String {
    show_duration(Duration::from_millis(ms))
}
