//! Leaving: a job's result and its move to another queue are published, and then it is acked.

pub(super) mod expiring;
pub(super) mod hold_limit;
pub(super) mod moves;
pub(super) mod results;
pub(super) mod steering;
pub(super) mod stuck;
