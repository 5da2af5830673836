//! Replies as the scripts give them, as the headers of their files say: what `gate::reply` reads.

use ::redis::Value;

use crate::gate::{
    Answer, Deduped, Inspection, Standing, Sunk, SuspectDecision, TenantReply, UsageOfLimit,
};
use crate::rules::decision::Tally;

/// Of `crash`.
pub fn suspected(verdict: &SuspectDecision) -> Value {
    let (word, more) = match *verdict {
        SuspectDecision::Wait { ms } => (0, ms),
        SuspectDecision::Go => (1, 0),
        SuspectDecision::Dead { crashes } => (2, crashes.into()),
        SuspectDecision::Alone { crashes } => (3, crashes.into()),
    };
    Value::Array([1, 0, word, more].map(integer).to_vec())
}

/// Of `dedupe`.
pub fn deduped(deduped: &Deduped) -> Value {
    let (first, left_ms) = match *deduped {
        Deduped::First => (1, 0),
        Deduped::Duplicate { left_ms } => (0, left_ms),
    };
    Value::Array([1, 0, first, left_ms].map(integer).to_vec())
}

/// Of `report`.
pub fn reported(standing: &Standing) -> Value {
    let numbers = [
        1,
        standing.now_ms,
        standing.failures,
        standing.is_open.into(),
        standing.has_changed.into(),
        standing.is_granted.into(),
        standing.closed_until_ms,
        standing.named_until_ms,
    ];
    let by = text(&standing.by);
    Value::Array(numbers.map(integer).into_iter().chain([by]).collect())
}

/// Of `acquire`.
pub fn acquired(reply: &TenantReply) -> Value {
    let mut values = vec![
        integer(1 + u64::from(reply.has_failures)),
        integer(reply.now_ms),
        integer(reply.blocked_until_ms),
    ];
    for answer in &reply.answers {
        values.extend(match answer {
            Answer::Wait {
                limit,
                count,
                ttl_ms,
                ticket,
            } => {
                let (limit, number) = (*limit as u64, ticket.number);
                [0, limit, *count, *ttl_ms, ticket.generation, number].map(integer)
            }
            Answer::Start { sequences } => {
                let [one, two, three, four, five] = [1, 0, 0, 0, 0].map(integer);
                let sequences = text(&sequences.to_string());
                [one, two, three, four, five, sequences]
            }
            Answer::Capacity => [2, 0, 0, 0, 0, 0].map(integer),
        });
    }
    let tallies =
        (reply.shadows.iter()).flat_map(|it| [it.starts, it.waited, it.never, it.worst_ms]);
    values.extend(tallies.map(integer));
    Value::Array(values)
}

/// Of `inspect`.
pub fn inspected(seen: &Inspection) -> Value {
    let quotas = match seen.quotas.text() {
        none if none.is_empty() => none,
        quotas => format!("{quotas}@{}", seen.quotas_at_ms),
    };
    let head = [
        1,
        seen.now_ms,
        seen.waiting,
        seen.waitlist_end_ms,
        seen.blocked_until_ms,
        seen.turn_ms,
        seen.widest,
    ];
    let shadows = seen.shadows.iter().map(|(usage, _)| usage);
    let usage = seen.limits.iter().chain(shadows).flat_map(|usage| {
        let max = u64::from(usage.max);
        let UsageOfLimit { count, free, .. } = *usage;
        [
            max,
            usage.override_until_ms,
            count,
            free,
            usage.next_ms,
            usage.waiting,
            usage.widest,
            usage.calls.map_or(0, |calls| calls + 1),
        ]
    });
    let tried = seen.shadows.iter().flat_map(|(_, tried)| {
        let Tally {
            starts,
            waited,
            never,
            worst_ms,
        } = tried.tally;
        [
            tried.since_ms,
            starts,
            waited,
            never,
            worst_ms,
            tried.behind_ms,
        ]
    });
    let set = seen.limits.iter().map(|usage| u64::from(usage.set));
    let numbers = (head.into_iter().chain(usage).chain(tried).chain(set)).map(integer);
    let by = std::iter::once(text(&seen.blocked_by));
    let learned = seen.limits.iter().map(|usage| {
        let numbers = usage.learned.map(|learned| learned.text());
        numbers.unwrap_or_default() + ";"
    });
    let texts = [text(&learned.collect::<String>()), text(&quotas)];
    Value::Array(by.chain(numbers).chain(texts).collect())
}

/// Of `learn`.
pub fn learned(now_ms: u64, sunk: &[Sunk]) -> Value {
    let each = sunk.iter().flat_map(|sunk| {
        let limit = sunk.limit as u64;
        [
            limit,
            sunk.from.into(),
            sunk.to.into(),
            sunk.set.into(),
            sunk.ends_ms,
            sunk.is_new.into(),
        ]
    });
    Value::Array([1, now_ms].into_iter().chain(each).map(integer).collect())
}

/// A text.
pub fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

/// A number.
pub fn integer(number: u64) -> Value {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

/// An error, as a server says it.
pub fn error(words: &str) -> Value {
    ::redis::parse_redis_value(format!("-{words}\r\n").as_bytes()).unwrap_or(Value::Nil)
}
