//! What a question to the gate asks, and for how long its answer is good.

use std::time::Duration;

use crate::engine::action::Key;
use crate::gate::{End, Receipt, Sequences, Settled, TenantAsk};
use crate::rules::limit::Limits;
use crate::rules::scope::Labels;
use crate::rules::tenant::Tenant;

/// Without a guard nothing is promised of the way to the downstream; a permit is still not good for ever.
const UNGUARDED: Duration = Duration::from_secs(1);

/// What jobs of one tenant with the same limits and labels are asked for. Those of one tenant follow each other.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) tenant: Tenant,
    pub(super) labels: Labels,
    pub(super) limits: Limits,
    /// What their permits are called.
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
            permit: format!("{}:{number}", self.permits),
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

/// So long a permit is good from the moment that it was asked for: half of the guard, since the other half is for the way to
/// the downstream.
pub(super) fn good_for(limits: &Limits) -> Duration {
    match limits.guard_ms() {
        0 => UNGUARDED,
        guard => Duration::from_millis(guard) / 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::limit::{Algorithm, Limit};

    #[test]
    fn a_permit_lasts_half_of_the_shortest_guard_or_a_second_where_there_is_none() {
        let ms = Duration::from_millis;
        let window = |name: &str, algorithm, guard_ms| {
            let limit = Limit::new(name, algorithm, 5, ms(60_000), ms(guard_ms));
            limit.expect("in range")
        };
        let strict = window("strict", Algorithm::Strict, 0);
        let running = Limit::concurrent("running", 5).expect("in range");
        let long = window("long", Algorithm::SlidingWindow, 400);
        let short = window("short", Algorithm::FixedWindow, 50);
        for (limits, lasts) in [
            (vec![strict.clone(), running.clone()], 1_000),
            (vec![strict, long.clone()], 200),
            (vec![long, short, running], 25),
        ] {
            let limits = Limits::new(limits).expect("limits");
            assert_eq!(good_for(&limits), ms(lasts));
        }
    }
}
