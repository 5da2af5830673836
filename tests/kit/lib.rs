//! What suites, benches and the harness stand on: private real servers, ways to them that can be bad, an API with manners,
//! certificates, and the worker as users start it.

pub mod api;
mod bed;
pub mod collector;
pub mod connect;
pub mod counts;
pub mod door;
pub mod gate;
pub mod papers;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod rabbit_cluster;
pub mod redis_topologies;
pub mod servers;
pub mod settings;
pub mod sources;
pub mod still;
pub mod usage;

use std::path::Path;

pub use bed::{Bed, MS, PATIENCE, SECOND, job, jobs, until};

/// The repository's top.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
