//! Events that the scheduler reports. It neither logs nor counts; the engine's loop does both for
//! each fact (`engine::journal`, `engine::counts`).

use std::sync::Arc;
use std::time::Duration;

use strum::IntoStaticStr;

use crate::broker::{DeliverySource, MessageKind, PublishError};
use crate::gate::{BreakerScope, GateError};
use crate::handler::Outcome;
use rules::decision::Tally;
use rules::limit::Limits;
use rules::scope::Labels;
use rules::steering::Hold;
use rules::tenant::Tenant;
use rules::timing::lateness::CallSignal;
use rules::timing::promise::PromiseGap;
use rules::trace::{Context, Span};

/// The fields that identify a job in logs.
#[derive(Debug)]
pub struct JobFields {
    /// The message's ID.
    pub id: Option<String>,
    /// The job's tenant.
    pub tenant: Tenant,
    /// The current span, or `None` if this worker makes no spans.
    pub trace: Option<Context>,
}

/// The gate's decision on one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Decision {
    /// The job may start.
    #[strum(serialize = "start")]
    Admitted,
    /// A limit has no quota for it.
    #[strum(serialize = "wait")]
    Denied,
    /// Quota is available, but no worker slot is free.
    #[strum(serialize = "capacity")]
    NoSlot,
}

/// The place where a job waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum WaitPlace {
    /// This worker's memory.
    #[strum(serialize = "memory")]
    InMemory,
    /// A delay queue, for the whole wait.
    #[strum(serialize = "delay-queue")]
    Queue,
    /// The longest delay queue, for a part of the wait.
    Recheck,
}

/// Reason why a job became a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Death {
    /// The handler rejected it.
    Rejected,
    /// All of its attempts failed.
    Attempts,
    /// It expired.
    Expired,
    /// It failed, or was throttled, for too long.
    GivenUp,
    /// Its calls crashed their workers.
    Crashed,
    /// Its delayed start can't be used.
    #[strum(serialize = "bad-message")]
    Invalid,
    /// An operator canceled it.
    Cancelled,
}

/// Outcome of a job's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum ResultOutcome {
    /// It was confirmed.
    Published,
    /// Its target does not exist.
    Unroutable,
    /// The target refused it, or did not confirm it, for too long; or RabbitMQ closed the
    /// connection over it.
    Refused,
}

/// The cause that closed a tenant.
#[derive(Debug)]
pub enum ClosedBy {
    /// One of these limits, by its index.
    Limit(Limits, usize),
    /// A throttle, a pause or its breaker.
    Suspension,
}

/// Cause and consequence of a missing decision on a tenant's jobs.
#[derive(Debug)]
pub enum NoDecision {
    /// Redis refuses the tenant's keys. Its jobs wait for this time.
    Refused(Duration),
    /// The tenant's primary is unavailable, and this was not reported yet.
    Unavailable,
    /// The same again; or the tenant's primary is in a recovery wait, which the gate reports
    /// itself.
    AlreadyReported,
}

