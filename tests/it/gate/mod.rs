//! The gate and its scripts on real servers.

pub mod access;
mod calendar;
mod conformance;
mod corrected;
mod crash;
mod dedupe;
mod epoch;
mod learn;
mod memory;
mod mixed;
mod model;
mod proxied;
mod redis;
mod sentinel;
mod shards;
mod shards_global;
mod shards_leases;
mod slots;
mod starts;
mod steering_cluster;
mod store;
pub mod topology;
