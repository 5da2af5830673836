//! Whose quota a limit is: a tenant's, one that all tenants share, or that of a tenant's jobs with the same header.

use std::fmt;

use crate::rules::tenant;

/// The most scopes that are a part of a tenant among the limits of one job.
pub const MAX_PARTS: usize = 4;
/// The longest value that tells a tenant's jobs apart, in bytes.
pub const MAX_VALUE_BYTES: usize = 255;

/// The values of `rate-limiter.scope`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Scope {
    /// `tenant`: each has a quota of its own.
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
    /// Reads what [`Display`](fmt::Display) writes; `None`: it is no scope.
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

    /// Only some of a tenant's jobs share a quota: those with the same value.
    pub fn is_part(&self) -> bool {
        matches!(self, Self::Header(_) | Self::RoutingKey)
    }

    /// All jobs that share a partition of the scope `other` share one of this scope, too.
    pub fn covers(&self, other: &Self) -> bool {
        match self {
            Self::Global => true,
            Self::Tenant => *other != Self::Global,
            Self::Header(_) | Self::RoutingKey => self == other,
        }
    }
}

impl fmt::Display for Scope {
    /// As it stands in the configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tenant => f.write_str("tenant"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::RoutingKey => f.write_str("routing-key"),
            Self::Global => f.write_str("global"),
        }
    }
}

/// What a job has in the headers (or the routing key) by which its limits tell a tenant's jobs apart; empty where they
/// don't. In the order of the scopes, each once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Labels(
    pub(super) Vec<(Scope, String)>,
    /// What shadows alone tell apart: jobs that differ in it wait together.
    pub(super) Vec<(Scope, String)>,
);

impl Labels {
    /// These, whatever their order; what is no scope is left out.
    pub fn told<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        let label =
            |(scope, value): (&String, &String)| Some((Scope::parse(scope)?, value.clone()));
        let mut all: Vec<_> = labels.into_iter().filter_map(label).collect();
        all.retain(|(scope, _)| scope.is_part());
        all.sort_unstable();
        all.truncate(MAX_PARTS);
        Self(all, Vec::new())
    }

    /// True where nothing tells the tenant's jobs apart.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// They have a value for this scope.
    pub fn tell(&self, scope: &Scope) -> bool {
        self.0
            .iter()
            .chain(&self.1)
            .any(|(known, _)| known == scope)
    }

    /// Each scope and its value.
    pub fn iter(&self) -> impl Iterator<Item = (&Scope, &str)> {
        self.0.iter().map(|(scope, value)| (scope, value.as_str()))
    }

    /// As a part of a Redis key: `x-endpoint=%2Fv1`, or `=jobs` for a routing key, joined by `:`. A limit's name has no
    /// `=`, so this names no limit's key.
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

    /// Without what shadows alone tell apart.
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
    /// For logs: `header:x-endpoint=/v1, routing-key=jobs`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (scope, value)) in self.0.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}{scope}={value:?}")?;
        }
        Ok(())
    }
}
