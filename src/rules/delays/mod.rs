//! Delay queues, where jobs with long waits wait: which queues there are, which one a job takes,
//! and for how long.
//!
//! A delay queue keeps no time: it is a plain queue, and each job in it carries its own [`Trip`].
//! Workers take jobs from all delay queues, a [window](delivery_window) from each, and hold them
//! until their time. A job takes the queue of its wait's *level* ([`DelayLevels`]), so that the
//! jobs before it are due at about the same time: one job delays another by less than the step to
//! the next level. A job in a worker's memory asks a little before its turn ([`lead_ms`]).
//!
//! The worker's side is in `src/engine/scheduler/delays`, and the queues' arguments are in
//! `src/broker/topology.rs`. The reasons, and earlier designs, are in
//! docs/decisions/delay-queues.md.

mod lead;
mod levels;
mod names;
mod trip;
mod window;

pub use lead::{lead_ms, stay_ms};
pub use levels::{DelayLevels, Route, STEPS_PER_OCTAVE};
pub use names::{DeliverySource, MAX_WORK_QUEUE_BYTES, QueueNames};
pub use trip::{MAX_TRIP_MS, Trip};
pub use window::delivery_window;
