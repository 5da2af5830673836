//! When the downstream says no: for how long the tenant is closed, by the headers of the answer.
//!
//! The forms, in the order in which they count:
//! 1. `Retry-After`: seconds or a date (RFC 9110, 10.2.3);
//! 2. `RateLimit` where nothing remains: a list (draft-ietf-httpapi-ratelimit-headers-08 to -11) or the
//!    dictionary of -07;
//! 3. `RateLimit-Reset` (to -06), `X-RateLimit-Reset`, `X-Rate-Limit-Reset`: no standard says of what, so
//!    the size tells: milliseconds or seconds of the epoch, or seconds from now.
//!
//! What is malformed counts as absent.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sfv::{BareItem, Dictionary, List, ListEntry, Parser};

/// A shorter wait, or a time that has passed, counts as this: an answer that says no never means "at once".
const SHORTEST: Duration = Duration::from_secs(1);
/// A longer wait counts as this; it is what RFC 9111 has a recipient do with a number that is too large.
const LONGEST: Duration = Duration::from_secs(1 << 31);
const RESETS: [&str; 3] = ["ratelimit-reset", "x-ratelimit-reset", "x-rate-limit-reset"];

/// The downstream asks for a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pushback {
    /// For how long, from 1 s to 68 years; `None`: it did not say, or in no form that is understood.
    pub after: Option<Duration>,
}

/// Reads an answer's `status` and `headers` (names in any case, values as they came). `None`: it asks for no
/// pause. A 429 always asks for one; a 503 does by a `Retry-After` that can be read.
///
/// Times count from the answer's own `Date`, so that no clock but the downstream's matters; `now` stands in
/// where there is none.
pub fn pushback<'a>(
    status: u16,
    headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    now: SystemTime,
) -> Option<Pushback> {
    if status != 429 && status != 503 {
        return None;
    }
    let mut date = None;
    let mut retry_after = None;
    let mut rate_limit = Vec::new();
    let mut resets = [None; RESETS.len()];
    for (name, value) in headers {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        if is("date") {
            date = date.or_else(|| read_date(value));
        } else if is("retry-after") {
            retry_after = retry_after.or_else(|| read_retry_after(value));
        } else if is("ratelimit") {
            // Lines of one name are one list (RFC 9110, 5.3).
            if !rate_limit.is_empty() {
                rate_limit.push(b',');
            }
            rate_limit.extend_from_slice(value);
        } else if let Some(at) = RESETS.iter().position(|known| is(known)) {
            resets[at] = resets[at].or_else(|| read_reset(value));
        }
    }
    let date = date.unwrap_or_else(|| now.duration_since(UNIX_EPOCH).unwrap_or_default());
    let from_date = |when: When| match when {
        When::In(wait) => wait,
        When::At(time) => time.saturating_sub(date),
    };
    let bounded = |wait: Duration| wait.clamp(SHORTEST, LONGEST);
    let retry_after = retry_after.map(from_date).map(bounded);
    if status == 503 {
        return retry_after.map(|after| Pushback { after: Some(after) });
    }
    let reset = || resets.into_iter().flatten().next().map(from_date);
    let after = retry_after.or_else(|| read_rate_limit(&rate_limit).or_else(reset).map(bounded));
    Some(Pushback { after })
}

/// When the downstream may be called again.
#[derive(Debug, Clone, Copy)]
enum When {
    /// So long after the answer.
    In(Duration),
    /// At this time since the epoch.
    At(Duration),
}

fn read_retry_after(value: &[u8]) -> Option<When> {
    let seconds = || read_number(value).map(When::In);
    seconds().or_else(|| read_date(value).map(When::At))
}

fn read_reset(value: &[u8]) -> Option<When> {
    let Some(number) = read_number(value) else {
        return read_date(value).map(When::At);
    };
    Some(match number.as_secs() {
        ms if ms > 1_000_000_000_000 => When::At(Duration::from_millis(ms)),
        s if s > 1_000_000_000 => When::At(number),
        _ => When::In(number),
    })
}

/// `"burst";r=0;t=5, "daily";r=0;t=600`: the longest `t` of the policies with nothing left.
/// `limit=100, remaining=0, reset=5`: `reset` when nothing is left.
fn read_rate_limit(value: &[u8]) -> Option<Duration> {
    if let Ok(policies) = Parser::new(value).parse::<List>() {
        let wait = |policy: &ListEntry| match policy {
            ListEntry::Item(item) => {
                seconds_if_used_up(item.params.get("r")?, item.params.get("t")?)
            }
            ListEntry::InnerList(_) => None,
        };
        return policies.iter().filter_map(wait).max();
    }
    let fields = Parser::new(value).parse::<Dictionary>().ok()?;
    match (fields.get("remaining")?, fields.get("reset")?) {
        (ListEntry::Item(remaining), ListEntry::Item(reset)) => {
            seconds_if_used_up(&remaining.bare_item, &reset.bare_item)
        }
        _ => None,
    }
}

fn seconds_if_used_up(remaining: &BareItem, seconds: &BareItem) -> Option<Duration> {
    let whole = |item: &BareItem| match item {
        BareItem::Integer(n) => u64::try_from(i64::from(*n)).ok(),
        _ => None,
    };
    (whole(remaining)? == 0).then_some(Duration::from_secs(whole(seconds)?))
}

/// Digits, as seconds; too many of them are the largest number. A fraction is no standard's, but Shopify
/// sends `2.0` and Discord `1470173023.123`: it is read to the millisecond, rounded up.
fn read_number(value: &[u8]) -> Option<Duration> {
    let value = value.trim_ascii();
    let (whole, fraction) = match value.iter().position(|byte| *byte == b'.') {
        Some(at) => (&value[..at], &value[at + 1..]),
        None => (value, &b"0"[..]),
    };
    let digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let digit = |byte: &u8| u64::from(byte - b'0');
    let push = |n: u64, byte: &u8| n.saturating_mul(10).saturating_add(digit(byte));
    let seconds = whole.iter().fold(0, push);
    let thousandths = (0..3).fold(0, |n, at| push(n, fraction.get(at).unwrap_or(&b'0')));
    let more = fraction.iter().skip(3).any(|byte| *byte != b'0');
    let millis = Duration::from_millis(thousandths + u64::from(more));
    Some(Duration::from_secs(seconds).saturating_add(millis))
}

/// An HTTP date of any of the three forms, as time since the epoch; none before it counts.
fn read_date(value: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(value.trim_ascii()).ok()?;
    let date = httpdate::parse_http_date(text).ok()?;
    date.duration_since(UNIX_EPOCH).ok()
}

#[cfg(test)]
mod tests;
