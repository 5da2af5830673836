//! Asking: the gate gets a job's question, once this worker may ask and can make the call.

pub(super) mod admission;
pub(super) mod agreement;
pub(super) mod expired_permits;
pub(super) mod fitness;
pub(super) mod notes;
pub(super) mod outages;
pub(super) mod preparing;
pub(super) mod questions;
pub(super) mod round_size;
pub(super) mod selection;
pub(super) mod suspects;
pub(super) mod undecided;
pub(super) mod waking;
