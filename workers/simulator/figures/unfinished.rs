//! Why jobs were not done at the end of a run.

use serde::Serialize;

use super::seconds;
use crate::history::{RunHistory, StopReason};

/// Describes a run that ended before its jobs did. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UnfinishedSummary {
    /// Time from the beginning of the run to its end.
    pub at: f64,
    /// Why the run ended.
    pub why: Reason,
    /// How long no job had ended.
    pub still: f64,
    /// Calls in that time, or in the whole run if it ended for another reason.
    pub calls: usize,
    /// Calls that the API failed.
    pub failed: usize,
    /// Calls that the API answered with 429.
    pub throttled: usize,
    /// Calls without an answer in time.
    pub unanswered: usize,
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Its time was over.
    Within,
    /// No job had ended for the longest possible wait.
    Still,
    /// There were too many calls and deliveries.
    Work,
}

impl UnfinishedSummary {
    /// Reads the reason from `history`; `None` if it has none.
    pub fn of(history: &RunHistory) -> Option<Self> {
        let left = history.left?;
        let why = match left.why {
            StopReason::Within => Reason::Within,
            StopReason::Still => Reason::Still,
            StopReason::Work(_) => Reason::Work,
        };
        let since_us = match why {
            Reason::Still => left.since_us,
            _ => 0,
        };
        let calls = history.calls.iter().filter(|call| call.at_us >= since_us);
        let count = |is: &dyn Fn(u16) -> bool| {
            let calls = calls.clone();
            calls.filter(|call| is(call.status)).count()
        };
        Some(Self {
            at: seconds(left.at_us),
            why,
            still: seconds(left.at_us.saturating_sub(left.since_us)),
            calls: count(&|_| true),
            failed: count(&|status| status >= 500),
            throttled: count(&|status| status == 429),
            unanswered: count(&|status| status == 0),
        })
    }
}
