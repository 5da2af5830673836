//! The headers that a job carries between queues, and their meaning.

use crate::decision::Ticket;
use crate::delays::{MAX_TRIP_MS, Trip};
use crate::limit::Limit;
use crate::text::one_line;
use crate::timing::promise::Promise;

/// Units of the limit that a job uses. Set by the publisher.
pub const COST: &str = "x-cost";
/// A job's level among its tenant's jobs. Set by the publisher.
pub const LEVEL: &str = "x-priority";
/// The number of the next attempt, from 1.
pub const ATTEMPT: &str = "x-sluicegate-attempt";
/// A waiting job's ticket: `generation:number`.
pub const TICKET: &str = "x-sluicegate-ticket";
/// Time before which the job does not ask for a permit, by the store's clock, in milliseconds since
/// the epoch.
pub const NOT_BEFORE: &str = "x-sluicegate-not-before";
/// Time from which on the job must not be called, by the store's clock, in milliseconds since the
/// epoch. Computed from the publisher's `expiration`.
pub const EXPIRES: &str = "x-sluicegate-expires";
/// The publisher's `expiration`, for readers of a dead letter. As AMQP's own property it would make
/// RabbitMQ drop the job.
pub const EXPIRATION: &str = "x-sluicegate-expiration";
/// The time in a delay queue: `until:wait`, in milliseconds of the store's clock and in
/// milliseconds.
pub const TRIP: &str = "x-sluicegate-trip";
/// A job's priority, which the message itself does not have in a delay queue: no job may overtake
/// others there.
pub const PRIORITY: &str = "x-sluicegate-priority";
/// The routing key that a job was first published with, unless it is the work queue's name. A delay
/// queue changes the routing key.
pub const ROUTING_KEY: &str = "x-sluicegate-routing-key";
/// When a job first failed or was throttled, by the store's clock, in milliseconds since the epoch.
/// A connection that could not be opened counts, so this may precede the first call.
pub const FIRST_CALL: &str = "x-sluicegate-first-call";
/// The number of known crashes of a job that was redelivered before it went through a delay queue.
/// RabbitMQ does not mark it as redelivered after that.
pub const SUSPECT: &str = "x-sluicegate-suspect";
/// Marks a job that is the first with its dedupe key, so that it does not ask again.
pub const FIRST: &str = "x-sluicegate-first";
/// The trace that a job belongs to: `traceparent`, then a colon and the span of its first call.
/// Publishers set [`TRACEPARENT`] instead.
pub const TRACE: &str = "x-sluicegate-trace";
/// The span that a job, a call or a result belongs to (W3C Trace Context).
pub const TRACEPARENT: &str = "traceparent";
/// The first turn that a waiting job was promised: `at:wait`, in milliseconds of the store's clock
/// and in milliseconds.
pub const PROMISE: &str = "x-sluicegate-promise";
/// The number of the last wake of the tenant's waiting jobs that this job followed.
pub const WOKEN: &str = "x-sluicegate-woken";
/// How many times a job was put into a delay queue. Absent if it never was.
pub const WAITS: &str = "x-sluicegate-waits";
/// Why a job is a dead letter.
pub const REASON: &str = "x-sluicegate-reason";
/// When the job became a dead letter, by the store's clock, in milliseconds since the epoch.
pub const DIED: &str = "x-sluicegate-died";
/// The target queue of a message that waits in a delay queue because the target did not accept it.
pub const PARKED: &str = "x-sluicegate-parked";

/// Why a message's properties can't be read. The properties are in [`PROPERTIES`]. Set by
/// Sluicegate, and never removed.
pub const UNREADABLE: &str = "x-sluicegate-unreadable";
/// The raw bytes of properties that can't be read.
pub const PROPERTIES: &str = "x-sluicegate-properties";

