//! Events of limits that the API teaches or advertises.

use std::time::Duration;

use tracing::field::display;
use tracing::{debug, warn};

use super::info_if;
use crate::line_limiter::{LineBudget, LineKind};
use gate::GateError;
use rules::tenant::Tenant;
use telemetry::metrics::Metrics;

/// An event of a learned or advertised limit.
#[derive(Debug)]
pub enum LimitFact {
    /// The API advertises a limit below the configured one.
    LowerAdvertised(Tenant, String),
    /// The API's answers lowered an adaptive limit.
    Lowered {
        /// The tenant, or `None` if all tenants share the limit.
        scope: Option<Tenant>,
        /// The limit's name.
        limit: String,
        /// The previous `max`.
        from: u64,
        /// The current `max`.
        to: u64,
        /// The configured `max`.
        max: u64,
        /// Time until the limit is whole again, if nothing else happens.
        left: Duration,
        /// Number of tenants for which this worker knows the limit to be lowered.
        lowered: usize,
    },
    /// A lowered limit is whole again.
    Restored {
        /// The tenant, or `None` if all tenants share the limit.
        scope: Option<Tenant>,
        /// The limit's name.
        limit: String,
        /// How long it was lowered.
        after: Duration,
        /// Number of tenants for which this worker knows the limit to be lowered.
        lowered: usize,
    },
    /// Lessons for adaptive limits could not be stored.
    LessonNotStored(GateError),
    /// The limits that the API advertises could not be stored.
    QuotaNotStored(GateError),
}

impl LimitFact {
    /// Counts the event, if it has a metric.
    pub(super) fn count(&self, metrics: &Metrics) {
        match self {
            Self::Lowered { limit, lowered, .. } => metrics.limit_lowered(limit, *lowered),
            Self::Restored { limit, lowered, .. } => metrics.limit_whole(limit, *lowered),
            // These are logged.
            Self::LowerAdvertised(..) | Self::LessonNotStored(..) | Self::QuotaNotStored(..) => {}
        }
    }

    /// Logs the event, if it has a line.
    pub(super) fn log(&self, lines: &mut LineBudget<'_>) {
        match self {
            Self::LowerAdvertised(tenant, warning) => warn!(%tenant, "{warning}"),
            Self::QuotaNotStored(why) => {
                debug!(reason = %why, "advertised limits could not be stored");
            }
            Self::LessonNotStored(why) => {
                debug!(reason = %why, "changes of learned limits could not be stored");
            }
            Self::Lowered {
                scope,
                limit,
                from,
                to,
                max,
                left,
                lowered: _,
            } => {
                let (at_info, whole_in_s) = (lines.may_log(LineKind::Lowered), left.as_secs());
                let tenant = scope.as_ref().map(display);
                info_if!(
                    at_info,
                    tenant,
                    limit,
                    from,
                    to,
                    max,
                    whole_in_s,
                    "limit lowered: the API admits less than the limit"
                );
            }
            Self::Restored {
                scope,
                limit,
                after,
                lowered: _,
            } => {
                let (at_info, lowered_s) = (lines.may_log(LineKind::Restored), after.as_secs());
                let tenant = scope.as_ref().map(display);
                info_if!(at_info, tenant, limit, lowered_s, "limit restored");
            }
        }
    }
}
