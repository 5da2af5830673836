//! Runs the parsers on untrusted bytes and asserts properties that must hold for any input. Each
//! module has a function `check`, which panics if an assertion fails.
//!
//! `scripts/fuzz` searches for inputs that fail; `cargo test --test quick corpus::` runs the inputs
//! found so far, and mutations of them.

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

/// A name, and the function that takes each input.
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
