//! Limits of other workers' policies, which are enforced together with this one.

use gate::fleet::{RegisteredPolicy, RegistryKnowledge};
use rules::policy::{Policy, differing};
use rules::tenant::Tenant;

use crate::answer::answers;
use crate::limits;
use crate::other_policies::describe_keys;
use crate::times::at;

/// Maximum number of differing keys that the text names. The JSON has all of them.
const MAX_KEYS: usize = 3;

answers! {
    /// A policy that other workers have or had until lately.
    pub struct OtherConfiguration {
        pub policy: String,
        pub since_ms: u64,
        pub used_ms: u64,
        /// End of its enforcement, unless a worker uses it again after `used_ms`.
        pub until_ms: u64,
        /// Limits of this tenant by this policy.
        pub limits: Vec<String>,
        /// Keys below `rate-limiter` that differ from the configuration.
        pub differing_keys: Vec<String>,
    }
}

/// Another policy, compared with the configuration.
pub(super) struct OtherPolicy {
    pub(super) shown: OtherConfiguration,
    /// Limits of the policy that the configuration does not have.
    new: Vec<String>,
}

impl OtherPolicy {
    /// Compares the limits of `tenant` in the policy `other` with those in `own`.
    pub(super) fn new(
        (own, other): (&Policy, &RegisteredPolicy),
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
            new: new.cloned().collect(),
            shown: OtherConfiguration {
                policy: other.id.to_string(),
                since_ms: other.since_ms,
                used_ms: other.used_ms,
                until_ms: known.dropped_at(&other.id).unwrap_or(now_ms),
                differing_keys: differing(own, &other.policy),
                limits,
            },
        }
    }

    pub(super) fn describe(&self) -> String {
        let mut text = format!(
            "also      another configuration, until at least {}: {}\n",
            at(self.shown.until_ms),
            describe_keys(&self.shown.differing_keys, MAX_KEYS)
        );
        for limit in &self.new {
            text += &format!("  limit  {limit}\n");
        }
        text
    }
}
