//! What is asked of a gate, and what it answers.

use crate::rules::tenant::Tenant;

/// A waiting job's place in its tenant's line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// Which line: a place of another generation counts as none.
    pub generation: u64,
    /// The place of the job's last unit, from 1.
    pub place: u64,
}

/// One job that asks to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// The place it was given earlier; `None` for a fresh job.
    pub ticket: Option<Ticket>,
    /// Units of the limit it uses, 1 to the limit's `max`.
    pub cost: u32,
}

/// The jobs of one tenant, asked in one script call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantAsk {
    /// Whose jobs these are.
    pub tenant: Tenant,
    /// How many of them may start now at most (free permits of the worker's concurrency).
    pub budget: u32,
    /// In the order of their arrival.
    pub asks: Vec<Ask>,
}

/// The gate's decision for one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It starts now and has been charged.
    Start {
        /// Units that the window holds after the decision.
        count: u64,
    },
    /// The limit has room, but the budget was used up: nothing was charged or changed; ask again when
    /// a permit of the concurrency is free.
    Capacity {
        /// Units that the window holds.
        count: u64,
    },
    /// It may not start yet.
    Wait {
        /// Units that the window holds.
        count: u64,
        /// When to come back, in milliseconds from now, at least 1.
        ttl_ms: u64,
        /// Its place, to be shown when it comes back.
        ticket: Ticket,
    },
}

/// The answers to one [`TenantAsk`], in its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantReply {
    /// The store's clock at the decision, in milliseconds since the epoch, rounded down.
    pub now_ms: u64,
    /// Until when the downstream has closed this tenant (milliseconds since the epoch); 0: it has not.
    pub blocked_until_ms: u64,
    /// One answer for each ask.
    pub answers: Vec<Answer>,
}

/// What `inspect` shows of one tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The store's clock, in milliseconds since the epoch.
    pub now_ms: u64,
    /// Units that the window holds.
    pub count: u64,
    /// Units that may start now (ignoring the line).
    pub free: u64,
    /// When the next unit may start, milliseconds from now; 0: now.
    pub next_ms: u64,
    /// Units that wait in the line.
    pub waiting: u64,
    /// When the last of them may start, milliseconds from now; 0 when nobody waits.
    pub line_end_ms: u64,
    /// Until when the downstream has closed this tenant (milliseconds since the epoch); 0: it has not.
    pub blocked_until_ms: u64,
    /// What closed it, such as `429 from the downstream`; empty: nothing did.
    pub blocked_by: String,
}
