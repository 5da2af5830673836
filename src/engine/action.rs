//! What the scheduler is told and what it says: its settings and its actions.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::broker::{Outgoing, Reply, Tag};
use crate::gate::fleet::Fleet;
use crate::gate::fleet::registry::ClockReading;
use crate::gate::{
    Candidate, Event, Lesson, Rule, ShardId, Suspected, TenantAsk, TenantSettled, Whose,
};
use crate::handler::LateEnd;
use crate::rules::answers::{Quotas, ThrottleScope};
use crate::rules::delays::{DelayLevels, QueueNames};
use crate::rules::holding::Holding;
use crate::rules::job::{Fields, Job};
use crate::rules::lateness::Look;
use crate::rules::policy::Policy;
use crate::rules::retry::RetryPolicy;
use crate::rules::steering::{Sighted, Steering};
use crate::rules::tenant::Tenant;

/// What the scheduler needs to know of the configuration.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What each tenant may do, as long as no [`Update`] says otherwise.
    pub policy: Policy,
    /// Where a message says what a job needs.
    pub fields: Fields,
    /// What can change while the worker runs.
    pub live: Changeable,
    /// Unacked deliveries of each of the main consumers.
    pub prefetch: usize,
    /// The queues' names.
    pub names: QueueNames,
    /// The delay levels, and the longest trip.
    pub levels: DelayLevels,
    /// Whom the downstream's refusal closes.
    pub throttle_scope: ThrottleScope,
    /// When failures in a row stop calls; `None`: never.
    pub breaker: Option<Rule>,
    /// Who is told how jobs end; `None`: nobody.
    pub results: Option<Results>,
    /// The limit on how long a job may stay unacked.
    pub holding: Holding,
}

/// Who is told how jobs end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Results {
    /// Where results go.
    pub to: ResultsTo,
    /// So much of an answer's body is told, in bytes.
    pub max_body: usize,
}

/// Where results go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResultsTo {
    /// To the queue that a job names in its `reply_to`; of one that names none nobody is told.
    ReplyTo,
    /// All to an exchange.
    Exchange {
        /// Its name.
        exchange: Arc<str>,
        /// Their routing key.
        routing_key: Arc<str>,
    },
}

/// What changes while the worker runs.
#[derive(Debug)]
pub enum Update {
    /// An exchange with the other workers: what is in force (`None`: what was), and until when the gate may be asked.
    Agreed {
        /// The policies of all workers.
        fleet: Option<Fleet>,
        /// After that, no job is asked for before another exchange.
        until: Instant,
        /// The store's clock, if the exchange read it.
        clock: Option<ClockReading>,
        /// To be told when `fleet` is all that is enforced: nothing is under way that was asked before.
        applied: Option<oneshot::Sender<()>>,
    },
    /// What operators ask of all workers.
    Steer {
        /// All that is in force.
        steering: Arc<Steering>,
        /// To be told when no job is called against it any more.
        applied: oneshot::Sender<()>,
    },
    /// The configuration has changed.
    Settings(Changeable),
}

/// The settings that can change while the worker runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Changeable {
    /// Jobs that run at once; what runs beyond it may finish.
    pub concurrency: usize,
    /// Waits up to this are spent in memory.
    pub max_in_memory: Duration,
    /// When a failed job is tried again.
    pub retry: RetryPolicy,
    /// The longest time for which an answer of the API can throttle a tenant.
    pub max_throttle: Duration,
    /// What each call may cost, as a part of a window, to correct what only answers tell of calls that came late.
    pub guard_budget: f64,
}

/// Names a job in the worker's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub(super) u64);

/// What is to be done.
#[derive(Debug)]
pub enum Action {
    /// Ask the gate for all of these, which are of one shard, in one round trip, then call
    /// [`super::scheduler::Scheduler::answered`].
    Ask(ShardId, Vec<TenantAsk>),
    /// Prepare the job's call, unless what it needs is there at once; then call
    /// [`super::scheduler::Scheduler::prepared`].
    Prepare {
        /// The job's name here.
        key: Key,
        /// The job.
        job: Job,
    },
    /// What was prepared for these is not needed; nothing more is heard of them.
    Release(Vec<Key>),
    /// Run the job, then call [`super::scheduler::Scheduler::finished`].
    Dispatch {
        /// The job's name here.
        key: Key,
        /// The job.
        job: Job,
        /// Its permit is good until then (time of the scheduler).
        deadline: Duration,
        /// When to look at it while it is under way (time of the scheduler), for [`super::scheduler::Scheduler::heard_of`].
        look: Option<Look>,
    },
    /// Wait for the end of a call that was given up, then call [`super::scheduler::Scheduler::abandoned_is_over`].
    Await {
        /// The name of its permit.
        permit: String,
        /// For so long at most.
        lease: Duration,
        /// When it has ended.
        ended: LateEnd,
    },
    /// Publish, then call [`super::scheduler::Scheduler::moved`] with the result of each.
    Publish(Vec<(Key, Outgoing)>),
    /// Publish results, then call [`super::scheduler::Scheduler::replied_to`] with what came of each.
    Reply(Vec<(Key, Reply)>),
    /// Ack; nothing more is heard of these.
    Ack(Vec<Tag>),
    /// Tell the gate how starts of one shard ended, then call [`super::scheduler::Scheduler::settled`].
    Settle(ShardId, Vec<TenantSettled>),
    /// Tell the gate what the downstream says of its own limits, then call
    /// [`super::scheduler::Scheduler::told`]. No job waits for it.
    Advertised(Vec<(Tenant, Quotas)>),
    /// Tell limits that learn what answers say of them, then call [`super::scheduler::Scheduler::learned`]. No job waits for it.
    Learn(Vec<Lesson>),
    /// Nothing may start here: give all deliveries back, for other workers.
    Rest,
    /// Take one delivery from each queue.
    TakeFew,
    /// Jobs may start again: take deliveries.
    Take,
    /// New jobs are wanted, or only those that come back.
    TakeNew(bool),
    /// Store how jobs stand that an operator asked for, then call [`super::scheduler::Scheduler::sighted`].
    Sighted(Vec<Sighted>),
    /// Tell breakers how calls ended, then call [`super::scheduler::Scheduler::reported`].
    Report(Rule, Vec<(Whose, Event)>),
    /// Tell the gate of calls of suspects in one shard, then call [`super::scheduler::Scheduler::suspected`].
    Suspect(ShardId, Vec<Suspected>),
    /// Ask of jobs of one shard whether they are the first with their dedupe keys, then call
    /// [`super::scheduler::Scheduler::deduped`].
    Dedupe(ShardId, Vec<Candidate>),
    /// Close the tenant for so long, then call [`super::scheduler::Scheduler::blocked`].
    Block(Block, Duration),
}

/// A tenant, or all of them, that the downstream closed.
#[derive(Debug, Clone)]
pub struct Block {
    /// The job that waits for it; `None`: none does.
    pub key: Option<Key>,
    /// Whom.
    pub whose: Whose,
    /// Until when (time of the scheduler).
    pub until: Duration,
    /// Who said so.
    pub by: String,
    /// How often the gate did not take it.
    pub failures: u32,
    /// What its limits are to learn from it, once it is told.
    pub lesson: Option<Box<Lesson>>,
}
