//! The headers that a job carries on its way, and what they say.

use crate::rules::decision::Ticket;
use crate::rules::delays::{MAX_TRIP_MS, Trip};
use crate::rules::limit::Limit;
use crate::rules::promise::Promise;

/// Units of the limit that a job uses; set by its publisher.
pub const COST: &str = "x-cost";
/// A job's level among its tenant's; set by its publisher.
pub const LEVEL: &str = "x-priority";
/// Which attempt comes next, from 1.
pub const ATTEMPT: &str = "x-sluicegate-attempt";
/// A waiting job's ticket: `generation:number`.
pub const TICKET: &str = "x-sluicegate-ticket";
/// Not to be asked for before this time of the store's clock, in milliseconds since the epoch.
pub const NOT_BEFORE: &str = "x-sluicegate-not-before";
/// Not to be called from this time of the store's clock on, in milliseconds since the epoch: its publisher's `expiration`,
/// counted.
pub const EXPIRES: &str = "x-sluicegate-expires";
/// The publisher's `expiration`, for who looks at a dead letter: where it were AMQP's own, RabbitMQ would drop the job by it.
pub const EXPIRATION: &str = "x-sluicegate-expiration";
/// How long a job is in its delay queue: `until:wait`, in milliseconds of the store's clock and in milliseconds.
pub const TRIP: &str = "x-sluicegate-trip";
/// A job's priority, which it does not have in a delay queue: there nobody may pass.
pub const PRIORITY: &str = "x-sluicegate-priority";
/// The key that a job was first published with, where that is not the work queue's name: a delay queue gives it another one.
pub const ROUTING_KEY: &str = "x-sluicegate-routing-key";
/// When a job was called for the first time without an end, by the store's clock, in milliseconds since the epoch.
pub const FIRST_CALL: &str = "x-sluicegate-first-call";
/// A job that was delivered again before it took a delay queue, where RabbitMQ does not say so any more: how many of its calls are known to
/// have ended their worker.
pub const SUSPECT: &str = "x-sluicegate-suspect";
/// A job was found to be the first with its dedupe key: it does not ask again.
pub const FIRST: &str = "x-sluicegate-first";
/// The trace that a job belongs to: `traceparent`, and behind a colon the span of its first call. Its publisher says so by
/// [`TRACEPARENT`].
pub const TRACE: &str = "x-sluicegate-trace";
/// The span that a job, a call or a result belongs to (W3C Trace Context).
pub const TRACEPARENT: &str = "traceparent";
/// The first turn that a waiting job was told: `at:wait`, in milliseconds of the store's clock and in milliseconds.
pub const PROMISE: &str = "x-sluicegate-promise";
/// The last time that an operator let the tenant's waiting jobs ask anew, and this one did.
pub const WOKEN: &str = "x-sluicegate-woken";
/// How often a job was put into a delay queue; one that never was has none.
pub const WAITS: &str = "x-sluicegate-waits";
/// Why a job is a dead letter.
pub const REASON: &str = "x-sluicegate-reason";
/// When it became one, by the store's clock, in milliseconds since the epoch.
pub const DIED: &str = "x-sluicegate-died";
/// The target queue of a message that waits in a delay queue because that target did not take it.
pub const PARKED: &str = "x-sluicegate-parked";

/// Why a message's properties can't be read. They stand in [`PROPERTIES`]; set by us, never taken away.
pub const UNREADABLE: &str = "x-sluicegate-unreadable";
/// The properties that can't be read: their bytes, as they came.
pub const PROPERTIES: &str = "x-sluicegate-properties";

