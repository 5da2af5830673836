//! Intake: a delivery becomes a job, a dead letter of an invalid message, or a dropped duplicate.

pub(super) mod candidates;
pub(super) mod deduping;
pub(super) mod deliveries;
pub(super) mod invalid;
pub(super) mod starting;
