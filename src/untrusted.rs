//! What reads bytes that others chose and is not open otherwise: for the fuzz targets (`fuzz`) and
//! the tests that run their corpus. It is no part of the API.

pub use crate::broker::amqp::content::{unreadable, wrapped};
pub use crate::broker::amqp::screen::Screen;
pub use crate::gate::link::{owned, redirect};
pub use crate::gate::reply::{acquired, changed, head, inspected};
use crate::rules::job::Job;

/// The line of JSON that a program gets of `job`.
pub fn line(job: &Job) -> Vec<u8> {
    job.line(1)
}
