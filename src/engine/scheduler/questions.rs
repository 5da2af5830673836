//! What a question to the gate asks.

use crate::engine::action::Key;
use crate::gate::{End, Receipt, Sequences, Settled, TenantAsk};
use crate::rules::limit::Limits;
use crate::rules::scope::Labels;
use crate::rules::tenant::Tenant;

/// What jobs of one tenant with the same limits and labels are asked for. Those of one tenant follow each other.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) tenant: Tenant,
    pub(super) labels: Labels,
    pub(super) limits: Limits,
    /// What their permits are called; empty where no limit holds leases, and nobody asks for a permit's name.
    pub(super) permits: String,
    pub(super) jobs: Vec<Asked>,
}

/// A job of a question.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) key: Key,
    /// Its place among all jobs of its tenant that were asked for.
    pub(super) place: usize,
    pub(super) cost: u32,
}

impl Question {
    /// Without jobs yet.
    pub(super) fn new(tenant: Tenant, labels: Labels, limits: Limits, permits: String) -> Self {
        Self {
            tenant,
            labels,
            limits,
            permits,
            jobs: Vec::new(),
        }
    }

    /// The same for the gate, with no jobs yet.
    pub(super) fn ask(&self) -> TenantAsk {
        TenantAsk {
            tenant: self.tenant.clone(),
            labels: self.labels.clone(),
            limits: self.limits.clone(),
            budget: 0,
            permits: self.permits.clone(),
            asks: Vec::new(),
        }
    }

    /// What the gate gave the job that was asked for as the `number`-th, from 0.
    pub(super) fn receipt(&self, number: usize, started_ms: u64, sequences: Sequences) -> Receipt {
        Receipt {
            permit: match self.permits.as_str() {
                "" => String::new(),
                permits => format!("{permits}:{number}"),
            },
            started_ms,
            sequences,
            cost: self.jobs[number].cost,
        }
    }

    /// The gate may have admitted these, in an answer that was lost or did not count: none starts.
    pub(super) fn in_doubt(&self) -> impl Iterator<Item = Settled> {
        (0..self.jobs.len()).map(|number| Settled {
            receipt: self.receipt(number, 0, Sequences::NONE),
            end: End::Unused,
        })
    }
}
