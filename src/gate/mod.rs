//! The gate: one atomic decision for each job, one round trip for a whole batch.

pub mod boards;
pub mod epoch;
mod fault;
pub mod fleet;
pub mod keys;
pub mod lines;
pub(crate) mod link;
pub mod memory;
mod primaries;
pub mod redis;
mod refusal;
pub(crate) mod reply;
pub mod reports;
pub mod scripts;
pub mod store;
mod watches;

use std::collections::hash_map::DefaultHasher;
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::time::Duration;

pub use crate::gate::epoch::Start;
use crate::rules::answers::Quotas;
pub use crate::rules::breaker::{Event, Rule, Standing, Whose};
pub use crate::rules::crash::{Note, Suspected, Verdict};
pub use crate::rules::decision::{
    Answer, Ask, Change, End, Inspection, LEASE_MS, Receipt, Sequences, Settled, TenantAsk,
    TenantReply, TenantSettled, Ticket, Usage,
};
pub use crate::rules::dedupe::{Candidate, Deduped};
pub use crate::rules::learned::{Evidence, Lesson, Sunk};
use crate::rules::limit::Limits;
use crate::rules::scope::Labels;
use crate::rules::steering::Sighted;
use crate::rules::tenant::Tenant;

/// Why the gate gave no answer. Nothing may be dispatched on an error; what was asked may or may not have
/// been charged, which wastes a permit and never exceeds the limit.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GateError {
    /// The store cannot be reached or did not answer in time.
    #[error("Redis can't be reached: {0}")]
    Unreachable(String),
    /// The store answers that it can't be used now: it starts, is a replica, or asks for a login. Time or a new connection may cure it.
    #[error("Redis can't be used now: {0}")]
    Unusable(String),
    /// The store refused (out of memory, read-only replica, no permission, wrong type).
    #[error("Redis refused: {0}")]
    Refused(String),
    /// The store answers, but may have lost data. Nothing may be admitted.
    #[error("admission stopped for up to {wait:?}: Redis may have lost data: {why}")]
    Cold {
        /// The longest time until it counts again; it may be sooner.
        wait: Duration,
        /// What is known of it.
        why: String,
    },
}

/// The tenants for which one server of the store decides: a number without a meaning of its own. Tenants that have different ones do not wait for
/// each other's answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(u64);

impl ShardId {
    /// That of the server with this name. Two names may have one, which costs no more than that they wait for each other.
    pub fn named(name: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// In which state the primaries of Redis were when they were last asked; without a cluster there is one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Primaries {
    /// They answer and know all that has started: jobs of their tenants may start.
    pub admitting: usize,
    /// They answer, but may have lost data: nothing is admitted there.
    pub recovering: usize,
    /// They do not answer, or not as they should.
    pub away: usize,
}

impl Primaries {
    /// How many there are.
    pub fn all(&self) -> usize {
        self.admitting + self.recovering + self.away
    }
}

/// One reply for each [`TenantAsk`].
pub type Replies = Vec<Result<TenantReply, GateError>>;

/// One for each [`TenantSettled`]: whether it was heard.
pub type SettleReplies = Vec<Result<(), GateError>>;

/// One for each event of [`Gate::report`].
pub type Standings = Vec<Result<Standing, GateError>>;

/// One for each of [`Gate::suspect`].
pub type Verdicts = Vec<Result<Verdict, GateError>>;

/// One for each of [`Gate::dedupe`].
pub type DedupedAll = Vec<Result<Deduped, GateError>>;

/// One for each of [`Gate::learn`]: what came of it.
pub type LearnedAll = Vec<Result<Vec<Sunk>, GateError>>;

/// A store that decides atomically. The Redis scripts and the in-memory model pass one conformance suite.
pub trait Gate: Send + Sync + 'static {
    /// Decides for all jobs of all tenants in one round trip; replies in the order of `batch`. A tenant whose own
    /// state can't be used gets an error of its own; the outer one is for all.
    fn ask(&self, batch: &[TenantAsk]) -> impl Future<Output = Result<Replies, GateError>> + Send;

