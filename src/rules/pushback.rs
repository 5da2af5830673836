//! When a downstream says no: for how long the tenant is closed, as its answer's headers tell.
//!
//! Understood, and the first that says something counts:
//! 1. `Retry-After`: seconds or a date (RFC 9110);
//! 2. `RateLimit`, where nothing remains: a list of policies with `r` and `t`
//!    (draft-ietf-httpapi-ratelimit-headers-08 to -11), or the dictionary of -07;
//! 3. `RateLimit-Reset` (-06 and before), `X-RateLimit-Reset`, `X-Rate-Limit-Reset` and the like: seconds,
//!    seconds of the epoch, milliseconds of the epoch, or a date; told apart by their size.
//!
//! What is malformed counts as absent. Where a form names several waits, the longest counts.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sfv::{BareItem, Dictionary, List, ListEntry, Parameters, Parser};

/// No answer closes a tenant for longer (68 years, the largest delta that RFC 9111 demands).
const LONGEST: Duration = Duration::from_secs(1 << 31);
/// A shorter wait, or a date that has passed, counts as this: the forms count whole seconds, and an answer
/// that says "no" does not mean "at once".
const SHORTEST: Duration = Duration::from_secs(1);
/// A bare number above this is a time in milliseconds since the epoch (the year 2001), not a delay.
const EPOCH_MS: u64 = 1_000_000_000_000;
/// A bare number above this is a time in seconds since the epoch, not a delay of 31 years.
const EPOCH_S: u64 = 1_000_000_000;

/// The downstream asks for a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pushback {
    /// For how long, at least 1 s; `None`: it did not say in a form that is understood.
    pub after: Option<Duration>,
}

/// What `status` and `headers` (names in any case, values as they were sent) ask for. `None`: no pause, the
/// answer is to be taken by its status.
///
/// A 429 always asks for one, a 503 only with a `Retry-After` that can be read. Dates count from the
/// response's own `Date`, so that a wrong clock on either side does no harm; `now` stands in for it where
/// it is missing.
pub fn pushback<'a>(
    status: u16,
    headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    now: SystemTime,
) -> Option<Pushback> {
    if status != 429 && status != 503 {
        return None;
    }
    let said = Said::read(headers);
    let now_ms = said.date_ms.unwrap_or_else(|| epoch_ms(now));
    let retry_after = longest(&said.retry_after, now_ms);
    let after = match status {
        503 => Some(retry_after?),
        _ => retry_after
            .or_else(|| said.rate_limit())
            .or_else(|| longest(&said.resets(), now_ms)),
    };
    Some(Pushback {
        after: after.map(|wait| wait.clamp(SHORTEST, LONGEST)),
    })
}

/// A wait as a header names it, in milliseconds.
#[derive(Debug, Clone, Copy)]
enum When {
    /// So long from now.
    In(u64),
    /// At this time since the epoch.
    At(u64),
}

/// The headers that matter.
#[derive(Debug, Default)]
struct Said {
    date_ms: Option<u64>,
    retry_after: Vec<When>,
    /// All `RateLimit` lines, joined as RFC 9110 has it.
    rate_limit: Vec<u8>,
    /// Resets by the suffix of their name: `""`, or a window such as `-minute`.
    resets: Vec<(String, When)>,
    /// The suffixes of which nothing remains.
    used_up: Vec<String>,
}

