//! Events of the whole worker: its fitness, breakers and operators.

use tracing::{debug, info, warn};

use super::info_if;
use crate::line_limiter::{LineBudget, LineKind};
use gate::{BreakerScope, GateError};
use rules::steering::Hold;
use telemetry::metrics::Metrics;

/// An event of the whole worker.
#[derive(Debug)]
pub enum WorkerFact {
    /// This worker can't make calls, for the given reason. It returns its jobs to their queues and
    /// tries a few from time to time.
    Unfit(String),
    /// This worker can make calls again.
    Fit,
    /// A call was not made because this process or machine lacked a resource. The text names it.
    ResourceShortage(String),
    /// Failed calls could not be reported to the breakers.
    FailuresNotReported(GateError),
    /// A breaker opened (true) or closed, for this reason.
    Breaker(BreakerScope, bool, String),
    /// An operator paused or drains all workers; `None` if that ended.
    Held(Option<Hold>),
}

impl WorkerFact {
    /// Counts the event, if it has a metric.
    pub(super) fn count(&self, metrics: &Metrics) {
        match self {
            Self::Breaker(scope, true, _) => metrics.breaker_opened.count(match scope {
                BreakerScope::Tenant(_) => "tenant",
                BreakerScope::Api => "api",
            }),
            Self::Held(hold) => metrics.set_held(*hold),
            // These are logged.
            Self::Unfit(..)
            | Self::Fit
            | Self::ResourceShortage(..)
            | Self::FailuresNotReported(..)
            | Self::Breaker(..) => {}
        }
    }

    /// Logs the event, if it has a line.
    pub(super) fn log(&self, lines: &mut LineBudget<'_>) {
        match self {
            Self::Unfit(reason) => {
                warn!(
                    reason,
                    "this worker can't make calls: it returns its jobs to their queues and tries some \
                    from time to time"
                );
            }
            Self::Fit => info!("this worker can make calls again"),
            Self::ResourceShortage(reason) => {
                warn!(
                    reason,
                    "this worker lacks resources for calls: jobs wait and use no attempt"
                );
            }
            Self::FailuresNotReported(why) => {
                warn!(reason = %why, "failed calls could not be reported to the breakers: they use no \
                    attempts");
            }
            Self::Breaker(scope, is_open, by) => breaker(lines, scope, *is_open, by),
            Self::Held(Some(Hold::Paused)) => {
                warn!("an operator paused all workers: no job is called or taken");
            }
            Self::Held(Some(Hold::Draining)) => {
                warn!("an operator is draining all workers: no new job is taken");
            }
            Self::Held(None) => info!("an operator resumed all workers"),
        }
    }
}

/// Logs that a breaker opened or closed.
fn breaker(lines: &mut LineBudget<'_>, scope: &BreakerScope, is_open: bool, by: &str) {
    match (scope, is_open) {
        (BreakerScope::Tenant(tenant), true) => {
            if lines.may_log(LineKind::BreakerOpened) {
                warn!(%tenant, by, "breaker of this tenant open: only one probe at a time is \
                    called; its jobs wait and use no attempt");
            } else {
                debug!(%tenant, by, "breaker of this tenant open");
            }
        }
        (BreakerScope::Tenant(tenant), false) => {
            let at_info = lines.may_log(LineKind::BreakerClosed);
            info_if!(at_info, %tenant, "breaker of this tenant closed: calls succeed again");
        }
        (BreakerScope::Api, true) => {
            warn!(
                by,
                "breaker of the API open: only one probe at a time is called; jobs wait and use \
                no attempt"
            );
        }
        (BreakerScope::Api, false) => info!("breaker of the API closed: calls succeed again"),
    }
}
