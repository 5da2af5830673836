//! A dead letter: its contents, and the job that replays it.

use std::collections::BTreeMap;

use broker::{Message, Outgoing};
use lapin::types::AMQPValue;
use rules::delays::QueueNames;
use rules::headers::{
    ATTEMPT, DIED, EXPIRATION, EXPIRES, FIRST, FIRST_CALL, HeaderValue, NOT_BEFORE, OURS, REASON,
    RETRY_AFTER, ROUTING_KEY, TICKET, WAITS,
};
use rules::job::dedupe::{DEDUPE_FOR, DEDUPE_KEY};
use rules::job::start::{self, DELAY};
use rules::job::{Envelope as _, Field};
use rules::steering::DIVERTED;
use serde_json::{Value, json};

use super::answer::{answers, words};
use super::text::{Side, columns, count, plain};
use super::times::{at, span};

/// Headers that a diverted job keeps when it comes back: its routing key, its place in the
/// waitlist, its times, and whether it is the first with its dedupe key.
const KEPT: [&str; 7] = [
    ROUTING_KEY,
    TICKET,
    NOT_BEFORE,
    RETRY_AFTER,
    EXPIRES,
    EXPIRATION,
    FIRST,
];

/// Returns the dead letter as a new job, and the queue to publish it to. A publish to the work
/// queue would lose the publisher's routing key. A job with one goes to the due queue, where our
/// header carries the key. A diverted job goes there, too: it has all its attempts, and its delayed
/// start, its expiration and its dedupe key still count.
pub fn for_replay(letter: Message, names: &QueueNames) -> Outgoing {
    if reason(&letter) == DIVERTED {
        return Outgoing {
            queue: names.due.clone(),
            message: diverted(&letter),
        };
    }
    let key = match letter.header(ROUTING_KEY) {
        Field::Text(key) => Some(HeaderValue::Text(key.to_owned())),
        _ => None,
    };
    let message = afresh(letter);
    match key {
        Some(key) => Outgoing {
            queue: names.due.clone(),
            message: message.with_headers(&[(ROUTING_KEY, key)], &[]),
        },
        None => Outgoing {
            queue: names.fresh.clone(),
            message,
        },
    }
}

/// Returns the job that was diverted.
fn diverted(letter: &Message) -> Message {
    let kept = |name: &'static str| match letter.header(name) {
        Field::Text(text) => Some((name, HeaderValue::Text(text.to_owned()))),
        Field::Int(number) => Some((name, HeaderValue::Int(number))),
        _ => None,
    };
    let mut set: Vec<_> = KEPT.into_iter().filter_map(kept).collect();
    if start::is_counted(letter) {
        set.push((ATTEMPT, HeaderValue::Int(1)));
    }
    letter.clone().for_republish().with_headers(&set, &OURS)
}

/// Returns the message as a new job, without the headers of the worker and the broker. Its delayed
/// start is over.
fn afresh(message: Message) -> Message {
    let id = ulid::Ulid::new().to_string();
    let over = start::over(&message).map(|ms| (DELAY, HeaderValue::Int(ms)));
    // The job must not be dropped as a duplicate of itself.
    let has_key = message.header(DEDUPE_KEY) != Field::Missing;
    let counts = has_key.then_some((DEDUPE_FOR, HeaderValue::Int(0)));
    let set: Vec<_> = over.into_iter().chain(counts).collect();
    message
        .for_republish()
        .with_headers(&set, &OURS)
        .with_id_if_missing(&id)
}

/// Returns the reason of the dead letter. For a message that RabbitMQ itself dead-lettered, the
/// reason is in RabbitMQ's own header.
pub fn reason(message: &Message) -> String {
    if let Field::Text(reason) = message.header(REASON) {
        return reason.to_owned();
    }
    match message.header("x-first-death-reason") {
        Field::Text(reason) => format!("RabbitMQ: {reason}"),
        _ => "unknown".to_owned(),
    }
}

