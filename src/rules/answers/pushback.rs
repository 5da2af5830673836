//! Reads from an answer's headers how long a tenant is throttled, which limits the API advertises,
//! and what the job has cost.
//!
//! The throttle's duration comes from the first of these that has one:
//! 1. `Retry-After`: seconds or a date (RFC 9110);
//! 2. `RateLimit`, if nothing remains: a list of policies with `r` and `t`
//!    (draft-ietf-httpapi-ratelimit-headers-08 to -11), or the dictionary of -07;
//! 3. `RateLimit-Reset` (-06 and before), `X-RateLimit-Reset`, `X-RateLimit-Reset-After`,
//!    `X-Rate-Limit-Reset` and the like: seconds, seconds of the epoch, milliseconds of the epoch,
//!    or a date; distinguished by their size.
//!
//! A rule with `wait` names other sources, which count instead (`source.rs`).
//!
//! Malformed headers count as absent. If a form names several waits, the longest counts. If a cache
//! has kept the answer for a while (`Age` above 0), the limits and their resets are out of date,
//! and only `Retry-After` counts.

mod quota;

use std::time::{Duration, SystemTime};

use http::HeaderMap;

use super::value::{HeaderWait, SECOND, Wait, count, date_ms, epoch_ms, number_ms, when};
use quota::{CounterHeader, QuotaState};

use super::advertised::{Quota, Quotas};
use super::rule::{AnswerRule, ParsedAnswer, ReceivedAnswer};
use super::status::{AnswerSigns, Answers, Consequence};

/// Maximum duration of a throttle (68 years, the largest delta that RFC 9111 demands).
const MAX_THROTTLE: Duration = Duration::from_secs(1 << 31);
/// Minimum duration of a throttle. Shorter waits and past dates are rounded up to it: most forms
/// count whole seconds, and a refusal does not mean "at once".
const MIN_THROTTLE: Duration = Duration::from_secs(1);

/// Maximum delay before a retry, as long as the longest `time` of a rule (31 days).
const MAX_RETRY_DELAY: Duration = Duration::from_secs(31 * 86_400);

/// Maximum number of headers of the older forms that are read.
const MAX_COUNTERS: usize = 64;

/// A pause that the API asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pushback {
    /// The duration, or `None` if the answer names none in a known form. It is at least 1 s, unless
    /// a rule reads a fraction.
    pub after: Option<Duration>,
}

/// The meaning of an answer for its job, and its statements about limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interpretation<'r> {
    /// The consequence for the job.
    pub meaning: Consequence,
    /// Delay before the next attempt if the meaning is a retry, or `None` for the configured
    /// backoff.
    pub retry_after: Option<Duration>,
    /// The rule that decided, if one did.
    pub rule: Option<&'r AnswerRule>,
    /// The data on limits.
    pub seen: LimitInfo,
    /// Whether limits learn from the answer as from a refusal.
    is_lesson: bool,
    /// Whether the answer counts as a failure of the API.
    pub is_failure: bool,
}

impl Interpretation<'_> {
    /// Returns the data on limits, with a refusal only if limits learn from it.
    pub fn lesson(&self) -> LimitInfo {
        LimitInfo {
            refused: self.seen.refused.filter(|_| self.is_lesson),
            ..self.seen
        }
    }
}

/// The data on limits in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LimitInfo {
    /// The pause to make if the API refused the call because of its limits: the tenant is
    /// throttled, and the job waits. Limits with `adaptive` learn from a throttled call if this is
    /// set.
    pub refused: Option<Pushback>,
    /// The pause to make if the API did not refuse the call but has no quota left or asks for a
    /// pause: the tenant is throttled, because its next job would be refused. This job is not
    /// concerned. It is at least 1 s, unless a rule reads a fraction.
    pub used_up: Option<Duration>,
    /// How much sooner than `used_up` quota may be available again: most APIs name whole seconds.
    pub rounding: Duration,
    /// Whether a pause stops all tenants or only the job's, or `None` to follow
    /// `rate-limiter.throttle-scope`. Other workers notice that all tenants are stopped only if
    /// that key or a rule of `dispatch.http` can cause it.
    pub stops_all: Option<bool>,
    /// The limits that the API advertises.
    pub quotas: Quotas,
    /// The actual cost of the job, in the units of a limit that counts cost.
    pub actual_cost: Option<u64>,
}

