//! Whether a 429 stops the tenant of its job, or all tenants.

use strum::{IntoStaticStr, VariantArray};

use crate::limit::Limit;
use crate::named::Named;
use crate::policy::Policy;

/// The tenants that a refusal throttles: `rate-limiter.throttle-scope`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum ThrottleScope {
    /// `auto`: all tenants if all limits of the refused job are global, else its tenant.
    #[default]
    Auto,
    /// `tenant`
    Tenant,
    /// `global`
    Global,
}

impl Named for ThrottleScope {}

impl ThrottleScope {
    /// Returns the scope of an answer. An answer that says whether it stops all tenants overrides
    /// this one.
    pub fn or_by_answer(self, stops_all: Option<bool>) -> Self {
        match stops_all {
            Some(true) => Self::Global,
            Some(false) => Self::Tenant,
            None => self,
        }
    }

    /// Returns true if a refusal of a job with these limits stops all tenants.
    pub fn stops_all(self, limits: &[Limit]) -> bool {
        match self {
            Self::Auto => !limits.is_empty() && limits.iter().all(Limit::is_global),
            Self::Tenant => false,
            Self::Global => true,
        }
    }

    /// Returns true if a refusal of any job may stop all tenants.
    pub fn may_stop_all(self, policy: &Policy) -> bool {
        policy.all().any(|limits| self.stops_all(limits))
    }
}
