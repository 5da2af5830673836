//! Whether Redis still knows all that has started: its data may be lost, and nothing starts while a lost start may count.
//!
//! An *epoch* is a time in which nothing was forgotten. It is kept in one hash beside the tenants' keys, and each worker
//! that asks the gate leaves a *pulse* in it: a number that rises with every batch, written after the batch's decisions.
//! Redis loses only suffixes of what was written (a restart with older data, a replica that lacks the last writes), so a
//! pulse that is still there proves that everything before it is there, too.
//!
//! [`decide()`] says what a worker does next when it does not know that the memory is whole: it is given what the hash
//! holds, what the worker itself knows, and Redis's clock, and names one step. The worker writes it only if the hash is
//! still as it was read, reads again, and decides anew, until it may go or has to wait.
//!
//! What was lost was started before some moment, and each limit looks back for a span of its own: so the hash says the moment (a
//! [`Gap`]), and a worker goes on as soon as the shortest span of its questions is over since then. Each question is put when its
//! longest is ([`Gap::opens_at`]): one tenant's day is nobody else's.
//!
//! [`decide()`], [`Stored`], [`Memory`], [`shard`] and [`outlook`] are pure. [`kept`] is what `lua/pulse.lua` and `lua/epoch.lua` do with the
//! hash. `watch` does the I/O: one worker's view of one primary.

mod decide;
pub mod kept;
pub mod memory;
pub mod outlook;
pub mod shard;
mod stored;
mod watch;

pub use self::decide::{DOUBT_MS, FORGET_MS, Known, SETTLE_MS, Start, Step, decide};
pub use self::memory::Memory;
pub use self::stored::{Gap, Pending, Pulse, Stored};
pub(crate) use self::watch::{At, Sent, Watch};
