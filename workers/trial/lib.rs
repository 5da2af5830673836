//! The bed of programs and tests in which real workers call a fake API that records its calls:
//! `sluicegate demo`, `torture`, suites and benches.

pub mod amqp;
pub mod api;
pub mod core_waits;
pub mod door;
pub mod fetch;
pub mod freezable_stream;
pub mod pauses;
mod watch;
pub mod windows;
pub mod worker;
