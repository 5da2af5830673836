//! Converts a message's properties before they are sent to a broker.

use std::collections::BTreeMap;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldArray, FieldTable};

use super::PERSISTENT;

/// Returns `properties` as they are sent: persistent, and with headers that can be read again. In
/// RabbitMQ's dialect of AMQP, tables have only long texts. A short text, which `lapin` can make,
/// would reach RabbitMQ as a value of an unknown type.
pub(crate) fn as_sent(properties: BasicProperties) -> BasicProperties {
    let readable = match properties.headers() {
        Some(headers) if headers.inner().values().any(has_short_text) => Some(readable(headers)),
        _ => None,
    };
    let properties = properties.with_delivery_mode(PERSISTENT);
    match readable {
        Some(headers) => properties.with_headers(headers),
        None => properties,
    }
}

fn has_short_text(value: &AMQPValue) -> bool {
    match value {
        AMQPValue::ShortString(_) => true,
        AMQPValue::FieldArray(list) => list.as_slice().iter().any(has_short_text),
        AMQPValue::FieldTable(table) => table.inner().values().any(has_short_text),
        _ => false,
    }
}

fn readable(table: &FieldTable) -> FieldTable {
    let all = table.inner().iter();
    let all = all.map(|(name, it)| (name.clone(), with_long_texts(it)));
    FieldTable::from(all.collect::<BTreeMap<_, _>>())
}

fn with_long_texts(value: &AMQPValue) -> AMQPValue {
    match value {
        AMQPValue::ShortString(text) => AMQPValue::LongString(text.as_str().into()),
        AMQPValue::FieldArray(list) => {
            let all = list.as_slice().iter().map(with_long_texts);
            AMQPValue::FieldArray(FieldArray::from(all.collect::<Vec<_>>()))
        }
        AMQPValue::FieldTable(table) => AMQPValue::FieldTable(readable(table)),
        other => other.clone(),
    }
}
