//! The gate: one atomic decision per job, one round trip per batch.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test may have many cases")
)]
#![deny(missing_docs)]

pub mod epoch;
mod fault;
pub mod fleet;
pub mod instructions;
pub mod keys;
pub mod link;
pub mod memory;
mod primaries;
pub mod redis;
mod refusal;
pub mod reply;
pub mod reports;
pub mod scripts;
pub mod store;
pub mod tenant_standings;
mod watches;

use std::collections::hash_map::DefaultHasher;
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::time::Duration;

pub use crate::epoch::EarlierStarts;
use rules::answers::Quotas;
pub use rules::decision::{
    Answer, Change, End, Inspection, LEASE_MS, Question, Receipt, Sequences, StartSettlement,
    TenantAsk, TenantReply, TenantSettlements, Ticket, UsageOfLimit,
};
pub use rules::dedupe::{Candidate, DedupeAnswer};
pub use rules::failures::breaker::{BreakerEvent, BreakerScope, Rule, Standing};
pub use rules::failures::crash::{Note, SuspectDecision, SuspectNote};
pub use rules::learned::{Evidence, LimitEvidence, MaxChange};
use rules::limit::Limits;
use rules::scope::Labels;
use rules::steering::JobSighting;
use rules::tenant::Tenant;

/// The reason why the gate gave no decision. No job may be called after an error. The question may
/// have been charged; a charge without a call wastes quota but never exceeds a limit.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GateError {
    /// The store can't be reached or did not answer in time.
    #[error("Redis can't be reached: {0}")]
    Unreachable(String),
    /// The store answers that it can't be used now: it is starting, is a replica, or requires a
    /// login. Time or a new connection may fix it.
    #[error("Redis is temporarily unavailable: {0}")]
    Unusable(String),
    /// The store refused (out of memory, read-only replica, no permission, wrong type).
    #[error("Redis refused: {0}")]
    Refused(String),
    /// The store answers, but may have lost data. No job may be admitted.
    #[error("admission stopped for up to {wait:?}: Redis may have lost data: {why}")]
    Cold {
        /// The longest time until the store has all usage again. It may be sooner.
        wait: Duration,
        /// The evidence of the loss.
        why: String,
    },
}

/// Identifies a shard: the tenants for which one server of the store decides. The number has no
/// meaning of its own. Tenants in different shards don't wait for each other's answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(u64);

impl ShardId {
    /// Returns the ID of the shard of the server `name`. If two names hash to the same ID, their
    /// tenants wait for each other; nothing else breaks.
    pub fn named(name: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// How many primaries of Redis were in each state when last asked. Without a cluster there is one
/// primary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Primaries {
    /// Primaries that answer and have all usage: their tenants' jobs may start.
    pub admitting: usize,
    /// Primaries that answer but may have lost data: they admit no job.
    pub recovering: usize,
    /// Primaries that don't answer, or answer with an error.
    pub unavailable: usize,
}

impl Primaries {
    /// Returns the number of primaries.
    pub fn all(&self) -> usize {
        self.admitting + self.recovering + self.unavailable
    }
}

/// One reply per [`TenantAsk`], in order.
pub type Replies = Vec<Result<TenantReply, GateError>>;

/// One result per [`TenantSettlements`]: whether the settlement was stored.
pub type SettleReplies = Vec<Result<(), GateError>>;

/// One standing per event of [`Gate::report`].
pub type Standings = Vec<Result<Standing, GateError>>;

/// One verdict per note of [`Gate::suspect`].
pub type SuspectReplies = Vec<Result<SuspectDecision, GateError>>;

/// One answer per candidate of [`Gate::dedupe`].
pub type DedupeReplies = Vec<Result<DedupeAnswer, GateError>>;

/// The limits that were lowered by each piece of evidence of [`Gate::learn`].
pub type LearnReplies = Vec<Result<Vec<MaxChange>, GateError>>;

/// A store that decides atomically. The Redis scripts and the in-memory model pass the same
/// conformance suite.
pub trait Gate: Send + Sync + 'static {
    /// Decides for all jobs of all tenants in one round trip. Replies are in the order of `batch`.
    /// A tenant whose own state is unusable gets its own error; the outer error applies to the
    /// whole batch.
    fn ask(&self, batch: &[TenantAsk]) -> impl Future<Output = Result<Replies, GateError>> + Send;

