//! What reads bytes that others chose and is not open otherwise: for the fuzz targets (`fuzz`) and the tests that run
//! their corpus. It is no part of the API.

pub use crate::broker::amqp::content::{unreadable, wrapped};
pub use crate::broker::amqp::screen::Screen;
pub use crate::gate::link::{owned, redirect};
pub use crate::gate::reply::{acquired, changed, head, inspected};
