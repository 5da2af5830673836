//! A dead letter: what it says, and how it starts again.

use std::collections::BTreeMap;

use lapin::types::AMQPValue;
use serde_json::{Value, json};
use sluicegate::broker::{Message, Outgoing};
use sluicegate::rules::delays::QueueNames;
use sluicegate::rules::headers::{HeaderValue, OURS, REASON, ROUTING_KEY};
use sluicegate::rules::job::Field;
use sluicegate::rules::job::dedupe::{DEDUPE_FOR, DEDUPE_KEY};
use sluicegate::rules::job::start::{self, DELAY};

/// The letter as a job, and the queue where it starts again. Its publisher's routing key can't be had by publishing it to
/// the work queue; where jobs come back from delay queues, our header says it.
pub fn again(letter: Message, names: &QueueNames) -> Outgoing {
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

/// The message as a fresh job: without what the worker and the broker wrote on it. Its delay is over.
fn afresh(message: Message) -> Message {
    let id = ulid::Ulid::new().to_string();
    let over = start::over(&message).map(|ms| (DELAY, HeaderValue::Int(ms)));
    // Nor is it a duplicate of itself.
    let has_key = message.header(DEDUPE_KEY) != Field::Missing;
    let counts = has_key.then_some((DEDUPE_FOR, HeaderValue::Int(0)));
    let set: Vec<_> = over.into_iter().chain(counts).collect();
    message
        .for_republish()
        .with_headers(&set, &OURS)
        .with_id_if_missing(&id)
}

/// Why it is dead. One that RabbitMQ itself put here says so in its own header.
pub fn reason(message: &Message) -> String {
    if let Field::Text(reason) = message.header(REASON) {
        return reason.to_owned();
    }
    match message.header("x-first-death-reason") {
        Field::Text(reason) => format!("RabbitMQ: {reason}"),
        _ => "unknown".to_owned(),
    }
}

/// Of a header that is bytes.
const SHOWN: usize = 1024;

/// Its headers, for people; a table is only named, bytes are hexadecimal digits.
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
                    // The properties that nobody could read, for one; their beginning shows what is wrong.
                    AMQPValue::ByteArray(bytes) => {
                        let bytes = bytes.as_slice();
                        json!(hex(&bytes[..bytes.len().min(SHOWN)]))
                    }
                    // Tables are the broker's own (x-death); their kind is enough.
                    _ => json!(format!("({kind})")),
                },
            };
            (name.to_owned(), shown)
        })
        .collect()
}

/// Bytes that are no text, as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use lapin::BasicProperties;
    use std::time::Duration;

    use sluicegate::rules::delays::DelayLevels;
    use sluicegate::rules::headers::ATTEMPT;

    use super::*;

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
        assert_eq!(with(&[0; 5000]), json!("00".repeat(SHOWN)));
    }

    #[test]
    fn a_replayed_job_starts_afresh_and_keeps_what_its_publisher_set() {
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
        let Outgoing { queue, message } = again(keyed, &names);
        assert_eq!(&*queue, "jobs.due");
        assert_eq!(message.header(ROUTING_KEY), Field::Text("orders.eu"));
        assert_eq!(message.header(ATTEMPT), Field::Missing);
        let Outgoing {
            queue,
            message: fresh,
        } = again(letter, &names);
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
