//! Common parts of programs in which real workers call a strict API that counts its calls:
//! `sluicegate demo` and `torture`.

pub mod fetch;
pub mod pauses;
pub mod separate_server;
pub mod windows;
pub mod worker;