/// Returns the meaning of an answer. `answers` decides what happens to the job.
///
/// Dates are compared with the response's own `Date`, so that a wrong clock on either side does no
/// harm, or with `now` if it has none.
pub fn verdict<'r>(
    answers: &'r Answers,
    answer: &ReceivedAnswer<'_>,
    now: SystemTime,
) -> Interpretation<'r> {
    let limit_headers = LimitHeaders::read(answer.headers, now);
    let says = AnswerSigns {
        retry_after: limit_headers.retry_after().is_some(),
        is_exhausted: limit_headers.is_exhausted(),
    };
    let parsed = answers.has_rules().then(|| ParsedAnswer::of(answer, now));
    let parsed = parsed.as_ref();
    let rule = parsed.and_then(|parsed| answers.rule(answer.status, says, parsed));
    let meaning = match rule {
        Some(rule) => rule.means,
        None => answers.meaning(answer.status, says),
    };
    let wait = rule
        .zip(parsed)
        .and_then(|(rule, parsed)| rule.wait(parsed));
    let throttles = meaning == Consequence::Throttle;
    let refusal = || match rule {
        Some(rule) if !rule.wait.is_empty() => Pushback {
            after: wait.map(of_rule),
        },
        _ => limit_headers.refusal(),
    };
    let retry_delay = || match rule {
        Some(rule) if rule.wait.is_empty() => limit_headers.retry_after(),
        _ => wait,
    };
    let retry_delay = (meaning == Consequence::Retry).then(retry_delay).flatten();
    let brake = wait.filter(|wait| meaning == Consequence::Done && !wait.time.is_zero());
    let brake = brake.map(|wait| Wait {
        time: of_rule(wait),
        rounding: Duration::ZERO,
    });
    let used_up = brake
        .or_else(|| limit_headers.used_up())
        .filter(|_| !throttles);
    let is_server_error = (500..600).contains(&answer.status);
    Interpretation {
        meaning,
        // Limits learn from a 429 and from each throttle by a rule. A server error is about the
        // server, even if a rule gives it the same meaning.
        is_lesson: answer.status == 429 || (rule.is_some() && !is_server_error),
        // Another status that means a retry is no failure of the API. A server error does not show
        // that the API is sound, unless the job is done.
        is_failure: is_server_error && meaning != Consequence::Done,
        retry_after: retry_delay.map(|wait| of_rule(wait).min(MAX_RETRY_DELAY)),
        rule,
        seen: LimitInfo {
            refused: throttles.then(refusal),
            used_up: used_up.map(|wait| wait.time),
            rounding: used_up.map_or(Duration::ZERO, |wait| wait.rounding),
            stops_all: rule.and_then(|rule| rule.stops_all),
            quotas: limit_headers.quotas(),
            actual_cost: (parsed.and_then(|parsed| answers.cost(parsed)))
                .or_else(|| limit_headers.actual_cost()),
        },
    }
}

/// Returns the pause for a wait that a rule has read. Unlike the usual headers it may be a fraction
/// of a second, but a refusal does not mean "at once".
fn of_rule(wait: Wait) -> Duration {
    match wait.time.is_zero() {
        true => MIN_THROTTLE,
        false => wait.time.min(MAX_THROTTLE),
    }
}

/// Returns the pause for a requested wait, within the bounds.
fn bounded(wait: Duration) -> Duration {
    wait.clamp(MIN_THROTTLE, MAX_THROTTLE)
}

