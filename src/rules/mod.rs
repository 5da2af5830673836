//! The pure core: every decision, no I/O, `now` is always an argument.
pub mod decision;
pub mod epoch;
pub mod fleet;
pub mod headers;
pub mod job;
pub mod lanes;
pub mod limit;
pub mod line;
pub mod log;
pub mod model;
pub mod policy;
pub mod pushback;
pub mod retry;
pub mod slots;
pub mod tenant;
