//! An action on one tenant: its entry in the audit, and how it is done.

use std::time::Duration;

use super::NotDone;
use super::tenant::{DoneAction, change};
use super::trials::{Trial, end};
use gate::Change;
use gate::redis::RedisGate;
use rules::tenant::Tenant;
use serde_json::{Value, json};

/// An action on one tenant.
#[derive(Debug, Clone, PartialEq)]
pub enum TenantAction {
    /// Changes the tenant.
    Change(Tenant, Change),
    /// Tries another `max` of one of the tenant's limits for this many milliseconds.
    Try(Trial, u64),
    /// Ends the trial of the tenant's limit with this name.
    EndTry(Tenant, String),
}

impl TenantAction {
    /// Returns the audit entry of a command: its name, its object, and the rest of the request.
    pub fn audited(&self) -> (&'static str, Value, Value) {
        let (tenant, name, request) = match self {
            Self::Try(Trial { tenant, limit, max }, for_ms) => {
                let request = json!({"limit": limit, "max": max, "for_ms": for_ms, "shadow": true});
                (tenant, "tenant limit", request)
            }
            Self::EndTry(tenant, limit) => {
                let request = json!({"limit": limit, "clear": true, "shadow": true});
                (tenant, "tenant limit", request)
            }
            Self::Change(tenant, change) => {
                let (name, request) = match change {
                    Change::Pause { duration_ms } => {
                        ("tenant pause", json!({"for_ms": duration_ms}))
                    }
                    Change::Resume => ("tenant resume", json!({})),
                    Change::Limit {
                        name,
                        max,
                        duration_ms,
                    } => (
                        "tenant limit",
                        json!({"limit": name, "max": max, "for_ms": duration_ms}),
                    ),
                    Change::Unlimit { name } => {
                        ("tenant limit", json!({"limit": name, "clear": true}))
                    }
                    Change::Reset => ("tenant reset", json!({})),
                };
                (tenant, name, request)
            }
        };
        (name, json!({"tenant": tenant.as_str()}), request)
    }

    /// Performs the action. A start or an end of a trial waits at most `within` for all workers to
    /// follow.
    ///
    /// # Errors
    /// Fails like [`change`], [`Trial::begin`] or [`end`].
    pub async fn perform(self, gate: &RedisGate, within: Duration) -> Result<DoneAction, NotDone> {
        match self {
            Self::Change(tenant, what) => change(gate, tenant, what).await,
            Self::Try(trial, for_ms) => trial.begin(gate, (for_ms, within)).await,
            Self::EndTry(tenant, limit) => end(gate, (tenant, limit), within).await,
        }
    }
}