/// An event.
#[derive(Debug)]
pub enum Fact {
    /// A delivery was taken from this source.
    Delivered(DeliverySource),
    /// An invalid message becomes a dead letter.
    InvalidMessage {
        /// The message's ID.
        id: String,
        /// The reason why it is invalid.
        reason: String,
    },
    /// A job reached this queue from a delay queue, which must not release jobs before their time.
    LeftDelayQueueEarly(Arc<str>),
    /// The store's clock could not be read for a tenant. This many jobs wait for it.
    ClockUnreadable(Tenant, usize, GateError),
    /// A round trip to the gate took this long, and was answered (true) or failed.
    GateAnswered(Duration, bool),
    /// The gate decided on a job.
    Decided(Decision),
    /// Jobs started. The shadow limit of this name reports what it would have decided.
    Tried(String, Tally),
    /// A denied job has to wait.
    MustWait {
        /// The job.
        job: JobFields,
        /// The labels of the job.
        labels: Labels,
        /// The limits of the job.
        limits: Limits,
        /// Index of the limit that it waits for.
        limit: usize,
        /// The count of that limit.
        count: u64,
        /// The wait, in milliseconds.
        wait_ms: u64,
        /// The number of its ticket.
        ticket: u64,
    },
    /// A tenant is closed: its jobs wait.
    TenantClosed {
        /// The tenant.
        tenant: Tenant,
        /// The cause.
        by: ClosedBy,
        /// How long it stays closed, as far as this is known.
        wait: Duration,
    },
    /// A tenant is open again.
    TenantOpened {
        /// The tenant.
        tenant: Tenant,
        /// How long it was closed.
        after: Duration,
        /// Number of its jobs that were denied, as far as this worker knows.
        denied: u64,
    },
    /// The gate could not decide on jobs of a tenant.
    Undecided {
        /// The tenant.
        tenant: Tenant,
        /// The labels of the jobs.
        labels: Labels,
        /// Number of jobs.
        jobs: usize,
        /// The error.
        why: GateError,
        /// Its consequence.
        what: NoDecision,
    },
    /// For some seconds, every permit had expired when it arrived.
    NoYoungPermit {
        /// Duration of the last round trip.
        took: Duration,
        /// Minimum duration of a round trip.
        base: Duration,
        /// How long a permit is good.
        good_for: Duration,
    },
    /// A job starts this long after it was due. Its fields are included if that is late.
    Started(Duration, Option<JobFields>),
    /// A job with a promise starts, and missed its promised turn by this much.
    Promised(PromiseGap),
    /// A new job has been in the work queue for this long, according to its publisher's timestamp.
    Queued(Duration),
    /// The permit of an admitted job expired before the call was sent.
    ExpiredPermit,
    /// A job begins to wait.
    Delayed(WaitPlace),
    /// The publisher of a job delays its start by this many milliseconds from now.
    DelayedStart(JobFields, u64),
    /// A call of the handler ended after this time, or was not made (`None`).
    Called(Outcome, Option<Duration>),
    /// A call arrived this much later than the guard covers, and counts for that much longer.
    LateCall(CallSignal, Duration),
    /// A late answer could not be counted, because the guard budget is used up.
    LateCallNotCounted,
    /// The API throttled a tenant, or all tenants.
    Throttled {
        /// The tenant of the throttled job.
        tenant: Tenant,
        /// The throttled tenant, or all of them.
        scope: BreakerScope,
        /// How long they are throttled.
        duration: Duration,
        /// The API's reason, or `None` if the answer was no refusal but reported a used-up quota.
        reason: Option<String>,
    },
    /// A throttle could not be stored in the gate.
    ThrottleNotStored {
        /// The throttled tenant, or all of them.
        scope: BreakerScope,
        /// The API's reason.
        by: String,
        /// How long the throttle still lasts.
        left: Duration,
        /// Whether storing it is tried again.
        will_retry: bool,
        /// The error.
        why: GateError,
    },
    /// A failed job is tried again.
    Retried {
        /// The job.
        job: JobFields,
        /// The attempt that failed.
        attempt: u32,
        /// The wait before the next attempt.
        wait: Duration,
        /// Why it failed.
        reason: String,
    },
    /// A job failed while a breaker is open, which uses no attempt.
    FailedWhileOpen(JobFields, String),
    /// A duplicate was dropped. For this many milliseconds, other jobs with its dedupe key are
    /// dropped, too.
    Duplicate(JobFields, u64),
    /// A job became a dead letter.
    DeadLetter(JobFields, Death, String),
    /// A publish was not confirmed, and is tried again. True for the first failure of its target.
    PublishFailed(PublishError, bool),
    /// RabbitMQ stored no copy of a job, a dead letter or a result, so its delivery went back to its
    /// queue.
    MoveGivenBack {
        /// The job's ID.
        job: String,
        /// RabbitMQ's reason for closing the channel over it, or `None` if RabbitMQ gave none until
        /// its timeout for unacked deliveries was near.
        refusal: Option<String>,
        /// Whether to log it: no other was logged lately.
        is_news: bool,
    },
    /// Queues or exchanges take no messages of one kind.
    TargetsStuck {
        /// The kind.
        kind: MessageKind,
        /// Number of waiting messages.
        messages: usize,
        /// Routing key of the target that has been stuck the longest.
        routing_key: Arc<str>,
        /// How long that target has been stuck.
        since: Duration,
    },
    /// A job's result was confirmed.
    ResultPublished,
    /// A job's result was given up, and the job goes on without it.
    ResultLost {
        /// The job's ID.
        job: String,
        /// The reason.
        sent: ResultOutcome,
        /// The exchange of its target.
        exchange: Arc<str>,
        /// The routing key of its target.
        routing_key: Arc<str>,
        /// Whether no lost result was reported lately.
        is_news: bool,
    },
    /// The usage of this many starts could not be settled.
    UsageLost(usize, GateError),
    /// The API advertises a limit below the configured one.
    LowerLimitAdvertised(Tenant, String),
    /// The API's answers lowered an adaptive limit.
    LimitLowered {
        /// The tenant, or `None` if all tenants share the limit.
        scope: Option<Tenant>,
        /// The limit's name.
        limit: String,
        /// The previous `max`.
        from: u64,
        /// The current `max`.
        to: u64,
        /// The configured `max`.
        max: u64,
        /// Time until the limit is whole again, if nothing else happens.
        left: Duration,
        /// Number of tenants for which this worker knows the limit to be lowered.
        lowered: usize,
    },
    /// A lowered limit is whole again.
    LimitRestored {
        /// The tenant, or `None` if all tenants share the limit.
        scope: Option<Tenant>,
        /// The limit's name.
        limit: String,
        /// How long it was lowered.
        after: Duration,
        /// Number of tenants for which this worker knows the limit to be lowered.
        lowered: usize,
    },
    /// Lessons for adaptive limits could not be stored.
    LessonNotStored(GateError),
    /// The limits that the API advertises could not be stored.
    QuotaNotStored(GateError),
    /// This worker can't make calls, for the given reason. It returns its jobs to their queues and
    /// tries a few from time to time.
    Unfit(String),
    /// This worker can make calls again.
    Fit,
    /// A call was not made because this process or machine lacked a resource. The text names it.
    ResourceShortage(String),
    /// Failed calls could not be reported to the breakers.
    FailuresNotReported(GateError),
    /// A breaker opened (true) or closed, for this reason.
    Breaker(BreakerScope, bool, String),
    /// All tenants are throttled for this time, as another worker reported for this reason.
    AllStopped(Duration, String),
    /// This many calls of a job crashed their workers. It runs alone: no other such job runs with
    /// it.
    SuspectRunsAlone(JobFields, u32),
    /// A suspect waits for this many milliseconds, because another call of it may be in flight.
    SuspectWaits(JobFields, u64),
    /// A job of a diverted tenant goes to another queue.
    Diverted,
    /// An operator paused or drains all workers; `None` if that ended.
    Held(Option<Hold>),
    /// All deliveries are returned to their queues.
    DeliveriesReturned,
    /// Number of jobs that moved on to delay queues after being held unacked for as long as
    /// RabbitMQ may allow.
    HeldJobsReleased(usize),
    /// RabbitMQ's `consumer_timeout` is shorter than previously known.
    ShortTimeout {
        /// The timeout.
        timeout: Duration,
        /// Whether all calls end in time: the longest call and a wait before it fit into the
        /// timeout.
        fits: bool,
    },
    /// A span has ended.
    Span(Box<Span>),
}

/// Gauges of the scheduler, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gauges {
    /// Running jobs.
    pub running: usize,
    /// Worker slots in use.
    pub slots: usize,
    /// All worker slots.
    pub all_slots: usize,
    /// Jobs held in memory until their time.
    pub held: usize,
    /// Unacked jobs in memory.
    pub in_memory: usize,
    /// Abandoned calls that hold leases.
    pub abandoned: usize,
    /// Whether this worker stopped calling the API because calls failed in a row.
    pub breaker_is_open: bool,
    /// Minimum time from a question to the gate to the acknowledgement of its call by the API's
    /// machine.
    pub latency_base: Duration,
}
