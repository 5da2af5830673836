//! Limits of other policies, which are enforced as well as this one.

use crate::gate::fleet::{Known, Registered};
use crate::rules::tenant::Tenant;
use serde::Serialize;

use crate::operator::limits;
use crate::operator::times::at;

/// A policy which workers have or had until lately.
#[derive(Debug, Serialize)]
pub(super) struct Other {
    policy: String,
    since_ms: u64,
    used_ms: u64,
    /// Unless a worker enforces it after `used_ms`.
    until_ms: u64,
    /// What it gives this tenant.
    limits: Vec<String>,
}

impl Other {
    pub(super) fn new(
        other: &Registered,
        known: &Known,
        now_ms: u64,
        tenant: &Tenant,
        plan: Option<&str>,
    ) -> Self {
        let limits = other.policy.limits(tenant, plan).all().iter();
        Self {
            policy: other.id.to_string(),
            since_ms: other.since_ms,
            used_ms: other.used_ms,
            until_ms: known.dropped_at(&other.id).unwrap_or(now_ms),
            limits: limits.map(limits::line).collect(),
        }
    }

    pub(super) fn in_words(&self) -> String {
        let mut text = format!(
            "also      another policy, which workers have had since {} and last at {}: its limits count until {}, and for longer if a worker keeps it\n",
            at(self.since_ms),
            at(self.used_ms),
            at(self.until_ms),
        );
        for limit in &self.limits {
            text += &format!("  limit  {limit}\n");
        }
        text
    }
}