impl Said {
    fn read<'a>(headers: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let mut said = Self::default();
        for (name, value) in headers {
            let name = name.to_ascii_lowercase();
            match name.as_str() {
                "date" => said.date_ms = said.date_ms.or_else(|| date_ms(value)),
                "retry-after" => said.retry_after.extend(when(value)),
                "ratelimit" => {
                    if !said.rate_limit.is_empty() {
                        said.rate_limit.extend_from_slice(b", ");
                    }
                    said.rate_limit.extend_from_slice(value);
                }
                _ => said.read_counter(&name, value),
            }
        }
        said
    }

    /// `RateLimit-Reset`, `X-RateLimit-Reset`, `X-Rate-Limit-Reset-Minute`, …, and their `Remaining`.
    fn read_counter(&mut self, name: &str, value: &[u8]) {
        let name = name.strip_prefix("x-").unwrap_or(name);
        let Some(field) = name
            .strip_prefix("ratelimit-")
            .or_else(|| name.strip_prefix("rate-limit-"))
        else {
            return;
        };
        if let Some(suffix) = field.strip_prefix("reset") {
            if let Some(when) = when(value) {
                self.resets.push((suffix.to_owned(), when));
            }
        } else if let Some(suffix) = field.strip_prefix("remaining")
            && number_ms(value) == Some(0)
        {
            self.used_up.push(suffix.to_owned());
        }
    }

    /// The resets that count. The plain one does whatever remains (some send it with quota left, for a
    /// limit of another kind); the one of a window does only where nothing of that window remains.
    fn resets(&self) -> Vec<When> {
        let counts = |suffix: &String| suffix.is_empty() || self.used_up.contains(suffix);
        self.resets
            .iter()
            .filter(|(suffix, _)| counts(suffix))
            .map(|(_, when)| *when)
            .collect()
    }

    /// The longest time until a policy that is used up has quota again.
    fn rate_limit(&self) -> Option<Duration> {
        let parser = || Parser::new(&self.rate_limit);
        if let Ok(list) = parser().parse::<List>() {
            return list.iter().filter_map(policy_wait).max();
        }
        let dictionary = parser().parse::<Dictionary>().ok()?;
        (dictionary_int(&dictionary, "remaining")? == 0)
            .then(|| dictionary_int(&dictionary, "reset"))?
            .map(Duration::from_secs)
    }
}

/// `"default";r=0;t=30`: 30 s. `None`: something remains, or `t` is missing.
fn policy_wait(policy: &ListEntry) -> Option<Duration> {
    let ListEntry::Item(item) = policy else {
        return None;
    };
    (parameter_int(&item.params, "r")? == 0)
        .then(|| parameter_int(&item.params, "t"))?
        .map(Duration::from_secs)
}

fn parameter_int(params: &Parameters, key: &str) -> Option<u64> {
    non_negative(params.get(key)?)
}

fn dictionary_int(dictionary: &Dictionary, key: &str) -> Option<u64> {
    match dictionary.get(key)? {
        ListEntry::Item(item) => non_negative(&item.bare_item),
        ListEntry::InnerList(_) => None,
    }
}

fn non_negative(item: &BareItem) -> Option<u64> {
    match item {
        BareItem::Integer(n) => u64::try_from(i64::from(*n)).ok(),
        _ => None,
    }
}

fn longest(waits: &[When], now_ms: u64) -> Option<Duration> {
    let wait_ms = |when: &When| match *when {
        When::In(ms) => ms,
        When::At(ms) => ms.saturating_sub(now_ms),
    };
    waits.iter().map(wait_ms).max().map(Duration::from_millis)
}

/// A number or a date.
fn when(value: &[u8]) -> Option<When> {
    let Some(ms) = number_ms(value) else {
        return date_ms(value).map(When::At);
    };
    Some(match ms / 1_000 {
        n if n > EPOCH_MS => When::At(n),
        n if n > EPOCH_S => When::At(ms),
        _ => When::In(ms),
    })
}

/// A decimal number times 1000, rounded up and saturating. A fraction stands in no standard, but is seen.
fn number_ms(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii();
    let (whole, fraction) = match value.iter().position(|byte| *byte == b'.') {
        Some(at) => (&value[..at], &value[at + 1..]),
        None => (value, &b"0"[..]),
    };
    if whole.is_empty()
        || fraction.is_empty()
        || !whole.iter().chain(fraction).all(u8::is_ascii_digit)
    {
        return None;
    }
    let digit = |byte: &u8| u64::from(byte - b'0');
    let seconds = whole.iter().fold(0u64, |n, byte| {
        n.saturating_mul(10).saturating_add(digit(byte))
    });
    let thousandths = (0..3).fold(0, |n, at| n * 10 + fraction.get(at).map_or(0, digit));
    let rest = fraction.iter().skip(3).any(|byte| *byte != b'0');
    Some(
        seconds
            .saturating_mul(1_000)
            .saturating_add(thousandths + u64::from(rest)),
    )
}

/// An HTTP date in milliseconds since the epoch.
fn date_ms(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    httpdate::parse_http_date(text.trim()).ok().map(epoch_ms)
}

/// `time` in milliseconds since the epoch; 0 for what lies before it.
fn epoch_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