answers! {
    /// A dead letter in a list.
    pub struct LetterRow as "LetterRow" {
        pub id: Option<String>,
        pub tenant: Option<String>,
        pub reason: String,
        pub bytes: u64,
        /// Time at which the job became a dead letter, in milliseconds since 1970, or `None` if
        /// unknown.
        pub died_ms: Option<u64>,
        pub attempt: Option<u64>,
        /// Number of times it was put into a delay queue.
        pub waits: Option<u64>,
        pub published_ms: Option<u64>,
        pub first_call_ms: Option<u64>,
    }

    /// A dead letter with its headers and body.
    pub struct LetterAnswer {
        pub id: Option<String>,
        pub tenant: Option<String>,
        pub reason: String,
        pub content_type: Option<String>,
        pub headers: BTreeMap<String, Value>,
        pub encoding: BodyEncoding,
        pub body: String,
    }
}
words! {
    /// How a body is written. Bytes that are not UTF-8 are shown in hexadecimal.
    pub struct BodyEncoding = ["utf-8", "hex"];
}

impl LetterRow {
    /// Reads the fields of `letter`, a job of `tenant`.
    pub fn new(letter: &Message, tenant: Option<String>) -> Self {
        let number = |name| match letter.header(name) {
            Field::Int(number) => u64::try_from(number).ok(),
            _ => None,
        };
        Self {
            id: letter.id().map(str::to_owned),
            tenant,
            reason: reason(letter),
            bytes: letter.body.len() as u64,
            died_ms: number(DIED),
            published_ms: letter.published_ms(),
            first_call_ms: number(FIRST_CALL),
            attempt: number(ATTEMPT),
            waits: number(WAITS).or(Some(0)),
        }
    }

    /// Returns the reason for a terminal.
    pub fn why(&self) -> String {
        plain(&self.reason, 200)
    }

    /// Describes attempts, waits and age for people, or returns `None` if all are unknown.
    pub fn story(&self) -> Option<String> {
        let lived = (self.published_ms.or(self.first_call_ms))
            .zip(self.died_ms)
            .and_then(|(from, to)| to.checked_sub(from));
        let attempt = self.attempt.map(|number| format!("attempt {number}"));
        let lived = lived.map(|ms| format!("after {}", span(ms)));
        let waits = self.waits.filter(|waits| *waits > 0);
        let waits = waits.map(|waits| count(waits, "wait"));
        let parts = [attempt, waits, lived];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    /// Returns the columns for a terminal: ID, tenant, time of death, story (attempts, waits, age),
    /// reason.
    pub fn cells(&self) -> [String; 5] {
        let or_dash = |text: Option<&str>, max| plain(text.unwrap_or("-"), max);
        [
            or_dash(self.id.as_deref(), 64),
            or_dash(self.tenant.as_deref(), 40),
            self.died_ms.map_or_else(|| "-".to_owned(), at),
            self.story().unwrap_or_else(|| "-".to_owned()),
            self.why(),
        ]
    }
}

/// Formats the rows for people, one line each, with the columns of [`LetterRow::cells`].
pub fn in_columns(rows: &[LetterRow]) -> String {
    let rows: Vec<[String; 5]> = rows.iter().map(LetterRow::cells).collect();
    columns(&rows, |_| Side::Left)
}

/// Maximum number of bytes shown of a header that holds bytes.
const MAX_SHOWN_BYTES: usize = 1024;

/// Returns the headers for people. Bytes are shown in hexadecimal; of a table only the type is
/// shown.
pub fn headers(message: &Message) -> BTreeMap<String, Value> {
    let Some(headers) = message.properties.headers() else {
        return BTreeMap::new();
    };
    let headers = headers.inner().iter();
    headers
        .map(|(name, value)| {
            let name = name.as_str();
            let shown = match message.header(name) {
                Field::Text(text) => json!(text),
                Field::Int(number) => json!(number),
                Field::Time(seconds) => json!(seconds),
                Field::Missing => Value::Null,
                Field::Other(kind) => match value {
                    AMQPValue::Boolean(value) => json!(value),
                    // For example, message properties that could not be read; the first bytes show
                    // the problem.
                    AMQPValue::ByteArray(bytes) => {
                        let bytes = bytes.as_slice();
                        json!(hex(&bytes[..bytes.len().min(MAX_SHOWN_BYTES)]))
                    }
                    // Tables are the broker's own (x-death), so the type is enough.
                    _ => json!(format!("({kind})")),
                },
            };
            (name.to_owned(), shown)
        })
        .collect()
}

/// Returns bytes that are not text in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use lapin::BasicProperties;
    use std::time::Duration;

    use rules::delays::DelayLevels;
    use rules::headers::ATTEMPT;

    use super::*;

