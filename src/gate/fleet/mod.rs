//! The agreement of workers with different configurations: which limits each enforces, and how it
//! learns of the others.
//!
//! # The rule
//! Every worker enforces its own policy and every other policy that any worker had in force within
//! the last *memory* plus [`MARGIN_MS`], all at once. The memory is the longest look-back of any
//! limit of these policies.
//!
//! Workers learn of each other through a registry in Redis. In one atomic *exchange* a worker
//! registers its own policy with Redis's time and reads all others. It makes an exchange before its
//! first question to the gate, before it puts a changed policy in force (with both the old and the
//! new policy; only with the new one before its first exchange, since no job has started under the
//! old one), and every second. A worker whose last exchange was *sent* more than [`AGREED_FOR_MS`]
//! ago does not ask the gate.
//!
//! # Why the larger of two policies bounds all starts
//! Take any window of the memory's length that begins at t0, and the first exchange of any worker
//! after t0 - A. A is the maximum age of an exchange when a start that it allows reaches the API:
//! [`AGREED_FOR_MS`] plus half a guard, the lifetime of a permit (the memory includes the guard).
//! Let P be the policy that this exchange registered. Every start in the window follows an exchange
//! of its own worker after t0 - A, which is that first exchange or a later one, so it sees P. None
//! of them finds P expired, since P was registered after t0 - A and all these exchanges precede the
//! end of the window. So *all* starts in the window were charged to P's limits and allowed by them.
//! The window holds at most what P allows, and P is one of the policies that were in force. This
//! needs no agreement on who switches when, and holds for any number of policies, for workers that
//! never switch, and for rolling restarts.
//!
//! - In a Redis Cluster each primary has its own registry, and all of this holds for the starts at
//!   each primary separately. A worker asks a primary only while its exchange with that one is
//!   recent, and enforces the policies in any of the registries. One case is not covered: a slot
//!   moves between two primaries while one worker is cut off from its new primary, and a second
//!   worker with another policy from the old one.
//! - Times in the registry and times of starts are Redis's. A worker measures an exchange's age by
//!   its own monotonic clock, from before the exchange was sent. If Redis's clock is stepped back,
//!   policies are kept longer. If it is stepped forward, the windows themselves break.
//! - A process that is stopped (or swapped out) after it checked the age of its exchange gets the
//!   gate's answer too late. Its permit, which counts from the same check, has expired, so no call
//!   is sent.
//! - If Redis loses the registry, workers forget nothing: each keeps what it saw for as long as it
//!   would have.
//! - A policy that a worker can't read (of a newer version, or damaged) stops it: it does not ask
//!   the gate.
//! - A job's cost is judged by its worker's own policy. A job with a cost above another policy's
//!   whole limit starts when all of that limit is free, and is charged in full.
//! - The same goes for the values that scopes distinguish jobs by: a value that another policy's
//!   scopes can't use counts there as no value.
//! - Limits that all tenants share behave like a tenant's own limits, since each start of each
//!   tenant is charged to them.
//! - Calls longer than the memory, which is one lease for `max-concurrent` and `guard: strict`, are
//!   not covered if such a limit has changed its name or window. If it kept both, the leases are
//!   shared.
//!
//! # Policies that are dropped sooner
//! A raised sliding limit need not wait for a whole window: all usage that the new limit counts is
//! in its log already ([`Limit::continues`](rules::limit::Limit::continues)). If that holds
//! for all of a tenant's own limits, and in every other policy of the registry, workers stop
//! enforcing a policy for this tenant once no worker has it in force: every worker seen within
//! [`IDLE_MS`] reports another policy, or the registry shows no use of it in that time. While a
//! worker has the policy, all workers enforce it, so that a lowered limit counts at once; the bound
//! would hold without this. A window whose last start was allowed by the old policy then holds at
//! most what that policy allows, and any other window at most what the new one allows.
//!
//! A policy is also dropped if a later policy has the same limits, apart from limits whose
//! look-back does not reach the older one (`superseded.rs`). A policy may be dropped for some
//! tenants only. A limit that all tenants share is then continued for all of them, so that both
//! policies count in one state.
//!
//! [`EnforcedPolicies`], `superseded` and [`text`] are pure. [`registry`] does the I/O: a worker's
//! exchanges, through `lua/policies.lua`.

mod agree;
mod eased;
pub mod registry;
mod superseded;
pub mod text;

pub use self::agree::{
    AGREED_FOR_MS, EnforcedPolicies, IDLE_MS, MARGIN_MS, MAX_POLICIES, RegisteredPolicy,
    RegistryKnowledge, memory_ms,
};
pub use self::eased::EasedTenants;
