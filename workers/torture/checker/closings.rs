//! The closings of tenants by a 429, and calls that came nevertheless.

use std::collections::{BTreeMap, HashMap};

use crate::history::{DownstreamAnswer, EventKind, HistoryEvent};

/// Returns, for each closing, how long after the 429 the tenant's last call during the closing
/// came; `None` without such a call. `closed` is how long a 429 closes a tenant. Times are in
/// nanoseconds.
pub fn closings(events: &[HistoryEvent], closed: u64) -> Vec<Option<u64>> {
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
            let last = arrivals[tenant][..before_the_end].last()?;
            last.checked_sub(at).filter(|after| *after > 0)
        })
        .collect()
}