/// The relevant headers.
#[derive(Debug, Default)]
struct LimitHeaders {
    /// The answer's time, in milliseconds since the epoch. The true time may be up to
    /// `now_rounding` later.
    now_ms: u64,
    now_rounding: Duration,
    is_cached: bool,
    retry_after: Vec<HeaderWait>,
    /// All `RateLimit` lines, joined as in RFC 9110.
    rate_limit: Vec<u8>,
    /// All `RateLimit-Policy` lines, joined likewise.
    policy: Vec<u8>,
    /// The older headers, by the suffix of their name: `""`, or a window such as `-minute`.
    counters: Vec<(String, CounterHeader)>,
    /// The value of each `x-actual-cost`, or `None` if it is malformed.
    costs: Vec<Option<u64>>,
}

impl LimitHeaders {
    fn read(headers: &HeaderMap, now: SystemTime) -> Self {
        let mut found = Self::default();
        let mut date: Option<&[u8]> = None;
        for (name, value) in headers {
            let (name, value) = (name.as_str(), value.as_bytes());
            match name {
                // The first readable one counts. Readability is checked here only if there are
                // several.
                "date" => {
                    date = date
                        .filter(|first| date_ms(first).is_some())
                        .or(Some(value))
                }
                "age" => found.is_cached |= count::<u64>(value).is_some_and(|age| age > 0),
                "retry-after" => found.retry_after.extend(when(value)),
                "ratelimit" => join(&mut found.rate_limit, value),
                "ratelimit-policy" => join(&mut found.policy, value),
                "x-actual-cost" => found.costs.push(count(value)),
                _ => found.read_counter(name, value),
            }
        }
        // Nearly all answers have a date, but few have a time that is compared with it.
        let says_times = !found.retry_after.is_empty() || !found.counters.is_empty();
        let date = date.filter(|_| says_times).and_then(date_ms);
        found.now_ms = date.unwrap_or_else(|| epoch_ms(now));
        found.now_rounding = date.map_or(Duration::ZERO, |_| SECOND);
        found
    }

    /// Reads `RateLimit-Reset`, `X-RateLimit-Reset`, `X-RateLimit-Reset-After`,
    /// `X-Rate-Limit-Reset-Minute`, …, and their `Limit` and `Remaining`.
    fn read_counter(&mut self, name: &str, value: &[u8]) {
        let name = name.strip_prefix("x-").unwrap_or(name);
        let Some(field) = name
            .strip_prefix("ratelimit-")
            .or_else(|| name.strip_prefix("rate-limit-"))
        else {
            return;
        };
        let (suffix, counter) = if let Some(suffix) = field.strip_prefix("reset") {
            let suffix = suffix.strip_prefix("-after").unwrap_or(suffix);
            (suffix, when(value).map(CounterHeader::Reset))
        } else if let Some(suffix) = field.strip_prefix("remaining") {
            (suffix, number_ms(value).map(CounterHeader::RemainingMs))
        } else if let Some(suffix) = field.strip_prefix("limit") {
            (suffix, Some(CounterHeader::limit(value)))
        } else {
            return;
        };
        if let Some(counter) = counter
            && self.counters.len() < MAX_COUNTERS
        {
            self.counters.push((suffix.to_owned(), counter));
        }
    }

    /// Returns the pause that a refusal asks for.
    fn refusal(&self) -> Pushback {
        let after = self
            .retry_after()
            .or_else(|| self.rate_limit(true))
            .or_else(|| self.resets(true));
        Pushback {
            after: after.map(|wait| bounded(wait.time)),
        }
    }

    /// Returns the pause that follows from a used-up limit. If the answer refused nothing, a wait
    /// that has passed causes no pause.
    fn used_up(&self) -> Option<Wait> {
        let wait = self.rate_limit(false).or_else(|| self.resets(false))?;
        let wait = self.retry_after().unwrap_or(wait);
        let min = wait.time.saturating_sub(wait.rounding);
        let time = bounded(wait.time);
        let rounding = time.saturating_sub(min);
        (!wait.time.is_zero()).then_some(Wait { time, rounding })
    }

