//! Why jobs were not done when a run was over.

use serde::Serialize;

use super::seconds;
use crate::history::{History, Why};

/// What is known of a run that was over before its jobs. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OfLeft {
    /// When it was over, after its beginning.
    pub at: f64,
    /// Why.
    pub why: Reason,
    /// For so long no job had ended.
    pub still: f64,
    /// Calls in that time; of the whole run, where it was not over because of that;
    pub calls: usize,
    /// those of them that the API failed,
    pub failed: usize,
    /// those that it answered 429,
    pub throttled: usize,
    /// and those that had no answer in time.
    pub unanswered: usize,
}

/// Why a run was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// So was its time.
    Within,
    /// No job had ended for so long that none would have.
    Still,
    /// There were too many calls and deliveries.
    Work,
}

impl OfLeft {
    /// Of `history`; `None`: it does not say why.
    pub fn of(history: &History) -> Option<Self> {
        let left = history.left?;
        let why = match left.why {
            Why::Within => Reason::Within,
            Why::Still => Reason::Still,
            Why::Work(_) => Reason::Work,
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
