//! Each window that ends with a call, and the number of calls that it may have.

use std::collections::BTreeMap;

use trial::windows::{Arrival, sliding};

use crate::history::{EventKind, HistoryEvent};

/// A half-open window of one tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub tenant: u32,
    /// When its last call arrived.
    pub at: u64,
    pub calls: u64,
    /// The largest limit in force within it.
    pub allowed: u64,
}

/// Returns all windows of `length` nanoseconds.
pub fn windows(events: &[HistoryEvent], length: u64) -> Vec<Window> {
    let mut arrivals: BTreeMap<u32, Vec<Arrival>> = BTreeMap::new();
    let mut limits = Vec::new();
    for event in events {
        match event.what {
            EventKind::Arrived { job, .. } => {
                arrivals.entry(job.tenant).or_default().push((event.at, 1));
            }
            EventKind::Limit { max } => limits.push((event.at, max)),
            _ => {}
        }
    }
    let mut all = Vec::new();
    for (tenant, arrivals) in arrivals {
        let counts = sliding(&arrivals, length);
        for ((at, _), calls) in arrivals.into_iter().zip(counts) {
            all.push(Window {
                tenant,
                at,
                calls,
                allowed: largest(&limits, at.saturating_sub(length), at),
            });
        }
    }
    all
}

/// Returns the largest limit in force after `from` and until `to`.
fn largest(limits: &[(u64, u64)], from: u64, to: u64) -> u64 {
    let before = limits.iter().rfind(|(at, _)| *at <= from);
    let within = limits.iter().filter(|(at, _)| *at > from && *at <= to);
    before
        .into_iter()
        .chain(within)
        .map(|(_, max)| *max)
        .max()
        .unwrap_or(0)
}