    /// Returns the minimum round-trip time of a question, without the time to decide, or zero if
    /// unknown. Only time beyond it counts toward a permit's age.
    fn base(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the last known state of the primaries. All counts are zero if none was asked yet.
    fn primaries(&self) -> Primaries {
        Primaries::default()
    }

    /// Returns the shard of `tenant`, as far as is known now. A batch may mix shards, but then
    /// waits for the slowest.
    fn shard(&self, tenant: &Tenant) -> ShardId {
        let _ = tenant;
        ShardId::default()
    }

    /// Corrects charges by actual costs, renews the leases of running calls, and releases those of
    /// finished calls. Replies are in the order of `batch`. A tenant whose settlements could not be
    /// stored gets its own error; the outer error applies to the whole batch. A failed settlement
    /// may be sent again under the same name for up to a minute: it counts once.
    fn settle(
        &self,
        batch: &[TenantSettlements],
    ) -> impl Future<Output = Result<SettleReplies, GateError>> + Send;

    /// Suspends calls of `scope` for `duration` from now, in all workers, and never shortens a
    /// suspension that is already in force. The gate denies the jobs of a suspended tenant. Workers
    /// learn of a suspension of the whole API through [`Gate::report`]. `reason` names the cause,
    /// for [`Inspection::blocked_by`].
    fn block(
        &self,
        scope: &BreakerScope,
        duration: Duration,
        reason: &str,
    ) -> impl Future<Output = Result<(), GateError>> + Send;

    /// Tells breakers how calls ended, or requests their next probes. Replies are in the order of
    /// `batch`. A breaker that can't be updated gets its own error; the outer error applies to the
    /// whole batch.
    fn report(
        &self,
        rule: &Rule,
        batch: &[(BreakerScope, BreakerEvent)],
    ) -> impl Future<Output = Result<Standings, GateError>> + Send;

    /// Writes notes about calls of suspects ([`rules::failures::crash`]), and asks whether
    /// other suspects may be called. Replies are in the order of `batch`. A note that fails gets
    /// its own error; the outer error applies to the whole batch.
    fn suspect(
        &self,
        batch: &[SuspectNote],
    ) -> impl Future<Output = Result<SuspectReplies, GateError>> + Send;

    /// Asks whether jobs are the first with their dedupe keys ([`rules::dedupe`]). Replies
    /// are in the order of `batch`. A candidate that can't be decided gets its own error; the outer
    /// error applies to the whole batch. The same delivery gets the same answer when it asks again.
    fn dedupe(
        &self,
        batch: &[Candidate],
    ) -> impl Future<Output = Result<DedupeReplies, GateError>> + Send;

    /// Stores the state of jobs that an operator asked about ([`rules::steering`]).
    fn sighted(&self, batch: &[JobSighting]) -> impl Future<Output = Result<(), GateError>> + Send {
        let _ = batch;
        std::future::ready(Ok(()))
    }

    /// Stores the limits that the API advertises for each tenant, for [`Inspection::quotas`]. They
    /// don't affect decisions.
    fn advertised(
        &self,
        batch: &[(Tenant, Quotas)],
    ) -> impl Future<Output = Result<(), GateError>> + Send;

    /// Updates adaptive limits with evidence from the API's answers ([`rules::learned`]).
    /// Replies are in the order of `batch`. A tenant whose evidence could not be stored gets its
    /// own error; the outer error applies to the whole batch.
    fn learn(
        &self,
        batch: &[LimitEvidence],
    ) -> impl Future<Output = Result<LearnReplies, GateError>> + Send {
        let nothing = batch.iter().map(|_| Ok(Vec::new())).collect();
        std::future::ready(Ok(nothing))
    }

    /// Applies an operator's change to a tenant, for all workers from their next decision on. For
    /// the API, only [`Change::Resume`] has an effect. Returns when the change ends, in
    /// milliseconds since the Unix epoch, or 0 if it has no end.
    fn change(
        &self,
        scope: &BreakerScope,
        change: &Change,
    ) -> impl Future<Output = Result<u64, GateError>> + Send;

    /// Returns the state of `tenant` and its jobs with `labels` under the effective `limits`.
    /// Changes nothing.
    fn inspect(
        &self,
        tenant: &Tenant,
        labels: &Labels,
        limits: &Limits,
    ) -> impl Future<Output = Result<Inspection, GateError>> + Send;
}
