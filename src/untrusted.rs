//! Functions that parse bytes from outside and are private elsewhere, for the fuzz targets (`fuzz`)
//! and the tests that run their corpus. They are not part of the API.

pub use crate::broker::amqp::content::{unreadable, wrapped};
pub use crate::broker::amqp::screen::Screen;
pub use crate::gate::link::{owned, redirect};
pub use crate::gate::reply::{acquired, changed, head, inspected};
use rules::job::Job;

/// Returns the line of JSON that a program receives for `job`.
pub fn line(job: &Job) -> Vec<u8> {
    job.line(1)
}