/// How a job ended, in its result: `done`, `dead`, `expired` or `duplicate`.
pub const RESULT: &str = "x-sluicegate-result";
/// The status of the API's answer.
pub const STATUS: &str = "x-sluicegate-status";
/// The body of a result is not all that the API answered.
pub const TRUNCATED: &str = "x-sluicegate-truncated";
/// Whose result it is.
pub const JOB_ID: &str = "x-sluicegate-job-id";
/// The tenant of that job.
pub const TENANT: &str = "x-sluicegate-tenant";
/// When that job was published, as its publisher said, in milliseconds since the epoch.
pub const PUBLISHED: &str = "x-sluicegate-published";
/// When its last call was made, by the store's clock, in milliseconds since the epoch.
pub const CALLED: &str = "x-sluicegate-called";
/// When that call ended, the same way.
pub const ANSWERED: &str = "x-sluicegate-answered";
/// What the names of headers of the API's answer begin with in a result.
pub const ANSWER_PREFIX: &str = "x-answer-";

/// Every header that only results have; beside them they have [`ATTEMPT`], [`REASON`] and [`FIRST_CALL`].
pub const OF_RESULTS: [&str; 8] = [
    RESULT, STATUS, TRUNCATED, JOB_ID, TENANT, PUBLISHED, CALLED, ANSWERED,
];

/// In a job that is forwarded: the queue where its worker says that it is done (`dispatch.forward.done`).
pub const DONE: &str = "x-sluicegate-done";
/// In such a job: the `correlation_id` of what its worker says of it.
pub const DONE_TOKEN: &str = "x-sluicegate-done-token";

/// The limit that a job waits for, and what it allows.
pub const POLICY: &str = "x-ratelimit-policy";
const LIMIT: &str = "x-ratelimit-limit";
const REMAINING: &str = "x-ratelimit-remaining";
const RESET: &str = "x-ratelimit-reset";
/// How long a delayed job waits, in seconds, rounded up.
pub const RETRY_AFTER: &str = "retry-after";

/// Every header that we set on a job that moves; each move removes the old ones first, so none ever grows.
pub const OURS: [&str; 23] = [
    ATTEMPT,
    TICKET,
    NOT_BEFORE,
    EXPIRES,
    EXPIRATION,
    TRIP,
    PRIORITY,
    ROUTING_KEY,
    FIRST_CALL,
    SUSPECT,
    FIRST,
    TRACE,
    PROMISE,
    WOKEN,
    WAITS,
    REASON,
    DIED,
    PARKED,
    POLICY,
    LIMIT,
    REMAINING,
    RESET,
    RETRY_AFTER,
];

/// Headers that the broker sets and interprets: what comes back with them would be counted, dropped or
/// copied by it. RabbitMQ before 4.0.1 silently drops a message that shows an `x-death` of a cycle.
pub const BROKER_HEADERS: [&str; 10] = [
    "x-death",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-first-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
    "x-last-death-exchange",
    "x-delivery-count",
    "CC",
    "BCC",
];

/// [`OURS`] and [`BROKER_HEADERS`].
pub(crate) const OURS_AND_THE_BROKERS: [&str; OURS.len() + BROKER_HEADERS.len()] = {
    let mut all = [""; OURS.len() + BROKER_HEADERS.len()];
    let (ours, theirs) = all.split_at_mut(OURS.len());
    ours.copy_from_slice(&OURS);
    theirs.copy_from_slice(&BROKER_HEADERS);
    all
};

/// What a header can be called: no publisher can mean a space at an end, and it is hard to see.
pub fn is_name(text: &str) -> bool {
    (1..=255).contains(&text.len()) && !text.contains(char::is_control) && text.trim() == text
}

/// A name that we keep for headers of our own, those of later versions included.
pub fn is_ours(name: &str) -> bool {
    name.starts_with("x-sluicegate-") || OURS.contains(&name)
}

/// A header that a job gets on its way, from us or from the broker: what it says changes, so it is no publisher's to set,
/// and nothing to tell jobs by.
pub fn is_reserved(header: &str) -> bool {
    is_ours(header) || BROKER_HEADERS.contains(&header)
}

/// A header's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderValue {
    /// A long string.
    Text(String),
    /// A 64-bit integer.
    Int(i64),
}

