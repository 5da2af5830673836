//! The base of suites, benches and torture: private real servers, unreliable connections to them, a
//! configurable API, certificates, and the worker as users start it.

#![allow(clippy::too_many_lines, reason = "a test may have many steps or cases")]

pub mod api;
pub mod arrivals;
mod bed;
pub mod certificates;
pub mod collector;
pub mod command_stats;
pub mod connect;
pub mod counts;
pub mod engine;
pub mod gate;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod rabbit_cluster;
pub mod redis_topologies;
mod says;
pub mod servers;
pub mod settings;
pub mod sources;
pub mod usage;

use std::path::Path;

pub use bed::{
    Bed, MS, PATIENCE, SECOND, client, drain, holds, ids, job, jobs, publish, until, until_async,
};
pub use says::Says;

/// Returns the number of random histories for a test: `each`, times the number of slices in which
/// `scripts/test` runs it (`TEST_SLICES`). Each slice has another `PROPTEST_RNG_SEED`.
///
/// # Panics
/// If `TEST_SLICES` is not a number.
pub fn histories(each: u32) -> u32 {
    let slices = std::env::var("TEST_SLICES").map_or(1, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("TEST_SLICES is {text:?}; write a number"))
    });
    each * slices
}

/// Returns the repository's root.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
