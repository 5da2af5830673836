//! The headers that a job carries for the worker that gets it next.

use crate::headers::{
    ATTEMPT, EXPIRES, FIRST, HeaderValue, Headers, RETRY_AFTER, SUSPECT, WAITS, int, not_before,
    ticket_header,
};
use crate::job::Claims;

/// Returns the headers of a job that asks again after `wait_ms`, and not before a time if there is
/// one. The job keeps its ticket. A delayed start that is not yet a time is read again, so the
/// header that ends it is missing (`start::is_counted`).
pub fn postponed(claims: &Claims, not_before_ms: Option<u64>, wait_ms: u64) -> Headers {
    let mut headers = vec![(RETRY_AFTER, int(wait_ms.div_ceil(1000)))];
    let is_counted = claims.start.is_none();
    headers.extend(is_counted.then_some((ATTEMPT, HeaderValue::Int(i64::from(claims.attempt)))));
    headers.extend(not_before_ms.map(not_before));
    headers.extend(claims.ticket.map(ticket_header));
    headers
}

/// Returns the headers that a job carries in all queues.
pub fn lasting(claims: &Claims) -> Headers {
    let ends = claims.expiry.ends_ms();
    let suspect = claims.suspect.map(u64::from);
    let first = claims.is_first.then_some(1);
    let waits = (claims.waits > 0).then_some(claims.waits.into());
    let all = [
        (EXPIRES, ends),
        (SUSPECT, suspect),
        (FIRST, first),
        (WAITS, waits),
    ];
    let set = |(name, value): (_, Option<u64>)| Some((name, int(value?)));
    all.into_iter().filter_map(set).collect()
}
