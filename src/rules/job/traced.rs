//! Reads the trace that a job belongs to from its message.

use crate::headers::{TRACE, TRACEPARENT};
use crate::job::{Envelope, Field};
use crate::trace::{Context, TraceClaim};

/// Returns the trace data in `message`. Our own header counts only in our own queues (`returned`);
/// the publisher's counts in all queues.
pub fn traced(message: &impl Envelope, returned: bool) -> Option<TraceClaim> {
    if returned
        && let Field::Text(text) = message.header(TRACE)
        && let Some(claim) = TraceClaim::parse(text)
    {
        return Some(claim);
    }
    let Field::Text(text) = message.header(TRACEPARENT) else {
        return None;
    };
    let parent = Context::parse(text)?;
    let first_call = None;
    Some(TraceClaim { parent, first_call })
}
