//! Calls that their handler gave up and that may still arrive, or be worked on. Their leases are
//! kept until the calls are known to have ended, or for the time that the handler gave.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::scheduler::entry::StartRecord;
use rules::tenant::Tenant;

/// Maximum number of remembered calls. Further calls are reported to the gate once, and their ends
/// are not awaited.
const MAX_CALLS: usize = 16_384;

/// A call that was given up.
#[derive(Debug)]
pub struct AbandonedCall {
    /// The tenant of its job.
    pub tenant: Tenant,
    /// The record of its start.
    pub started: StartRecord,
    /// Its leases are kept until then.
    pub until: Duration,
}

/// The abandoned calls of this worker, by the names of their permits.
#[derive(Debug, Default)]
pub struct AbandonedCalls(BTreeMap<String, AbandonedCall>);

impl AbandonedCalls {
    /// Returns true if another call can be remembered.
    pub fn has_room(&self) -> bool {
        self.0.len() < MAX_CALLS
    }

    /// Remembers `call`.
    pub fn add(&mut self, call: AbandonedCall) {
        self.0.insert(call.started.receipt.permit.clone(), call);
    }

    /// Forgets a call that has ended, or whose time is over.
    pub fn remove(&mut self, permit: &str) -> Option<AbandonedCall> {
        self.0.remove(permit)
    }

    /// Iterates over all calls, in a stable order.
    pub fn iter(&self) -> impl Iterator<Item = &AbandonedCall> {
        self.0.values()
    }

    /// Returns the number of calls.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}
