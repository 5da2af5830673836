//! Scopes: who shares a limit's quota. Each tenant, all tenants together, or a tenant's jobs with
//! the same header value.

use std::fmt;

use crate::tenant;

/// Maximum number of scopes smaller than a tenant among the limits of one job.
pub const MAX_PARTS: usize = 4;
/// Maximum length of a value that distinguishes a tenant's jobs, in bytes.
pub const MAX_VALUE_BYTES: usize = 255;

/// The values of `rate-limiter.scope`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Scope {
    /// `tenant`: each tenant has a quota of its own.
    #[default]
    Tenant,
    /// `header:NAME`: each value of the header has a quota of its own, within its tenant.
    Header(String),
    /// `routing-key`: each routing key has a quota of its own, within its tenant.
    RoutingKey,
    /// `global`: one quota for all tenants together.
    Global,
}

impl Scope {
    /// Parses the text that [`Display`](fmt::Display) writes. Returns `None` if it is not a scope.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "tenant" => Some(Self::Tenant),
            "global" => Some(Self::Global),
            "routing-key" => Some(Self::RoutingKey),
            _ => (text.strip_prefix("header:"))
                .filter(|name| !name.is_empty())
                .map(|name| Self::Header(name.to_owned())),
        }
    }

    /// Returns true if only jobs of a tenant with the same value share a quota.
    pub fn is_part(&self) -> bool {
        matches!(self, Self::Header(_) | Self::RoutingKey)
    }

    /// Returns true if all jobs that share a partition of the scope `other` share one of this scope
    /// as well.
    pub fn covers(&self, other: &Self) -> bool {
        match self {
            Self::Global => true,
            Self::Tenant => *other != Self::Global,
            Self::Header(_) | Self::RoutingKey => self == other,
        }
    }
}

impl fmt::Display for Scope {
    /// Writes the scope as in the configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tenant => f.write_str("tenant"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::RoutingKey => f.write_str("routing-key"),
            Self::Global => f.write_str("global"),
        }
    }
}

/// A job's values of the headers (or the routing key) by which its limits distinguish a tenant's
/// jobs; empty if they do not. Sorted by scope, without duplicates.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Labels(
    pub(super) Vec<(Scope, String)>,
    /// The values that only shadow limits distinguish: jobs that differ in them share a waitlist.
    pub(super) Vec<(Scope, String)>,
);

impl Labels {
    /// Returns labels from pairs of a scope and a value in any order. Drops invalid scopes.
    pub fn from_pairs<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        let label =
            |(scope, value): (&String, &String)| Some((Scope::parse(scope)?, value.clone()));
        let mut all: Vec<_> = labels.into_iter().filter_map(label).collect();
        all.retain(|(scope, _)| scope.is_part());
        all.sort_unstable();
        all.truncate(MAX_PARTS);
        Self(all, Vec::new())
    }

    /// Returns true if no limit separates the tenant's jobs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if the labels have a value for `scope`.
    pub fn has_value(&self, scope: &Scope) -> bool {
        self.all().any(|(known, _)| known == scope)
    }

    /// Iterates over all scopes and their values, also of shadow limits.
    pub fn all(&self) -> impl Iterator<Item = (&Scope, &str)> {
        let all = self.0.iter().chain(&self.1);
        all.map(|(scope, value)| (scope, value.as_str()))
    }

    /// Iterates over the scopes and their values.
    pub fn iter(&self) -> impl Iterator<Item = (&Scope, &str)> {
        self.0.iter().map(|(scope, value)| (scope, value.as_str()))
    }

    /// Returns the labels as a part of a Redis key: `x-endpoint=%2Fv1`, or `=jobs` for a routing
    /// key, joined by `:`. Cannot collide with a limit's key, because a limit's name has no `=`.
    pub fn key(&self) -> String {
        let part = |(scope, value): &(Scope, String)| {
            let scope = match scope {
                Scope::Header(name) => tenant::encode(name),
                // No header has an empty name.
                Scope::RoutingKey | Scope::Tenant | Scope::Global => String::new(),
            };
            format!("{scope}={}", tenant::encode(value))
        };
        self.0.iter().map(part).collect::<Vec<_>>().join(":")
    }

    /// Returns only the labels that enforced limits distinguish.
    pub(super) fn waiting(&self) -> Self {
        Self(self.0.clone(), Vec::new())
    }

    pub(super) fn only(&self, scope: &Scope) -> Self {
        let mut labels = self.0.iter().chain(&self.1);
        let label = labels.find(|(known, _)| known == scope);
        Self(label.into_iter().cloned().collect(), Vec::new())
    }
}

impl fmt::Display for Labels {
    /// Writes the labels for logs: `header:x-endpoint=/v1, routing-key=jobs`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (scope, value)) in self.0.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}{scope}={value:?}")?;
        }
        Ok(())
    }
}
