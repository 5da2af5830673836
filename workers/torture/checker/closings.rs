//! The closings of tenants by a 429, and calls that came nevertheless.

use std::collections::{BTreeMap, HashMap};

use crate::history::{DownstreamAnswer, EventKind, HistoryEvent};

/// A closing. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closing {
    /// When the 429 was sent.
    pub at: u64,
    /// How long after that the tenant's last call during the closing came.
    pub last: Option<u64>,
}

/// Returns all closings. `closed` is how long a 429 closes a tenant, in nanoseconds.
pub fn closings(events: &[HistoryEvent], closed: u64) -> Vec<Closing> {
    let mut arrivals: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    let mut tenants = HashMap::new();
    for event in events {
        if let EventKind::Arrived { call, job, .. } = event.what {
            arrivals.entry(job.tenant).or_default().push(event.at);
            tenants.insert(call, job.tenant);
        }
    }
    let throttled = events.iter().filter_map(|event| match event.what {
        EventKind::Answered {
            call,
            answer: DownstreamAnswer::Throttled,
        } => Some((event.at, tenants.get(&call)?)),
        _ => None,
    });
    throttled
        .map(|(at, tenant)| {
            let before_the_end = arrivals[tenant].partition_point(|time| *time < at + closed);
            let last = arrivals[tenant][..before_the_end].last();
            let last = last.and_then(|last| last.checked_sub(at));
            Closing {
                at,
                last: last.filter(|after| *after > 0),
            }
        })
        .collect()
}
