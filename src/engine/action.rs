//! What the scheduler is told and what it says: its settings and its actions.

use std::time::Duration;

use crate::broker::{Outgoing, Tag};
use crate::gate::{TenantAsk, TenantSettled};
use crate::rules::job::{Fields, Job};
use crate::rules::lanes::{Ladder, QueueNames};
use crate::rules::policy::Policy;
use crate::rules::retry::RetryPolicy;
use crate::rules::tenant::Tenant;

/// What the scheduler needs to know of the configuration.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What each tenant may do.
    pub policy: Policy,
    /// Where a message says what a job needs.
    pub fields: Fields,
    /// Jobs that run at once.
    pub concurrency: usize,
    /// Unacked deliveries of each of the main consumers.
    pub prefetch: usize,
    /// Waits up to this are spent in memory.
    pub hold: Duration,
    /// The queues' names.
    pub names: QueueNames,
    /// The delay lanes.
    pub ladder: Ladder,
    /// When a failed job is tried again.
    pub retry: RetryPolicy,
    /// The longest time that a downstream's answer can close a tenant.
    pub max_penalty: Duration,
}

/// Names a job in the worker's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub(super) u64);

/// What is to be done.
#[derive(Debug)]
pub enum Action {
    /// Ask the gate for all of these in one round trip, then call [`super::scheduler::Scheduler::answered`].
    Ask(Vec<TenantAsk>),
    /// Run the job, then call [`super::scheduler::Scheduler::finished`].
    Dispatch {
        /// The job's name here.
        key: Key,
        /// The job.
        job: Job,
        /// Its permit is good until then (time of the scheduler).
        deadline: Duration,
    },
    /// Publish, then call [`super::scheduler::Scheduler::moved`] with the result of each.
    Publish(Vec<(Key, Outgoing)>),
    /// Ack; nothing more is heard of these.
    Ack(Vec<Tag>),
    /// Tell the gate how starts ended, then call [`super::scheduler::Scheduler::settled`].
    Settle(Vec<TenantSettled>),
    /// Close the tenant, then call [`super::scheduler::Scheduler::blocked`].
    Block {
        /// The job that waits for it; `None`: none does.
        key: Option<Key>,
        /// Whom.
        tenant: Tenant,
        /// For how long.
        duration: Duration,
        /// Who said so.
        by: String,
    },
}
