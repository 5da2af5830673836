//! Policies: which limits are enforced for which tenant.

mod differs;

pub use self::differs::differing;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use crate::limit::{Limit, Limits};
use crate::tenant::Tenant;

/// The limits of every tenant: its own, else those of its plan, else the common ones. Common limits
/// that all tenants share apply in addition to any others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    common: Limits,
    plans: BTreeMap<String, Limits>,
    /// Sorted as in the configuration: the first matching pattern counts.
    tenants: Vec<(Pattern, EntryLimits)>,
    /// The indexes in `tenants` of exact IDs, of which there may be thousands.
    exact: HashMap<String, usize>,
    /// The indexes in `tenants` of prefixes.
    prefixes: Vec<usize>,
    plan_header: Option<String>,
}

/// The tenants that an entry of `rate-limiter.tenants` applies to: one ID, or all IDs with a prefix
/// (`acme-*`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// This ID.
    Exactly(String),
    /// All IDs that begin with this.
    Prefix(String),
}

/// The limits that an entry of `rate-limiter.tenants` sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryLimits {
    /// Limits of the entry itself.
    Limits(Limits),
    /// The limits of a plan.
    Plan(String),
}

/// The part of `rate-limiter` that sets a tenant's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitsSource<'a> {
    /// The common limits.
    Common,
    /// The plan that the job names.
    Plan(&'a str),
    /// The limits in the entry of `tenants` for this pattern.
    Tenant(&'a Pattern),
    /// The plan in the entry of `tenants` for this pattern.
    TenantPlan(&'a Pattern, &'a str),
}

impl Policy {
    /// Returns a policy with the same limits for all tenants.
    pub fn common(limits: Limits) -> Self {
        Self {
            common: limits,
            plans: BTreeMap::new(),
            tenants: Vec::new(),
            exact: HashMap::new(),
            prefixes: Vec::new(),
            plan_header: None,
        }
    }

    /// Sets the plans. Each also gets the common limits that all tenants share.
    pub fn with_plans(self, plans: BTreeMap<String, Limits>) -> Self {
        let plans = plans.into_iter();
        let plans = plans.map(|(name, limits)| (name, self.with_global(limits)));
        Self {
            plans: plans.collect(),
            ..self
        }
    }

    /// Sets the entries for single tenants. Each also gets the common limits that all tenants
    /// share. The first matching entry counts.
    pub fn with_tenants(self, tenants: Vec<(Pattern, EntryLimits)>) -> Self {
        let tenants = tenants.into_iter().map(|(pattern, own)| match own {
            EntryLimits::Limits(limits) => (pattern, EntryLimits::Limits(self.with_global(limits))),
            EntryLimits::Plan(_) => (pattern, own),
        });
        let tenants: Vec<_> = tenants.collect();
        let (mut exact, mut prefixes) = (HashMap::new(), Vec::new());
        for (at, (pattern, _)) in tenants.iter().enumerate() {
            match pattern {
                Pattern::Exactly(id) => {
                    exact.entry(id.clone()).or_insert(at);
                }
                Pattern::Prefix(_) => prefixes.push(at),
            }
        }
        Self {
            tenants,
            exact,
            prefixes,
            ..self
        }
    }

    fn with_global(&self, limits: Limits) -> Limits {
        limits.with_global_of(&self.common)
    }

    /// Sets the header in which publishers name a tenant's plan.
    pub fn with_plan_header(self, header: String) -> Self {
        Self {
            plan_header: Some(header),
            ..self
        }
    }

    /// Returns the header in which publishers name a tenant's plan, or `None` if they can't.
    pub fn plan_header(&self) -> Option<&str> {
        self.plan_header.as_deref()
    }

    /// Returns the limits of tenants that have no others.
    pub fn default_limits(&self) -> &Limits {
        &self.common
    }

    /// Returns the limits of the plan called `name`.
    pub fn plan(&self, name: &str) -> Option<&Limits> {
        self.plans.get(name)
    }

    /// Returns the configured limits for `tenant`: those of its entry, else those of the plan that
    /// its job names (`plan`, ignored if it does not exist), else the common ones.
    pub fn limits(&self, tenant: &Tenant, plan: Option<&str>) -> &Limits {
        self.find(tenant, plan).1
    }

    /// Returns the same as [`Policy::limits`], and where the limits come from.
    pub fn find(&self, tenant: &Tenant, plan: Option<&str>) -> (LimitsSource<'_>, &Limits) {
        let id = tenant.as_str();
        let exact = self.exact.get(id).copied();
        let prefix = (self.prefixes.iter().copied()).find(|at| self.tenants[*at].0.fits(id));
        let own = exact.into_iter().chain(prefix).min();
        let own = own.map(|at| &self.tenants[at]);
        let found = match own {
            Some((pattern, EntryLimits::Limits(limits))) => {
                Some((LimitsSource::Tenant(pattern), limits))
            }
            Some((pattern, EntryLimits::Plan(name))) => self
                .plan(name)
                .map(|limits| (LimitsSource::TenantPlan(pattern, name), limits)),
            None => plan
                .and_then(|name| self.plans.get_key_value(name))
                .map(|(name, limits)| (LimitsSource::Plan(name), limits)),
        };
        found.unwrap_or((LimitsSource::Common, &self.common))
    }

    /// Returns the plans by name.
    pub fn plans(&self) -> &BTreeMap<String, Limits> {
        &self.plans
    }

    /// Returns the entries for single tenants, in order of precedence.
    pub fn tenants(&self) -> &[(Pattern, EntryLimits)] {
        &self.tenants
    }

    /// Returns the time after which no start of any tenant counts any more.
    pub fn memory(&self) -> Duration {
        Duration::from_millis(self.all().map(Limits::memory_ms).max().unwrap_or(0))
    }

    /// Returns all sets of limits.
    pub fn all(&self) -> impl Iterator<Item = &Limits> {
        let own = self.tenants.iter().filter_map(|(_, own)| match own {
            EntryLimits::Limits(limits) => Some(limits),
            EntryLimits::Plan(_) => None,
        });
        std::iter::once(&self.common)
            .chain(self.plans.values())
            .chain(own)
    }
}

impl From<Limit> for Policy {
    fn from(limit: Limit) -> Self {
        Self::common(limit.into())
    }
}

impl Pattern {
    /// Parses `acme` or `acme-*`.
    pub fn parse(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(start) => Self::Prefix(start.to_owned()),
            None => Self::Exactly(text.to_owned()),
        }
    }

    /// Returns true if this pattern matches everything that `other` matches.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exactly(one), Self::Exactly(two)) => one == two,
            (Self::Exactly(_), Self::Prefix(_)) => false,
            (Self::Prefix(_), Self::Exactly(text) | Self::Prefix(text)) => self.fits(text),
        }
    }

    fn fits(&self, id: &str) -> bool {
        match self {
            Self::Exactly(text) => id == text,
            Self::Prefix(start) => id.starts_with(start.as_str()),
        }
    }
}

