//! Questions to the gate, and its answers.

use std::fmt;

pub use crate::algorithms::LEASE_MS;
use crate::answers::Quotas;
use crate::learned::LearnedState;
use crate::limit::Limits;
use crate::scope::Labels;
use crate::tenant::Tenant;

/// A waiting job's number in its tenant's waitlist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The generation of the waitlist that issued it. A ticket of another generation is ignored.
    pub generation: u64,
    /// The number of the job's last unit, from 1.
    pub number: u64,
}

impl Ticket {
    /// The ticket of a job that was admitted without one and did not use its permit. The job is
    /// first in the current waitlist, independent of its generation.
    pub const HAD_ITS_TURN: Self = Self {
        generation: 0,
        number: 1,
    };

    /// Returns true if no job of the waitlist is ahead of this ticket, however long ago it was
    /// issued.
    pub fn is_first(self) -> bool {
        self.number == 1
    }
}

/// The question of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// The ticket that it was given earlier, or `None` for a new job.
    pub ticket: Option<Ticket>,
    /// The job's cost, at least 1.
    pub cost: u64,
    /// Whether the job was admitted before and did not use its permit. Shadow limits count both
    /// admissions as one start.
    pub readmitted: bool,
}

/// The questions of jobs of one tenant, decided in one script call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantAsk {
    /// The tenant of the jobs.
    pub tenant: Tenant,
    /// The jobs' values of the headers by which `limits` distinguish a tenant's jobs.
    pub labels: Labels,
    /// The limits that are enforced for the jobs.
    pub limits: Limits,
    /// Maximum number of jobs that may start now (the worker's free slots).
    pub budget: u32,
    /// The name of the permits, used if a limit holds leases: `name:N` for the N-th of `asks`,
    /// from 0. No two questions may have the same name.
    pub permits: String,
    /// The jobs, in the order of their arrival.
    pub asks: Vec<Question>,
}

/// The sequence numbers of a start in the sliding logs of its
/// [`Layout`](crate::layout::Layout)'s partitions, in their order; 0 for a partition without
/// a log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sequences {
    /// The number in the waitlist's own partition.
    first: u64,
    /// The numbers in the shared partitions, up to the last that is not 0. Empty for most starts,
    /// which then allocate nothing.
    shared: Vec<u64>,
}

impl Sequences {
    /// No number in any partition.
    pub const NONE: Self = Self {
        first: 0,
        shared: Vec::new(),
    };

    /// Returns numbers with `sequence` in the waitlist's own partition alone.
    pub fn with_waitlist_sequence(sequence: u64) -> Self {
        let mut sequences = Self::NONE;
        sequences.set(0, sequence);
        sequences
    }

    /// Returns the number in `partition`.
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

    /// Parses the text that [`Display`](fmt::Display) writes: the numbers, joined by `:`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut sequences = Self::NONE;
        for (partition, number) in text.split(':').enumerate() {
            sequences.set(partition, number.parse().ok()?);
        }
        Some(sequences)
    }
}

impl fmt::Display for Sequences {
    /// Writes the numbers up to the last that is not 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        let mut others = self.shared.iter();
        others.try_for_each(|number| write!(f, ":{number}"))
    }
}

/// The data of a start that its settlement needs when the call has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The permit's name: [`TenantAsk::permits`] and the job's index in it. Empty if no limit holds
    /// leases.
    pub permit: String,
    /// The store's clock at the start, from [`TenantReply::now_ms`].
    pub started_ms: u64,
    /// The numbers in the sliding logs, from [`Answer::Start`].
    pub sequences: Sequences,
    /// The cost that was charged.
    pub cost: u64,
}

/// The settlement of one start, which has ended or is still running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartSettlement {
    /// The receipt of the start.
    pub receipt: Receipt,
    /// How the call ended, or that it has not.
    pub end: End,
}

/// The settlements of one tenant's starts, sent in one script call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantSettlements {
    /// The tenant.
    pub tenant: Tenant,
    /// The labels in the question.
    pub labels: Labels,
    /// The limits that were enforced at the start.
    pub limits: Limits,
    /// A unique name of this call: the gate counts it once, however often it is sent.
    pub call: String,
    /// The settlements.
    pub settled: Vec<StartSettlement>,
}

/// How a start ended, or that it has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The call has ended and actually cost this many units.
    Cost(u64),
    /// The API was never called: the whole charge is given back.
    Unused,
    /// The call is still in flight: its leases are renewed for another [`LEASE_MS`].
    Running,
    /// The worker abandoned the call, which may still arrive or be worked on: its leases are kept
    /// for `for_ms` milliseconds from now (at most [`LEASE_MS`]). With 0 the call is known to have
    /// ended. Its charge does not change.
    Abandoned {
        /// How long the leases are kept.
        for_ms: u64,
    },
    /// The call arrived at the API later than the guard covers, and may still be in flight: it
    /// counts from now. In a fixed window other than the start's, it counts each time that this is
    /// sent.
    Late,
}

impl End {
    /// Returns true if no part of the call is in flight any more.
    pub fn is_over(&self) -> bool {
        !matches!(
            self,
            Self::Running | Self::Late | Self::Abandoned { for_ms: 1.. }
        )
    }

    /// Returns true if the settlement stays valid at any later time, so that it may be sent again
    /// if its delivery failed.
    pub fn stays_true(&self) -> bool {
        self.is_over() || *self == Self::Late
    }
}

