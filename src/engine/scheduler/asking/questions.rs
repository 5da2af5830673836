//! A question to the gate.

use crate::engine::action::JobKey;
use crate::gate::{End, Receipt, Sequences, Settled, TenantAsk};
use rules::limit::Limits;
use rules::scope::Labels;
use rules::tenant::Tenant;

/// A question for jobs of one tenant with the same limits and labels. Questions of the same tenant
/// follow each other.
#[derive(Debug)]
pub struct GateQuestion {
    pub tenant: Tenant,
    pub labels: Labels,
    pub limits: Limits,
    /// The common part of the names of its permits. Empty if no limit holds leases, because then no
    /// permit needs a name.
    pub(super) permits: String,
    pub jobs: Vec<QuestionJob>,
}

/// A job in a question.
#[derive(Debug)]
pub struct QuestionJob {
    pub key: JobKey,
    /// Its position among all jobs of its tenant that ask in this round.
    pub index: usize,
    pub cost: u64,
}

impl GateQuestion {
    /// Creates a question without jobs.
    pub fn new(tenant: Tenant, labels: Labels, limits: Limits, permits: String) -> Self {
        Self {
            tenant,
            labels,
            limits,
            permits,
            jobs: Vec::new(),
        }
    }

    /// Converts the question for the gate, without jobs.
    pub fn ask(&self) -> TenantAsk {
        TenantAsk {
            tenant: self.tenant.clone(),
            labels: self.labels.clone(),
            limits: self.limits.clone(),
            budget: 0,
            permits: self.permits.clone(),
            asks: Vec::new(),
        }
    }

    /// Returns the receipt of the job at index `number`.
    pub fn receipt(&self, number: usize, started_ms: u64, sequences: Sequences) -> Receipt {
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

    /// Returns settlements for jobs that the gate may have admitted in an answer that was lost or
    /// discarded. None of them starts.
    pub fn in_doubt(&self) -> impl Iterator<Item = Settled> {
        (0..self.jobs.len()).map(|number| Settled {
            receipt: self.receipt(number, 0, Sequences::NONE),
            end: End::Unused,
        })
    }
}