impl fmt::Display for Pattern {
    /// Writes the pattern as in the configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(text) => f.write_str(text),
            Self::Prefix(start) => write!(f, "{start}*"),
        }
    }
}

impl fmt::Display for LimitsSource<'_> {
    /// Writes the key in the configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Common => f.write_str("rate-limiter"),
            Self::Plan(name) => write!(f, "rate-limiter.plans.{name}"),
            Self::Tenant(pattern) => write!(f, "rate-limiter.tenants.{pattern}"),
            Self::TenantPlan(pattern, plan) => {
                write!(
                    f,
                    "rate-limiter.plans.{plan}, by rate-limiter.tenants.{pattern}"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit;
    use crate::limit::Algorithm;
    use crate::scope::Scope;

    fn limit(name: &str, max: u64) -> Limit {
        kit::limit(name, Algorithm::SlidingWindow, max, kit::SECOND)
    }

    fn limits(max: u64) -> Limits {
        limit("default", max).into()
    }

    #[test]
    fn the_first_matching_entry_counts_then_the_plan_then_the_common_limits() {
        let entry = |text: &str, max| (Pattern::parse(text), EntryLimits::Limits(limits(max)));
        let plans = [
            ("free".to_owned(), limits(1)),
            ("pro".to_owned(), limits(9)),
        ];
        let policy = Policy::common(limits(5))
            .with_plans(plans.into())
            .with_tenants(vec![
                entry("acme", 10),
                entry("trial-9", 11),
                (
                    Pattern::parse("trial-*"),
                    EntryLimits::Plan("free".to_owned()),
                ),
                entry("trial-7", 12),
                entry("acme*", 13),
            ]);
        for (tenant, plan, max, source) in [
            ("other", None, 5, "rate-limiter"),
            ("other", Some("pro"), 9, "rate-limiter.plans.pro"),
            ("other", Some("none"), 5, "rate-limiter"),
            ("acme", Some("pro"), 10, "rate-limiter.tenants.acme"),
            ("acme2", None, 13, "rate-limiter.tenants.acme*"),
            ("trial-9", None, 11, "rate-limiter.tenants.trial-9"),
            (
                "trial-7",
                None,
                1,
                "rate-limiter.plans.free, by rate-limiter.tenants.trial-*",
            ),
        ] {
            let tenant = kit::tenant(tenant);
            let (from, found) = policy.find(&tenant, plan);
            assert_eq!((found[0].max(), from.to_string()), (max, source.to_owned()));
            assert_eq!(policy.limits(&tenant, plan), found);
        }
    }

    #[test]
    fn shared_limits_apply_beside_those_of_plans_and_tenants() {
        let all = limit("all", 100).with_scope(Scope::Global);
        let common = Limits::new(vec![all.clone(), limit("default", 5)]).expect("two names");
        let policy = || {
            Policy::common(common.clone())
                .with_plans([("pro".to_owned(), limits(9))].into())
                .with_tenants(vec![
                    (Pattern::parse("acme"), EntryLimits::Limits(limits(7))),
                    (Pattern::parse("b*"), EntryLimits::Plan("pro".to_owned())),
                ])
        };
        for (tenant, plan, own) in [
            ("a", None, 5),
            ("a", Some("pro"), 9),
            ("acme", Some("pro"), 7),
            ("b1", None, 9),
        ] {
            let tenant = kit::tenant(tenant);
            let (policy, mut expected) = (policy(), vec![limit("default", own), all.clone()]);
            let mut found = policy.limits(&tenant, plan).to_vec();
            found.sort_unstable_by_key(|limit| limit.max());
            expected.sort_unstable_by_key(|limit| limit.max());
            assert_eq!(found, expected, "{tenant} {plan:?}");
        }
        // Shared limits are not added twice.
        let plans = policy().plans().clone();
        assert_eq!(policy().with_plans(plans), policy());
    }

    #[test]
    fn a_pattern_covers_matching_names() {
        for (one, two, covers) in [
            ("a", "a", true),
            ("a", "a*", false),
            ("a*", "a", true),
            ("a*", "ab*", true),
            ("ab*", "a*", false),
            ("*", "b", true),
        ] {
            assert_eq!(Pattern::parse(one).covers(&Pattern::parse(two)), covers);
        }
    }
}
