//! The actions of an operator, and their descriptions before they are confirmed.

use config::show_duration;
use gate::Change;
use operator::dead::Filter;
use operator::tenant_action::TenantAction;
use operator::text::{count, plain};
use operator::trials::Trial;
use std::time::Duration;

use super::view::parts::name;

/// One action.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Acts on a tenant.
    Tenant(TenantAction),
    /// Moves dead letters back to the work queue.
    Replay(LetterSelection),
}

/// A selection of dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterSelection {
    /// Finds one by its ID, all of a tenant, or all.
    pub filter: Filter,
    /// Number of them in the list.
    pub listed: usize,
}

impl LetterSelection {
    fn describe(&self) -> String {
        let listed = self.listed;
        let tenant = self.filter.tenant.as_deref().map(name);
        match (&self.filter.id, tenant.as_deref().unwrap_or_default()) {
            (Some(id), tenant) => {
                let of = match tenant {
                    "" => "without a tenant".to_owned(),
                    tenant => format!("of {tenant}"),
                };
                format!("the dead letter {} {of}: it returns", plain(id, 64))
            }
            (None, "") => format!(
                "ALL dead letters of all tenants ({} in the list): they return",
                count(listed as u64, "dead letter")
            ),
            (None, tenant) => {
                format!("all dead letters of {tenant} ({listed} in the list): they return")
            }
        }
    }
}

fn span(ms: u64) -> String {
    show_duration(Duration::from_millis(ms))
}

impl Act {
    /// Describes the action in a few words while it runs, and in sentences before it begins.
    pub fn describe(&self) -> (String, String) {
        let (tenant, change) = match self {
            Self::Replay(which) => {
                let description = format!(
                    "Replay {} to the work queue as new jobs with all attempts, within the limits. \
                    Esc stops between two jobs; to go slower: sluicegate dead replay --rate.",
                    which.describe()
                );
                return ("replaying dead letters".to_owned(), description);
            }
            Self::Tenant(TenantAction::Try(Trial { tenant, limit, max }, for_ms)) => {
                let tenant = name(tenant.as_str());
                let description = format!(
                    "Try max-requests {max} for the limit {limit} of {tenant} for {}: it counts \
                    next to the enforced limit, denies nothing, and shows what it would have done. \
                    e enforces it, x ends it.",
                    span(*for_ms)
                );
                return (format!("trying a limit of {tenant}"), description);
            }
            Self::Tenant(TenantAction::EndTry(tenant, limit)) => {
                let tenant = name(tenant.as_str());
                let description = format!(
                    "End the trial of the limit {limit} of {tenant}: the enforced limit does not \
                    change."
                );
                return (format!("ending a trial of {tenant}"), description);
            }
            Self::Tenant(TenantAction::Change(tenant, change)) => (name(tenant.as_str()), change),
        };
        let changing_a_limit = || format!("changing a limit of {tenant}");
        match change {
            Change::Pause { duration_ms } => (
                format!("pausing {tenant}"),
                format!(
                    "Pause {tenant} for {}: no worker starts its jobs. Calls in flight continue, \
                    jobs wait, none is lost. r ends the pause earlier.",
                    span(*duration_ms)
                ),
            ),
            Change::Resume => (
                format!("resuming {tenant}"),
                format!(
                    "Resume {tenant}: ends its pause and throttle (429) and closes its breaker, at \
                    all workers. Its jobs start as its limits allow."
                ),
            ),
            Change::Limit {
                name,
                max,
                duration_ms,
            } => (
                changing_a_limit(),
                format!(
                    "Limit {name} of {tenant}: max-requests is {max} for {}, at all workers. Then \
                    the configured limit applies again; c clears it earlier.",
                    span(*duration_ms)
                ),
            ),
            Change::Unlimit { name } => (
                changing_a_limit(),
                format!(
                    "Limit {name} of {tenant}: the configured max-requests applies again, at all \
                    workers."
                ),
            ),
            Change::Reset => (
                format!("resetting the waitlist of {tenant}"),
                format!(
                    "Reset the waitlist of {tenant}: it is emptied, and usage is kept. Waiting \
                    jobs get new tickets when they return, so their order may change. Use it for a \
                    wrong waitlist."
                ),
            ),
        }
    }
}
