//! Input and output of the scheduler: its settings, the updates that it receives, and the actions
//! that it returns.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use broker::{ExternalMessage, Outgoing, Tag};
use gate::fleet::EnforcedPolicies;
use gate::fleet::registry::ClockReading;
use gate::{
    BreakerEvent, BreakerScope, Candidate, LimitEvidence, Rule, ShardId, SuspectNote, TenantAsk,
    TenantSettlements,
};
use handler::LateEnd;
use rules::answers::{Quotas, ThrottleScope};
use rules::broker::holding::Holding;
use rules::delays::{DelayLevels, QueueNames};
use rules::failures::retry::RetryPolicy;
use rules::job::{Fields, Job};
use rules::policy::Policy;
use rules::steering::{JobSighting, Steering};
use rules::tenant::Tenant;
use rules::timing::lateness::CallCheck;

/// The scheduler's part of the configuration.
#[derive(Debug, Clone)]
pub struct EngineSettings {
    /// The limits of each tenant, until an [`Update`] replaces them.
    pub policy: Policy,
    /// The fields of a message from which a job's tenant, cost and other values are read.
    pub fields: Fields,
    /// The settings that can change while the worker runs.
    pub live: LiveSettings,
    /// Maximum number of unacked deliveries of each of the main consumers.
    pub prefetch: usize,
    /// The queues' names.
    pub names: QueueNames,
    /// The delay levels, and the longest trip.
    pub levels: DelayLevels,
    /// Which tenants a 429 of the API throttles.
    pub throttle_scope: ThrottleScope,
    /// Whether a rule on answers may throttle all tenants, even if `throttle_scope` is narrower.
    pub answers_stop_all: bool,
    /// Where results are published, or `None` if they are not.
    pub results: Option<ResultSettings>,
    /// The limit on how long a job may stay unacked.
    pub holding: Holding,
}

/// Where results are published, and how long they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultSettings {
    /// The target of results.
    pub to: ResultTarget,
    /// Maximum number of bytes of an answer's body in a result.
    pub max_body: usize,
}

/// The target of results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResultTarget {
    /// The queue that a job names in its `reply_to`. A job that names none has no result.
    ReplyTo,
    /// One exchange for all results.
    Exchange {
        /// Its name.
        exchange: Arc<str>,
        /// The routing key of all results.
        routing_key: Arc<str>,
    },
}

/// A change while the worker runs.
#[derive(Debug)]
pub enum Update {
    /// An exchange with the other workers: the policies to enforce, and until when the gate may be
    /// asked.
    Agreed {
        /// The policies of all workers, or `None` if they have not changed.
        fleet: Option<EnforcedPolicies>,
        /// End of the agreement. After that, no job asks before another exchange.
        until: Instant,
        /// The store's clock, if the exchange read it.
        clock: Option<ClockReading>,
        /// Notified when only `fleet` is enforced: no question that was asked under earlier
        /// policies is in flight.
        applied: Option<oneshot::Sender<()>>,
    },
    /// New instructions of operators.
    Steer {
        /// All instructions in force.
        steering: Arc<Steering>,
        /// Notified when no job is called against these instructions anymore.
        applied: oneshot::Sender<()>,
    },
    /// The configuration has changed.
    Settings(LiveSettings),
}

/// The settings that can change while the worker runs.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveSettings {
    /// Maximum number of running jobs. If it is lowered, surplus jobs may finish.
    pub concurrency: usize,
    /// The longest wait that is spent in memory.
    pub max_in_memory: Duration,
    /// When a failed job is tried again.
    pub retry: RetryPolicy,
    /// When failures in a row stop calls, or `None` if they never do.
    pub breaker: Option<Rule>,
    /// The longest time for which an answer of the API can throttle a tenant.
    pub max_throttle: Duration,
    /// The part of a window that each call adds to the budget for late calls that show only by
    /// their answers (`rate-limiter.guard-budget`).
    pub guard_budget: f64,
}

/// Identifies a job in the worker's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobKey(pub(super) u64);

