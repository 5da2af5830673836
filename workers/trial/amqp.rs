//! Headers of messages, as any client of RabbitMQ reads them.

use lapin::BasicProperties;
use lapin::types::AMQPValue;

fn header<'a>(properties: &'a BasicProperties, name: &str) -> Option<&'a AMQPValue> {
    properties.headers().as_ref()?.inner().get(name)
}

/// Returns the header `name` if it is a text.
pub fn text(properties: &BasicProperties, name: &str) -> Option<String> {
    match header(properties, name)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        _ => None,
    }
}

/// Returns the header `name` if it is a whole number, of any size.
pub fn number(properties: &BasicProperties, name: &str) -> Option<i64> {
    match header(properties, name)? {
        AMQPValue::LongLongInt(number) => Some(*number),
        AMQPValue::LongInt(number) => Some((*number).into()),
        AMQPValue::ShortInt(number) => Some((*number).into()),
        AMQPValue::ShortUInt(number) => Some((*number).into()),
        _ => None,
    }
}