/// Headers to set, in no order.
pub type Headers = Vec<(&'static str, HeaderValue)>;

/// What a job that waits for its turn carries.
pub fn waiting(
    limit: &Limit,
    attempt: u32,
    ticket: Ticket,
    count: u64,
    now_ms: u64,
    ttl_ms: u64,
) -> Headers {
    let window_s = limit.window_ms().div_ceil(1000);
    let policy = format!("\"{}\";q={};w={window_s}", limit.name(), limit.max());
    let remaining = u64::from(limit.max()).saturating_sub(count);
    vec![
        (ATTEMPT, HeaderValue::Int(i64::from(attempt))),
        ticket_header(ticket),
        (POLICY, HeaderValue::Text(policy)),
        (LIMIT, HeaderValue::Int(i64::from(limit.max()))),
        (REMAINING, int(remaining)),
        (RESET, int(now_ms.saturating_add(ttl_ms).div_ceil(1000))),
        (RETRY_AFTER, int(ttl_ms.div_ceil(1000))),
    ]
}

/// The name of the limit that a job waits for, as [`waiting`] says it.
pub fn waits_for(policy: &str) -> Option<&str> {
    let (name, _) = policy.strip_prefix('"')?.split_once('"')?;
    Some(name)
}

pub(super) fn ticket_header(ticket: Ticket) -> (&'static str, HeaderValue) {
    let Ticket { generation, number } = ticket;
    (TICKET, HeaderValue::Text(format!("{generation}:{number}")))
}

/// What a dead letter carries.
pub fn dead(attempt: u32, reason: &str, died_ms: Option<u64>) -> Headers {
    // A reason may quote an API's answer: bound it, and keep the header one line of text.
    let reason: String = reason
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(500)
        .collect();
    let mut headers = vec![
        (ATTEMPT, HeaderValue::Int(i64::from(attempt))),
        (REASON, HeaderValue::Text(reason)),
    ];
    headers.extend(died_ms.map(|ms| (DIED, int(ms))));
    headers
}

/// What the result of a job that is done carries.
pub fn done(attempt: u32) -> Headers {
    let result = HeaderValue::Text("done".to_owned());
    vec![
        (RESULT, result),
        (ATTEMPT, HeaderValue::Int(i64::from(attempt))),
    ]
}

/// What the result of a job carries that was dropped, since another one with its dedupe key goes on.
pub fn duplicate() -> Headers {
    let result = HeaderValue::Text("duplicate".to_owned());
    let reason = "another job with its dedupe key was seen before";
    vec![
        (RESULT, result),
        (REASON, HeaderValue::Text(reason.to_owned())),
    ]
}

/// What the result of a dead letter carries.
pub fn ended(expired: bool, attempt: u32, reason: &str) -> Headers {
    let result = if expired { "expired" } else { "dead" };
    let mut headers = dead(attempt, reason, None);
    headers.push((RESULT, HeaderValue::Text(result.to_owned())));
    headers
}

/// What a job carries from its first call on that was not its last.
pub fn called(first_call_ms: u64) -> (&'static str, HeaderValue) {
    (FIRST_CALL, int(first_call_ms))
}

/// What a job carries through a delay queue.
pub fn trip(trip: Trip) -> (&'static str, HeaderValue) {
    let Trip { until_ms, wait_ms } = trip;
    (TRIP, HeaderValue::Text(format!("{until_ms}:{wait_ms}")))
}

/// What a waiting job carries of the first turn that it was told.
pub fn promise(promise: Promise) -> (&'static str, HeaderValue) {
    (PROMISE, HeaderValue::Text(promise.to_string()))
}

/// What a waiting job carries that has asked anew since an operator let the tenant's jobs do so, then.
pub fn woken(wake_ms: u64) -> (&'static str, HeaderValue) {
    (WOKEN, int(wake_ms))
}

/// What a job carries that is not to be asked for before this time of the store's clock.
pub fn not_before(ms: u64) -> (&'static str, HeaderValue) {
    (NOT_BEFORE, int(ms))
}

/// The priority that a job has when it is out of the delay queue.
pub fn priority(priority: u8) -> (&'static str, HeaderValue) {
    (PRIORITY, HeaderValue::Int(i64::from(priority)))
}

/// Reads `until:wait`; anything else is no trip.
pub fn read_trip(text: &str) -> Option<Trip> {
    let (until, wait) = text.split_once(':')?;
    Some(Trip {
        until_ms: until.parse().ok()?,
        wait_ms: wait.parse::<u64>().ok()?.min(MAX_TRIP_MS),
    })
}

/// Reads `generation:number`; anything else is no ticket, nor is one that only a worker's memory can have.
pub fn read_ticket(text: &str) -> Option<Ticket> {
    let (generation, number) = text.split_once(':')?;
    let ticket = Ticket {
        generation: generation.parse().ok()?,
        number: number.parse().ok()?,
    };
    (ticket.generation > 0 && ticket.number > 0).then_some(ticket)
}

/// A number as a header.
pub fn int(n: u64) -> HeaderValue {
    HeaderValue::Int(i64::try_from(n).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::limit::Algorithm;
    use std::time::Duration;

    #[test]
    fn a_waiting_job_says_which_limit_it_waits_for() {
        let limit = Limit::concurrent("in-flight", 5).expect("in range");
        let ticket = Ticket {
            generation: 1,
            number: 2,
        };
        let headers = waiting(&limit, 1, ticket, 5, 0, 100);
        let policy = headers.into_iter().find(|(name, _)| *name == POLICY);
        let Some((_, HeaderValue::Text(policy))) = policy else {
            panic!("{policy:?}");
        };
        assert_eq!(waits_for(&policy), Some("in-flight"));
        for other in ["", "in-flight", "\"in-flight"] {
            assert_eq!(waits_for(other), None, "{other}");
        }
    }

    #[test]
    fn a_waiting_job_says_which_limit_and_until_when() {
        let limit = Limit::new(
            "default",
            Algorithm::SlidingWindow,
            5,
            Duration::from_secs(60),
            Duration::from_millis(50),
        )
        .expect("a limit");
        let ticket = Ticket {
            generation: 7,
            number: 3,
        };
        let headers = waiting(&limit, 2, ticket, 5, 1_700_000_000_001, 1_500);
        let text = |t: &str| HeaderValue::Text(t.to_owned());
        assert_eq!(
            headers,
            vec![
                (ATTEMPT, HeaderValue::Int(2)),
                (TICKET, text("7:3")),
                (POLICY, text("\"default\";q=5;w=60")),
                (LIMIT, HeaderValue::Int(5)),
                (REMAINING, HeaderValue::Int(0)),
                (RESET, HeaderValue::Int(1_700_000_002)),
                (RETRY_AFTER, HeaderValue::Int(2)),
            ]
        );
    }

    #[test]
    fn a_ticket_is_two_numbers() {
        assert_eq!(
            read_ticket("7:3"),
            Some(Ticket {
                generation: 7,
                number: 3
            })
        );
        for text in [
            "",
            "7",
            "7:",
            ":3",
            "7:0",
            "0:1",
            "7:-1",
            "7:3:1",
            "a:b",
            "99999999999999999999:1",
        ] {
            assert_eq!(read_ticket(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_trip_is_two_times() {
        let whole = Trip {
            until_ms: 1_700_000_000_000,
            wait_ms: 10_000,
        };
        let (_, HeaderValue::Text(text)) = trip(whole) else {
            panic!("text")
        };
        assert_eq!(read_trip(&text), Some(whole));
        let long = read_trip("5:99999999999").map(|trip| trip.wait_ms);
        assert_eq!(long, Some(MAX_TRIP_MS), "nobody holds a job for longer");
        for text in ["", "7", "7:", ":3", "-1:3", "7:3:1", "a:b"] {
            assert_eq!(read_trip(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_reason_is_one_bounded_line() {
        let headers = dead(1, &format!("a\nb{}", "x".repeat(1000)), Some(7));
        let HeaderValue::Text(reason) = &headers[1].1 else {
            panic!("text")
        };
        assert!(reason.starts_with("a bxxx") && reason.len() == 500);
        assert_eq!(headers[2], (DIED, HeaderValue::Int(7)));
    }
}
