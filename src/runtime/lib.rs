//! Supervised tasks, TLS for connections, and the detection of missing resources, for all parts of
//! a running worker.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod shortage;
pub mod tasks;
pub mod tls;