/// The gate's decision for one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The job starts now and has been charged.
    Start {
        /// Its numbers in the sliding logs.
        sequences: Sequences,
    },
    /// The limits have quota, but the budget was used up: nothing was charged or changed. The job
    /// asks again when a worker slot is free.
    Capacity,
    /// The job may not start yet.
    Wait {
        /// The index of the limit with the longest wait, from 0.
        limit: usize,
        /// The number of units that count against that limit.
        count: u64,
        /// When to ask again, in milliseconds from now, at least 1.
        ttl_ms: u64,
        /// The ticket to present with the next question.
        ticket: Ticket,
    },
}

/// The answers to one [`TenantAsk`], in the order of its jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantReply {
    /// The store's clock at the decision, in milliseconds since the epoch, rounded down.
    pub now_ms: u64,
    /// The end of the tenant's suspension (Unix ms); 0 if it is not suspended.
    pub blocked_until_ms: u64,
    /// Whether calls of the tenant have failed in a row, so that a success must be
    /// [reported](crate::failures::breaker).
    pub has_failures: bool,
    /// One answer per job.
    pub answers: Vec<Answer>,
    /// The tallies of the shadow limits for the jobs that start; empty if there are no shadows.
    pub shadows: Vec<Tally>,
}

/// The state of one tenant, as `inspect` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The store's clock, in milliseconds since the epoch.
    pub now_ms: u64,
    /// The usage of each enforced limit, in the order of the question.
    pub limits: Vec<UsageOfLimit>,
    /// The usage of each shadow limit, and the results of its trial.
    pub shadows: Vec<(UsageOfLimit, TrialStatus)>,
    /// Units in the waitlist.
    pub waiting: u64,
    /// The largest cost in the waitlist; 0 if it is empty.
    pub widest: u64,
    /// When the last unit of the waitlist may start, in milliseconds from now; 0 if it is empty.
    pub waitlist_end_ms: u64,
    /// When a job of one unit that arrives now may start, behind the waitlist and in turn with
    /// other waitlists, in milliseconds from now. 0 means now, unless the waitlist has waiting
    /// jobs.
    pub turn_ms: u64,
    /// The end of the tenant's suspension, in milliseconds since the epoch: the API throttled the
    /// tenant, or an operator paused it. 0 if it is not suspended.
    pub blocked_until_ms: u64,
    /// Why the tenant is suspended, such as `429 from the API`; empty if it is not.
    pub blocked_by: String,
    /// The limits that the API advertised last.
    pub quotas: Quotas,
    /// When they were recorded, in milliseconds since the epoch; 0 if the API advertised none.
    pub quotas_at_ms: u64,
}

/// The usage of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageOfLimit {
    /// The effective `max`: as set, or lower if a lower value was learned.
    pub max: u64,
    /// The `max` that is set, by the configuration or by an operator.
    pub set: u64,
    /// The time until which an operator's `max` applies, in milliseconds since the epoch; 0 if the
    /// configuration's applies.
    pub override_until_ms: u64,
    /// Units that count now.
    pub count: u64,
    /// Units that may start now, not counting the waitlist.
    pub free: u64,
    /// When the next unit may start, in milliseconds from now; 0 means now.
    pub next_ms: u64,
    /// Units that wait for the limit: in the tenant's waitlist, or in all waitlists that share the
    /// partition.
    pub waiting: u64,
    /// The largest cost among them; 0 if none waits.
    pub widest: u64,
    /// Calls that count now, or `None` if the algorithm has no log and counts only units.
    pub calls: Option<u64>,
    /// The learned state of the limit, if it still applies.
    pub learned: Option<LearnedState>,
}

/// The counts of a shadow limit: how many starts it would have made wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Jobs that started.
    pub starts: u64,
    /// Starts that would have waited.
    pub waited: u64,
    /// Starts among `waited` that would have waited for more than a day
    /// ([`MAX_BEHIND_MS`](crate::gate::shadow::MAX_BEHIND_MS)) or that cost more than the
    /// whole limit.
    pub never: u64,
    /// The longest wait of the other starts, in milliseconds.
    pub worst_ms: u64,
}

/// The trial of a shadow limit, as `inspect` shows it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrialStatus {
    /// The results so far.
    pub tally: Tally,
    /// When the trial began, in milliseconds since the epoch; 0 if it has counted no start.
    pub since_ms: u64,
    /// How far the trial is behind now, in milliseconds: how long a job that arrives now would wait
    /// for the jobs ahead of it.
    pub behind_ms: u64,
}

impl Tally {
    /// Adds the results of `more`.
    pub fn add(&mut self, more: &Self) {
        self.starts += more.starts;
        self.waited += more.waited;
        self.never += more.never;
        self.worst_ms = self.worst_ms.max(more.worst_ms);
    }
}

/// A change that an operator makes to one tenant, for all workers at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// No job starts for `duration_ms`.
    Pause {
        /// The duration in milliseconds.
        duration_ms: u64,
    },
    /// Ends a pause and a throttle.
    Resume,
    /// The limit `name` has another `max` for `duration_ms`.
    Limit {
        /// The limit's name.
        name: String,
        /// The `max` during that time.
        max: u64,
        /// The duration in milliseconds.
        duration_ms: u64,
    },
    /// The limit `name` has the configuration's `max` again.
    Unlimit {
        /// The limit's name.
        name: String,
    },
    /// Empties the waitlist: a waiting job gets a new ticket when it asks again. The learned state
    /// of the tenant's limits is forgotten. Usage still counts.
    Reset,
}
