//! What is done with bytes that others chose, and what must hold of it whatever they are. Each module has a function
//! `check`, which panics where something does not hold.
//!
//! `scripts/fuzz` searches for such bytes; `cargo test --test quick corpus::` runs what was found, and changes of it.

pub mod cases;
pub mod config;
pub mod frames;
pub mod job;
pub mod jobs;
pub mod policy;
pub mod pushback;
pub mod reply;
pub mod stored;
pub mod tenant;
pub mod verdict;

/// A name, and what is called with each input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 11] = [
    ("cases", cases::check),
    ("config", config::check),
    ("frames", frames::check),
    ("job", job::check),
    ("jobs", jobs::check),
    ("policy", policy::check),
    ("pushback", pushback::check),
    ("reply", reply::check),
    ("stored", stored::check),
    ("tenant", tenant::check),
    ("verdict", verdict::check),
];
