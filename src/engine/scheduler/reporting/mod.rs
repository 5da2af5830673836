//! Reporting: the jobs' counts, tenants and spans, for metrics, logs and operators.

pub(super) mod census;
pub(super) mod closed_tenants;
pub(super) mod spans;
pub(super) mod tenants;