/// How a job ended, in its result: `done`, `dead`, `expired` or `duplicate`.
pub const RESULT: &str = "x-sluicegate-result";
/// The status of the API's answer.
pub const STATUS: &str = "x-sluicegate-status";
/// Marks a result whose body is only a part of the API's answer.
pub const TRUNCATED: &str = "x-sluicegate-truncated";
/// The ID of the job that a result belongs to.
pub const JOB_ID: &str = "x-sluicegate-job-id";
/// The tenant of that job.
pub const TENANT: &str = "x-sluicegate-tenant";
/// When that job was published, according to its publisher, in milliseconds since the epoch.
pub const PUBLISHED: &str = "x-sluicegate-published";
/// When its last call was made, by the store's clock, in milliseconds since the epoch.
pub const CALLED: &str = "x-sluicegate-called";
/// When that call ended, by the store's clock, in milliseconds since the epoch.
pub const ANSWERED: &str = "x-sluicegate-answered";
/// The prefix of the API's response headers in a result.
pub const ANSWER_PREFIX: &str = "x-answer-";

/// In a job that is forwarded: the queue where its worker reports that it is done
/// (`dispatch.forward.done`).
pub const DONE: &str = "x-sluicegate-done";
/// The `correlation_id` for the report on a forwarded job.
pub const DONE_TOKEN: &str = "x-sluicegate-done-token";

/// The limit that a job waits for, and its quota.
pub const POLICY: &str = "x-ratelimit-policy";
const LIMIT: &str = "x-ratelimit-limit";
const REMAINING: &str = "x-ratelimit-remaining";
const RESET: &str = "x-ratelimit-reset";
/// How long a delayed job waits, in seconds, rounded up.
pub const RETRY_AFTER: &str = "retry-after";

/// All headers that Sluicegate sets on a job that moves. Each move removes the old ones first, so
/// the headers do not grow.
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

/// Headers that the broker sets and interprets: it would count them, drop the message or copy it if
/// a republished message had them. RabbitMQ before 4.0.1 silently drops a message whose `x-death`
/// shows a cycle.
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
pub const OURS_AND_THE_BROKERS: [&str; OURS.len() + BROKER_HEADERS.len()] = {
    let mut all = [""; OURS.len() + BROKER_HEADERS.len()];
    let (ours, theirs) = all.split_at_mut(OURS.len());
    ours.copy_from_slice(&OURS);
    theirs.copy_from_slice(&BROKER_HEADERS);
    all
};

/// Returns true if `text` can be a header's name. Spaces at its ends are hard to see, and no
/// publisher means them.
pub fn is_name(text: &str) -> bool {
    (1..=255).contains(&text.len()) && !text.contains(char::is_control) && text.trim() == text
}

/// Returns true if the name is reserved for headers of Sluicegate, including those of later
/// versions.
pub fn is_ours(name: &str) -> bool {
    name.starts_with("x-sluicegate-") || OURS.contains(&name)
}

/// Returns true if Sluicegate or the broker sets this header on a job that moves. Its value
/// changes, so publishers can't set it, and limits can't distinguish jobs by it.
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

/// Headers to set, in any order.
pub type Headers = Vec<(&'static str, HeaderValue)>;

/// Returns the headers of a job that waits for its turn.
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
    let remaining = limit.max().saturating_sub(count);
    vec![
        (ATTEMPT, HeaderValue::Int(i64::from(attempt))),
        ticket_header(ticket),
        (POLICY, HeaderValue::Text(policy)),
        (LIMIT, int(limit.max())),
        (REMAINING, int(remaining)),
        (RESET, int(now_ms.saturating_add(ttl_ms).div_ceil(1000))),
        (RETRY_AFTER, int(ttl_ms.div_ceil(1000))),
    ]
}

/// Returns the name of the limit that a job waits for, from the [`POLICY`] header that [`waiting`]
/// writes.
pub fn waits_for(policy: &str) -> Option<&str> {
    let (name, _) = policy.strip_prefix('"')?.split_once('"')?;
    Some(name)
}

pub(super) fn ticket_header(ticket: Ticket) -> (&'static str, HeaderValue) {
    let Ticket { generation, number } = ticket;
    (TICKET, HeaderValue::Text(format!("{generation}:{number}")))
}

