//! Calls that their handler gave up and that may still arrive, or be worked on: their leases are kept until it is known that they
//! have ended, or for as long as the handler said.

use std::collections::BTreeMap;
use std::time::Duration;

use super::entry::Started;
use crate::rules::tenant::Tenant;

/// The most that are remembered. Of more the gate is told once, and nobody waits for their ends.
const MOST: usize = 16_384;

/// A call that was given up.
#[derive(Debug)]
pub struct Call {
    /// Whose it is.
    pub tenant: Tenant,
    /// What it started with.
    pub started: Started,
    /// Its leases are kept until then.
    pub until: Duration,
}

/// Those of this worker, by the names of their permits.
#[derive(Debug, Default)]
pub struct Abandoned(BTreeMap<String, Call>);

impl Abandoned {
    /// Whether one more can be remembered.
    pub fn has_room(&self) -> bool {
        self.0.len() < MOST
    }

    /// Remembers `call`.
    pub fn add(&mut self, call: Call) {
        self.0.insert(call.started.receipt.permit.clone(), call);
    }

    /// It has ended, or its time is over: it is forgotten.
    pub fn remove(&mut self, permit: &str) -> Option<Call> {
        self.0.remove(permit)
    }

    /// All, in an order that is the same each time.
    pub fn iter(&self) -> impl Iterator<Item = &Call> {
        self.0.values()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}
