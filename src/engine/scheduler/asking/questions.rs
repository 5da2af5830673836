//! Questions to the gate.

use std::collections::HashMap;

use crate::action::JobKey;
use gate::{End, Receipt, Sequences, StartSettlement, TenantAsk};
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

    /// Reserves memory for this many jobs.
    #[must_use]
    pub fn with_room(mut self, jobs: usize) -> Self {
        self.jobs.reserve_exact(jobs);
        self
    }

    /// Converts the question for the gate, without jobs, but with as much room for them.
    pub fn ask(&self) -> TenantAsk {
        TenantAsk {
            tenant: self.tenant.clone(),
            labels: self.labels.clone(),
            limits: self.limits.clone(),
            budget: 0,
            permits: self.permits.clone(),
            asks: Vec::with_capacity(self.jobs.capacity()),
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
    pub fn in_doubt(&self) -> impl Iterator<Item = StartSettlement> {
        (0..self.jobs.len()).map(|number| StartSettlement {
            receipt: self.receipt(number, 0, Sequences::NONE),
            end: End::Unused,
        })
    }
}

/// The questions for the jobs of one tenant.
#[derive(Default)]
pub struct TenantQuestions {
    all: Vec<(TenantAsk, GateQuestion)>,
    /// Indexes of all questions but the first, by labels. Jobs of another plan have different
    /// limits.
    alike: HashMap<Labels, Vec<usize>>,
}

impl TenantQuestions {
    /// Returns true if there is no question.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the question with these labels and limits. If there is none, adds `new()`.
    pub fn find_or_add(
        &mut self,
        labels: Labels,
        limits: Limits,
        new: impl FnOnce(Labels, Limits) -> GateQuestion,
    ) -> &mut (TenantAsk, GateQuestion) {
        let all = &mut self.all;
        let first = all.first();
        let is_first = first.is_some_and(|(it, _)| it.labels == labels && it.limits == limits);
        let mut others = self.alike.get(&labels).into_iter().flatten().copied();
        let other = |at: &usize| all[*at].0.limits == limits;
        let same = is_first.then_some(0).or_else(|| others.find(other));
        let at = same.unwrap_or_else(|| {
            let at = all.len();
            if at > 0 {
                self.alike.entry(labels.clone()).or_default().push(at);
            }
            let question = new(labels, limits);
            all.push((question.ask(), question));
            at
        });
        &mut all[at]
    }

    /// Takes all questions, in the order in which they were added.
    pub fn take(&mut self) -> impl Iterator<Item = (TenantAsk, GateQuestion)> {
        self.alike.clear();
        self.all.drain(..)
    }
}