/// Returns the headers of a dead letter.
pub fn dead(attempt: u32, reason: &str, died_ms: Option<u64>) -> Headers {
    // A reason may quote an API's answer, so limit its length and keep the header on one line.
    let reason = one_line(reason, 500);
    let mut headers = vec![
        (ATTEMPT, HeaderValue::Int(i64::from(attempt))),
        (REASON, HeaderValue::Text(reason)),
    ];
    headers.extend(died_ms.map(|ms| (DIED, int(ms))));
    headers
}

/// Returns the headers of the result of a finished job.
pub fn done(attempt: u32) -> Headers {
    let result = HeaderValue::Text("done".to_owned());
    vec![
        (RESULT, result),
        (ATTEMPT, HeaderValue::Int(i64::from(attempt))),
    ]
}

/// Returns the headers of the result of a duplicate, which was dropped because another job with its
/// dedupe key goes on.
pub fn duplicate() -> Headers {
    let result = HeaderValue::Text("duplicate".to_owned());
    let reason = "another job with its dedupe key was seen before";
    vec![
        (RESULT, result),
        (REASON, HeaderValue::Text(reason.to_owned())),
    ]
}

/// Returns the headers of the result of a dead letter.
pub fn ended(expired: bool, attempt: u32, reason: &str) -> Headers {
    let result = if expired { "expired" } else { "dead" };
    let mut headers = dead(attempt, reason, None);
    headers.push((RESULT, HeaderValue::Text(result.to_owned())));
    headers
}

/// Returns the header of a job that has failed or was throttled.
pub fn first_failure(first_failure_ms: u64) -> (&'static str, HeaderValue) {
    (FIRST_CALL, int(first_failure_ms))
}

/// Returns the header of a job in a delay queue.
pub fn trip(trip: Trip) -> (&'static str, HeaderValue) {
    let Trip { until_ms, wait_ms } = trip;
    (TRIP, HeaderValue::Text(format!("{until_ms}:{wait_ms}")))
}

/// Returns the header with the first turn that a waiting job was promised.
pub fn promise(promise: Promise) -> (&'static str, HeaderValue) {
    (PROMISE, HeaderValue::Text(promise.to_string()))
}

/// Returns the header of a waiting job that followed the wake with the number `wake_ms`.
pub fn woken(wake_ms: u64) -> (&'static str, HeaderValue) {
    (WOKEN, int(wake_ms))
}

/// Returns the header of a job that must not ask for a permit before `ms`, by the store's clock.
pub fn not_before(ms: u64) -> (&'static str, HeaderValue) {
    (NOT_BEFORE, int(ms))
}

/// Returns the header with the priority that a job gets back after a delay queue.
pub fn priority(priority: u8) -> (&'static str, HeaderValue) {
    (PRIORITY, HeaderValue::Int(i64::from(priority)))
}

/// Parses `until:wait`. Returns `None` if it is anything else.
pub fn read_trip(text: &str) -> Option<Trip> {
    let (until, wait) = text.split_once(':')?;
    Some(Trip {
        until_ms: until.parse().ok()?,
        wait_ms: wait.parse::<u64>().ok()?.min(MAX_TRIP_MS),
    })
}

/// Parses `generation:number`. Returns `None` if it is anything else, or a ticket that exists only
/// in a worker's memory.
pub fn read_ticket(text: &str) -> Option<Ticket> {
    let (generation, number) = text.split_once(':')?;
    let ticket = Ticket {
        generation: generation.parse().ok()?,
        number: number.parse().ok()?,
    };
    (ticket.generation > 0 && ticket.number > 0).then_some(ticket)
}

/// Returns a number as a header's value.
pub fn int(n: u64) -> HeaderValue {
    HeaderValue::Int(i64::try_from(n).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Algorithm;
    use std::time::Duration;

    #[test]
    fn a_waiting_job_names_its_limit() {
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
    fn a_waiting_job_names_its_limit_and_the_end_of_its_wait() {
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
