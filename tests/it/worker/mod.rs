//! The worker as a program, on real servers.

mod bad_neighbors;
mod calls;
mod epoch;
mod exec;
mod failover;
mod fitness;
mod flood;
pub mod forward;
pub mod holding;
mod large_bodies;
mod recording;
mod reload;
pub mod results;
pub mod running;
mod scopes;
mod secrets;
mod service_manager;
mod shortage;
mod standstill;
mod tokens;
