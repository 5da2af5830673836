//! Measures of a worker's load: counts of the jobs in its memory, and the state of its tenants.

use std::time::Duration;

use super::{ReportedTenant, UnnamedTenants};

/// The resource that an overdue job lacks, while jobs may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingResource {
    /// A worker slot.
    Slot,
    /// A connection to the API.
    Connection,
    /// An answer of Redis.
    Redis,
    /// No known resource: the worker should have called the job.
    Worker,
}

impl MissingResource {
    /// All variants with their names, in the order of [`Census::idle`].
    pub const NAMES: [(Self, &str); 4] = [
        (Self::Slot, "slot"),
        (Self::Connection, "connection"),
        (Self::Redis, "redis"),
        (Self::Worker, "worker"),
    ];
}

/// Counts of the jobs in memory, for metrics.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Census {
    /// Tenants with waiting jobs.
    pub waiting: usize,
    /// Suspended tenants.
    pub suspended: usize,
    /// Overdue jobs, by the resource that they lack.
    pub idle: [usize; MissingResource::NAMES.len()],
    /// How long the most overdue job has been due.
    pub oldest: Duration,
}

/// The state of the tenants, for commands that show the fleet.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct TenantLoads {
    /// The time over which starts and denials were counted.
    pub over: Duration,
    /// Waiting jobs in memory.
    pub waiting: u64,
    /// The busiest tenants.
    pub busiest: Vec<ReportedTenant>,
    /// The sum over all other tenants.
    pub left_out: UnnamedTenants,
    /// Advice on the limits if the API refuses calls within them, or `None` if it does not.
    pub advice: Option<String>,
}
