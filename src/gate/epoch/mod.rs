//! Detects data loss in Redis. While usage that may be lost still counts, no job starts.
//!
//! An *epoch* is an era without data loss. It is stored in one hash next to the tenants' keys. Each
//! worker that asks the gate leaves a *pulse* there: a number that rises with every batch and is
//! written after the batch's decisions. Redis only ever loses its latest writes (a restart with
//! older data, or a replica that lacks the last writes). So a pulse that is still present proves
//! that all earlier writes are present, too.
//!
//! [`decide()`] returns the next step of a worker that does not know whether the data is complete.
//! Its inputs are the hash, the worker's own knowledge and Redis's clock. The worker writes the
//! step only if the hash has not changed since it was read. It then reads and decides again, until
//! it may admit jobs or has to wait.
//!
//! Lost starts were made before some moment, and each limit looks back by its own span. So the hash
//! stores that moment (a [`Gap`]), and a worker resumes once the shortest span of its questions has
//! passed since. Each question is asked once its own longest span has passed ([`Gap::opens_at`]): a
//! tenant with a window of a day does not delay the others.
//!
//! [`decide()`], [`EpochFields`], [`ServerIdentity`], [`shard`] and [`outlook`] are pure. `watch`
//! does the I/O: it is one worker's view of one primary.

mod decide;
pub mod outlook;
pub mod server_identity;
pub mod shard;
mod stored;
mod watch;

pub use self::decide::{
    DOUBT_MS, EarlierStarts, FORGET_MS, NextStep, SETTLE_MS, WorkerKnowledge, decide,
};
pub use self::server_identity::ServerIdentity;
pub use self::stored::{EpochFields, Gap, Pending, Pulse};
pub use self::watch::NOTICED_WITHIN;
pub(crate) use self::watch::{SentPulse, Watch, WatchTarget, info_of, server_command};