    #[test]
    fn missing_values_of_a_dead_letter_are_dashes() {
        let int = |number| HeaderValue::Int(number);
        let letter = |headers: &[(&str, HeaderValue)]| {
            Message {
                routing_key: String::new(),
                properties: BasicProperties::default(),
                body: "".into(),
            }
            .with_headers(headers, &[])
        };
        // RabbitMQ dead-lettered the first one itself; the second one has unreadable headers.
        let bare = LetterRow::new(&letter(&[]), None);
        let strange = [(ATTEMPT, int(-1)), (DIED, HeaderValue::Text("x".into()))];
        let strange = LetterRow::new(&letter(&strange), None);
        let known = [
            (ATTEMPT, int(2)),
            (WAITS, int(12)),
            (FIRST_CALL, int(1_700_000_000_000)),
            (DIED, int(1_700_000_090_000)),
            (REASON, HeaderValue::Text("HTTP 500".into())),
        ];
        let known = LetterRow::new(&letter(&known).with_id_if_missing("7"), Some("acme".into()));
        let shown = in_columns(&[bare, strange, known]);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(
            lines,
            [
                "-  -     -                              -                                  unknown",
                "-  -     -                              -                                  unknown",
                "7  acme  Tue, 14 Nov 2023 22:14:50 GMT  attempt 2, 12 waits, after 1m 30s  HTTP 500",
            ]
        );
        assert_eq!(in_columns(&[]), "");
        // It died before it was published: a clock was wrong.
        let early = [(FIRST_CALL, int(2_000)), (DIED, int(1_000))];
        let early = in_columns(&[LetterRow::new(&letter(&early), None)]);
        assert_eq!(early, "-  -  Thu, 01 Jan 1970 00:00:01 GMT  -  unknown\n");
    }

    #[test]
    fn bytes_are_shown_as_digits_up_to_a_bound() {
        let with = |bytes: &[u8]| {
            let mut table = lapin::types::FieldTable::default();
            table.insert("k".into(), AMQPValue::ByteArray(bytes.into()));
            headers(&Message {
                routing_key: String::new(),
                properties: BasicProperties::default().with_headers(table),
                body: "".into(),
            })["k"]
                .clone()
        };
        assert_eq!(with(&[0x0a, 0xff]), json!("0aff"));
        assert_eq!(with(&[0; 5000]), json!("00".repeat(MAX_SHOWN_BYTES)));
    }

    #[test]
    fn a_replayed_job_starts_afresh_and_keeps_its_publishers_headers() {
        let text = |text: &str| HeaderValue::Text(text.to_owned());
        let letter = Message {
            routing_key: "jobs.dead".to_owned(),
            properties: BasicProperties::default()
                .with_message_id("7".into())
                .with_content_type("application/json".into())
                .with_expiration("5".into()),
            body: "{}".into(),
        }
        .with_headers(
            &[
                (ATTEMPT, HeaderValue::Int(5)),
                (REASON, text("HTTP 500")),
                ("x-tenant", text("acme")),
                (DELAY, HeaderValue::Int(60_000)),
                (DEDUPE_KEY, text("k")),
                ("x-death", text("…")),
            ],
            &[],
        );
        let names = QueueNames::new("jobs", &DelayLevels::new(Duration::from_secs(1)));
        let keyed = letter
            .clone()
            .with_headers(&[(ROUTING_KEY, text("orders.eu"))], &[]);
        let Outgoing { queue, message } = for_replay(keyed, &names);
        assert_eq!(&*queue, "jobs.due");
        assert_eq!(message.header(ROUTING_KEY), Field::Text("orders.eu"));
        assert_eq!(message.header(ATTEMPT), Field::Missing);
        let Outgoing {
            queue,
            message: fresh,
        } = for_replay(letter, &names);
        assert_eq!(&*queue, "jobs");
        assert_eq!(fresh.id(), Some("7"));
        assert_eq!(
            headers(&fresh),
            BTreeMap::from([
                ("x-tenant".to_owned(), json!("acme")),
                (DELAY.to_owned(), json!(-60_000)),
                (DEDUPE_KEY.to_owned(), json!("k")),
                (DEDUPE_FOR.to_owned(), json!(0)),
            ])
        );
        let properties = &fresh.properties;
        assert_eq!(properties.expiration(), &None);
        assert_eq!(
            properties.content_type().as_ref().map(|kind| kind.as_str()),
            Some("application/json")
        );
    }
}
