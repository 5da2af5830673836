//! Calling: a job's start is settled with the gate, and the answer to its call affects other jobs.

pub(super) mod answers;
pub(super) mod api_throttle;
pub(super) mod breakers;
pub(super) mod failing;
pub(super) mod ledger;
pub(super) mod settlement;
