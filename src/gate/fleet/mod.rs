//! The agreement of workers whose configurations differ: which limits each enforces, and how it learns of the others'.
//!
//! # The rule
//! Every worker enforces its own policy and every other policy that any worker had in force within the last
//! *memory* and [`MARGIN_MS`], all at once. The memory is the longest time that any limit of these policies looks back.
//!
//! The workers learn of each other by a registry in Redis. In one atomic *exchange* a worker writes down its own policy
//! with Redis's time, and reads all others. It makes an exchange before it first asks the gate, before it puts a changed
//! policy in force (with the old and the new one), and every second. A worker whose last exchange was *sent* more than
//! [`AGREED_FOR_MS`] ago does not ask.
//!
//! # Why no more passes than the larger of two policies
//! Take any window of the memory's length that begins at t0, and the first exchange of any worker after t0 - A, where A
//! is the age that an exchange may have when a start that it allows reaches the downstream: [`AGREED_FOR_MS`] and half a
//! guard, which a permit lasts (the memory has the guard in it). Call what it registered P. Every start in the window
//! follows an exchange of its own worker after t0 - A, so at or behind that first one, and sees P; none of them finds P
//! too old, since P was registered after t0 - A and all these exchanges come before the window's end. So *all* starts in
//! the window were charged to P's limits and allowed by them: the window holds at most what P lets pass, and P is one of
//! the policies that were in force. This needs no agreement on who switches when, and holds for any number of policies, for
//! workers that never switch, and for rolling restarts.
//!
//! - In a Redis Cluster each primary has a registry, and all of this holds for the starts at each by itself: a worker asks there
//!   only while its exchange with that one is not too old, and enforces what any of them holds. Out of account is a slot
//!   that moves from one primary to another while one worker is cut off from the latter, and a second one with another policy
//!   from the former.
//! - Times of the registry and of starts are Redis's. A worker measures an exchange's age by its own monotonic clock, from
//!   before it was sent. A clock of Redis that is stepped back keeps policies for longer; stepped forward, it breaks the
//!   windows themselves.
//! - A process that is stopped (or swapped out) after it looked at the age of its exchange gets the gate's answer too late:
//!   its permit, counted from the same look, is over, and nothing is sent.
//! - A Redis that lost the registry does not make a worker forget: it keeps what it saw for as long as it would have.
//! - A policy that a worker can't read (of a newer version, or damaged) stops it: it does not ask.
//! - A job's cost is judged by its worker's own policy. One above another policy's whole limit starts when all of that is
//!   free, and is charged in full.
//! - So are the values that tell its jobs apart: what another policy's scopes can't use counts there as no value.
//! - What holds for a tenant's limits holds for those that all tenants share, since each start of each tenant is charged to
//!   them.
//! - Calls that run for longer than the memory, a lease for `max-concurrent` and `guard: strict`, are out of account when
//!   such a limit has changed its name or window; one that kept them has its leases in common.
//!
//! # Dropped sooner
//! A raised sliding limit need not wait for a whole window: everything the new limit counts was charged to the log all along
//! ([`Limit::continues`](crate::rules::limit::Limit::continues)). If that holds for all of a tenant's own limits, and in every other policy
//! of the registry, workers stop enforcing a policy for this tenant once no worker has it in force: every worker seen within [`IDLE_MS`]
//! reports another policy, or the registry shows no use of it in that time. While a worker has the policy, all workers enforce it, so that
//! a lowered limit counts at once; the bound would hold without this. Then a window whose last start was allowed by the old policy holds at
//! most what that allows, and any other what the new one allows.
//! A policy is left out, too, if a later policy has the same limits, apart from limits whose memory does not reach back to the older one
//! (`superseded.rs`). A policy may be left out for some tenants and not for others: a limit that all tenants share is then continued for
//! all of them, so that both count in one state.
//!
//! [`Fleet`], `superseded` and [`text`] are pure, and [`shelf`] is what `lua/policies.lua` does with the registry. [`registry`] does the
//! I/O: a worker's exchanges.

mod agree;
pub mod board;
mod eased;
pub mod registry;
pub mod shelf;
mod superseded;
pub mod text;

pub use self::agree::{
    AGREED_FOR_MS, Fleet, IDLE_MS, Known, MARGIN_MS, MAX_POLICIES, Registered, memory_ms,
};
pub use self::eased::Eased;