    /// Returns true if nothing remains of a limit, whether or not the answer says until when. A
    /// limit of one call never has anything left, so it does not distinguish a refusal from another
    /// answer.
    fn is_exhausted(&self) -> bool {
        if self.is_cached {
            return false;
        }
        let is_one = |quotas: &[Quota]| quotas.iter().any(|quota| quota.limit == 1);
        let counts_one = |it: &_| matches!(it, CounterHeader::Limit(all) if is_one(all));
        let mut counters = self.counters.iter();
        let states = quota::states(&self.rate_limit);
        let used_up = |state: &QuotaState| state.is_used_up() && state.limit != Some(1);
        counters.any(|(suffix, _)| self.is_used_up(suffix) && !self.has(suffix, counts_one))
            || (states.iter().any(used_up) && !is_one(&quota::policies(&self.policy)))
    }

    /// Returns true if nothing remains of the limit of `suffix`.
    fn is_used_up(&self, suffix: &str) -> bool {
        let is_used_up = |counter: &_| matches!(counter, CounterHeader::RemainingMs(0));
        // A gateway's limit may be unlimited while the API behind it has one.
        let is_none = |counter: &_| matches!(counter, CounterHeader::NoLimit);
        let is_limit = |counter: &_| matches!(counter, CounterHeader::Limit(_));
        let is_unlimited = self.has(suffix, is_none) && !self.has(suffix, is_limit);
        self.has(suffix, is_used_up) && !is_unlimited
    }

    /// Returns true if there is such a counter of `suffix`.
    fn has(&self, suffix: &str, is_such: impl Fn(&CounterHeader) -> bool) -> bool {
        let mut counters = self.counters.iter();
        counters.any(|(of, counter)| of == suffix && is_such(counter))
    }

    fn retry_after(&self) -> Option<Wait> {
        let waits = self.retry_after.iter().map(|when| self.wait(*when));
        waits.max()
    }

    fn wait(&self, when: HeaderWait) -> Wait {
        when.wait(self.now_ms, self.now_rounding)
    }

    /// Returns the longest time until a used-up policy has quota again. In a refusal a policy of
    /// which nothing remains counts, even if its limit is 0 or less.
    fn rate_limit(&self, refused: bool) -> Option<Wait> {
        if self.is_cached {
            return None;
        }
        let states = quota::states(&self.rate_limit);
        let counts = |state: &&QuotaState| match refused {
            true => state.remaining == Some(0),
            false => state.is_used_up(),
        };
        let times = states.iter().filter(counts).filter_map(|state| state.reset);
        times.map(Wait::seconds).max()
    }

    /// Returns the longest of the resets that count. The reset of a window counts only if nothing
    /// of that window remains. In a refusal the plain reset always counts: some APIs send it with
    /// quota left, for a limit of another kind.
    fn resets(&self, refused: bool) -> Option<Wait> {
        if self.is_cached {
            return None;
        }
        let is_zero = |counter: &_| matches!(counter, CounterHeader::RemainingMs(0));
        let counts = |suffix: &str| match refused {
            true => suffix.is_empty() || self.has(suffix, is_zero),
            false => self.is_used_up(suffix),
        };
        let reset = |(suffix, counter): &(String, CounterHeader)| match counter {
            CounterHeader::Reset(when) if counts(suffix) => Some(self.wait(*when)),
            _ => None,
        };
        self.counters.iter().filter_map(reset).max()
    }

    fn quotas(&self) -> Quotas {
        let is_structured = !self.rate_limit.is_empty() || !self.policy.is_empty();
        if self.is_cached || !is_structured && self.counters.is_empty() {
            return Quotas::default();
        }
        quota::all(&self.rate_limit, &self.policy, &self.counters)
    }

    /// Returns the cost if the header is unique, or repeated with the same value.
    fn actual_cost(&self) -> Option<u64> {
        let (first, others) = self.costs.split_first()?;
        others
            .iter()
            .all(|other| other == first)
            .then_some(*first)?
    }
}

/// Appends a line to a field that may have several.
fn join(field: &mut Vec<u8>, line: &[u8]) {
    if !field.is_empty() {
        field.extend_from_slice(b", ");
    }
    field.extend_from_slice(line);
}

#[cfg(test)]
mod tests;
