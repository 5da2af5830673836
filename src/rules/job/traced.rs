//! Which trace a job's message says it belongs to.

use crate::rules::headers::{TRACE, TRACEPARENT};
use crate::rules::job::{Envelope, Field};
use crate::rules::trace::{Context, Said};

/// What `message` says of its trace. Our own header counts in our own queues only (`returned`); its publisher's counts anywhere.
pub fn traced(message: &impl Envelope, returned: bool) -> Option<Said> {
    if returned
        && let Field::Text(text) = message.header(TRACE)
        && let Some(said) = Said::parse(text)
    {
        return Some(said);
    }
    let Field::Text(text) = message.header(TRACEPARENT) else {
        return None;
    };
    let parent = Context::parse(text)?;
    let first_call = None;
    Some(Said { parent, first_call })
}
