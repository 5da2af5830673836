//! What has happened, as the scheduler saw it. It keeps no log and counts nothing: the engine's loop does both with each fact
//! (`engine::journal`, `engine::counts`).

use std::sync::Arc;
use std::time::Duration;

use crate::broker::{MessageKind, PublishError, Source};
use crate::gate::{GateError, Whose};
use crate::handler::Outcome;
use crate::rules::decision::Tally;
use crate::rules::lateness::Heard;
use crate::rules::limit::Limits;
use crate::rules::promise::Off;
use crate::rules::report::{LeftOut, OfTenant};
use crate::rules::scope::Labels;
use crate::rules::steering::Hold;
use crate::rules::tenant::Tenant;
use crate::rules::trace::{Context, Span};

/// A job, as logs name it.
#[derive(Debug)]
pub struct Named {
    /// Its message's id.
    pub id: Option<String>,
    /// Whose it is.
    pub tenant: Tenant,
    /// Its present span, where this worker makes spans.
    pub trace: Option<Context>,
}

/// The gate's decision on one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It may start.
    Admitted,
    /// Its limits have no room.
    Denied,
    /// There is room, and no slot of the concurrency was free for it.
    NoSlot,
}

/// Where a job waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delay {
    /// In this worker's memory.
    InMemory,
    /// In a delay queue, for its whole wait.
    Queue,
    /// In the longest delay queue, for a part of its wait.
    Recheck,
}

/// Why a job became a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// Its handler rejected it.
    Rejected,
    /// All of its attempts failed.
    Attempts,
    /// Its time was over.
    Expired,
    /// It failed, or was refused, for too long.
    GivenUp,
    /// Its calls ended their workers.
    Crashed,
    /// What it says of its start can't be used.
    Invalid,
    /// An operator cancelled it.
    Cancelled,
}

/// What became of a job's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// It was confirmed.
    Published,
    /// Its target does not exist.
    Unroutable,
    /// Its target refused it, or did not confirm it, for too long; or RabbitMQ closed the connection over it.
    Refused,
}

/// What closed a tenant.
#[derive(Debug)]
pub enum ClosedBy {
    /// One of its limits.
    Limit(Limits, usize),
    /// A throttle, a pause or its breaker.
    Suspension,
}

/// Why the gate decided nothing for a tenant, and what follows.
#[derive(Debug)]
pub enum Undecided {
    /// Its keys can't be used: its jobs wait for so long.
    Refused(Duration),
    /// Its primary is away, which nobody has said yet.
    Away,
    /// The same again; or its primary is cold, and the gate says so itself.
    Known,
}

