//! The delay queues, where jobs wait that wait for long: which there are, which one a job takes, and for how long.
//!
//! A delay queue keeps no time: it is a plain queue, and each job in it carries its own ([`Trip`]). Workers take jobs from all of
//! them, a [window](delivery_window) from each, and hold them until their time. A job takes the queue of its wait's *level*
//! ([`DelayLevels`]), so that those before it are due about when it is: what one job can be late for another is below the step to
//! the next level. A worker's job asks a little before its turn ([`lead_ms`]).
//!
//! [`earlier`] knows the names that older versions gave theirs. What a worker does by all that: `src/engine/scheduler/delays`. The queues' arguments: `src/broker/topology.rs`. Reasons, and what was
//! tried before: docs/decisions/delay-queues.md.

pub mod earlier;
mod lead;
mod levels;
mod names;
mod trip;
mod window;

pub use lead::{lead_ms, stay_ms};
pub use levels::{DelayLevels, Route, STEPS_PER_OCTAVE};
pub use names::{MAX_WORK_QUEUE_BYTES, QueueNames};
pub use trip::{MAX_TRIP_MS, Trip};
pub use window::delivery_window;
