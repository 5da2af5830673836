//! What is asked of a gate, and what it answers.

use std::fmt;

pub use crate::rules::algorithms::LEASE_MS;
use crate::rules::answers::Quotas;
use crate::rules::learned::Learned;
use crate::rules::limit::Limits;
use crate::rules::scope::Labels;
use crate::rules::tenant::Tenant;

/// A waiting job's number in its tenant's waitlist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// Which waitlist: a ticket of another generation counts as none.
    pub generation: u64,
    /// The number of the job's last unit, from 1.
    pub number: u64,
}

impl Ticket {
    /// Of a job that had its turn without a ticket, and did not use its permit: it is the first of the waitlist, whichever there is by now.
    pub const HAD_ITS_TURN: Self = Self {
        generation: 0,
        number: 1,
    };
}

/// One job that asks to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// The ticket it was given earlier; `None` for a new job.
    pub ticket: Option<Ticket>,
    /// Its cost, from 1.
    pub cost: u32,
    /// It has started before, and did not use its permit: that is the same start for whoever counts starts (shadow limits).
    pub again: bool,
}

/// The jobs of one tenant, asked in one script call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantAsk {
    /// Whose jobs these are.
    pub tenant: Tenant,
    /// What they have in the headers by which `limits` tell a tenant's jobs apart.
    pub labels: Labels,
    /// What is enforced for them.
    pub limits: Limits,
    /// How many of them may start now at most (free permits of the worker's concurrency).
    pub budget: u32,
    /// What the permits of those that start are called, where a limit holds leases: `name:N` for the N-th of `asks`,
    /// from 0. No two questions may have the same.
    pub permits: String,
    /// In the order of their arrival.
    pub asks: Vec<Ask>,
}

/// A start's number in the sliding log of each partition of its [`Layout`](crate::rules::layout::Layout), in that order; 0
/// where there is none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sequences {
    /// In the waitlist's own.
    first: u64,
    /// In the shared ones, up to the last that is not 0. Most starts have none, and need no memory for them.
    shared: Vec<u64>,
}

impl Sequences {
    /// No number anywhere.
    pub const NONE: Self = Self {
        first: 0,
        shared: Vec::new(),
    };

    /// One of the waitlist's own partition alone.
    pub fn of_waitlist(sequence: u64) -> Self {
        let mut sequences = Self::NONE;
        sequences.set(0, sequence);
        sequences
    }

    /// The number in `partition`.
    pub fn get(&self, partition: usize) -> u64 {
        match partition {
            0 => self.first,
            shared => self.shared.get(shared - 1).copied().unwrap_or(0),
        }
    }

    /// Sets the number in `partition`.
    pub fn set(&mut self, partition: usize, sequence: u64) {
        if sequence == 0 {
            return;
        }
        match partition {
            0 => self.first = sequence,
            shared => {
                if self.shared.len() < shared {
                    self.shared.resize(shared, 0);
                }
                self.shared[shared - 1] = sequence;
            }
        }
    }

    /// Reads what it is written as: the numbers, joined by `:`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut sequences = Self::NONE;
        for (partition, number) in text.split(':').enumerate() {
            sequences.set(partition, number.parse().ok()?);
        }
        Some(sequences)
    }
}

impl fmt::Display for Sequences {
    /// Up to the last one that is not 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        let mut others = self.shared.iter();
        others.try_for_each(|number| write!(f, ":{number}"))
    }
}

/// What a start leaves to be settled when its call has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The permit's name: [`TenantAsk::permits`] and the job's number in it; empty where no limit holds leases.
    pub permit: String,
    /// The store's clock when it started, as [`TenantReply::now_ms`] said.
    pub started_ms: u64,
    /// Its numbers in the sliding logs, as [`Answer::Start`] said.
    pub sequences: Sequences,
    /// The cost that was asked for.
    pub cost: u32,
}

/// How a start ended, or that it has not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// Which.
    pub receipt: Receipt,
    /// What became of it.
    pub end: End,
}

/// The starts of one tenant that have ended or still run, told in one script call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantSettled {
    /// Whose they are.
    pub tenant: Tenant,
    /// The labels they were asked with.
    pub labels: Labels,
    /// What was enforced when they started.
    pub limits: Limits,
    /// A name of this call that no other one has: it counts once, however often it is sent.
    pub call: String,
    /// The starts.
    pub settled: Vec<Settled>,
}

/// What became of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The call has ended, and cost so much in fact.
    Cost(u32),
    /// The API was never called: all of it is given back.
    Unused,
    /// The call is still in flight: leases that it holds are kept for another [`LEASE_MS`].
    Running,
    /// The worker gave the call up, and it may still arrive or be worked on: leases that it holds are kept for `for_ms`
    /// milliseconds from now (at most [`LEASE_MS`]); with 0 it is known to have ended. What it cost stays as charged.
    Abandoned {
        /// How long the leases are kept.
        for_ms: u64,
    },
    /// The call came to the API later than the guard covers, and may go on: it counts from now. In a fixed window that is not
    /// the start's it counts as often as that is told.
    Late,
}

impl End {
    /// Nothing of the call is in flight any more.
    pub fn is_over(&self) -> bool {
        !matches!(
            self,
            Self::Running | Self::Late | Self::Abandoned { for_ms: 1.. }
        )
    }