/// Something that has happened.
#[derive(Debug)]
pub enum Fact {
    /// A delivery was taken.
    Delivered(Source),
    /// A message is no usable job, and becomes a dead letter.
    InvalidMessage {
        /// The message's id.
        id: String,
        /// What is wrong.
        reason: String,
    },
    /// A job came to this queue out of a delay queue that lets nothing go before its time.
    LeftDelayQueueEarly(Arc<str>),
    /// The store's clock could not be read for a tenant, and so many jobs wait for it.
    NoClock(Tenant, usize, GateError),
    /// A round trip to the gate took so long, and had an answer or none.
    GateAnswered(Duration, bool),
    /// The gate decided on a job.
    Decided(Decision),
    /// Jobs started, and the shadow limit of this name says what it would have made of them.
    Tried(String, Tally),
    /// A job that was denied is to wait.
    MustWait {
        /// The job.
        job: Named,
        /// What tells it apart from others of its tenant.
        labels: Labels,
        /// Its limits,
        limits: Limits,
        /// and which of them it waits for.
        limit: usize,
        /// What that one counts.
        count: u64,
        /// For how long.
        wait_ms: u64,
        /// The number of its ticket.
        ticket: u64,
    },
    /// A tenant is closed: its jobs wait.
    TenantClosed {
        /// Whose.
        tenant: Tenant,
        /// By what.
        by: ClosedBy,
        /// For how long, as far as is known.
        wait: Duration,
    },
    /// A tenant is open again.
    TenantOpened {
        /// Whose.
        tenant: Tenant,
        /// It was closed for so long,
        after: Duration,
        /// and this worker heard that so many jobs were denied.
        denied: u64,
    },
    /// The gate decided nothing for so many jobs of a tenant.
    Undecided {
        /// Whose.
        tenant: Tenant,
        /// What tells them apart from others of their tenant.
        labels: Labels,
        /// How many.
        jobs: usize,
        /// Why,
        why: GateError,
        /// and what follows.
        what: Undecided,
    },
    /// For some seconds no permit was young enough when it came.
    NoYoungPermit {
        /// What the last answer took,
        took: Duration,
        /// what one takes at least,
        base: Duration,
        /// and for how long a permit is good.
        good_for: Duration,
    },
    /// A job starts, so long after its time had come; its name where that is late.
    Started(Duration, Option<Named>),
    /// A job starts that was told its turn: so far off that was.
    Promised(Off),
    /// A new job had been in the work queue for so long, as its publisher says.
    Queued(Duration),
    /// A job was admitted, and could not be sent in time.
    ExpiredPermit,
    /// A job begins to wait.
    Delayed(Delay),
    /// The publisher of a job delays its start, by so many milliseconds from now.
    DelayedStart(Named, u64),
    /// A call of the handler took so long. A call that was not made has no time.
    Called(Outcome, Option<Duration>),
    /// A call came later than the guard covers, and counts longer by so much.
    LateCall(Heard, Duration),
    /// An answer was too late for what may be counted.
    LateCallNotCounted,
    /// The API stopped whom it says, for so long.
    Throttled {
        /// Whose job it was.
        tenant: Tenant,
        /// Who is stopped.
        whose: Whose,
        /// For how long.
        duration: Duration,
        /// What it said; `None`: an answer that was no refusal said that nothing is left.
        reason: Option<String>,
    },
    /// The gate could not be told who is stopped.
    ThrottleUntold {
        /// Who.
        whose: Whose,
        /// What the API said.
        by: String,
        /// How long it lasts yet.
        left: Duration,
        /// It is told again.
        again: bool,
        /// Why.
        why: GateError,
    },
    /// A job failed and is tried again after so long.
    TriedAgain {
        /// The job.
        job: Named,
        /// The attempt that failed.
        attempt: u32,
        /// After how long.
        wait: Duration,
        /// Why it failed.
        reason: String,
    },
    /// A job failed while a breaker is open, which uses no attempt.
    FailedWhileOpen(Named, String),
    /// A job is dropped: within so many milliseconds only the first one with its dedupe key goes on.
    Duplicate(Named, u64),
    /// A job became a dead letter.
    DeadLetter(Named, Death, String),
    /// A publish was not confirmed, for the first time, or again. It is tried again.
    PublishFailed(PublishError, bool),
    /// Queues or exchanges take no messages of one kind.
    Stuck {
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
    /// Nobody gets a job's result, and the job goes on without.
    ResultLost {
        /// The job's id.
        job: String,
        /// Why not.
        sent: Sent,
        /// Where it was to go.
        exchange: Arc<str>,
        /// With this key.
        routing_key: Arc<str>,
        /// This was not told a moment ago.
        is_news: bool,
    },
    /// So many starts used what the gate could not be told.
    UsageLost(usize, GateError),
    /// What the API says of its own limits allows less than ours do.
    Excess(Tenant, String),
    /// A limit has sunk, by what the API answered.
    LimitSunk {
        /// Whose; `None`: all tenants share it.
        whose: Option<Tenant>,
        /// Its name.
        limit: String,
        /// What was in force before,
        from: u32,
        /// and what is now,
        to: u32,
        /// of so many that are configured.
        max: u32,
        /// It is whole again after this, if nothing more happens.
        left: Duration,
        /// So many tenants have it lowered, as far as this worker knows.
        lowered: usize,
    },
    /// A limit that has sunk is whole again.
    LimitWhole {
        /// Whose; `None`: all tenants share it.
        whose: Option<Tenant>,
        /// Its name.
        limit: String,
        /// It was lowered for so long.
        after: Duration,
        /// So many tenants have it lowered, as far as this worker knows.
        lowered: usize,
    },
    /// Limits were not told what answers say of them.
    LessonUntold(GateError),
    /// What the API says of its own limits was not noted.
    QuotaUntold(GateError),
    /// This worker can't make calls, for the given reason. It returns its jobs to their queues and tries a few from time to time.
    Unfit(String),
    /// This worker can make calls again.
    Fit,
    /// A call was not made because this process or machine lacked a resource. The text names it.
    Short(String),
    /// The breakers were not told of failed calls.
    FailuresUntold(GateError),
    /// A breaker opened (true) or closed, for this reason.
    Breaker(Whose, bool, String),
    /// All tenants are stopped for so long, as another worker said in these words.
    AllStopped(Duration, String),
    /// So many calls of a job ended their workers: it is called beside no other such job.
    CalledAlone(Named, u32),
    /// Another call of a suspect may be under way for so long: it waits.
    SuspectWaits(Named, u64),
    /// A job of a diverted tenant goes to another queue.
    Diverted,
    /// An operator asks this of all workers; `None`: nothing any more.
    Held(Option<Hold>),
    /// All deliveries are given back.
    Rests,
    /// Number of jobs that moved on to delay queues after being held unacked for as long as RabbitMQ may allow.
    LetGo(usize),
    /// RabbitMQ's `consumer_timeout` is shorter than previously known.
    ShortTimeout {
        /// The timeout.
        timeout: Duration,
        /// Whether all calls end in time: the longest call and a wait before it fit into the timeout.
        fits: bool,
    },
    /// A span has ended.
    Span(Box<Span>),
}

/// How things stand, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gauges {
    /// Jobs that run.
    pub running: usize,
    /// Worker slots that are taken,
    pub slots: usize,
    /// of so many.
    pub all_slots: usize,
    /// Jobs held in memory until their time.
    pub held: usize,
    /// Unacked jobs in memory.
    pub in_memory: usize,
    /// Calls that were given up and hold their leases.
    pub abandoned: usize,
    /// This worker calls nobody, because calls of the API failed in a row.
    pub breaker_is_open: bool,
    /// What the way to the API takes at least.
    pub way_base: Duration,
}

/// What a job lacks whose time came a while ago, though calls are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lacks {
    /// A worker slot.
    Slot,
    /// A connection to the API.
    Connection,
    /// An answer of Redis.
    Redis,
    /// Nothing that is known: the worker should have called it.
    Worker,
}

impl Lacks {
    /// All of them, in the order of [`Census::idle`], with their names.
    pub const NAMES: [(Self, &str); 4] = [
        (Self::Slot, "slot"),
        (Self::Connection, "connection"),
        (Self::Redis, "redis"),
        (Self::Worker, "worker"),
    ];
}

/// How the jobs in memory stand, for metrics.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Census {
    /// Tenants with a job that waits.
    pub waiting: usize,
    /// Tenants that are suspended.
    pub suspended: usize,
    /// Jobs whose time came a while ago, by what they lack.
    pub idle: [usize; Lacks::NAMES.len()],
    /// How long ago the time of the first of them came.
    pub oldest: Duration,
}

/// How the tenants stand, for whoever looks at the fleet.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tenants {
    /// Starts and denials are those of so long.
    pub over: Duration,
    /// Jobs in memory that wait.
    pub waiting: u64,
    /// The busiest.
    pub busiest: Vec<OfTenant>,
    /// All others.
    pub left_out: LeftOut,
}
