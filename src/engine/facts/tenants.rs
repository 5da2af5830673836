//! Events of tenants: when their jobs wait, and why.

use std::time::Duration;

use tracing::{debug, error, info, warn};

use super::{info_if, shown};
use crate::line_limiter::{LineBudget, LineKind};
use gate::{BreakerScope, GateError};
use rules::limit::{Limits, floor_ms};
use rules::scope::Labels;
use rules::tenant::Tenant;

/// The cause that closed a tenant.
#[derive(Debug)]
pub enum ClosedBy {
    /// One of these limits, by its index.
    Limit(Limits, usize),
    /// A throttle, a pause or its breaker.
    Suspension,
}

/// Cause and consequence of a missing decision on a tenant's jobs.
#[derive(Debug)]
pub enum NoDecision {
    /// Redis refuses the tenant's keys. Its jobs wait for this time.
    Refused(Duration),
    /// The tenant's primary is unavailable, and this was not reported yet.
    Unavailable,
    /// The same again; or the tenant's primary is in a recovery wait, which the gate reports
    /// itself.
    AlreadyReported,
}

/// An event of a tenant, or of all tenants.
#[derive(Debug)]
pub enum TenantFact {
    /// A tenant is closed: its jobs wait.
    Closed {
        /// The tenant.
        tenant: Tenant,
        /// The cause.
        by: ClosedBy,
        /// How long it stays closed, as far as this is known.
        wait: Duration,
    },
    /// A tenant is open again.
    Opened {
        /// The tenant.
        tenant: Tenant,
        /// How long it was closed.
        after: Duration,
        /// Number of its jobs that were denied, as far as this worker knows.
        denied: u64,
    },
    /// The API throttled a tenant, or all tenants.
    Throttled {
        /// The tenant of the throttled job.
        tenant: Tenant,
        /// The throttled tenant, or all of them.
        scope: BreakerScope,
        /// How long they are throttled.
        duration: Duration,
        /// The API's reason, or `None` if the answer was no refusal but reported a used-up quota.
        reason: Option<String>,
    },
    /// A throttle could not be stored in the gate.
    ThrottleNotStored {
        /// The throttled tenant, or all of them.
        scope: BreakerScope,
        /// The API's reason.
        by: String,
        /// How long the throttle still lasts.
        left: Duration,
        /// Whether storing it is tried again.
        will_retry: bool,
        /// The error.
        why: GateError,
    },
    /// All tenants are throttled for this time, as another worker reported for this reason.
    AllStopped(Duration, String),
    /// The gate could not decide on jobs of a tenant.
    Undecided {
        /// The tenant.
        tenant: Tenant,
        /// The labels of the jobs.
        labels: Labels,
        /// Number of jobs.
        jobs: usize,
        /// The error.
        why: GateError,
        /// Its consequence.
        what: NoDecision,
    },
    /// The store's clock could not be read for a tenant. This many jobs wait for it.
    ClockUnreadable(Tenant, usize, GateError),
}

impl TenantFact {
    /// Logs the event, if it has a line.
    pub(super) fn log(&self, lines: &mut LineBudget<'_>) {
        match self {
            Self::ClockUnreadable(tenant, jobs, why) => {
                warn!(%tenant, jobs, reason = %why, "Redis's clock can't be read: returning jobs wait \
                    until it can");
            }
            Self::Closed { tenant, by, wait } => {
                let (at_info, wait_ms) = (lines.may_log(LineKind::Closed), floor_ms(*wait));
                match by {
                    ClosedBy::Limit(limits, at) => {
                        let limit = limits[*at].name();
                        info_if!(at_info, %tenant, limit, wait_ms, "tenant closed: its jobs wait for a limit");
                    }
                    ClosedBy::Suspension => {
                        info_if!(at_info, %tenant, wait_ms, "tenant closed: suspended");
                    }
                }
            }
            Self::Opened {
                tenant,
                after,
                denied,
            } => {
                let (at_info, closed_s) = (lines.may_log(LineKind::Opened), after.as_secs());
                info_if!(at_info, %tenant, closed_s, denied, "tenant open again");
            }
            Self::Undecided {
                tenant,
                labels,
                jobs,
                why,
                what,
            } => undecided(lines, (tenant, labels), *jobs, (why, what)),
            Self::Throttled {
                tenant,
                scope,
                duration,
                reason,
            } => {
                let (scope, duration_ms) = (words(scope), floor_ms(*duration));
                let at_info = lines.may_log(LineKind::Throttled);
                match reason {
                    Some(reason) => {
                        info_if!(at_info, %tenant, whose = scope, duration_ms, reason, "throttled by the API");
                    }
                    None => {
                        info_if!(at_info, %tenant, whose = scope, duration_ms, "the API reports an exhausted \
                            quota");
                    }
                }
            }
            Self::ThrottleNotStored {
                scope,
                by,
                left,
                will_retry,
                why,
            } => {
                let (scope, left_ms) = (words(scope), floor_ms(*left));
                if *will_retry {
                    warn!(whose = scope, by, left_ms, reason = %why, "a throttle could not be stored: \
                        retrying; workers may call until it is stored");
                } else {
                    warn!(whose = scope, by, left_ms, reason = %why, "a throttle could not be stored: giving \
                        up; workers may call");
                }
            }
            Self::AllStopped(left, by) => {
                let left_ms = floor_ms(*left);
                info!(left_ms, by, "all tenants are suspended: their jobs wait");
            }
        }
    }
}

/// Logs that there is no decision on jobs of a tenant.
fn undecided(
    lines: &mut LineBudget<'_>,
    (tenant, labels): (&Tenant, &Labels),
    jobs: usize,
    (why, what): (&GateError, &NoDecision),
) {
    let labels = shown(labels);
    let wait_s = match what {
        NoDecision::Refused(wait) => Some(wait.as_secs()),
        NoDecision::Unavailable => None,
        NoDecision::AlreadyReported => {
            debug!(%tenant, labels, jobs, reason = %why, "no decision for this tenant");
            return;
        }
    };
    match lines.may_log(LineKind::Undecided) {
        true => {
            error!(%tenant, labels, jobs, wait_s, reason = %why, "no decision for this tenant: \
            its jobs wait, other tenants' jobs continue")
        }
        false => {
            debug!(%tenant, labels, jobs, wait_s, reason = %why, "no decision for this tenant")
        }
    }
}

fn words(scope: &BreakerScope) -> String {
    match scope {
        BreakerScope::Tenant(tenant) => format!("tenant {tenant}"),
        BreakerScope::Api => "all tenants".to_owned(),
    }
}