    /// What a question and its answer take at least, without the deciding; zero where that is not known. A permit's age is
    /// counted beyond it.
    fn base(&self) -> Duration {
        Duration::ZERO
    }

    /// What is known of each primary; none where nobody has looked.
    fn primaries(&self) -> Primaries {
        Primaries::default()
    }

    /// Which shard `tenant` is in, as far as is known now. A batch may mix them: then all of it waits for the slowest.
    fn shard(&self, tenant: &Tenant) -> ShardId {
        let _ = tenant;
        ShardId::default()
    }

    /// Sets what calls used against what they were charged, keeps the leases of those that run, and frees the others.
    /// Replies in the order of `batch`; a tenant of which nothing could be noted gets an error of its own, and the outer one is
    /// for all. What failed may be sent again for up to a minute under the same name: it counts once.
    fn settle(
        &self,
        batch: &[TenantSettled],
    ) -> impl Future<Output = Result<SettleReplies, GateError>> + Send;

    /// Closes `whose` calls for `duration` from now, for all workers; never shortens what is in force. A tenant is closed by the
    /// gate; where all are, a worker that looks finds it ([`Gate::report`]).
    /// `by` says what closed it, for [`Inspection::blocked_by`].
    fn block(
        &self,
        whose: &Whose,
        duration: Duration,
        by: &str,
    ) -> impl Future<Output = Result<(), GateError>> + Send;

    /// Tells breakers how calls ended, or asks for their next probes, in the order of `batch`, in which the replies are. A breaker
    /// that can't be told gets an error of its own; the outer one is for all.
    fn report(
        &self,
        rule: &Rule,
        batch: &[(Whose, Event)],
    ) -> impl Future<Output = Result<Standings, GateError>> + Send;

    /// Tells of calls of suspects ([`crate::rules::crash`]), and asks whether others may be called, in the order of `batch`, in which
    /// the replies are. What can't be told of one gets an error of its own; the outer one is for all.
    fn suspect(
        &self,
        batch: &[Suspected],
    ) -> impl Future<Output = Result<Verdicts, GateError>> + Send;

    /// Asks of jobs whether they are the first with their dedupe keys ([`crate::rules::dedupe`]), in the order of `batch`, in which the
    /// replies are. One of which nothing can be said gets an error of its own; the outer one is for all. Asked again by the same delivery,
    /// a job is what it was.
    fn dedupe(
        &self,
        batch: &[Candidate],
    ) -> impl Future<Output = Result<DedupedAll, GateError>> + Send;
    /// Stores how jobs stand that an operator asked for ([`crate::rules::steering`]).
    fn sighted(&self, batch: &[Sighted]) -> impl Future<Output = Result<(), GateError>> + Send {
        let _ = batch;
        std::future::ready(Ok(()))
    }

    /// Notes what the downstream says of its own limits for each tenant, for [`Inspection::quotas`]. It decides nothing.
    fn advertised(
        &self,
        batch: &[(Tenant, Quotas)],
    ) -> impl Future<Output = Result<(), GateError>> + Send;

    /// Tells limits that learn what answers of the API say of them, in the order of `batch`, in which the replies are
    /// ([`crate::rules::learned`]). A tenant of which nothing could be noted gets an error of its own; the outer one is for all.
    fn learn(
        &self,
        batch: &[Lesson],
    ) -> impl Future<Output = Result<LearnedAll, GateError>> + Send {
        let nothing = batch.iter().map(|_| Ok(Vec::new())).collect();
        std::future::ready(Ok(nothing))
    }

    /// Does what an operator asks for a tenant, for all workers from their next decision on; of the API only [`Change::Resume`]
    /// means anything. Returns until when it is in force, in milliseconds since the epoch; 0 where it has no end.
    fn change(
        &self,
        whose: &Whose,
        change: &Change,
    ) -> impl Future<Output = Result<u64, GateError>> + Send;

    /// The state of `tenant` and its jobs with `labels`, whose `limits` are in force, without changing it.
    fn inspect(
        &self,
        tenant: &Tenant,
        labels: &Labels,
        limits: &Limits,
    ) -> impl Future<Output = Result<Inspection, GateError>> + Send;
}