    /// Whether it is true at any later time, too: it may be told again when it was not heard.
    pub fn stays_true(&self) -> bool {
        self.is_over() || *self == Self::Late
    }
}

/// The gate's decision for one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It starts now and has been charged.
    Start {
        /// Its numbers in the sliding logs.
        sequences: Sequences,
    },
    /// The limits have room, but the budget was used up: nothing was charged or changed; ask again when
    /// a permit of the concurrency is free.
    Capacity,
    /// It may not start yet.
    Wait {
        /// Which of the limits makes it wait the longest, from 0.
        limit: usize,
        /// Units that count against that limit.
        count: u64,
        /// When to come back, in milliseconds from now, at least 1.
        ttl_ms: u64,
        /// Its ticket, to be shown when it comes back.
        ticket: Ticket,
    },
}

/// The answers to one [`TenantAsk`], in its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantReply {
    /// The store's clock at the decision, in milliseconds since the epoch, rounded down.
    pub now_ms: u64,
    /// Until when this tenant is suspended (Unix ms); 0: it is not.
    pub blocked_until_ms: u64,
    /// Calls of the tenant have failed in a row: one that succeeds is to be [reported](crate::rules::breaker).
    pub has_failures: bool,
    /// One answer for each ask.
    pub answers: Vec<Answer>,
    /// What each shadow of the limits makes of the jobs that start; empty where there is none.
    pub shadows: Vec<Tally>,
}

/// What `inspect` shows of one tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The store's clock, in milliseconds since the epoch.
    pub now_ms: u64,
    /// The use of each limit that is enforced, in the order that was asked.
    pub limits: Vec<Usage>,
    /// The same of each shadow, and what it has seen.
    pub shadows: Vec<(Usage, Tried)>,
    /// Units that wait in the waitlist.
    pub waiting: u64,
    /// The largest cost in the waitlist; 0: nobody waits.
    pub widest: u64,
    /// When the last of them may start, milliseconds from now; 0 when nobody waits.
    pub waitlist_end_ms: u64,
    /// When a job of one unit that comes now may start, behind the waitlist and in turns with the others, milliseconds from now; 0:
    /// now, unless somebody waits in the waitlist.
    pub turn_ms: u64,
    /// Until when nobody may start (milliseconds since the epoch), because the API throttled or an operator paused this
    /// tenant; 0: it is open.
    pub blocked_until_ms: u64,
    /// What suspends it, such as `429 from the API`; empty: nothing did.
    pub blocked_by: String,
    /// What the API said last of its own limits.
    pub quotas: Quotas,
    /// When (milliseconds since the epoch) that was noted; 0: it has said nothing.
    pub quotas_at_ms: u64,
}

/// One limit's use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The `max` in force: what is set, or what was learned where that is less.
    pub max: u32,
    /// The `max` that is set: the configuration's, or an operator's.
    pub set: u32,
    /// Until when an operator's is, in milliseconds since the epoch; 0: it is the configuration's.
    pub override_until_ms: u64,
    /// Units that count now.
    pub count: u64,
    /// Units that may start now (ignoring the waitlist).
    pub free: u64,
    /// When the next unit may start, milliseconds from now; 0: now.
    pub next_ms: u64,
    /// Units that wait where it counts: in the waitlist, or of all waitlists that share the partition.
    pub waiting: u64,
    /// The largest cost among them; 0: nobody waits.
    pub widest: u64,
    /// Calls that count now. `None`: the algorithm has no log, so it knows of units alone.
    pub calls: Option<u64>,
    /// What was learned of it, as far as it counts yet.
    pub learned: Option<Learned>,
}

/// What the trial of a shadow has seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Jobs that started.
    pub starts: u64,
    /// Those of them that would have waited.
    pub waited: u64,
    /// Those of these that would have waited for more than a day ([`MOST_BEHIND_MS`](crate::rules::shadow::MOST_BEHIND_MS)), or cost more than the whole limit.
    pub never: u64,
    /// The longest wait of the others, in milliseconds.
    pub worst_ms: u64,
}

/// What `inspect` says of a shadow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tried {
    /// What it has seen.
    pub tally: Tally,
    /// Since when, in milliseconds since the epoch; 0: it has seen nothing.
    pub since_ms: u64,
    /// How far it is behind now: a job that comes now would wait so long for those ahead of it, in milliseconds.
    pub behind_ms: u64,
}

impl Tally {
    /// Both together.
    pub fn add(&mut self, more: &Self) {
        self.starts += more.starts;
        self.waited += more.waited;
        self.never += more.never;
        self.worst_ms = self.worst_ms.max(more.worst_ms);
    }
}

/// What an operator changes for one tenant, at once for all workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Nobody starts for so long (milliseconds).
    Pause {
        /// For how long.
        duration_ms: u64,
    },
    /// Ends a pause, and a throttle.
    Resume,
    /// The limit of this name has another `max` for so long (milliseconds).
    Limit {
        /// Which.
        name: String,
        /// Its `max` meanwhile.
        max: u32,
        /// For how long.
        duration_ms: u64,
    },
    /// The limit of this name is the configuration's again.
    Unlimit {
        /// Which.
        name: String,
    },
    /// Empties the waitlist: a waiting job gets a new ticket when it comes back. What was learned of the tenant's limits is forgotten.
    /// Usage still counts.
    Reset,
}
