//! Which limits are in force for which tenant.

use std::collections::BTreeMap;

use crate::rules::limit::{Limit, Limits};
use crate::rules::tenant::Tenant;

/// The limits of every tenant: its own, else those of its plan, else the common ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    common: Limits,
    plans: BTreeMap<String, Limits>,
    /// In the order of the configuration: the first pattern that fits counts.
    tenants: Vec<(Pattern, Own)>,
    plan_header: Option<String>,
}

/// Which tenants an entry of `rate-limiter.tenants` means: one id, or all that begin with a text (`acme-*`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// This id.
    Exactly(String),
    /// All ids that begin so.
    Prefix(String),
}

/// What an entry of `rate-limiter.tenants` gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Own {
    /// Limits of its own.
    Limits(Limits),
    /// Those of a plan.
    Plan(String),
}

impl Policy {
    /// The same limits for everybody.
    pub fn common(limits: Limits) -> Self {
        Self {
            common: limits,
            plans: BTreeMap::new(),
            tenants: Vec::new(),
            plan_header: None,
        }
    }

    /// With these plans.
    pub fn with_plans(self, plans: BTreeMap<String, Limits>) -> Self {
        Self { plans, ..self }
    }

    /// With what single tenants have instead; the first that fits counts.
    pub fn with_tenants(self, tenants: Vec<(Pattern, Own)>) -> Self {
        Self { tenants, ..self }
    }

    /// With the header in which publishers name a tenant's plan.
    pub fn with_plan_header(self, header: String) -> Self {
        Self {
            plan_header: Some(header),
            ..self
        }
    }

    /// The header in which publishers name a tenant's plan; `None`: they can't.
    pub fn plan_header(&self) -> Option<&str> {
        self.plan_header.as_deref()
    }

    /// The limits that everybody has who has no others.
    pub fn default_limits(&self) -> &Limits {
        &self.common
    }

    /// The plan called `name`.
    pub fn plan(&self, name: &str) -> Option<&Limits> {
        self.plans.get(name)
    }

    /// The limits in force for `tenant`: what the configuration says of it, else the plan that its job names
    /// (`plan`, which must exist), else the common ones.
    pub fn limits(&self, tenant: &Tenant, plan: Option<&str>) -> &Limits {
        let own = self.tenants.iter().find(|(p, _)| p.fits(tenant.as_str()));
        match own {
            Some((_, Own::Limits(limits))) => limits,
            Some((_, Own::Plan(name))) => self.plan(name).unwrap_or(&self.common),
            None => plan
                .and_then(|name| self.plan(name))
                .unwrap_or(&self.common),
        }
    }

    /// All sets of limits there are.
    pub fn all(&self) -> impl Iterator<Item = &Limits> {
        let own = self.tenants.iter().filter_map(|(_, own)| match own {
            Own::Limits(limits) => Some(limits),
            Own::Plan(_) => None,
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
    /// Reads `acme` or `acme-*`.
    pub fn parse(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(start) => Self::Prefix(start.to_owned()),
            None => Self::Exactly(text.to_owned()),
        }
    }

    fn fits(&self, id: &str) -> bool {
        match self {
            Self::Exactly(text) => id == text,
            Self::Prefix(start) => id.starts_with(start.as_str()),
        }
    }
}