/// An action for the engine to perform.
#[derive(Debug)]
pub enum Action {
    /// Ask the gate about all these jobs of one shard in one round trip, then call
    /// [`super::scheduler::Scheduler::answered`].
    Ask(ShardId, Vec<TenantAsk>),
    /// Prepare the job's call, unless everything that it needs is available at once; then call
    /// [`super::scheduler::Scheduler::prepared`].
    Prepare {
        /// The job's key.
        key: JobKey,
        /// The job.
        job: Box<Job>,
    },
    /// Drop the prepared calls of these jobs, and stop publishing their results for direct reply-to
    /// targets. No report follows.
    Release(Vec<JobKey>),
    /// Run the job, then call [`super::scheduler::Scheduler::finished`].
    Dispatch {
        /// The job's key.
        key: JobKey,
        /// The job.
        job: Box<Job>,
        /// When its permit expires (scheduler time).
        deadline: Duration,
        /// When to check the call while it is in flight (scheduler time), for
        /// [`super::scheduler::Scheduler::record_finding`].
        check: Option<CallCheck>,
    },
    /// Wait for the end of an abandoned call, then call
    /// [`super::scheduler::Scheduler::abandoned_is_over`].
    Await {
        /// The name of its permit.
        permit: String,
        /// The longest time to wait.
        lease: Duration,
        /// Resolves when the call has ended.
        ended: LateEnd,
    },
    /// Publish, then call [`super::scheduler::Scheduler::moved`] with the result of each.
    Publish(Vec<(JobKey, Outgoing)>),
    /// Publish results, then call [`super::scheduler::Scheduler::results_published`] with the
    /// outcome of each.
    PublishResults(Vec<(JobKey, ExternalMessage)>),
    /// Ack these. No report follows.
    Ack(Vec<Tag>),
    /// Return these deliveries to their queues, which deliver them again. No report follows.
    GiveBack(Vec<Tag>),
    /// Settle starts of one shard with the gate, then call
    /// [`super::scheduler::Scheduler::settled`].
    Settle(ShardId, Vec<TenantSettlements>),
    /// Store the limits that the API advertises in the gate, then call
    /// [`super::scheduler::Scheduler::advertised_result`]. No job waits for it.
    Advertised(Vec<(Tenant, Quotas)>),
    /// Store the lessons of answers for adaptive limits, then call
    /// [`super::scheduler::Scheduler::learned`]. No job waits for it.
    Learn(Vec<LimitEvidence>),
    /// Return all deliveries to their queues, for other workers, because no job may start here.
    ReturnDeliveries,
    /// Take one delivery from each queue.
    TakeFew,
    /// Take deliveries, because jobs may start again.
    Take,
    /// Take new jobs (true), or only jobs that come back (false).
    TakeNew(bool),
    /// Store the states of jobs about which an operator asked, then call
    /// [`super::scheduler::Scheduler::sighted`].
    Sighted(Vec<JobSighting>),
    /// Report to the breakers how calls ended, then call [`super::scheduler::Scheduler::reported`].
    Report(Rule, Vec<(BreakerScope, BreakerEvent)>),
    /// Store notes on calls of suspects in one shard, then call
    /// [`super::scheduler::Scheduler::suspected`].
    Suspect(ShardId, Vec<SuspectNote>),
    /// Ask whether jobs of one shard are the first with their dedupe keys, then call
    /// [`super::scheduler::Scheduler::deduped`].
    Dedupe(ShardId, Vec<Candidate>),
    /// Throttle a tenant, or all tenants, for this time, then call
    /// [`super::scheduler::Scheduler::blocked`].
    Block(Block, Duration),
}

/// A throttle of a tenant, or of all tenants, by the API.
#[derive(Debug, Clone)]
pub struct Block {
    /// The job that waits until the throttle is stored, or `None`.
    pub key: Option<JobKey>,
    /// The tenant, or all of them.
    pub scope: BreakerScope,
    /// End of the throttle (scheduler time).
    pub until: Duration,
    /// The API's reason.
    pub reason: String,
    /// Number of failed attempts to store it.
    pub failures: u32,
    /// The lesson for adaptive limits, which is sent once the throttle is stored.
    pub lesson: Option<Box<LimitEvidence>>,
}
