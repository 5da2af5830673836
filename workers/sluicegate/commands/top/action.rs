//! The actions of an operator: their descriptions before they are confirmed, and their audit
//! entries.

use config::{Config, show_duration};
use gate::Change;
use operator::dead::{self, Filter};
use operator::tenant_action::TenantAction;
use operator::text::{count, plain};
use operator::trials::Trial;
use serde_json::{Value, json};
use std::time::Duration;

use super::view::parts::NAME;

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
pub enum LetterSelection {
    /// The dead letter with this ID, of the given tenant or without one.
    One(String, Option<String>),
    /// All of a tenant's, with the number of listed ones.
    Of(String, usize),
    /// All of them, with the number of listed ones.
    All(usize),
}

impl LetterSelection {
    /// Returns the filter that finds them.
    pub fn filter(&self) -> Filter {
        let mut filter = Filter::default();
        match self {
            // IDs belong to publishers, and two tenants' may be equal.
            Self::One(id, tenant) => {
                let tenant = tenant.clone().unwrap_or_default();
                (filter.id, filter.tenant) = (Some(id.clone()), Some(tenant));
            }
            Self::Of(tenant, _) => filter.tenant = Some(tenant.clone()),
            Self::All(_) => {}
        }
        filter
    }

    /// Checks that they can be replayed with `config`.
    ///
    /// # Errors
    /// The reason, as a text for the operator.
    pub fn check(&self, config: &Config) -> Result<(), String> {
        let all = matches!(self, Self::All(_));
        let checked = dead::LetterChange::Replay(None).check(&self.filter(), all, config);
        checked.map_err(|why| why.to_string())
    }

    /// Returns the audit entry, as the command writes it.
    pub fn in_the_audit(&self) -> Value {
        let Filter { reason, tenant, id } = self.filter();
        let all = matches!(self, Self::All(_));
        json!({"reason": reason, "tenant": tenant, "id": id, "all": all, "limit": null})
    }

    fn describe(&self) -> String {
        match self {
            Self::One(id, tenant) => {
                let of = match tenant.as_deref().unwrap_or_default() {
                    "" => "without a tenant".to_owned(),
                    tenant => format!("of {}", name(tenant)),
                };
                format!("Replay the dead letter {} {of}: it returns", plain(id, 64))
            }
            Self::Of(tenant, listed) => format!(
                "Replay all dead letters of {} ({listed} in the list): they return",
                name(tenant)
            ),
            Self::All(listed) => format!(
                "Replay ALL dead letters of all tenants ({} in the list): they return",
                count(*listed as u64, "dead letter")
            ),
        }
    }
}

fn name(tenant: &str) -> String {
    plain(tenant, NAME)
}

fn span(ms: u64) -> String {
    show_duration(Duration::from_millis(ms))
}

impl Act {
    /// Describes what will happen.
    pub fn describe(&self) -> String {
        match self {
            Self::Replay(which) => format!(
                "{} to the work queue as new jobs with all attempts, within the limits. Esc stops \
                between two jobs; to go slower: sluicegate dead replay --rate.",
                which.describe()
            ),
            Self::Tenant(TenantAction::Try(Trial { tenant, limit, max }, for_ms)) => format!(
                "Try max-requests {max} for the limit {limit} of {} for {}: it counts next to the \
                enforced limit, denies nothing, and shows what it would have done. e enforces it, \
                x ends it.",
                name(tenant.as_str()),
                span(*for_ms)
            ),
            Self::Tenant(TenantAction::EndTry(tenant, limit)) => format!(
                "End the trial of the limit {limit} of {}: the enforced limit does not change.",
                name(tenant.as_str())
            ),
            Self::Tenant(TenantAction::Change(tenant, change)) => {
                let tenant = name(tenant.as_str());
                match change {
                    Change::Pause { duration_ms } => format!(
                        "Pause {tenant} for {}: no worker starts its jobs. Calls in flight \
                        continue, jobs wait, none is lost. r ends the pause earlier.",
                        span(*duration_ms)
                    ),
                    Change::Resume => format!(
                        "Resume {tenant}: ends its pause and throttle (429) and closes its \
                        breaker, at all workers. Its jobs start as its limits allow."
                    ),
                    Change::Limit {
                        name,
                        max,
                        duration_ms,
                    } => format!(
                        "Limit {name} of {tenant}: max-requests is {max} for {}, at all workers. \
                        Then the configured limit applies again; c clears it earlier.",
                        span(*duration_ms)
                    ),
                    Change::Unlimit { name } => format!(
                        "Limit {name} of {tenant}: the configured max-requests applies again, at \
                        all workers."
                    ),
                    Change::Reset => format!(
                        "Reset the waitlist of {tenant}: it is emptied, and usage is kept. \
                        Waiting jobs get new tickets when they return, so their order may change. \
                        Use it for a wrong waitlist."
                    ),
                }
            }
        }
    }

    /// Describes the action in a few words while it runs.
    pub fn short(&self) -> String {
        match self {
            Self::Replay(_) => "replaying dead letters".to_owned(),
            Self::Tenant(TenantAction::Try(trial, _)) => {
                format!("trying a limit of {}", name(trial.tenant.as_str()))
            }
            Self::Tenant(TenantAction::EndTry(tenant, _)) => {
                format!("ending a trial of {}", name(tenant.as_str()))
            }
            Self::Tenant(TenantAction::Change(tenant, change)) => {
                let tenant = name(tenant.as_str());
                match change {
                    Change::Pause { .. } => format!("pausing {tenant}"),
                    Change::Resume => format!("resuming {tenant}"),
                    Change::Limit { .. } | Change::Unlimit { .. } => {
                        format!("changing a limit of {tenant}")
                    }
                    Change::Reset => format!("resetting the waitlist of {tenant}"),
                }
            }
        }
    }
}
