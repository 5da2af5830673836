//! Each time that a 429 closed a tenant, and the calls that came nevertheless.

use std::collections::{BTreeMap, HashMap};

use crate::history::{Answer, Event, What};

/// For each closing how long after the 429 the last call of its tenant came before it was over, if one did. Times in
/// nanoseconds; `closed`: for how long a 429 closes.
pub fn closings(events: &[Event], closed: u64) -> Vec<Option<u64>> {
    let mut arrivals: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    let mut tenants = HashMap::new();
    for event in events {
        if let What::Arrived { call, job, .. } = event.what {
            arrivals.entry(job.tenant).or_default().push(event.at);
            tenants.insert(call, job.tenant);
        }
    }
    let throttled = events.iter().filter_map(|event| match event.what {
        What::Answered {
            call,
            answer: Answer::Throttled,
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
