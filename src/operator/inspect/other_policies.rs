//! Limits of other workers' policies, which are enforced together with this one.

use crate::gate::fleet::{Registered, RegistryKnowledge};
use crate::rules::policy::{Policy, differing};
use crate::rules::tenant::Tenant;
use serde::Serialize;

use crate::operator::limits;
use crate::operator::other_policies::describe_keys;
use crate::operator::times::at;

/// Maximum number of differing keys that the text names. The JSON has all of them.
const MAX_KEYS: usize = 3;

/// A policy that other workers have or had until lately.
#[derive(Debug, Serialize)]
pub(super) struct OtherPolicy {
    policy: String,
    since_ms: u64,
    used_ms: u64,
    /// End of its enforcement, unless a worker uses it again after `used_ms`.
    until_ms: u64,
    /// Limits of this tenant by this policy.
    limits: Vec<String>,
    /// Keys below `rate-limiter` that differ from the configuration.
    differing_keys: Vec<String>,
    /// Limits in `limits` that the configuration does not have.
    #[serde(skip)]
    new: Vec<String>,
}

impl OtherPolicy {
    /// Compares the limits of `tenant` in the policy `other` with those in `own`.
    pub(super) fn new(
        (own, other): (&Policy, &Registered),
        (known, now_ms): (&RegistryKnowledge, u64),
        (tenant, plan): (&Tenant, Option<&str>),
    ) -> Self {
        let lines = |policy: &Policy| {
            let limits = policy.limits(tenant, plan).all().iter();
            limits.map(limits::line).collect::<Vec<String>>()
        };
        let (limits, known_here) = (lines(&other.policy), lines(own));
        let new = limits.iter().filter(|line| !known_here.contains(line));
        Self {
            policy: other.id.to_string(),
            since_ms: other.since_ms,
            used_ms: other.used_ms,
            until_ms: known.dropped_at(&other.id).unwrap_or(now_ms),
            differing_keys: differing(own, &other.policy),
            new: new.cloned().collect(),
            limits,
        }
    }

    pub(super) fn describe(&self) -> String {
        let mut text = format!(
            "also      another configuration, until at least {}: {}\n",
            at(self.until_ms),
            describe_keys(&self.differing_keys, MAX_KEYS)
        );
        for limit in &self.new {
            text += &format!("  limit  {limit}\n");
        }
        text
    }
}
